/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcmap, to be preloaded: a program that maps a `kv` file for reading gets the blocks themselves
 * instead of pages that FUSE copies into the page cache.
 *
 * A mapping is replaced where it can be told from the page cache's by nothing but speed: read-only,
 * from a descriptor opened for reading, of a sequence whose blocks are a multiple of pages (then the
 * packed file and the stitched blocks are the same bytes). Its sealed blocks are stitched into one
 * range, and what lies behind them (the open tail, pages past the end) is mapped from the file as
 * ever. Blocks stay pinned until their last page is unmapped. Whatever does not work out (no session,
 * no permission, pins beyond the budget) leaves the program with the mapping that it asked for.
 *
 * What it is not: coherent with later cuts of the file. Sealed blocks never change, and a mapping made
 * before a cut goes on to show them.
 *
 * One lock guards everything. A thread inside is marked, so that what the library itself maps, also
 * from an allocator that it calls, goes straight to the kernel. After fork() the child keeps its
 * parent's mappings and the socket that pins them, and starts with no session of its own. What the
 * parent unmaps is not pinned any more, though: the child may go on to read it, and might see blocks
 * that lie there later.
 */
#undef _FILE_OFFSET_BITS /* it would make mmap() another name of mmap64(): both are defined here */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "fs/client/kvcmap.h"

/** struct mount_session - a session with the daemon behind a device number. */
struct mount_session {
	struct mount_session *next;
	dev_t dev;
	struct kvc *kvc;
};

/** struct shown - one mapping as it was made. */
struct shown {
	struct kvfile file;
	struct stat st;
	struct view *view; /* its pins; NULL: another process's */
	u8 *addr;
	off_t off;	   /* of the file, at @addr */
	int flags;
	u32 nr_pieces;
};

/** struct piece - pages of it that are still there. */
struct piece {
	struct piece *next;
	u8 *addr, *end;
	struct shown *shown;
};

/** struct want - arguments of a mmap(). */
struct want {
	size_t bytes;
	int flags, fd;
	off_t off;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mount_session *sessions;
static struct piece *pieces;
static atomic_uint nr_pieces; /* looked at without the lock: no pieces, nothing to do */
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* Past this library. */
static void *kernel_mmap(void *addr, int prot, const struct want *want)
{
	return (void *)syscall(SYS_mmap, addr, want->bytes, prot, want->flags, want->fd, want->off);
}

static int kernel_munmap(void *addr, size_t len)
{
	return (int)syscall(SYS_munmap, addr, len);
}

static void enter(void)
{
	inside = true;
	pthread_mutex_lock(&lock);
}

static void leave(void)
{
	pthread_mutex_unlock(&lock);
	inside = false;
}

/* ---- sessions ---- */

static struct kvc *session_for(dev_t dev, const struct kvfile *file)
{
	struct mount_session **link = &sessions, *s;

	while (*link && (*link)->dev != dev)
		link = &(*link)->next;
	s = *link;
	if (s && conn_alive(s->kvc->conn))
		return s->kvc;
	if (s) {
		*link = s->next;
		kvc_close(s->kvc);
		free(s);
	}
	s = calloc(1, sizeof(*s));
	if (!s || kvc_open(&s->kvc, file->root, NULL)) {
		free(s);
		return NULL;
	}
	s->dev = dev;
	s->next = sessions;
	sessions = s;
	return s->kvc;
}

/* ---- what is mapped ---- */

static void piece_del(struct piece **link)
{
	struct piece *p = *link;

	*link = p->next;
	atomic_fetch_sub(&nr_pieces, 1);
	if (!--p->shown->nr_pieces) {
		if (p->shown->view)
			view_free(p->shown->view);
		free(p->shown);
	}
	free(p);
}

static struct piece *piece_new(struct shown *shown, u8 *addr, u8 *end)
{
	struct piece *p = malloc(sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct piece){pieces, addr, end, shown};
	pieces = p;
	shown->nr_pieces++;
	atomic_fetch_add(&nr_pieces, 1);
	return p;
}

/* [@addr, @end) shows something else now. */
static void forget(u8 *addr, u8 *end)
{
	struct piece **link = &pieces;

	while (*link) {
		struct piece *p = *link;

		if (p->end <= addr || p->addr >= end) {
			link = &p->next;
		} else if (p->addr >= addr && p->end <= end) {
			piece_del(link);
		} else if (p->addr < addr && p->end > end) {
			/* Without memory for two, the gap counts as there: pins stay a little longer. */
			if (piece_new(p->shown, end, p->end))
				p->end = addr;
			return;
		} else {
			if (p->addr < addr)
				p->end = addr;
			else
				p->addr = end;
			link = &p->next;
		}
	}
}

static struct piece *piece_at(const u8 *addr, const u8 *end)
{
	struct piece *p = pieces;

