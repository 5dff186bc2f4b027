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
 * A mapping outlives its session, and never shows what others wrote there later: when the daemon dies,
 * and as long as the lease is open, the memory is used by nobody else. Socket and lease are open as long
 * as there is a mapping, whatever the program does to descriptors (kvcmap_fd.c). Nothing else stays
 * open: descriptors of pool files come with each mapping, and go when it is made.
 *
 * One lock guards everything. A thread inside is marked, so that what the library itself maps or closes,
 * also from an allocator that it calls, goes straight to the kernel. After fork() the child keeps its
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

/* Most pool files that come in one message, and one more for the file. */
#define FDS_MAX 33

/** struct mount_session - a session with the daemon behind a device number. */
struct mount_session {
	struct mount_session *next; /* of those that are used for new mappings */
	dev_t dev;
	struct kvc *kvc;	    /* NULL: for what is shown only */
	struct conn *conn;	    /* reference; its socket and lease are ours (own_add) */
	void *held;		    /* the same two, without descriptors; NULL: not possible */
	u32 nr_shown;
	bool inherited;		    /* our parent's: nothing is said through it */
};

/** struct shown - one mapping as it was made. */
struct shown {
	struct kvfile file;
	struct stat st;
	struct mount_session *session;
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

bool kvcmap_inside(void)
{
	return inside;
}

void kvcmap_enter(void)
{
	inside = true;
	pthread_mutex_lock(&lock);
}

void kvcmap_leave(void)
{
	pthread_mutex_unlock(&lock);
	inside = false;
}

/* ---- sessions ---- */

/* Numbers that are not ours any more are not touched. */
static void session_check(struct mount_session *s)
{
	struct conn *conn = s->conn;

	if (conn->fd >= 0 && !own_is(&conn->fd)) {
		atomic_store(&conn->dead, true);
		own_del(&conn->fd);
		conn->fd = -1;
	}
	if (conn->lease >= 0 && !own_is(&conn->lease)) {
		own_del(&conn->lease);
		conn->lease = -1;
	}
}

/* Nothing of it is shown. In a child all but the descriptors is left as it is. */
static void session_free(struct mount_session *s)
{
	session_check(s);
	if (s->inherited) {
		if (s->conn->fd >= 0)
			close(s->conn->fd);
		if (s->conn->lease >= 0)
			close(s->conn->lease);
	}
	own_del(&s->conn->fd);
	own_del(&s->conn->lease);
	if (!s->inherited) {
		kvc_close(s->kvc);
		conn_put(s->conn);
	}
	files_let_go(s->held);
	free(s);
}

/* Not for new mappings any more. */
static void session_retire(struct mount_session *s)
{
	struct mount_session **link = &sessions;

	while (*link != s)
		link = &(*link)->next;
	*link = s->next;
	if (!s->nr_shown) {
		session_free(s);
		return;
	}
	kvc_close(s->kvc);
	s->kvc = NULL;
}

/* Put its descriptors out of the way, and do without what nobody waits for. */
static int session_guard(struct mount_session *s)
{
	struct conn *conn = s->conn;
	int fds[2], err = own_add(&conn->fd);

	if (!err && conn->lease >= 0)
		err = own_add(&conn->lease);
	if (conn->event_fd >= 0)
		close(conn->event_fd);
	conn->event_fd = -1;
	fds[0] = conn->fd;
	fds[1] = conn->lease;
	s->held = files_hold(fds, conn->lease >= 0 ? 2 : 1);
	return err;
}

static struct mount_session *session_new(dev_t dev, const struct kvfile *file)
{
	struct mount_session *s = calloc(1, sizeof(*s));

	if (!s || kvc_open(&s->kvc, file->root, NULL)) {
		free(s);
		return NULL;
	}
	s->dev = dev;
	s->conn = conn_get(s->kvc->conn);
	s->next = sessions;
	sessions = s;
	if (!session_guard(s))
		return s;
	session_retire(s);
	return NULL;
}

static struct mount_session *session_for(dev_t dev, const struct kvfile *file)
{
	struct mount_session *s = sessions;

