/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors in a program that does not know of them.
 *
 * Programs close what they did not open: before exec, when they become daemons, to have a clean table.
 * They also put a descriptor of theirs on a number of their choice. Pins end with the session's socket,
 * so there are three defences, each for what the one before lets through:
 *
 *	numbers		ours lie high, where no program looks for its own
 *	calls		close() of ours fails with EBADF, as if nothing were there; close_range() and
 *			closefrom() leave ours out; dup2() and dup3() onto one of ours move it away first
 *	own_is()	before each use: what is behind the number is what was there at first. If not (the
 *			program went to the kernel directly), the number is the program's and not touched
 *
 * What went that way is not lost: the files are also registered with an io_uring that does nothing else.
 * Its descriptor is closed at once, the mapping of a page of it keeps it, and so do children's. They end
 * with their last mapping, whatever happens to any number. Where the kernel gives no io_uring, such
 * programs lose their pins.
 *
 * The table is read without a lock, as close() may be called in a signal handler and between vfork() and
 * exec; a child of vfork() changes nothing here, since it has a table of its own and our memory.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fs/client/kvcmap.h"

#define OWN_MAX	  64   /* two of a session */
#define TABLE_MAX 1024 /* no further up: the kernel copies the table up to there at each fork() */

/** struct own - a descriptor of the library. */
struct own {
	atomic_int fd; /* -1: free; set last */
	int *where;    /* it is also written there; protected by the lock, as changes of all here */
	dev_t dev;
	ino_t ino;
};

/** struct next - the same calls of the next library; NULL: straight to the kernel. */
struct next {
	int (*close)(int fd);
	int (*close_range)(unsigned int first, unsigned int last, int flags);
	int (*dup2)(int from, int to);
	int (*dup3)(int from, int to, int flags);
};

static struct own table[OWN_MAX] = {[0 ... OWN_MAX - 1] = {.fd = -1}};
static atomic_uint nr_own; /* looked at first */
static pid_t owner;	   /* whose table of descriptors it is about */
static struct next next;

/* ---- the table ---- */

static bool still(const struct own *own, int fd)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == own->dev && st.st_ino == own->ino;
}

/* The entry of @fd, when that is still what it was. */
static struct own *own_at(int fd)
{
	if (fd < 0 || !atomic_load(&nr_own))
		return NULL;
	for (u32 i = 0; i < OWN_MAX; i++)
		if (atomic_load(&table[i].fd) == fd && still(&table[i], fd))
			return &table[i];
	return NULL;
}

/* Another number for @fd, high up if possible; -1: none. @fd stays. */
static int move_up(int fd)
{
	struct rlimit limit;
	int top = TABLE_MAX, to = -1;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < TABLE_MAX)
		top = (int)limit.rlim_cur;
	for (int low = top - top / 16; to < 0 && low > 2; low -= (top + 3) / 4)
		to = fcntl(fd, F_DUPFD_CLOEXEC, low);
	return to;
}

int own_add(int *where)
{
	struct own *own = table;
	struct stat st;
	int fd;

	while (own < table + OWN_MAX && atomic_load(&own->fd) >= 0)
		own++;
	if (own == table + OWN_MAX || fstat(*where, &st))
		return -EMFILE;
	fd = move_up(*where);
	if (fd >= 0) {
		close(*where);
		*where = fd;
	}
	own->where = where;
	own->dev = st.st_dev;
	own->ino = st.st_ino;
	owner = getpid();
	atomic_fetch_add(&nr_own, 1);
	atomic_store(&own->fd, *where);
	return 0;
}

bool own_is(const int *where)
{
	const struct own *own = own_at(*where);

	return own && own->where == where;
}

void own_del(const int *where)
{
	for (u32 i = 0; i < OWN_MAX; i++) {
		if (atomic_load(&table[i].fd) < 0 || table[i].where != where)
			continue;
		atomic_store(&table[i].fd, -1);
		atomic_fetch_sub(&nr_own, 1);
	}
}

void own_forked(void)
{
	owner = getpid();
}

int own_room(u32 nr)
{
	int fds[64];
	u32 got = 0;

	while (got < min(nr, (u32)ARRAY_SIZE(fds)) &&
	       (fds[got] = open("/", O_PATH | O_CLOEXEC)) >= 0)
		got++;
	for (u32 i = 0; i < got; i++)
		close(fds[i]);
	return got < nr ? -EMFILE : 0;
}

