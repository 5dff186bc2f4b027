/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of the keeper. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/log.h"
#include "allocator/grow.h"
#include "fs/keeper_proto.h"

#define ANSWER_SECONDS 5    /* one that does not answer is none */
#define END_MS	       5000 /* for one that was told to end */
#define FILES_MAX      4096

/* ---- messages ---- */

int keeper_send(int sock, const struct keeper_msg *msg, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec iov = {(void *)(uintptr_t)msg, sizeof(*msg)};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t sent;

	if (fd >= 0) {
		struct cmsghdr *c;

		hdr.msg_control = &control;
		hdr.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&hdr);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	do
		sent = sendmsg(sock, &hdr, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(*msg) ? 0 : sent < 0 ? -errno : -EIO;
}

static int fd_of(struct msghdr *hdr)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(hdr);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(c), sizeof(int));
	return fd;
}

int keeper_receive(int sock, struct keeper_msg *msg, int *fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {msg, sizeof(*msg)};
	struct msghdr hdr;
	ssize_t got;

	*fd = -1;
	do {
		hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				      .msg_controllen = sizeof(control)};
		got = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got < 0 ? -errno : -ENOTCONN;
	*fd = fd_of(&hdr);
	if (got == (ssize_t)sizeof(*msg) && !(hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	    msg->magic == KEEPER_MAGIC && msg->version == KEEPER_VERSION)
		return 0;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return -EPROTO;
}

static struct keeper_msg message(enum keeper_op op)
{
	return (struct keeper_msg){.magic = KEEPER_MAGIC, .version = KEEPER_VERSION, .op = op};
}

/* ---- finding and starting ---- */

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* By way of the directory's descriptor: a socket's path must be short. */
static struct sockaddr_un address(int dirfd)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/" KEEPER_SOCKET, dirfd);
	return addr;
}

/* Whoever answers must be who could have the store's memory. */
static bool peer_is_us(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) &&
	       (peer.uid == geteuid() || !peer.uid);
}

/* Return: connection, -errno. */
static int find(int dirfd)
{
	struct timeval tv = {.tv_sec = ANSWER_SECONDS};
	struct sockaddr_un addr = address(dirfd);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	if (fd < 0)
		return -errno;
	if (!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) &&
	    !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) &&
	    !connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		if (peer_is_us(fd))
			return fd;
		errno = EACCES;
	}
	err = -errno;
	close(fd);
	return err;
}

/* One that is there all the same, and was not to be talked to, ends by this. */
static int start(int dirfd, pid_t *pid)
{
	struct sockaddr_un addr = address(dirfd);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err = 0;
	mode_t mask;

	if (fd < 0)
		return -errno;
	unlinkat(dirfd, KEEPER_SOCKET, 0);
	mask = umask(0177);
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 4))
		err = -errno;
	umask(mask);
	if (!err)
		err = keeper_spawn(fd, addr.sun_path, pid);
	close(fd);
	if (err)
		unlinkat(dirfd, KEEPER_SOCKET, 0);
	return err;
}

/* ---- taking over ---- */

static void drop_found(struct keeper *k)
{
	for (u32 i = 0; i < k->nr_files; i++)
		close_fd(k->files[i]);
	free(k->files);
	k->files = NULL;
	k->nr_files = k->max_files = 0;
	close_fd(k->index);
	k->index = -1;
}

static void drop_leases(struct keeper *k)
{
	while (k->nr_leases)
		close(k->leases[--k->nr_leases]);
	atomic_store(&k->kept_leases, 0);
}

static int take_file(struct keeper *k, u32 number, int fd)
{
	if (number >= FILES_MAX)
		return -EPROTO;
	if (grow_array(&k->files, &k->max_files, number + 1ull, sizeof(*k->files)))
		return -ENOMEM;
	while (k->nr_files <= number)
		k->files[k->nr_files++] = -1;
	close_fd(k->files[number]);
	k->files[number] = fd;
	return 0;
}