	while (p && (p->end <= addr || p->addr >= end))
		p = p->next;
	return p;
}

/* ---- showing blocks ---- */

/* Pin the sealed blocks that @want looks at. Return: 0, or why they cannot be shown. */
static int pin(struct shown *shown, const struct want *want, u64 *skip)
{
	struct kvc *kvc = session_for(shown->st.st_dev, &shown->file);
	u64 end = min((u64)want->off + want->bytes, (u64)shown->st.st_size), block, first, last;
	struct kvc_seq *seq;
	int64_t tokens;
	int fd, err;

	if (!kvc)
		return -ENOENT;
	err = kvc_seq_open(kvc, &seq, shown->file.seq, 0);
	if (err)
		return err;
	/* The name was there before the sequence was opened by it, and is there now. */
	fd = kvfile_reopen(&shown->file, &shown->st);
	if (fd >= 0)
		close(fd);
	tokens = kvc_seq_tokens(seq);
	block = seq->layout.block_bytes;
	first = (u64)want->off / block;
	last = min(div_round_up(end, block), (u64)max(tokens, 0) / seq->layout.block_tokens);
	*skip = (u64)want->off - first * block;
	if (fd < 0 || tokens < 0 || block != seq->layout.block_stride || first >= last)
		err = -ENOENT;
	else
		err = view_pin(seq, &(struct pin){first, last - first}, 0, &shown->view);
	kvc_seq_close(seq);
	return err;
}

/* Map @bytes of the runs from @skip on at @at. */
static int map_runs(u8 *at, const struct view *view, u64 skip, u64 bytes, int flags)
{
	for (u32 i = 0; i < view->runs.nr && bytes; i++) {
		const struct run *run = &view->runs.run[i];
		u64 nr = skip < run->bytes ? min(run->bytes - skip, bytes) : 0;

		struct want part = {nr, flags | MAP_FIXED, -1, (off_t)(run->off + skip)};

		if (nr) {
			part.fd = pool_ro_fd(view->conn, run->pool);
			if (kernel_mmap(at, PROT_READ, &part) == MAP_FAILED)
				return -errno;
		}
		skip -= min(skip, run->bytes);
		bytes -= nr;
		at += nr;
	}
	return 0;
}

static int fill(struct shown *shown, const struct want *want, u64 skip)
{
	struct view *view = shown->view;
	u64 covered = min(view->runs.bytes - skip, (u64)want->bytes);
	struct want rest = {want->bytes - covered, want->flags | MAP_FIXED, want->fd,
			    want->off + (off_t)covered};
	int err = pools_fetch(view->conn, &view->runs, false);

	if (!err)
		shown->addr = memory_reserve(want->bytes, view->runs.run[0].off + skip);
	if (!shown->addr)
		return err ? err : -ENOMEM;
	err = map_runs(shown->addr, view, skip, covered, want->flags);
	if (!err && rest.bytes && kernel_mmap(shown->addr + covered, PROT_READ, &rest) == MAP_FAILED)
		err = -errno;
	if (err)
		kernel_munmap(shown->addr, want->bytes);
	return err;
}

/* Blocks in place of @want, or MAP_FAILED. */
static void *show(const struct want *want, const struct stat *st)
{
	struct shown *shown = calloc(1, sizeof(*shown));
	u64 skip;
	int err;

	if (!shown)
		return MAP_FAILED;
	shown->st = *st;
	shown->off = want->off;
	shown->flags = want->flags;
	err = kvfile_find(want->fd, st, &shown->file);
	if (!err)
		err = pin(shown, want, &skip);
	if (!err)
		err = fill(shown, want, skip);
	if (!err && !piece_new(shown, shown->addr, shown->addr + want->bytes)) {
		kernel_munmap(shown->addr, want->bytes);
		err = -ENOMEM;
	}
	if (!err)
		return shown->addr;
	if (shown->view)
		view_free(shown->view);
	free(shown);
	return MAP_FAILED;
}

/* ---- calls that are taken over ---- */

/* Cheap questions first: nearly all mappings are none of ours. */
static bool wanted(const struct want *want, int prot, struct stat *st)
{
	int type = want->flags & MAP_TYPE;

	return want->fd >= 0 && want->bytes && prot == PROT_READ && !inside &&
	       (type == MAP_SHARED || type == MAP_PRIVATE) &&
	       !(want->flags & ~(MAP_TYPE | MAP_POPULATE | MAP_NORESERVE | MAP_NONBLOCK)) &&
	       want->off >= 0 && want->off % KVC_PAGE_SIZE == 0 && !fstat(want->fd, st) &&
	       S_ISREG(st->st_mode) && major(st->st_dev) == 0 && want->off < st->st_size &&
	       (fcntl(want->fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	struct want want = {round_up_pow2(len, KVC_PAGE_SIZE), flags, fd, off};
	int saved = errno;
	void *at = MAP_FAILED;
	struct stat st;

	if (!(flags & MAP_ANONYMOUS) && wanted(&want, prot, &st)) {
		enter();
		at = show(&want, &st);
		leave();
		errno = saved;
	}
	if (at == MAP_FAILED)
		at = (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
	if (flags & MAP_FIXED && at != MAP_FAILED && !inside && atomic_load(&nr_pieces)) {
		enter();
		forget(at, (u8 *)at + want.bytes);
		leave();
	}
	return at;
}

_Static_assert(sizeof(off_t) == sizeof(off64_t), "mmap64() is mmap()");
void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off)
	__attribute__((alias("mmap")));

int munmap(void *addr, size_t len)
{
	int ret;

	if (inside || !atomic_load(&nr_pieces))
		return kernel_munmap(addr, len);
	enter();
	ret = kernel_munmap(addr, len);
	if (!ret)
		forget(addr, (u8 *)addr + round_up_pow2(len, KVC_PAGE_SIZE));
	leave();
	return ret;
}

/* A longer mapping in place of [@old, @old + @old_len), which lies in @p. */
static void *grow(const struct piece *p, u8 *old, size_t old_len, size_t new_len)
{
	const struct shown *shown = p->shown;
	int fd = kvfile_reopen(&shown->file, &shown->st);
	struct want want = {new_len, shown->flags, fd, shown->off + (off_t)(old - shown->addr)};
	struct stat st;
	void *at;

	if (fd < 0 || fstat(fd, &st)) {
		if (fd >= 0)
			close(fd);
		errno = ENOMEM;
		return MAP_FAILED;
	}
	at = show(&want, &st);
	if (at == MAP_FAILED)
		at = kernel_mmap(NULL, PROT_READ, &want);
	close(fd);
	if (at != MAP_FAILED && !kernel_munmap(old, old_len))
		forget(old, old + old_len);
	return at;
}

/* The kernel does not move what was stitched; it can shorten it. */
static void *remap(u8 *old, size_t old_len, size_t new_len, int flags, void *to)
{
	struct piece *p = piece_at(old, old + max(old_len, (size_t)1));
	void *at;

	if (p && (flags & ~MREMAP_MAYMOVE || !old_len || p->addr > old || p->end < old + old_len)) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	if (p && new_len > old_len) {
		errno = ENOMEM;
		return flags & MREMAP_MAYMOVE ? grow(p, old, old_len, new_len) : MAP_FAILED;
	}
	at = (void *)syscall(SYS_mremap, old, old_len, new_len, flags, to);
	if (at != MAP_FAILED && flags & MREMAP_FIXED)
		forget(at, (u8 *)at + new_len);
	if (at != MAP_FAILED && p)
		forget(old + new_len, old + old_len);
	return at;
}

void *mremap(void *old, size_t old_len, size_t new_len, int flags, ...)
{
	void *to = NULL, *at;
	va_list args;

	if (flags & MREMAP_FIXED) {
		va_start(args, flags);
		to = va_arg(args, void *);
		va_end(args);
	}
	if (inside || !atomic_load(&nr_pieces))
		return (void *)syscall(SYS_mremap, old, old_len, new_len, flags, to);
	enter();
	at = remap(old, round_up_pow2(old_len, KVC_PAGE_SIZE), round_up_pow2(new_len, KVC_PAGE_SIZE),
		   flags, to);
	leave();
	return at;
}

/* ---- fork ---- */

/*
 * The lease is the parent's: the child gives nothing back and asks for nothing over its socket, which
 * it keeps open, so that what it sees stays pinned when the parent goes first.
 */
static void child_starts(void)
{
	sessions = NULL;
	for (struct piece *p = pieces; p; p = p->next)
		p->shown->view = NULL;
	leave();
}

__attribute__((constructor)) static void start(void)
{
	pthread_atfork(enter, leave, child_starts);
}
