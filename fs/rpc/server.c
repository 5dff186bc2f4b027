/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session socket's server.
 *
 * Workers wait on one epoll instance. Every descriptor in it is one-shot: whoever gets an event has
 * the session to itself until it arms it again, so the messages of one session are served in order
 * and those of different sessions beside each other. A worker serves a message wholly, waiting for
 * tiers where it must, and stays awake for the next one for a moment, since to be woken costs as much
 * as a small message; when the last idle one begins to work, another is started, so that a client
 * that waits keeps nobody else waiting.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/list.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "allocator/pool.h"
#include "fs/fs.h"
#include "fs/rpc/server.h"
#include "fs/rpc/session.h"
#include "fs/uapi/kvc_ioctl.h"

#define MIN_WORKERS  2
#define MAX_WORKERS  64
#define MAX_SESSIONS 4096
#define USER_SESSIONS 256 /* of one user, so that nobody has all descriptors */
#define LINGER_NS    25000u /* an engine's messages come in bursts: the next one is waited for so long */
#define SEND_BUFFER  (8 * KVC_MSG_MAX)

struct rpc_server {
	struct fs *fs;
	int listener, epoll, stop; /* owned */
	bool bound;		   /* the path is ours to remove */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct lock lock; /* LOCK_LEAF: all that follows */
	pthread_t workers[MAX_WORKERS];
	unsigned int nr_workers, nr_busy;
	unsigned int nr_cpus; /* set once */
	struct client {
		struct list_head link;
		struct session *session;
	} clients;
	unsigned int nr_clients;
	bool stopping;
};

/* ---- where it is ---- */

/* Where to look for it when nobody said: a store's lies beside it. Return: 0, -ENAMETOOLONG, -errno. */
static int default_path(const struct fs_opts *opts, char *path, size_t bytes)
{
	const char *own = geteuid() ? getenv("XDG_RUNTIME_DIR") : NULL;
	char *real = NULL;
	int n;

	if (opts->source) {
		real = realpath(opts->source, NULL);
		if (!real)
			return -errno;
		n = snprintf(path, bytes, "%s.socket", real);
		free(real);
	} else {
		n = snprintf(path, bytes, "%s/%016llx.socket", own ? own : "/run/kvcachefs",
			     (unsigned long long)hash_bytes(opts->mountpoint,
							    strlen(opts->mountpoint)));
	}
	return n < (int)bytes ? 0 : -ENAMETOOLONG;
}

static int find_path(struct rpc_server *srv)
{
	const struct fs_opts *opts = srv->fs->opts;
	int err = 0;

	if (!opts->socket)
		err = default_path(opts, srv->path, sizeof(srv->path));
	else if (snprintf(srv->path, sizeof(srv->path), "%s", opts->socket) >=
		 (int)sizeof(srv->path))
		err = -ENAMETOOLONG;
	if (err)
		srv->path[0] = '\0';
	return err;
}

/* Without allow_other the mount is its owner's alone; so is the socket then. */
static bool for_others(const struct fs_opts *opts)
{
	return opts->fuse && strstr(opts->fuse, "allow_other");
}

/* A socket that nobody listens on was left behind by a daemon that was killed. */
static bool left_behind(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool left;
	struct stat st;

	if (fd < 0)
		return false;
	left = !lstat(addr->sun_path, &st) && S_ISSOCK(st.st_mode) &&
	       connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) &&
	       errno == ECONNREFUSED;
	close(fd);
	return left;
}

static int bind_path(struct rpc_server *srv)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const struct sockaddr *sa = (const struct sockaddr *)&addr;
	mode_t mask;
	int err;

	memcpy(addr.sun_path, srv->path, sizeof(addr.sun_path));
	if (!strncmp(srv->path, "/run/kvcachefs/", 15))
		mkdir("/run/kvcachefs", 0755);
	/* Whoever may not connect must not find a moment in which it can. */
	mask = umask(for_others(srv->fs->opts) ? 0111 : 0177);
	err = bind(srv->listener, sa, sizeof(addr)) ? -errno : 0;
	if (err == -EADDRINUSE && left_behind(&addr)) {
		unlink(srv->path);
		err = bind(srv->listener, sa, sizeof(addr)) ? -errno : 0;
	}
	umask(mask);
	return err;
}

static int open_listener(struct rpc_server *srv)
{
	int err;

	srv->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (srv->listener < 0)
		return -errno;
	err = bind_path(srv);
	srv->bound = !err;
	if (err)
		return err;
	return listen(srv->listener, 128) ? -errno : 0;
}

