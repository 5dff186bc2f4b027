/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open of the device is an open of the mount's root, and a request made of it is made of that:
 * the dispatcher, its endpoint, what it holds are the daemon's (fs/rpc/ioctl.c) and go with the
 * descriptor. What is here decides nothing but who asks.
 *
 * A descriptor belongs to the daemon that served its open. When that one goes the descriptor is
 * -ESTALE for good, as everything that it held is gone; an open finds the mount that is there then.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "fs/cuse/front.h"
#include "fs/rpc/ioctl.h"
#include "fs/uapi/kvc_ioctl.h"

static struct front *front_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static struct client *client_of(const struct fuse_file_info *fi)
{
	return (struct client *)(uintptr_t)fi->fh;
}

/* ---- life ---- */

static void client_free(struct client *c)
{
	if (c->poll)
		fuse_pollhandle_destroy(c->poll);
	textbuf_free(&c->text);
	close(c->root);
	free(c);
}

void client_put(struct front *front, struct client *c)
{
	bool last;

	lock_acquire(&front->lock);
	last = !--c->refs;
	lock_release(&front->lock);
	if (last)
		client_free(c);
}

/* Closed: nobody is to be told any more. */
static void client_end(struct front *front, struct client *c)
{
	struct fuse_pollhandle *ph;

	lock_acquire(&front->lock);
	ph = watch_set(front, c, NULL);
	list_del(&c->link);
	lock_release(&front->lock);
	if (ph)
		fuse_pollhandle_destroy(ph);
	client_put(front, c);
}

void clients_end(struct front *front)
{
	while (!list_empty(&front->clients))
		client_end(front, list_first_entry(&front->clients, struct client, link));
}

/* The mount's root, opened as the caller. Nothing there that answers is -ENOTCONN. */
static int open_root(fuse_req_t req, int *fd)
{
	int err = caller_begin(req);

	if (err)
		return err;
	*fd = open(front_of(req)->mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = *fd < 0 ? -errno : 0;
	caller_end();
	return mount_gone(err) || err == -ENOENT || err == -ENOTDIR ? -ENOTCONN : err;
}

static bool lets_in(fuse_req_t req, const struct client *c)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return mount_lets_in(&c->on, ctx->uid, ctx->gid);
}

static int client_begin(fuse_req_t req, struct client *c)
{
	int err = open_root(req, &c->root);

	if (err)
		return err;
	err = mount_describe(c->root, &c->on);
	if (!err && !lets_in(req, c))
		err = -EACCES;
	if (!err)
		err = state_stall_us(c->root, &c->seen_us);
	if (err)
		close(c->root);
	return err == -ESTALE ? -ENOTCONN : err;
}

void client_open(fuse_req_t req, struct fuse_file_info *fi)
{
	struct front *front = front_of(req);
	struct client *c = calloc(1, sizeof(*c));
	int err = c ? client_begin(req, c) : -ENOMEM;

	if (err) {
		free(c);
		fuse_reply_err(req, -err);
		return;
	}
	c->refs = 1;
	lock_acquire(&front->lock);
	list_add_tail(&c->link, &front->clients);
	lock_release(&front->lock);
	fi->fh = (uintptr_t)c;
	/* The caller may be gone, and then no release comes. */
	if (fuse_reply_open(req, fi) == -ENOENT)
		client_end(front, c);
}

void client_release(fuse_req_t req, struct fuse_file_info *fi)
{
	client_end(front_of(req), client_of(fi));
	fuse_reply_err(req, 0);
}

/* ---- read ---- */

/* A snapshot for @c; when another reader was faster, that one's stays. */
static int take_snapshot(fuse_req_t req, struct client *c)
{
	struct front *front = front_of(req);
	struct textbuf text = TEXTBUF_INIT;
	u64 stall_us = 0;
	int err = state_stall_us(c->root, &stall_us);

	if (!err)
		err = caller_begin(req);
	if (!err) {
		err = state_text(c->root, front->mountpoint, &text);
		caller_end();
	}
	lock_acquire(&front->lock);
	if (!err && !c->text.text) {
		c->text = text;
		c->pos = 0;
		c->seen_us = stall_us;
		text = TEXTBUF_INIT;
	}
	lock_release(&front->lock);
	textbuf_free(&text);
	return err;
}

/*
 * The next @size bytes, to @buf. The kernel asks with offset 0 at the beginning of every read(2)
 * and goes on from there inside of one, so only an end at offset 0 is one that the caller sees:
 * behind it comes a new snapshot.
 */
static size_t take(struct front *front, struct client *c, char *buf, size_t size, off_t off)
{
	lock_acquire(&front->lock);
	size = min(size, c->text.len - c->pos);
	if (size) {
		memcpy(buf, c->text.text + c->pos, size);
		c->pos += size;
	} else if (!off) {
		textbuf_free(&c->text);
		c->text = TEXTBUF_INIT;
		c->pos = 0;
	}
	lock_release(&front->lock);
	return size;
}

void client_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct front *front = front_of(req);
	struct client *c = client_of(fi);
	bool have;
	char *buf;
	int err = lets_in(req, c) ? 0 : -EACCES;

	lock_acquire(&front->lock);
	have = c->text.text;
	lock_release(&front->lock);
	if (!err && !have)
		err = take_snapshot(req, c);
	buf = err ? NULL : malloc(size ? size : 1);
	if (buf)
		fuse_reply_buf(req, buf, take(front, c, buf, size, off));
	else
		fuse_reply_err(req, err ? -err : ENOMEM);
	free(buf);
}

/* ---- ioctl ---- */

static int forward(fuse_req_t req, void *ctx, void *buf, size_t bytes)
{
	const struct client *c = ctx;
	int err = lets_in(req, c) ? caller_begin(req) : -EACCES;

	if (err)
		return err;
	err = ioctl(c->root, KVC_IOC_BATCH(bytes), buf) < 0 ? -errno : 0;
	caller_end();
	return mount_gone(err) ? -ESTALE : err;
}

/*
 * Restricted: the kernel copies as many bytes in and out as the request's number says, and nothing
 * else of the caller's memory can be asked for.
 */
void client_ioctl(fuse_req_t req, int cmd, void *arg, struct fuse_file_info *fi, unsigned int flags,
		  const void *in, size_t in_bytes, size_t out_bytes)
{
	const struct ioctl_data data = {in, in_bytes, out_bytes};

	ioctl_batch(req, (unsigned int)cmd, &data, forward, client_of(fi));
}

/* ---- poll ---- */

void client_poll(fuse_req_t req, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
	struct front *front = front_of(req);
	struct client *c = client_of(fi);
	struct fuse_pollhandle *old = NULL;
	unsigned int ready = POLLIN | POLLRDNORM;
	u64 stall_us = 0;
	int err = state_stall_us(c->root, &stall_us);

	lock_acquire(&front->lock);
	if (err)
		ready |= POLLERR | POLLHUP;
	else if (stall_us > c->seen_us)
		ready |= POLLPRI;
	if (ph && fi->poll_events & POLLPRI && !(ready & (POLLPRI | POLLERR))) {
		old = watch_set(front, c, ph);
		ph = NULL;
	}
	lock_release(&front->lock);
	if (old)
		fuse_pollhandle_destroy(old);
	if (ph)
		fuse_pollhandle_destroy(ph);
	fuse_reply_poll(req, ready);
}
