/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper's own process. One thread, one poll(): the daemon's connection, or while there is none the
 * socket at which the next one comes; the watch on that socket's name; the leases. A daemon that was
 * killed may have said something last: its connection is read to its end before the next is let in.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/grow.h"
#include "fs/keeper_proto.h"

#define NAME	      "kvcachefs-keep" /* at most 15 bytes */
#define FIRST_SECONDS 60	       /* for the daemon that started it to come */
#define FILES_MAX     4096
#define LEASES_MAX    16384 /* or half of the descriptors that we may have: there must be some for files */

enum { AT_DAEMON, AT_WATCH, AT_LEASES }; /* in the array for poll() */

struct holder {
	int listener, daemon; /* daemon -1: none */
	int watch, name;      /* inotify, and the socket's name it watches; -1: none */
	u64 deadline_ns;      /* while there is no daemon */
	u32 seconds;	      /* from its death */
	struct keeper_config config;
	int *files; /* -1: not there */
	u32 nr_files, max_files;
	int index;
	struct pollfd *poll; /* leases from AT_LEASES on */
	u32 nr_poll, max_poll, most_poll;
};

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void drop_all(struct holder *h)
{
	while (h->nr_files)
		close_fd(h->files[--h->nr_files]);
	close_fd(h->index);
	h->index = -1;
	while (h->nr_poll > AT_LEASES)
		close(h->poll[--h->nr_poll].fd);
}

/* ---- what the daemon says ---- */

static int keep_file(struct holder *h, u32 number, int fd)
{
	if (number >= FILES_MAX ||
	    grow_array(&h->files, &h->max_files, number + 1ull, sizeof(*h->files)))
		return -ENOMEM;
	while (h->nr_files <= number)
		h->files[h->nr_files++] = -1;
	close_fd(h->files[number]);
	h->files[number] = fd;
	return 0;
}

static int keep_lease(struct holder *h, int fd)
{
	int err = h->nr_poll == h->most_poll ? -EMFILE : 0;

	if (!err)
		err = grow_array(&h->poll, &h->max_poll, h->nr_poll + 1ull, sizeof(*h->poll));
	if (!err)
		h->poll[h->nr_poll++] = (struct pollfd){.fd = fd};
	return err;
}

static void keep(struct holder *h, const struct keeper_msg *msg, int fd)
{
	int err = -EINVAL;

	if (fd < 0)
		return;
	if (msg->kind == KEEPER_FILE)
		err = keep_file(h, msg->number, fd);
	else if (msg->kind == KEEPER_LEASE)
		err = keep_lease(h, fd);
	else if (msg->kind == KEEPER_INDEX) {
		close_fd(h->index);
		h->index = fd;
		err = 0;
	}
	if (err)
		close(fd);
}

static struct keeper_msg reply(enum keeper_op op, enum keeper_kind kind, u32 number)
{
	return (struct keeper_msg){.magic = KEEPER_MAGIC, .version = KEEPER_VERSION,
				   .op = op, .kind = kind, .number = number};
}

static int give(struct holder *h, enum keeper_kind kind, u32 number, int fd)
{
	struct keeper_msg msg = reply(KEEPER_ITEM, kind, number);

	return fd < 0 ? 0 : keeper_send(h->daemon, &msg, fd);
}

static int give_end(struct holder *h)
{
	struct keeper_msg msg = reply(KEEPER_END, 0, 0);

	msg.config = h->config;
	msg.number = h->most_poll - AT_LEASES;
	return keeper_send(h->daemon, &msg, -1);
}

static int give_all(struct holder *h)
{
	int err = 0;

	for (u32 i = 0; i < h->nr_files && !err; i++)
		err = give(h, KEEPER_FILE, i, h->files[i]);
	if (!err)
		err = give(h, KEEPER_INDEX, 0, h->index);
	for (u32 i = AT_LEASES; i < h->nr_poll && !err; i++)
		err = give(h, KEEPER_LEASE, 0, h->poll[i].fd);
	return err ? err : give_end(h);
}

static void daemon_gone(struct holder *h)
{
	close(h->daemon);
	h->daemon = -1;
	h->deadline_ns = clock_mono_ns() + h->seconds * NSEC_PER_SEC;
}

static int obey(struct holder *h, const struct keeper_msg *msg, int fd)
{
	switch (msg->op) {
	case KEEPER_TAKE:
		return give_all(h);
	case KEEPER_RESET:
		drop_all(h);
		return give_end(h);
	case KEEPER_CONFIG:
		h->config = msg->config;
		h->seconds = msg->seconds;
		return 0;
	case KEEPER_BYE:
		h->seconds = msg->seconds;
		return -ENOTCONN;
	case KEEPER_ITEM:
		keep(h, msg, fd);
		return 0;
	default:
		return -EPROTO;
	}
}