/* ---- clients ---- */

/* @ptr: a client; the server itself for the listener. From here on it may be another worker's. */
static int arm(struct rpc_server *srv, int fd, void *ptr)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.ptr = ptr};

	return epoll_ctl(srv->epoll, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/*
 * Taken out and put in again, not modified: only the latter is known to thread checkers as what
 * hands a descriptor over, and the other costs half a microsecond less.
 */
static int arm_again(struct rpc_server *srv, int fd, void *ptr)
{
	return epoll_ctl(srv->epoll, EPOLL_CTL_DEL, fd, NULL) ? -errno : arm(srv, fd, ptr);
}

static void client_free(struct rpc_server *srv, struct client *client)
{
	lock_acquire(&srv->lock);
	list_del(&client->link);
	srv->nr_clients--;
	lock_release(&srv->lock);
	session_free(client->session);
	free(client);
}

/*
 * What a client still has mapped stays where it is until its lease ends, which is an event like a message.
 * The keeper has the same pipe: closing our end would not take it out.
 */
static void client_end(struct rpc_server *srv, struct client *client)
{
	bool wait = session_leave(client->session);
	int fd = session_fd(client->session);

	if (epoll_ctl(srv->epoll, EPOLL_CTL_DEL, fd, NULL) && errno != ENOENT)
		log_debug("session socket: %s", strerror(errno));
	if (!wait || arm(srv, fd, client))
		client_free(srv, client);
}

static bool welcome(struct rpc_server *srv, const struct session *s)
{
	uid_t uid = session_uid(s);

	return for_others(srv->fs->opts) || uid == geteuid() || uid == 0;
}

/* Sessions of @s's user. Root and the daemon's own have as many as they like: 0. Lock held. */
static unsigned int of_user(struct rpc_server *srv, const struct session *s)
{
	uid_t uid = session_uid(s);
	unsigned int nr = 0;
	struct client *c;

	if (uid == 0 || uid == geteuid())
		return 0;
	list_for_each_entry (c, &srv->clients.link, link)
		nr += session_uid(c->session) == uid;
	return nr;
}

/*
 * Who has too many sessions is told so at its HELLO; who goes on nevertheless without listening is
 * hung up on. Return: whether to have it at all.
 */
static bool user_may(struct session *s, unsigned int nr)
{
	if (nr < USER_SESSIONS)
		return true;
	session_refuse(s, kvc_err(-EUSERS, rpc_user_sessions));
	if (nr == USER_SESSIONS)
		log_warn("session socket: user %u has %u sessions and gets no more",
			 session_uid(s), nr);
	return nr < 2 * USER_SESSIONS;
}

/* The same for all users together. @nr: sessions that there are. */
static bool all_may(struct session *s, unsigned int nr)
{
	if (nr < MAX_SESSIONS)
		return true;
	session_refuse(s, kvc_err(-EUSERS, rpc_sessions));
	if (nr == MAX_SESSIONS)
		log_warn("session socket: there are %u sessions and there will be no more", nr);
	return nr < MAX_SESSIONS + USER_SESSIONS;
}

static void client_begin(struct rpc_server *srv, int fd)
{
	struct client *client = calloc(1, sizeof(*client));
	struct session *s = client ? session_new(srv->fs, fd) : NULL;
	int size = SEND_BUFFER;
	unsigned int nr, all;

	if (!s) {
		free(client);
		close(fd);
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	client->session = s;
	lock_acquire(&srv->lock);
	nr = of_user(srv, s);
	all = srv->nr_clients;
	list_add_tail(&client->link, &srv->clients.link);
	srv->nr_clients++;
	lock_release(&srv->lock);
	if (!all_may(s, all) || !welcome(srv, s) || !user_may(s, nr) || arm(srv, fd, client))
		client_free(srv, client);
}

static void accept_all(struct rpc_server *srv)
{
	int fd;

	while ((fd = accept4(srv->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		client_begin(srv, fd);
	if (errno == EMFILE || errno == ENFILE)
		log_warn("session socket: no descriptors left for a client");
	if (arm_again(srv, srv->listener, srv))
		log_error("session socket: no new clients any more");
}

/* ---- workers ---- */

static void *worker_main(void *arg);

/* Begin to work; see to it that somebody is idle. */
static void work_begin(struct rpc_server *srv)
{
	lock_acquire(&srv->lock);
	srv->nr_busy++;
	if (srv->nr_busy == srv->nr_workers && srv->nr_workers < MAX_WORKERS && !srv->stopping &&
	    !pthread_create(&srv->workers[srv->nr_workers], NULL, worker_main, srv))
		srv->nr_workers++;
	lock_release(&srv->lock);
}

static void work_end(struct rpc_server *srv)
{
	lock_acquire(&srv->lock);
	srv->nr_busy--;
	lock_release(&srv->lock);
}

/* To wait awake is for when there are processors to spare. */
static u64 linger_ns(struct rpc_server *srv)
{
	bool spare;

	lock_acquire(&srv->lock);
	spare = srv->nr_busy <= srv->nr_cpus / 2;
	lock_release(&srv->lock);
	return spare ? LINGER_NS : 0;
}

static void serve(struct rpc_server *srv, struct client *client, void *buf)
{
	if (session_serve(client->session, buf, linger_ns(srv)) ||
	    arm_again(srv, session_fd(client->session), client))
		client_end(srv, client);
}

static void *worker_main(void *arg)
{
	struct rpc_server *srv = arg;
	void *buf = malloc(KVC_MSG_MAX);
	struct epoll_event ev;
	int n;

	while (buf) {
		n = epoll_wait(srv->epoll, &ev, 1, -1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 1 || !ev.data.ptr)
			break; /* the stop event, which stays */
		work_begin(srv);
		if (ev.data.ptr == srv)
			accept_all(srv);
		else
			serve(srv, ev.data.ptr, buf);
		work_end(srv);
	}
	free(buf);
	return NULL;
}

/* ---- life ---- */

static int open_epoll(struct rpc_server *srv)
{
	struct epoll_event ev = {.events = EPOLLIN};

	srv->epoll = epoll_create1(EPOLL_CLOEXEC);
	srv->stop = eventfd(0, EFD_CLOEXEC);
	if (srv->epoll < 0 || srv->stop < 0)
		return -errno;
	if (epoll_ctl(srv->epoll, EPOLL_CTL_ADD, srv->stop, &ev))
		return -errno;
	return arm(srv, srv->listener, srv);
}

/* A session takes a socket and ends of two pipes: as many as one may have. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		log_debug("the limit of descriptors stays what it is");
}

static int start_workers(struct rpc_server *srv)
{
	int err = 0;

	lock_acquire(&srv->lock);
	while (!err && srv->nr_workers < MIN_WORKERS) {
		err = -pthread_create(&srv->workers[srv->nr_workers], NULL, worker_main, srv);
		srv->nr_workers += !err;
	}
	lock_release(&srv->lock);
	return err;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void rpc_server_stop(struct rpc_server *srv)
{
	unsigned int nr;

	if (!srv)
		return;
	lock_acquire(&srv->lock);
	srv->stopping = true;
	nr = srv->nr_workers;
	lock_release(&srv->lock);
	if (nr)
		eventfd_write(srv->stop, 1);
	for (unsigned int i = 0; i < nr; i++)
		pthread_join(srv->workers[i], NULL);
	pool_warm_leave(srv->fs->pool);
	while (!list_empty(&srv->clients.link))
		client_free(srv, list_first_entry(&srv->clients.link, struct client, link));
	if (srv->bound)
		unlink(srv->path);
	close_fd(srv->listener);
	close_fd(srv->epoll);
	close_fd(srv->stop);
	lock_destroy(&srv->lock);
	free(srv);
}

const char *rpc_server_path(const struct rpc_server *srv)
{
	return srv->path;
}

int rpc_server_start(struct rpc_server **server, struct fs *fs, struct textbuf *why)
{
	struct rpc_server *srv;
	int err;

	*server = NULL;
	if (fs->opts->socket && !strcmp(fs->opts->socket, "none"))
		return 0;
	srv = calloc(1, sizeof(*srv));
	if (!srv)
		return -ENOMEM;
	srv->fs = fs;
	srv->listener = srv->epoll = srv->stop = -1;
	srv->nr_cpus = (unsigned int)max(sysconf(_SC_NPROCESSORS_ONLN), 1L);
	list_init(&srv->clients.link);
	lock_init(&srv->lock, LOCK_LEAF);
	raise_descriptors();
	err = find_path(srv);
	if (!err)
		err = open_listener(srv);
	if (!err)
		err = open_epoll(srv);
	if (!err)
		err = start_workers(srv);
	if (err) {
		textbuf_printf(why, "session socket %s: %s", srv->path, strerror(-err));
		rpc_server_stop(srv);
		return err;
	}
	*server = srv;
	return 0;
}
