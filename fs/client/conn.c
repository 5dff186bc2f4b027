/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a connection.
 *
 * Any number of threads may have a call in flight. Messages are numbered and sent under send_lock;
 * whichever waiting thread finds no other in recvmsg() reads the next reply, hands it to the call with
 * that number and wakes the others. So a call that waits for a disk holds up nobody but itself, as far
 * as the daemon answers others meanwhile, and a thread alone pays two system calls and no hand-over.
 *
 * What is not a reply to a call in flight, and a call that got none in time, end the connection: after
 * either nobody can say what the daemon has done. Ended connections stay as they are until their last
 * user has gone.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/client/client.h"

#define MAX_ERRNO 4095
#define AWAKE_NS  20000u /* a reply to a small batch is there by then */

/* Most bytes of generation words that a daemon may ask for: half of the arena. */
#define SLOTS_SHARE 2

/** struct call - one message and its reply; on the stack of the thread that waits. */
struct call {
	struct call *next;
	u64 sequence;
	struct kvc_cmd *cmds;
	u32 nr;
	int *fds;
	u32 max_fds, nr_fds;
	bool done;
	int err;
};

/** struct reply - one message as it came. */
struct reply {
	ssize_t bytes;
	u32 nr_fds;
	bool cut;
	int fds[CLIENT_MAX_FDS];
};

struct timespec client_deadline(const struct conn *conn)
{
	u64 ns = clock_mono_ns() + conn->timeout_ns;

	return (struct timespec){(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};
}

static bool is_past(const struct timespec *ts)
{
	return clock_mono_ns() >= (u64)ts->tv_sec * NSEC_PER_SEC + (u64)ts->tv_nsec;
}

/* Every call in flight fails with @err. Caller holds conn->lock. */
static void __conn_die(struct conn *conn, int err)
{
	if (!atomic_exchange(&conn->dead, true))
		shutdown(conn->fd, SHUT_RDWR);
	for (struct call *call = conn->calls; call; call = call->next) {
		call->done = true;
		call->err = err;
	}
	conn->calls = NULL;
	pthread_cond_broadcast(&conn->replied);
	pthread_cond_broadcast(&conn->arena.freed);
}

static void conn_die(struct conn *conn, int err)
{
	pthread_mutex_lock(&conn->lock);
	__conn_die(conn, err);
	pthread_mutex_unlock(&conn->lock);
}

static void close_fds(const int *fds, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		close(fds[i]);
}

/* ---- receiving ---- */

static void take_fds(struct msghdr *msg, struct reply *reply)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		u32 nr = (u32)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (u32 i = 0; i < nr; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (reply->nr_fds < CLIENT_MAX_FDS)
				reply->fds[reply->nr_fds++] = fd;
			else
				close(fd);
		}
	}
	reply->cut = msg->msg_flags & (MSG_TRUNC | MSG_CTRUNC);
}

/* To be woken takes as long as a small batch: where there is another processor, look for a moment first. */
static ssize_t receive_soon(struct conn *conn, struct msghdr *msg)
{
	u64 until = clock_mono_ns() + AWAKE_NS;
	ssize_t got;

	do
		got = recvmsg(conn->fd, msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EAGAIN && clock_mono_ns() < until);
	return got;
}

/* The next message, into conn->rx. Return: 0, -ESTALE (the daemon is gone), -ETIMEDOUT. */
static int receive(struct conn *conn, struct reply *reply, const struct timespec *deadline)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(CLIENT_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = {conn->rx, KVC_MSG_MAX};
	struct msghdr msg;

	*reply = (struct reply){0};
	do {
		msg = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				      .msg_controllen = sizeof(control)};
		reply->bytes = -1;
		if (conn->awake)
			reply->bytes = receive_soon(conn, &msg);
		if (reply->bytes < 0 && (!conn->awake || errno == EAGAIN))
			reply->bytes = recvmsg(conn->fd, &msg, MSG_CMSG_CLOEXEC);
		if (reply->bytes < 0 && (errno == EAGAIN || is_past(deadline)))
			return -ETIMEDOUT;
	} while (reply->bytes < 0 && errno == EINTR);
	if (reply->bytes <= 0)
		return -ESTALE;
	take_fds(&msg, reply);
	return 0;
}

/* Take the call that @head answers off the list; NULL: none. */
static struct call *answered(struct conn *conn, const struct kvc_batch *head)
{
	struct call **link = &conn->calls;
	struct call *call;

	while (*link && (*link)->sequence != head->sequence)
		link = &(*link)->next;
	call = *link;
	if (!call || head->nr_cmds != call->nr)
		return NULL;
	*link = call->next;
	return call;
}

static bool results_good(const struct call *call)
{
	for (u32 i = 0; i < call->nr; i++)
		if (call->cmds[i].result > 0 || call->cmds[i].result < -MAX_ERRNO)
			return false;
	return true;
}