/* ---- held by a mapping ---- */

void *files_hold(const int *fds, u32 nr)
{
	struct io_uring_params params = {0};
	int ring = (int)syscall(SYS_io_uring_setup, 1, &params);
	void *page = MAP_FAILED;

	if (ring < 0)
		return NULL;
	if (!syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, fds, nr))
		page = (void *)syscall(SYS_mmap, NULL, KVC_PAGE_SIZE, PROT_NONE, MAP_SHARED, ring,
				       IORING_OFF_SQ_RING);
	close(ring);
	return page == MAP_FAILED ? NULL : page;
}

void files_let_go(void *page)
{
	if (page)
		syscall(SYS_munmap, page, KVC_PAGE_SIZE);
}

/* ---- calls that are taken over ---- */

static int next_close_range(unsigned int first, unsigned int last, int flags)
{
	if (next.close_range)
		return next.close_range(first, last, flags);
	return (int)syscall(SYS_close_range, first, last, flags);
}

static int next_dup3(int from, int to, int flags)
{
	return next.dup3 ? next.dup3(from, to, flags) : (int)syscall(SYS_dup3, from, to, flags);
}

int close(int fd)
{
	if (!kvcmap_inside() && own_at(fd)) {
		errno = EBADF;
		return -1;
	}
	return next.close ? next.close(fd) : (int)syscall(SYS_close, fd);
}

/* The lowest of ours in [@first, @last]; -1: none. */
static int first_own(unsigned int first, unsigned int last)
{
	int lowest = -1;

	for (u32 i = 0; i < OWN_MAX; i++) {
		int fd = atomic_load(&table[i].fd);

		if (fd >= 0 && (unsigned int)fd >= first && (unsigned int)fd <= last &&
		    (lowest < 0 || fd < lowest) && own_at(fd))
			lowest = fd;
	}
	return lowest;
}

int close_range(unsigned int first, unsigned int last, int flags)
{
	int fd, ret = 0;

	if (kvcmap_inside() || !atomic_load(&nr_own) || first > last)
		return next_close_range(first, last, flags);
	while (!ret && first <= last && (fd = first_own(first, last)) >= 0) {
		if ((unsigned int)fd > first)
			ret = next_close_range(first, (unsigned int)fd - 1, flags);
		first = (unsigned int)fd + 1;
	}
	return ret || first > last ? ret : next_close_range(first, last, flags);
}

/* Without close_range() in the kernel there is no way to leave ours out but one by one. */
void closefrom(int low)
{
	unsigned int first = (unsigned int)max(low, 0);
	int saved = errno;
	long top = sysconf(_SC_OPEN_MAX);

	if (close_range(first, ~0u, 0))
		for (long fd = first; fd < top; fd++)
			close((int)fd);
	errno = saved;
}

/* @to is about to become something else. Return: 0, or -1 and errno. */
static int make_way(int from, int to)
{
	struct own *own;
	int fd = to;

	if (kvcmap_inside() || from == to || !own_at(to) || owner != getpid() ||
	    fcntl(from, F_GETFD) < 0)
		return 0;
	kvcmap_enter();
	own = own_at(to);
	if (own) {
		fd = move_up(to);
		if (fd >= 0) {
			*own->where = fd;
			atomic_store(&own->fd, fd);
		}
	}
	kvcmap_leave();
	return fd < 0 ? -1 : 0;
}

int dup2(int from, int to)
{
	if (make_way(from, to))
		return -1;
	return next.dup2 ? next.dup2(from, to) : from == to && fcntl(from, F_GETFD) >= 0 ?
		to : next_dup3(from, to, 0);
}

int dup3(int from, int to, int flags)
{
	return make_way(from, to) ? -1 : next_dup3(from, to, flags);
}

/* A pointer to an object is what dlsym() has to give. */
static void find_next(void *to, const char *name)
{
	void *sym = dlsym(RTLD_NEXT, name);

	memcpy(to, &sym, sizeof(sym));
}

__attribute__((constructor)) static void find_all(void)
{
	find_next(&next.close, "close");
	find_next(&next.close_range, "close_range");
	find_next(&next.dup2, "dup2");
	find_next(&next.dup3, "dup3");
}
