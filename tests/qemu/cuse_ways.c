/* SPDX-License-Identifier: Apache-2.0 */
/* The device itself: read, poll, bad requests, whose rights count, who may die when. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include "qemu/cuse_client.h"

#define ALICE	      "ns/alice"
#define ROUNDS	      100
#define CHILD_SECONDS 40 /* what waits longer waits in vain */
#define FOR_EVER      -1 /* at the end of a timeout poll(2) looks once more, told or not */

static int poll_for(int fd, short events, int ms)
{
	struct pollfd p = {.fd = fd, .events = events};
	int n = poll(&p, 1, ms);

	return n < 0 ? -errno : p.revents;
}

/* A byte through a pipe says "I am there" between processes. */
static void tell(int fd)
{
	check(write(fd, "x", 1) == 1, "a pipe: %s", strerror(errno));
}

static void await(int fd)
{
	char c;

	check(read(fd, &c, 1) == 1, "the other process is gone");
}

static pid_t start(void (*what)(int fd), int *from)
{
	int fds[2];
	pid_t pid;

	check(!pipe(fds), "pipe: %s", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		close(fds[0]);
		alarm(CHILD_SECONDS);
		what(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	*from = fds[0];
	return pid;
}

static int status_of(pid_t pid)
{
	int status = -1;

	check(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	return status;
}

/* ---- read ---- */

static size_t read_all(int fd, char *buf, size_t size, size_t piece)
{
	size_t len = 0;
	ssize_t n;

	while (len < size - 1 &&
	       (n = read(fd, buf + len, piece < size - 1 - len ? piece : size - 1 - len)) > 0)
		len += (size_t)n;
	buf[len] = '\0';
	return len;
}

static void check_read(void)
{
	static char whole[65536], pieces[65536];
	static const char *const parts[] = {
		"kvcachefs ", "\nmount " MOUNT "\n", "\nname size used ", "\ndram ",
		"\nnvme ",    "\npid uid pins ",     "\nstall_us ",	  "\nlookup_tokens "};
	int fd = open_device(), dir = open(MOUNT "/ns", O_RDONLY);
	size_t len = read_all(fd, whole, sizeof(whole), sizeof(whole));

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		check(strstr(whole, parts[i]), "no \"%s\" in %zu bytes", parts[i], len);
	check(whole[len - 1] == '\n', "the last line has no end");
	check(!strstr(whole, "error_rpc_malformed 0"), "an error that never happened is shown");
	/* the same descriptor again, in small pieces: a new snapshot, which ends as well */
	len = read_all(fd, pieces, sizeof(pieces), 7);
	check(len > 100 && !strncmp(whole, pieces, 20), "read again: %zu bytes", len);
	check(read(dir, whole, 1) < 0 && errno == EISDIR, "a directory");
	check(write(fd, "x", 1) < 0, "the device can be written");
}

/* ---- requests that are none ---- */

static int raw(int fd, struct batch *b, unsigned long request)
{
	return ioctl(fd, request, &b->head) ? -errno : 0;
}

static void check_malformed(void)
{
	int fd = open_device(), err;
	struct termios t;
	struct kvc_cmd cmd;
	static struct {
		struct batch b;
		char more[1000];
	} big;
	struct batch *b = &big.b;

	check(ioctl(fd, TCGETS, &t) < 0 && errno == ENOTTY, "a terminal: %s", strerror(errno));
	batch_init(b, 1);
	b->head.bytes = 8;
	err = raw(fd, b, KVC_IOC_BATCH(8));
	check(err == -EINVAL, "8 bytes: %d", err);
	err = raw(fd, b, KVC_IOC_BATCH(0));
	check(err == -EINVAL || err == -ENOTTY, "no bytes: %d", err);
	b->head.bytes = KVC_IOCTL_MAX + 8;
	err = raw(fd, b, KVC_IOC_BATCH(KVC_IOCTL_MAX + 8));
	check(err == -E2BIG, "too many bytes: %d", err);
	b->used = KVC_IOCTL_MAX - sizeof(b->head) - sizeof(cmd);
	b->cmds[0].op = KVC_OP_ADMIT;
	err = batch_run(b, fd);
	check(!err && b->cmds[0].result == -EBADF, "as many as there may be: %d", err);
	batch_init(b, 1);
	b->head.magic++;
	err = batch_run(b, fd);
	check(err == -EINVAL, "magic: %d", err);
	batch_init(b, 1);
	b->head.abi = 9;
	err = batch_run(b, fd);
	check(err == -EINVAL, "version: %d", err);
	batch_init(b, 1);
	b->head.bytes = 24 + 96;
	b->head.nr_cmds = 3;
	err = raw(fd, b, KVC_IOC_BATCH(24 + 96));
	check(err == -EINVAL, "more commands than bytes: %d", err);
	err = ioctl(fd, KVC_IOC_BATCH(24 + 96), (void *)8) ? -errno : 0;
	check(err == -EFAULT, "a bad pointer: %d", err);
	err = seq_open(fd, ALICE, 0, &cmd);
	check(!err, "a good one behind them: %d", err);
}

/* ---- poll ---- */

static void wait_for_pressure(int tell_fd)
{
	int fd = open_device(), got;

	check(poll_for(fd, POLLIN, 0) == POLLIN, "POLLIN does not come at once");
	got = poll_for(fd, POLLIN | POLLPRI, 30000);
	check(got == POLLIN, "both: 0x%x", got);
	check(poll_for(fd, POLLPRI, 0) == 0, "pressure before there was any");
	tell(tell_fd);
	got = poll_for(fd, POLLPRI, FOR_EVER);
	tell(tell_fd);
	_exit(got == POLLPRI ? 0 : 1);
}

static bool sleeps(void *arg)
{
	char name[64], state = 'R';
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/stat", *(pid_t *)arg);
	f = fopen(name, "re");
	if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 'R';
	if (f)
		fclose(f);
	return state == 'S';
}

/* The guest has moved alice's blocks to NVMe: mapping them waits for that tier. */
static void check_poll(void)
{
	static char text[65536];
	int from, fd = open_device(), err;
	pid_t waiter = start(wait_for_pressure, &from);
	struct kvc_op_map map = {0};
	struct kvc_cmd cmd = {0};

	await(from);
	check(wait_until(sleeps, &waiter), "the waiter does not wait");
	err = seq_open(fd, ALICE, 0, &cmd);
	if (!err)
		err = seq_map(fd, cmd.handle, &map);
	check(!err && map.nr_blocks == 4, "map: %d", err);
	await(from);
	check(status_of(waiter) == 0, "the waiter was not told of pressure");
	check(poll_for(fd, POLLPRI, 0) == POLLPRI, "no pressure seen by this one");
	read_all(fd, text, sizeof(text), sizeof(text));
	check(poll_for(fd, POLLPRI, 0) == 0, "pressure is still news after a read");
}

/* ---- who asks ---- */

static int open_result(int fd, const char *path, uint32_t flags)
{
	struct kvc_cmd cmd;
	int err = seq_open(fd, path, flags, &cmd);

	if (!err)
		err = seq_close(fd, cmd.handle);
	return err;
}

/* As root: nothing is closed to it. */
static void check_root_rights(void)
{
	int fd = open_device(), err;

	for (int i = 0; i < ROUNDS; i++) {
		err = open_result(fd, "private/seq", i ? 0 : KVC_OPEN_CREATE);
		check(!err, "round %d: %s", i, strerror(-err));
	}
}

/* As another user: `private` is mode 700, `grouped` 750 of a group that it is in, `ns` 755. */
static void check_user_rights(void)
{
	int fd = open_device(), err;
	struct kvc_op_map map;
	struct kvc_cmd cmd;

	for (int i = 0; i < ROUNDS; i++) {
		err = open_result(fd, "private/seq", 0);
		check(err == -EACCES, "round %d, private: %d", i, err);
		err = open_result(fd, "grouped/seq", 0);
		check(!err, "round %d, grouped: %d", i, err);
	}
	err = open_result(fd, ALICE, KVC_OPEN_WRITE);
	check(err == -EACCES, "alice for writing: %d", err);
	err = seq_open(fd, ALICE, 0, &cmd);
	check(!err, "alice for reading: %d", err);
	err = seq_map(fd, cmd.handle, &map);
	check(!err && map.nr_blocks == 4, "map: %d", err);
	err = seq_open(fd, "ns/mallory", KVC_OPEN_CREATE, &cmd);
	check(err == -EACCES, "create where it may not: %d", err);
}

/* In no group that helps. */
static void check_no_group(void)
{
	int err = open_result(open_device(), "grouped/seq", 0);

	check(err == -EACCES, "grouped: %d", err);
}

static void check_owner(void)
{
	int fd = open_device(), err;
	struct kvc_cmd cmd;
	struct stat st;

	err = seq_open(fd, "public/mine", KVC_OPEN_CREATE | KVC_OPEN_WRITE, &cmd);
	check(!err, "create: %d", err);
	check(!stat(MOUNT "/public/mine/kv", &st) && st.st_uid == getuid() && st.st_gid == getgid(),
	      "owned by %u:%u", st.st_uid, st.st_gid);
}

/* The mount is its owner's alone: so is the device then, whatever its mode. */
static void check_not_let_in(void)
{
	check(open(DEVICE, O_RDONLY) < 0 && errno == EACCES, "open: %s", strerror(errno));
}

static void check_let_in(void)
{
	int err = open_result(open_device(), ALICE, 0);

	check(!err, "open: %s", strerror(-err));
}

/* A descriptor that another user was given: that one's rights count. */
static void check_handed_on(void)
{
	int fd = open_device(), err = open_result(fd, "private/seq", 0), status;
	pid_t pid;

	check(!err, "by root: %s", strerror(-err));
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(setgid(1000) || setuid(1000) || open_result(fd, "private/seq", 0) != -EACCES);
	status = status_of(pid);
	check(status == 0, "status 0x%x", status);
}

/* ---- ends ---- */

static void hold(int tell_fd)
{
	int fd = open_device(), err;
	struct kvc_op_map map;
	struct kvc_cmd cmd;

	err = seq_open(fd, ALICE, 0, &cmd);
	if (!err)
		err = seq_map(fd, cmd.handle, &map);
	if (!err)
		tell(tell_fd);
	for (;;)
		pause();
}

static bool no_pins(void *arg)
{
	return pins_shown() == 0;
}

static void check_killed(void)
{
	int from, other;
	pid_t pid = start(hold, &from), second = start(hold, &other);

	await(from);
	await(other);
	check(pins_shown() == 8, "%ld pins held", pins_shown());
	kill(pid, SIGKILL);
	status_of(pid);
	kill(second, SIGKILL);
	status_of(second);
	check(wait_until(no_pins, NULL), "%ld pins after their holders died", pins_shown());
}

static bool request_waits(void *arg)
{
	FILE *f = fopen("/sys/class/cuse/kvcache/waiting", "re");
	int nr = 0;

	if (f && fscanf(f, "%d", &nr) != 1)
		nr = 0;
	if (f)
		fclose(f);
	return nr > 0;
}

static void ask(int tell_fd)
{
	int fd = open_device(), err;

	tell(tell_fd);
	err = open_result(fd, ALICE, 0);
	_exit(err ? 1 : 0);
}

/* While the daemon keeps one client waiting, what needs no daemon is answered to another. */
static void check_beside_a_waiting_one(void)
{
	char c[2] = "";
	int from, fd = open_device();
	pid_t pid;

	check(read(fd, c, 1) == 1 && *c == 'k', "a first byte: %s", c);
	guest("stop");
	pid = start(hold, &from); /* waits in open */
	close(from);
	check(wait_until(request_waits, NULL), "nothing waits");
	check(read(fd, c, 1) == 1 && *c == 'v', "a second byte: %s", c);
	check(ioctl(fd, TCGETS, c) < 0 && errno == ENOTTY, "an answer: %s", strerror(errno));
	guest("cont");
	kill(pid, SIGKILL);
	status_of(pid);
	pid = start(ask, &from);
	await(from);
	check(status_of(pid) == 0, "a client behind them");
	check(wait_until(no_pins, NULL), "%ld pins", pins_shown());
}

static bool device_says_gone(void *arg)
{
	int fd = open(DEVICE, O_RDONLY);

	*(int *)arg = fd < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	return fd < 0;
}

/* What a descriptor says whose daemon has gone. */
static void expect_stale(int fd, const char *when)
{
	int err = open_result(fd, ALICE, 0);
	char c;

	check(err == -ESTALE, "ioctl %s: %d", when, err);
	check(read(fd, &c, 1) < 0 && errno == ESTALE, "read %s: %s", when, strerror(errno));
	err = poll_for(fd, POLLPRI, 30000);
	check(err == (POLLERR | POLLHUP), "poll %s: 0x%x", when, err);
}

static void wait_for_end(int tell_fd)
{
	int fd = open_device();

	tell(tell_fd);
	_exit(poll_for(fd, POLLPRI, FOR_EVER) == (POLLERR | POLLHUP) ? 0 : 1);
}

static void check_daemon_death(void)
{
	int fd = open_device(), from, err, status;
	pid_t waiter = start(wait_for_end, &from);

	await(from);
	check(wait_until(sleeps, &waiter), "the waiter does not wait");
	check(!open_result(fd, ALICE, 0), "before");
	guest("kill");
	check(wait_until(device_says_gone, &err) && err == ENOTCONN, "open: %s", strerror(err));
	expect_stale(fd, "after its death");
	status = status_of(waiter);
	check(status == 0, "who polled was not told: 0x%x", status);
	guest("umount");
	check(device_says_gone(&err) && err == ENOTCONN, "open without a mount: %s", strerror(err));
	guest("start");
	expect_stale(fd, "of the first daemon");
	err = open_result(open_device(), ALICE, 0);
	check(!err, "by a new descriptor: %s", strerror(-err));
}

const struct named_check way_checks[] = {
	{"read", check_read},
	{"malformed", check_malformed},
	{"poll", check_poll},
	{"root_rights", check_root_rights},
	{"user_rights", check_user_rights},
	{"no_group", check_no_group},
	{"owner", check_owner},
	{"not_let_in", check_not_let_in},
	{"let_in", check_let_in},
	{"handed_on", check_handed_on},
	{"killed", check_killed},
	{"beside_a_waiting_one", check_beside_a_waiting_one},
	{"daemon_death", check_daemon_death},
	{NULL, NULL},
};
