/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session: a connection, its arena, its endpoint. The first message is KVC_OP_HELLO; each message
 * is one batch and gets one reply, in order. A client that breaks the protocol is told nothing more:
 * its session ends, as it does when the connection closes, and everything that it held is given back:
 * memory that it mapped or reserved not before its lease ends, a pipe of which the client has the reading
 * end. For a connection may end while the client lives, which reads, and fills, until it learns of that.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "fs/control.h"
#include "fs/keeper.h"
#include "fs/rpc/rpc.h"
#include "fs/rpc/session.h"
#include "fs/store.h"

#define SERVE_MAX	  64 /* messages, before others have a turn */
#define ARENA_SLOTS_BYTES (RPC_SLOTS * sizeof(u64))

struct session {
	struct fs *fs;
	int fd; /* owned */
	struct endpoint *ep;
	void *arena; /* NULL before HELLO */
	u64 arena_bytes;
	int arena_fd; /* until it was sent; -1 */
	int event_fd; /* write end; -1 */
	int event_read_fd; /* until it was sent; -1 */
	int lease_read_fd; /* the same */
	int lease_fd; /* write end; -1: it has none */
	bool kept;    /* the keeper has that too */
	bool left;    /* session_leave() */
	u64 sequence; /* of the last message */
	int refused; /* -errno, 0: welcome */
	struct cred cred;
	pid_t pid;
};

/* As many of the peer's groups as are looked at anywhere. */
static void peer_groups(int fd, struct cred *cred)
{
	gid_t few[ARRAY_SIZE(cred->groups)], *groups = few;
	socklen_t bytes = sizeof(few);
	int err = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, few, &bytes);

	if (err && errno == ERANGE) {
		groups = malloc(bytes);
		err = !groups || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes);
	}
	if (!err) {
		cred->nr_groups = (int)min((size_t)bytes / sizeof(gid_t), ARRAY_SIZE(few));
		memcpy(cred->groups, groups, (size_t)cred->nr_groups * sizeof(gid_t));
	}
	if (groups != few)
		free(groups);
}

struct session *session_new(struct fs *fs, int fd)
{
	struct session *s = calloc(1, sizeof(*s));
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	if (!s)
		return NULL;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes)) {
		free(s);
		return NULL;
	}
	s->fs = fs;
	s->arena_fd = s->event_fd = s->event_read_fd = s->lease_read_fd = s->lease_fd = -1;
	s->pid = peer.pid;
	s->cred.uid = peer.uid;
	s->cred.gid = peer.gid;
	peer_groups(fd, &s->cred);
	s->ep = endpoint_new(fs, &s->cred, peer.pid);
	if (!s->ep) {
		free(s);
		return NULL;
	}
	s->fd = fd;
	return s;
}

uid_t session_uid(const struct session *s)
{
	return s->cred.uid;
}

int session_fd(const struct session *s)
{
	return s->left ? s->lease_fd : s->fd;
}

void session_refuse(struct session *s, int err)
{
	s->refused = err;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static struct keeper *keeper_of(const struct session *s)
{
	return s->fs->store ? s->fs->store->keeper : NULL;
}

/* All that the client reaches us by. */
static void hang_up(struct session *s)
{
	if (s->arena)
		munmap(s->arena, s->arena_bytes);
	s->arena = NULL;
	close_fd(&s->arena_fd);
	close_fd(&s->event_fd);
	close_fd(&s->event_read_fd);
	close_fd(&s->lease_read_fd);
	close_fd(&s->fd);
}

void session_free(struct session *s)
{
	endpoint_free(s->ep);
	hang_up(s);
	close_fd(&s->lease_fd);
	if (s->kept)
		keeper_lease_ended(keeper_of(s));
	free(s);
}

/* Is there who has its reading end? */
static bool lease_lives(const struct session *s)
{
	struct pollfd p = {.fd = s->lease_fd};

	return s->lease_fd >= 0 && (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLERR | POLLNVAL)));
}

bool session_leave(struct session *s)
{
	bool held = true;

	close_fd(&s->lease_read_fd); /* one that was never sent counts for nobody */
	if (!lease_lives(s))
		return false;
	if (!s->left) {
		held = endpoint_leave(s->ep);
		hang_up(s);
		s->left = true;
	}
	return held || s->kept;
}

/* ---- hello ---- */

/* Shared memory of fixed size, so that no client can make us fault on it. */
static int make_arena(struct session *s, u64 bytes)
{
	int fd = memfd_create("kvc-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err = 0;

	if (fd < 0)
		return -errno;
	if (fchmod(fd, 0600) || ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		err = -errno;
	if (!err)
		s->arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!err && s->arena == MAP_FAILED)
		err = -errno;
	if (err) {
		s->arena = NULL;
		close(fd);
		return err;
	}
	s->arena_fd = fd;
	s->arena_bytes = bytes;
	endpoint_set_arena(s->ep, s->arena, bytes);
	endpoint_set_slots(s->ep, s->arena, RPC_SLOTS);
	return 0;
}

/*
 * A pipe: while the client, or whoever inherited its memory, keeps the reading end, what this session maps
 * is its own over the session's end; and over ours, where there is a keeper, which has the writing end as
 * well. Return: 0, or there is none.
 */
static int make_lease(struct session *s)
{
	int ends[2], err;

	if (pipe2(ends, O_CLOEXEC)) {
		log_warn("session of process %d: no lease: %s", (int)s->pid, strerror(errno));
		return -EMFILE;
	}
	err = keeper_lease(keeper_of(s), ends[1]);
	if (err) {
		close(ends[0]);
		close(ends[1]);
		return err;
	}
	s->kept = keeper_of(s);
	s->lease_read_fd = ends[0];
	s->lease_fd = ends[1];
	return 0;
}

/* Behind the generation words; and a pipe, of as few bytes as there can be. */
static int make_events(struct session *s)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	(void)fcntl(fds[1], F_SETPIPE_SZ, KVC_PAGE_SIZE);
	s->event_read_fd = fds[0];
	s->event_fd = fds[1];
	endpoint_set_events(s->ep, (u64 *)s->arena + RPC_SLOTS, s->event_fd);
	return 0;
}