/* Hand a message to its call. Caller holds conn->lock. Return: 0 or -EPROTO. */
static int dispatch(struct conn *conn, struct reply *reply)
{
	const struct kvc_batch *head = conn->rx;
	struct call *call = NULL;

	if (!reply->cut && reply->bytes >= (ssize_t)sizeof(*head) &&
	    head->magic == KVC_BATCH_MAGIC && head->bytes == (u64)reply->bytes &&
	    head->nr_cmds <= CLIENT_MAX_CMDS &&
	    head->bytes == sizeof(*head) + head->nr_cmds * sizeof(struct kvc_cmd))
		call = answered(conn, head);
	if (!call) {
		close_fds(reply->fds, reply->nr_fds);
		return -EPROTO;
	}
	memcpy(call->cmds, head + 1, call->nr * sizeof(struct kvc_cmd));
	call->nr_fds = min(reply->nr_fds, call->max_fds);
	for (u32 i = 0; i < call->nr_fds; i++)
		call->fds[i] = reply->fds[i];
	close_fds(reply->fds + call->nr_fds, reply->nr_fds - call->nr_fds);
	call->err = results_good(call) ? 0 : -EPROTO;
	call->done = true;
	return call->err;
}

/* Read one message for whoever it is. Caller holds conn->lock, which is dropped meanwhile. */
static void read_one(struct conn *conn, const struct timespec *deadline)
{
	struct reply reply;
	int err;

	conn->reading = true;
	pthread_mutex_unlock(&conn->lock);
	err = receive(conn, &reply, deadline);
	pthread_mutex_lock(&conn->lock);
	conn->reading = false;
	if (!err)
		err = dispatch(conn, &reply);
	if (err)
		__conn_die(conn, err);
	else
		pthread_cond_broadcast(&conn->replied);
}

static int wait_reply(struct conn *conn, struct call *call, const struct timespec *deadline)
{
	pthread_mutex_lock(&conn->lock);
	while (!call->done) {
		if (!conn->reading)
			read_one(conn, deadline);
		else if (pthread_cond_timedwait(&conn->replied, &conn->lock, deadline))
			if (!call->done && is_past(deadline))
				__conn_die(conn, -ETIMEDOUT);
	}
	pthread_mutex_unlock(&conn->lock);
	return call->err;
}

/* ---- sending ---- */

static int send_bytes(struct conn *conn, const void *bytes, size_t len, const struct timespec *deadline)
{
	ssize_t n;

	do {
		n = send(conn->fd, bytes, len, MSG_NOSIGNAL);
		if (n < 0 && (errno == EAGAIN || is_past(deadline)))
			return -ETIMEDOUT;
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -ESTALE : 0;
}

/* Number the call and put it among those in flight. Caller holds send_lock. */
static bool enter(struct conn *conn, struct call *call)
{
	bool dead;

	pthread_mutex_lock(&conn->lock);
	dead = atomic_load(&conn->dead);
	if (dead) {
		call->done = true;
		call->err = -ESTALE;
	} else {
		call->sequence = ++conn->sequence;
		call->next = conn->calls;
		conn->calls = call;
	}
	pthread_mutex_unlock(&conn->lock);
	return !dead;
}

/*
 * On failure the connection is over, and so is the call. The message is sent from a copy: the reply may
 * be written over the commands by another thread before this one is back from the system call.
 */
static void send_call(struct conn *conn, struct call *call, const struct timespec *deadline)
{
	struct kvc_batch *head;
	int err = 0;

	pthread_mutex_lock(&conn->send_lock);
	head = conn->tx;
	*head = (struct kvc_batch){.magic = KVC_BATCH_MAGIC, .abi = KVC_ABI_VERSION, .nr_cmds = call->nr};
	head->bytes = (u32)(sizeof(*head) + call->nr * sizeof(*call->cmds));
	memcpy(head + 1, call->cmds, call->nr * sizeof(*call->cmds));
	if (enter(conn, call)) {
		head->sequence = conn->sequence; /* which no other thread changes now */
		err = send_bytes(conn, head, head->bytes, deadline);
	}
	pthread_mutex_unlock(&conn->send_lock);
	if (err)
		conn_die(conn, err);
}

int conn_call(struct conn *conn, struct kvc_cmd *cmds, u32 nr, int *fds, u32 max_fds)
{
	struct timespec deadline = client_deadline(conn);
	struct call call = {.cmds = cmds, .nr = nr, .fds = fds, .max_fds = max_fds};
	int err;

	send_call(conn, &call, &deadline);
	err = wait_reply(conn, &call, &deadline);
	return err ? err : (int)call.nr_fds;
}

/* ---- beginning and end ---- */

bool conn_alive(struct conn *conn)
{
	struct pollfd p = {.fd = conn->fd};

	if (atomic_load(&conn->dead))
		return false;
	if (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR | POLLNVAL)) {
		conn_die(conn, -ESTALE);
		return false;
	}
	return true;
}

void conn_end(struct conn *conn)
{
	conn_die(conn, -ESTALE);
}

static void __settle(struct conn *conn)
{
	if (conn->lease < 0 || conn->nr_users || !atomic_load(&conn->dead))
		return;
	close(conn->lease);
	conn->lease = -1;
}