	while (s && s->dev != dev)
		s = s->next;
	if (s)
		session_check(s);
	if (s && conn_alive(s->conn))
		return s;
	if (s)
		session_retire(s);
	return session_new(dev, file);
}

/* A mapping of it is no more. */
static void session_unshow(struct mount_session *s)
{
	if (--s->nr_shown)
		return;
	if (!s->kvc)
		session_free(s);
	else if (!conn_alive(s->conn))
		session_retire(s);
}

/* ---- what is mapped ---- */

static void piece_del(struct piece **link)
{
	struct piece *p = *link;

	*link = p->next;
	atomic_fetch_sub(&nr_pieces, 1);
	if (!--p->shown->nr_pieces) {
		session_check(p->shown->session);
		if (p->shown->view)
			view_free(p->shown->view);
		session_unshow(p->shown->session);
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
	struct mount_session *s = session_for(shown->st.st_dev, &shown->file);
	u64 end = min((u64)want->off + want->bytes, (u64)shown->st.st_size), block, first, last;
	struct kvc_seq *seq;
	int64_t tokens;
	int fd, err;

	if (!s)
		return -ENOENT;
	shown->session = s;
	err = kvc_seq_open(s->kvc, &seq, shown->file.seq, 0);
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

/*
 * The table of pool files starts anew: it is nobody else's, under the lock. A message whose descriptors
 * find no room would end the session, and with it the pins of other mappings.
 */
static int fetch(struct conn *conn, const struct runs *runs)
{
	int err = own_room(FDS_MAX);

	return err ? err : pools_fetch(conn, runs, false);
}

static void drop_pools(struct conn *conn)
{
	pools_free(conn);
	conn->pools = NULL;
	conn->nr_pools = 0;
}

static int fill(struct shown *shown, const struct want *want, u64 skip)
{
	struct view *view = shown->view;
	u64 covered = min(view->runs.bytes - skip, (u64)want->bytes);
	struct want rest = {want->bytes - covered, want->flags | MAP_FIXED, want->fd,
			    want->off + (off_t)covered};
	int err = fetch(view->conn, &view->runs);

	if (!err)
		shown->addr = memory_reserve(want->bytes, view->runs.run[0].off + skip);
	if (!shown->addr) {
		drop_pools(view->conn);
		return err ? err : -ENOMEM;
	}
	err = map_runs(shown->addr, view, skip, covered, want->flags);
	if (!err && rest.bytes && kernel_mmap(shown->addr + covered, PROT_READ, &rest) == MAP_FAILED)
		err = -errno;
	if (err)
		kernel_munmap(shown->addr, want->bytes);
	drop_pools(view->conn);
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
	if (!err) {
		shown->session->nr_shown++;
		return shown->addr;
	}
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
		kvcmap_enter();
		at = show(&want, &st);
		kvcmap_leave();
		errno = saved;
	}
	if (at == MAP_FAILED)
		at = (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
	if (flags & MAP_FIXED && at != MAP_FAILED && !inside && atomic_load(&nr_pieces)) {
		kvcmap_enter();
		forget(at, (u8 *)at + want.bytes);
		kvcmap_leave();
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
	kvcmap_enter();
	ret = kernel_munmap(addr, len);
	if (!ret)
		forget(addr, (u8 *)addr + round_up_pow2(len, KVC_PAGE_SIZE));
	kvcmap_leave();
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
	kvcmap_enter();
	at = remap(old, round_up_pow2(old_len, KVC_PAGE_SIZE), round_up_pow2(new_len, KVC_PAGE_SIZE),
		   flags, to);
	kvcmap_leave();
	return at;
}

/* ---- fork ---- */

/*
 * The lease is the parent's: the child gives nothing back and asks for nothing over its socket, which
 * it keeps open as long as it has a mapping of it, so that what it sees stays pinned when the parent
 * goes first.
 */
static void child_starts(void)
{
	struct mount_session *s, *next;

	own_forked();
	for (struct piece *p = pieces; p; p = p->next) {
		p->shown->view = NULL;
		p->shown->session->kvc = NULL;
		p->shown->session->inherited = true;
	}
	for (s = sessions; s; s = next) {
		next = s->next;
		s->kvc = NULL;
		s->inherited = true;
		if (!s->nr_shown)
			session_free(s);
	}
	sessions = NULL;
	kvcmap_leave();
}

__attribute__((constructor)) static void start(void)
{
	pthread_atfork(kvcmap_enter, kvcmap_leave, child_starts);
}