static void hear(struct holder *h)
{
	struct keeper_msg msg;
	int fd, err = keeper_receive(h->daemon, &msg, &fd);

	if (!err) {
		err = obey(h, &msg, fd);
		if (msg.op != KEEPER_ITEM)
			close_fd(fd);
	}
	if (err)
		daemon_gone(h);
}

/* ---- the loop ---- */

static void let_in(struct holder *h)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);
	int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) ||
	    (peer.uid != geteuid() && peer.uid))
		close(fd);
	else
		h->daemon = fd;
}

/* Return: whether our socket's name is gone. */
static bool name_removed(struct holder *h)
{
	char events[4096];
	struct stat st;

	while (read(h->watch, events, sizeof(events)) > 0)
		;
	return fstat(h->name, &st) || !st.st_nlink;
}

static void drop_ended(struct holder *h)
{
	for (u32 i = h->nr_poll; i-- > AT_LEASES;) {
		if (!(h->poll[i].revents & (POLLERR | POLLNVAL)))
			continue;
		close(h->poll[i].fd);
		h->poll[i] = h->poll[--h->nr_poll];
	}
}

/* Milliseconds for poll(); 0: it is over. */
static int time_left(const struct holder *h)
{
	u64 now = clock_mono_ns();

	if (h->daemon >= 0)
		return -1;
	if (now >= h->deadline_ns)
		return 0;
	return (int)min((h->deadline_ns - now) / 1000000 + 1, (u64)3600000);
}

static void hold(struct holder *h)
{
	int ms;

	while ((ms = time_left(h))) {
		bool serving = h->daemon >= 0;

		h->poll[AT_DAEMON] = (struct pollfd){.fd = serving ? h->daemon : h->listener,
						     .events = POLLIN};
		h->poll[AT_WATCH] = (struct pollfd){.fd = h->watch, .events = POLLIN};
		if (poll(h->poll, h->nr_poll, ms) <= 0)
			continue;
		drop_ended(h);
		if (h->poll[AT_WATCH].revents && name_removed(h))
			return;
		if (h->poll[AT_DAEMON].revents && serving)
			hear(h);
		else if (h->poll[AT_DAEMON].revents)
			let_in(h);
	}
}

/* ---- becoming it ---- */

static void close_range_of(int from, int to)
{
	if (from > to || !close_range((unsigned int)from, (unsigned int)to, 0))
		return;
	for (int fd = from; fd <= to && fd < sysconf(_SC_OPEN_MAX); fd++)
		close(fd);
}

/* Everything but our own: the store's lock, terminals and pipes are not ours to keep. */
static void close_others(const struct holder *h)
{
	int own[] = {h->listener, h->watch, h->name}, from = 3;
	int null = open("/dev/null", O_RDWR);

	for (int fd = 0; fd < 3 && null >= 0; fd++)
		dup2(null, fd);
	for (;;) {
		int next = INT_MAX;

		for (size_t i = 0; i < ARRAY_SIZE(own); i++)
			if (own[i] >= from)
				next = min(next, own[i]);
		close_range_of(from, next == INT_MAX ? next : next - 1);
		if (next == INT_MAX)
			return;
		from = next + 1;
	}
}

/*
 * Without us the daemon goes on, and without the daemon it is us who hold the memory, which nobody would
 * look for in a process this small.
 */
static void be_killed_first(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	ssize_t done = fd < 0 ? 0 : write(fd, "1000", 4);

	(void)done; /* where that is not to be had, so be it */
	close_fd(fd);
}

static void detach(struct holder *h)
{
	struct rlimit limit;

	setsid();
	be_killed_first();
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_NAME, NAME);
	if (chdir("/"))
		return;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	if (!setrlimit(RLIMIT_NOFILE, &limit))
		h->most_poll = (u32)min(limit.rlim_max / 2, (rlim_t)LEASES_MAX);
}

static void keeper_main(struct holder *h)
{
	detach(h);
	close_others(h);
	h->poll = calloc(AT_LEASES, sizeof(*h->poll));
	h->nr_poll = h->max_poll = AT_LEASES;
	h->deadline_ns = clock_mono_ns() + FIRST_SECONDS * NSEC_PER_SEC;
	if (h->poll)
		hold(h);
	_exit(0);
}

/* Without it the keeper ends in time, but not with the store. */
static void watch_name(struct holder *h, const char *path)
{
	h->name = open(path, O_PATH | O_CLOEXEC);
	h->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (h->name >= 0 && h->watch >= 0 &&
	    inotify_add_watch(h->watch, path, IN_ATTRIB | IN_DELETE_SELF) >= 0)
		return;
	close_fd(h->name);
	close_fd(h->watch);
	h->name = h->watch = -1;
}

int keeper_spawn(int listener, const char *path, pid_t *pid)
{
	struct holder h = {.listener = listener, .daemon = -1, .index = -1, .most_poll = 256};
	int err = 0;

	watch_name(&h, path);
	*pid = fork();
	if (!*pid)
		keeper_main(&h);
	if (*pid < 0)
		err = -errno;
	close_fd(h.name);
	close_fd(h.watch);
	return err;
}