static int hello(struct session *s, struct kvc_op_hello *op, u64 generation)
{
	u32 abi = op->abi;
	u64 bytes = max(min(op->arena_bytes, (u64)KVC_ARENA_MAX), (u64)KVC_ARENA_MIN);
	int err;

	_Static_assert(ARENA_SLOTS_BYTES * 4 <= KVC_ARENA_MIN, "words leave room for data");
	if (op->flags & ~(u32)(KVC_HELLO_EVENTS | KVC_HELLO_LEASE) || op->reserved)
		return -EINVAL;
	op->abi = KVC_ABI_VERSION;
	if (abi != KVC_ABI_VERSION)
		return -EPROTO;
	if (s->refused)
		return s->refused;
	bytes = round_up_pow2(bytes, KVC_PAGE_SIZE);
	err = make_arena(s, bytes);
	if (!err && op->flags & KVC_HELLO_EVENTS)
		err = make_events(s);
	if (err)
		return err;
	if (op->flags & KVC_HELLO_LEASE && make_lease(s))
		op->flags &= ~(u32)KVC_HELLO_LEASE;
	op->arena_bytes = bytes;
	op->generation = generation;
	op->view_slots = RPC_SLOTS;
	return 0;
}

/* From here on the reply's. */
static void send_fd(struct rpc_msg *msg, int *fd)
{
	if (*fd >= 0)
		msg->fds[msg->nr_fds++] = *fd;
	*fd = -1;
}

static int run_hello(struct session *s, struct rpc_msg *msg)
{
	struct kvc_cmd *cmd = (struct kvc_cmd *)(msg->head + 1);

	if (msg->head->nr_cmds != 1 || cmd->op != KVC_OP_HELLO)
		return kvc_err(-EPROTO, rpc_no_hello);
	if (cmd->flags || cmd->reserved || cmd->handle)
		cmd->result = -EINVAL;
	else
		cmd->result = hello(s, &cmd->hello, s->fs->start_ns);
	if (cmd->result)
		return 0;
	send_fd(msg, &s->arena_fd);
	send_fd(msg, &s->event_read_fd);
	send_fd(msg, &s->lease_read_fd);
	return 0;
}

/* ---- messages ---- */

static void close_fds(struct rpc_msg *msg)
{
	while (msg->nr_fds)
		close(msg->fds[--msg->nr_fds]);
}

/* A client that does not take its replies is not waited for. */
static int reply(struct session *s, struct rpc_msg *msg)
{
	char control[CMSG_SPACE(sizeof(msg->fds))];
	struct iovec iov = {.iov_base = msg->head, .iov_len = msg->head->bytes};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t bytes = msg->nr_fds * sizeof(int);
	struct cmsghdr *c;
	ssize_t sent;

	if (bytes) {
		hdr.msg_control = control;
		hdr.msg_controllen = CMSG_SPACE(bytes);
		memset(control, 0, hdr.msg_controllen);
		c = CMSG_FIRSTHDR(&hdr);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(c), msg->fds, bytes);
	}
	sent = sendmsg(s->fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent == (ssize_t)iov.iov_len)
		return 0;
	return sent < 0 && errno != EAGAIN ? -ENOTCONN : kvc_err(-EPROTO, rpc_reply_stuck);
}

static int check(struct session *s, const void *buf, size_t bytes)
{
	const struct kvc_batch *head = buf;
	int err = rpc_check(buf, bytes);

	if (!err && sizeof(*head) + head->nr_cmds * sizeof(struct kvc_cmd) != bytes)
		err = kvc_err(-EPROTO, rpc_length);
	if (!err && head->sequence != s->sequence + 1)
		err = kvc_err(-EPROTO, rpc_replayed);
	return err;
}

static int handle_message(struct session *s, void *buf, size_t bytes)
{
	struct rpc_msg msg = {.head = buf};
	int err = check(s, buf, bytes);

	if (err)
		return err;
	s->sequence++;
	if (!s->arena)
		err = run_hello(s, &msg);
	else
		rpc_run(s->ep, &msg);
	if (!err)
		err = reply(s, &msg);
	close_fds(&msg);
	return err;
}

static int serve_one(struct session *s, void *buf)
{
	struct iovec iov = {.iov_base = buf, .iov_len = KVC_MSG_MAX};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t got = recvmsg(s->fd, &hdr, MSG_DONTWAIT);
	int err;

	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -ENOTCONN;
	if (!got)
		return -ENOTCONN;
	if (hdr.msg_flags & MSG_TRUNC)
		err = kvc_err(-EPROTO, rpc_message_huge);
	else
		err = handle_message(s, buf, (size_t)got);
	if (err == -EPROTO)
		log_warn("session of process %d (uid %u) ended: it broke the protocol",
			 (int)s->pid, s->cred.uid);
	return err;
}

int session_serve(struct session *s, void *buf, u64 linger_ns)
{
	u64 now = clock_mono_ns(), until = now;
	unsigned int nr = 0;
	int err;

	if (s->left)
		return -ENOTCONN;
	do {
		err = serve_one(s, buf);
		now = clock_mono_ns();
		if (!err && ++nr < SERVE_MAX)
			until = now + linger_ns;
	} while ((!err || err == -EAGAIN) && now < until);
	return err == -EAGAIN ? 0 : err;
}