void conn_use(struct conn *conn)
{
	pthread_mutex_lock(&conn->lock);
	conn->nr_users++;
	pthread_mutex_unlock(&conn->lock);
}

void conn_unuse(struct conn *conn)
{
	pthread_mutex_lock(&conn->lock);
	conn->nr_users--;
	__settle(conn);
	pthread_mutex_unlock(&conn->lock);
}

void conn_settle(struct conn *conn)
{
	pthread_mutex_lock(&conn->lock);
	__settle(conn);
	pthread_mutex_unlock(&conn->lock);
}

struct conn *conn_get(struct conn *conn)
{
	atomic_fetch_add(&conn->ref, 1);
	return conn;
}

void conn_put(struct conn *conn)
{
	if (atomic_fetch_sub(&conn->ref, 1) != 1)
		return;
	close(conn->fd);
	if (conn->lease >= 0)
		close(conn->lease);
	if (conn->event_fd >= 0)
		close(conn->event_fd);
	pools_free(conn);
	if (conn->arena.base)
		munmap(conn->arena.base, conn->arena.bytes);
	pthread_mutex_destroy(&conn->send_lock);
	pthread_mutex_destroy(&conn->lock);
	pthread_cond_destroy(&conn->replied);
	pthread_cond_destroy(&conn->arena.freed);
	free(conn->tx);
	free(conn->rx);
	free(conn);
}

static int map_arena(struct conn *conn, int fd, const struct kvc_op_hello *hello)
{
	u64 words = round_up_pow2(2ull * hello->view_slots * sizeof(u64), 64);
	struct stat st;
	void *base;

	if (fstat(fd, &st))
		return -errno;
	if (hello->arena_bytes < KVC_ARENA_MIN || hello->arena_bytes > KVC_ARENA_MAX ||
	    (u64)st.st_size < hello->arena_bytes || words > hello->arena_bytes / SLOTS_SHARE)
		return -EPROTO;
	base = mmap(NULL, hello->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	conn->arena.base = base;
	conn->arena.bytes = hello->arena_bytes;
	conn->arena.first = (u32)words;
	conn->arena.nr_slots = hello->view_slots;
	conn->generation = hello->generation;
	return 0;
}

static int say_hello(struct conn *conn, u64 arena_bytes)
{
	struct kvc_cmd cmd = {.op = KVC_OP_HELLO,
			      .hello = {.abi = KVC_ABI_VERSION,
					.flags = KVC_HELLO_EVENTS | KVC_HELLO_LEASE,
					.arena_bytes = arena_bytes}};
	int fds[3] = {-1, -1, -1}, nr = conn_call(conn, &cmd, 1, fds, ARRAY_SIZE(fds));
	int err = nr < 0 ? nr : cmd.result;

	conn->event_fd = fds[1];
	conn->lease = fds[2];
	if (!err && (nr != 2 + !!(cmd.hello.flags & KVC_HELLO_LEASE) ||
		     cmd.hello.abi != KVC_ABI_VERSION))
		err = -EPROTO;
	if (!err)
		err = map_arena(conn, fds[0], &cmd.hello);
	if (fds[0] >= 0)
		close(fds[0]);
	/* A daemon that does not like the first message hangs up. */
	return err == -ESTALE ? -EPROTO : err;
}

static struct conn *conn_new(int fd, u64 timeout_ms)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	pthread_condattr_t attr;

	if (!conn)
		return NULL;
	conn->tx = malloc(KVC_MSG_MAX);
	conn->rx = malloc(KVC_MSG_MAX);
	if (!conn->tx || !conn->rx) {
		free(conn->tx);
		free(conn->rx);
		free(conn);
		return NULL;
	}
	atomic_init(&conn->ref, 1);
	conn->fd = fd;
	conn->awake = sysconf(_SC_NPROCESSORS_ONLN) > 1;
	conn->lease = -1;
	conn->event_fd = -1;
	conn->timeout_ns = timeout_ms * 1000000;
	pthread_mutex_init(&conn->send_lock, NULL);
	pthread_mutex_init(&conn->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&conn->replied, &attr);
	pthread_cond_init(&conn->arena.freed, &attr);
	pthread_condattr_destroy(&attr);
	return conn;
}

int conn_on_fd(int fd, const struct conn_want *want, struct conn **out)
{
	struct timeval tv = {(time_t)(want->timeout_ms / 1000),
			     (suseconds_t)(want->timeout_ms % 1000 * 1000)};
	struct conn *conn = conn_new(fd, want->timeout_ms);
	int err;

	if (!conn) {
		close(fd);
		return -ENOMEM;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)))
		err = -errno;
	else
		err = say_hello(conn, want->arena_bytes);
	if (err) {
		conn_put(conn);
		return err;
	}
	*out = conn;
	return 0;
}

int conn_open(const struct conn_want *want, struct conn **out)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	if (snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", want->socket) >=
	    (int)sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		int err = -errno;

		close(fd);
		return err;
	}
	return conn_on_fd(fd, want, out);
}