/* Takes @fd over when it returns 0. */
static int take_item(struct keeper *k, const struct keeper_msg *msg, int fd)
{
	int err;

	if (fd < 0)
		return -EPROTO;
	switch (msg->kind) {
	case KEEPER_FILE:
		return take_file(k, msg->number, fd);
	case KEEPER_INDEX:
		close_fd(k->index);
		k->index = fd;
		return 0;
	case KEEPER_LEASE:
		err = grow_array(&k->leases, &k->max_leases, k->nr_leases + 1ull,
				 sizeof(*k->leases));
		if (!err)
			k->leases[k->nr_leases++] = fd;
		atomic_store(&k->kept_leases, k->nr_leases);
		return err;
	default:
		return -EPROTO;
	}
}

/* Everything that it has. Return: 0 and its config, -errno. */
static int take(struct keeper *k, struct keeper_config *config)
{
	struct keeper_msg msg = message(KEEPER_TAKE);
	int err = keeper_send(k->fd, &msg, -1), fd;

	while (!err) {
		err = keeper_receive(k->fd, &msg, &fd);
		if (!err && msg.op == KEEPER_END) {
			close_fd(fd);
			*config = msg.config;
			k->most_leases = msg.number;
			return 0;
		}
		if (!err)
			err = msg.op == KEEPER_ITEM ? take_item(k, &msg, fd) : -EPROTO;
		if (err)
			close_fd(fd);
	}
	drop_found(k);
	drop_leases(k);
	return err;
}

static int reset(struct keeper *k)
{
	struct keeper_msg msg = message(KEEPER_RESET);
	int err, fd = -1;

	drop_found(k);
	drop_leases(k);
	err = keeper_send(k->fd, &msg, -1);
	if (!err)
		err = keeper_receive(k->fd, &msg, &fd);
	close_fd(fd);
	return err;
}

