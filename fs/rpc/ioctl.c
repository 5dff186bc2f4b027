/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface by ioctl, on `kv` files and the mount's root. The endpoint belongs to the open file,
 * is made at its first request and goes when the file is closed. The bytes behind the commands are
 * the arena of that request.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/err.h"
#include "fs/control.h"
#include "fs/ops.h"
#include "fs/rpc/ioctl.h"
#include "fs/rpc/rpc.h"

struct file_rpc {
	struct lock lock; /* LOCK_LEAF: busy */
	struct waitq wake;
	bool busy; /* a request runs; others of this open file wait */
	struct endpoint *ep;
};

static struct file_rpc *rpc_new(struct fs *fs, const struct cred *cred, pid_t pid)
{
	struct file_rpc *rpc = calloc(1, sizeof(*rpc));

	if (!rpc)
		return NULL;
	rpc->ep = endpoint_new(fs, cred, pid);
	if (!rpc->ep) {
		free(rpc);
		return NULL;
	}
	lock_init(&rpc->lock, LOCK_LEAF);
	waitq_init(&rpc->wake);
	return rpc;
}

void file_rpc_free(struct file_rpc *rpc)
{
	if (!rpc)
		return;
	endpoint_free(rpc->ep);
	waitq_destroy(&rpc->wake);
	lock_destroy(&rpc->lock);
	free(rpc);
}

/* The file's, made when it has none. Lock not held. */
static struct file_rpc *rpc_of(struct fs *fs, struct file *file, const struct cred *cred, pid_t pid)
{
	struct file_rpc *rpc, *made;

	fs_lock(fs);
	rpc = file->rpc;
	fs_unlock(fs);
	if (rpc)
		return rpc;
	made = rpc_new(fs, cred, pid);
	fs_lock(fs);
	if (!file->rpc) {
		file->rpc = made;
		made = NULL;
	}
	rpc = file->rpc;
	fs_unlock(fs);
	file_rpc_free(made);
	return rpc;
}

static void rpc_begin(struct file_rpc *rpc)
{
	lock_acquire(&rpc->lock);
	while (rpc->busy)
		waitq_wait(&rpc->wake, &rpc->lock);
	rpc->busy = true;
	lock_release(&rpc->lock);
}

static void rpc_end(struct file_rpc *rpc)
{
	lock_acquire(&rpc->lock);
	rpc->busy = false;
	waitq_wake_all(&rpc->wake);
	lock_release(&rpc->lock);
}

/* The sequence that commands without a handle are about: that of an open `kv`. One more reference. */
static int own_sequence(struct fs *fs, const struct file *file, struct fseq **out)
{
	struct inode *inode = file->inode;
	int err = 0;

	*out = NULL;
	fs_lock(fs);
	if (inode->kind == KIND_KV && inode->fseq && inode->fseq->dir)
		*out = fseq_get(inode->fseq);
	else if (inode->kind == KIND_KV)
		err = -ESTALE;
	else if (inode != fs->root)
		err = -ENOTTY;
	fs_unlock(fs);
	return err;
}

static int run(struct file_rpc *rpc, struct fseq *own, const struct file *file, void *buf)
{
	struct rpc_msg msg = {.head = buf};
	size_t cmds = sizeof(*msg.head) + msg.head->nr_cmds * sizeof(struct kvc_cmd);
	int err;

	endpoint_set_arena(rpc->ep, (u8 *)buf + cmds, msg.head->bytes - cmds);
	err = endpoint_set_own(rpc->ep, own, opened_for_write(file->flags));
	if (!err)
		rpc_run(rpc->ep, &msg);
	endpoint_set_arena(rpc->ep, NULL, 0);
	return err;
}

static int execute(fuse_req_t req, void *ctx, void *buf, size_t bytes)
{
	struct file *file = ctx;
	struct fs *fs = fs_of(req);
	struct file_rpc *rpc;
	struct fseq *own;
	struct cred cred;
	int err = own_sequence(fs, file, &own);

	if (err)
		return err;
	if (rpc_check(buf, bytes)) {
		err = -EINVAL;
	} else {
		cred_of(&cred, req);
		rpc = rpc_of(fs, file, &cred, fuse_req_ctx(req)->pid);
		err = rpc ? 0 : -ENOMEM;
	}
	if (!err) {
		rpc_begin(rpc);
		endpoint_set_cred(rpc->ep, &cred);
		err = run(rpc, own, file, buf);
		rpc_end(rpc);
	}
	if (own) {
		fs_lock(fs);
		fseq_put(fs, own);
		fs_unlock(fs);
	}
	return err;
}

void ioctl_batch(fuse_req_t req, unsigned int cmd, const struct ioctl_data *data, ioctl_run *serve,
		 void *ctx)
{
	void *buf;
	int err;

	if (cmd != KVC_IOC_BATCH(data->in_bytes) || data->out_bytes != data->in_bytes) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	if (data->in_bytes > KVC_IOCTL_MAX) {
		fuse_reply_err(req, E2BIG);
		return;
	}
	buf = malloc(data->in_bytes ? data->in_bytes : 1);
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (data->in_bytes)
		memcpy(buf, data->in, data->in_bytes);
	err = serve(req, ctx, buf, data->in_bytes);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_ioctl(req, 0, buf, data->out_bytes);
	free(buf);
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned int flags, const void *in, size_t in_bytes,
	      size_t out_bytes)
{
	const struct ioctl_data data = {in, in_bytes, out_bytes};

	if (control_owns(ino) || !fi->fh)
		fuse_reply_err(req, ENOTTY);
	else
		ioctl_batch(req, cmd, &data, execute, file_of(fi));
}