static bool same(const struct keeper_config *a, const struct keeper_config *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* What it has is of use to us, or let go. */
static int take_what_fits(struct keeper *k, const struct keeper_want *want)
{
	struct keeper_msg msg = message(KEEPER_CONFIG);
	struct keeper_config config;
	int err = take(k, &config);

	if (err)
		return err;
	k->taken = k->files && k->index >= 0 && same(&config, &want->config) &&
		   k->nr_files == config.nr_files;
	if (!k->taken) {
		if (k->files)
			log_warn("memory of an earlier mount with other options or of another store: let go");
		err = reset(k);
	}
	msg.config = want->config;
	msg.seconds = want->linger_seconds;
	return err ? err : keeper_send(k->fd, &msg, -1);
}

static int attach(struct keeper *k, const struct keeper_want *want)
{
	int err;

	k->fd = find(want->dirfd);
	if (k->fd < 0)
		return k->fd;
	err = take_what_fits(k, want);
	if (err) {
		close(k->fd);
		k->fd = -1;
		drop_found(k);
		drop_leases(k);
	}
	return err;
}

/* Something of that name is there that nobody of ours has made. */
static bool is_foreign(const struct keeper_want *want)
{
	struct stat st;

	if (fstatat(want->dirfd, KEEPER_SOCKET, &st, AT_SYMLINK_NOFOLLOW) || S_ISSOCK(st.st_mode))
		return false;
	log_warn("no keeper: DRAM will not outlive this daemon: %s/" KEEPER_SOCKET
		 " is no socket; remove it and mount again", want->path);
	return true;
}

static void tell_no_answer(const struct keeper_want *want, int err)
{
	if (err == -ENOENT || err == -ECONNREFUSED)
		return;
	if (err == -EAGAIN)
		log_warn("the keeper of an earlier mount's memory (%s/" KEEPER_SOCKET
			 ") did not answer within %d s: its memory is not used", want->path, ANSWER_SECONDS);
	else
		log_warn("the keeper of an earlier mount's memory (%s/" KEEPER_SOCKET
			 ") does not answer: %s", want->path, strerror(-err));
}

int keeper_open(struct keeper **out, const struct keeper_want *want)
{
	struct keeper *k;
	int err;

	*out = NULL;
	if (is_foreign(want))
		return 0;
	k = calloc(1, sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->dirfd = want->dirfd;
	k->index = -1;
	k->linger_seconds = want->linger_seconds;
	k->linger_named = want->linger_named;
	err = attach(k, want);
	if (err)
		tell_no_answer(want, err);
	if (err && want->linger_seconds) {
		err = start(want->dirfd, &k->pid);
		if (!err)
			err = attach(k, want);
		if (err)
			log_warn("no keeper: DRAM will not outlive this daemon: %s", strerror(-err));
	} else if (err) {
		unlinkat(want->dirfd, KEEPER_SOCKET, 0);
	}
	if (err) {
		free(k->leases);
		free(k);
	} else if (!want->linger_seconds && !k->taken) {
		keeper_close(k, true);
	} else {
		*out = k;
	}
	return 0;
}

void keeper_taken(struct keeper *k)
{
	k->index = -1; /* the pool's now */
	drop_found(k);
}

/* ---- telling ---- */

static void lost(struct keeper *k)
{
	if (!atomic_exchange(&k->dead, true))
		log_warn("the keeper is gone: DRAM will not outlive this daemon");
}

static void tell(struct keeper *k, const struct keeper_msg *msg, int fd)
{
	if (!atomic_load(&k->dead) && keeper_send(k->fd, msg, fd))
		lost(k);
}

static void give(struct keeper *k, enum keeper_kind kind, u32 number, int fd)
{
	struct keeper_msg msg = message(KEEPER_ITEM);

	msg.kind = kind;
	msg.number = number;
	if (k)
		tell(k, &msg, fd);
}

void keeper_file(void *keeper, u32 slab, int fd)
{
	give(keeper, KEEPER_FILE, slab, fd);
}

void keeper_index(struct keeper *k, int fd)
{
	give(k, KEEPER_INDEX, 0, fd);
}

/* It would let go of one more without a word, so it is counted here what it has. */
int keeper_lease(struct keeper *k, int fd)
{
	if (!k)
		return 0;
	if (atomic_fetch_add(&k->kept_leases, 1) >= k->most_leases) {
		keeper_lease_ended(k);
		if (!atomic_exchange(&k->full, true))
			log_warn("the keeper has %u leases and can have no more (half of RLIMIT_NOFILE): clients get none",
				 k->most_leases);
		return -EMFILE;
	}
	give(k, KEEPER_LEASE, 0, fd);
	return 0;
}

void keeper_lease_ended(struct keeper *k)
{
	if (k)
		atomic_fetch_sub(&k->kept_leases, 1);
}

bool keeper_alive(struct keeper *k)
{
	struct pollfd p = {.fd = k ? k->fd : -1};

	if (!k)
		return false;
	if (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR | POLLNVAL))
		lost(k);
	return !atomic_load(&k->dead);
}

bool keeper_clients(struct keeper *k)
{
	for (u32 i = k ? k->nr_leases : 0; i--;) {
		struct pollfd p = {.fd = k->leases[i]};

		if (poll(&p, 1, 0) > 0 && p.revents & (POLLERR | POLLNVAL)) {
			close(k->leases[i]);
			k->leases[i] = k->leases[--k->nr_leases];
			keeper_lease_ended(k);
		}
	}
	return k && k->nr_leases;
}

/* ---- the end ---- */

/* How long it is to keep what it has. */
static u32 seconds_left(const struct keeper *k, bool served)
{
	return served ? (k->linger_named ? k->linger_seconds : 0)
		      : (k->taken ? k->linger_seconds : 0);
}

static void end(struct keeper *k)
{
	struct pollfd p = {.fd = k->fd};

	unlinkat(k->dirfd, KEEPER_SOCKET, 0);
	while (poll(&p, 1, END_MS) < 0 && errno == EINTR)
		;
	if (k->pid)
		waitpid(k->pid, NULL, p.revents ? 0 : WNOHANG);
}

void keeper_close(struct keeper *k, bool served)
{
	struct keeper_msg msg = message(KEEPER_BYE);

	if (!k)
		return;
	msg.seconds = seconds_left(k, served);
	tell(k, &msg, -1);
	if (!msg.seconds)
		end(k);
	close(k->fd);
	drop_found(k);
	drop_leases(k);
	free(k->leases);
	free(k);
}
