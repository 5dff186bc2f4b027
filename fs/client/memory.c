/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pool files in the address space.
 *
 * Blocks of a sequence lie in runs of one or more pool files. What lies in one run is handed out where
 * it is in a *window*, a mapping of the whole pool file made at first use: no system call, and page
 * tables that are warm when the same memory is looked at again, which is what appending a token to
 * many sequences needs. Several runs are stitched: one address range is reserved and each run mapped
 * over a part of it. Ranges begin at an address that is congruent to the first run's offset modulo a
 * huge page, so that the kernel can map huge pages.
 *
 * Windows cost address space only; where that is limited, everything is stitched.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/client/client.h"

#define POOL_BATCH 32 /* files of one reply: as many as kvc_op_pool.present has bits */
#define POOLS_MAX  (1u << 24)

/* ---- runs ---- */

static int runs_grow(struct runs *runs, u32 more)
{
	struct run *run;
	u64 max = (u64)runs->nr + more;

	if (max <= runs->max)
		return 0;
	run = reallocarray(runs->run, max, sizeof(*run));
	if (!run)
		return -ENOMEM;
	runs->run = run;
	runs->max = (u32)max;
	return 0;
}

int runs_add(struct runs *runs, const struct kvc_extent *ext, u32 nr, u64 stride)
{
	if (runs_grow(runs, nr))
		return -ENOMEM;
	for (u32 i = 0; i < nr; i++) {
		u64 bytes = (u64)ext[i].nr_blocks * stride;
		struct run *last = runs->nr ? &runs->run[runs->nr - 1] : NULL;

		if (!bytes || ext[i].off % KVC_PAGE_SIZE || bytes / stride != ext[i].nr_blocks)
			return -EPROTO;
		if (last && last->pool == ext[i].pool && last->off + last->bytes == ext[i].off)
			last->bytes += bytes;
		else
			runs->run[runs->nr++] = (struct run){ext[i].pool, ext[i].off, bytes};
		runs->bytes += bytes;
	}
	return 0;
}

bool runs_equal(const struct runs *a, const struct runs *b)
{
	if (a->nr != b->nr)
		return false;
	for (u32 i = 0; i < a->nr; i++)
		if (a->run[i].pool != b->run[i].pool || a->run[i].off != b->run[i].off ||
		    a->run[i].bytes != b->run[i].bytes)
			return false;
	return true;
}

/* ---- pool files ---- */

static void pool_free(struct pool_file *pool)
{
	for (int w = 0; w < 2; w++)
		if (pool->window[w])
			munmap(pool->window[w], pool->bytes);
	if (pool->ro_fd >= 0 && pool->ro_fd != pool->fd)
		close(pool->ro_fd);
	if (pool->fd >= 0)
		close(pool->fd);
	free(pool);
}

void pools_free(struct conn *conn)
{
	for (u32 i = 0; i < conn->nr_pools; i++)
		if (conn->pools[i])
			pool_free(conn->pools[i]);
	free(conn->pools);
}

/* Room for pool file @nr. Some are never seen: they are gone before anything is mapped from them. */
static int pools_grow(struct conn *conn, u32 nr)
{
	struct pool_file **pools;
	u64 max = max((u64)nr + 1, (u64)conn->nr_pools);

	if (nr < conn->nr_pools)
		return 0;
	if (nr >= POOLS_MAX)
		return -EPROTO;
	pools = reallocarray(conn->pools, max, sizeof(struct pool_file *));
	if (!pools)
		return -ENOMEM;
	memset(pools + conn->nr_pools, 0, (max - conn->nr_pools) * sizeof(struct pool_file *));
	conn->pools = pools;
	conn->nr_pools = (u32)max;
	return 0;
}

/* A descriptor came again. Return: 0 when it is of use: it is writable, and the one here is not. */
static int pool_upgrade(struct pool_file *pool, int fd, bool writable)
{
	if (!writable || pool->writable)
		return -EALREADY;
	/* Others may be mapping through the old one: it stays, as the one for reading. */
	if (pool->ro_fd >= 0 && pool->ro_fd != pool->fd)
		close(pool->ro_fd);
	pool->ro_fd = pool->fd;
	pool->fd = fd;
	pool->writable = true;
	return 0;
}

/* Keep a descriptor as pool file @nr. Return: 0, -EALREADY (not needed), -EPROTO, -ENOMEM. */
static int pool_keep(struct conn *conn, u32 nr, int fd, u64 bytes, bool writable)
{
	struct pool_file *pool;
	struct stat st;
	int err = pools_grow(conn, nr);

	if (err)
		return err;
	if (fstat(fd, &st) || (u64)st.st_size < bytes || bytes % KVC_PAGE_SIZE)
		return -EPROTO;
	if (conn->pools[nr])
		return pool_upgrade(conn->pools[nr], fd, writable);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	*pool = (struct pool_file){.fd = fd, .ro_fd = -1, .bytes = bytes, .writable = writable};
	conn->pools[nr] = pool;
	return 0;
}

/* Take over the descriptors that came: one for each bit of @present, in order. */
static int pools_keep(struct conn *conn, const struct kvc_op_pool *p, const int *fds, int err)
{
	u32 left = p->present;

	for (int i = 0; left; left &= left - 1, i++) {
		u32 nr = (u32)__builtin_ctz(left);
		int kept = err ? err : pool_keep(conn, p->first + nr, fds[i], p->bytes,
						 p->writable >> nr & 1);

		if (kept)
			close(fds[i]);
		if (kept && kept != -EALREADY && !err)
			err = kept;
	}
	return err;
}

/*
 * Ask for descriptors from pool file @first on. Return: 0, -EACCES (@first is none that the client may
 * have any more), -EPROTO, errors of conn_call().
 */
static int pools_ask(struct conn *conn, u32 first)
{
	struct kvc_cmd cmd = {.op = KVC_OP_POOL, .pool = {.first = first}};
	struct kvc_op_pool *p = &cmd.pool;
	int fds[POOL_BATCH];
	int nr = conn_call(conn, &cmd, 1, fds, POOL_BATCH);
	int err = nr < 0 ? nr : cmd.result;

	if (nr < 0)
		return err;
	if (!err && (p->first != first || p->nr > POOL_BATCH || (u64)p->present >> p->nr ||
		     __builtin_popcount(p->present) != nr))
		err = -EPROTO;
	if (err) /* whatever it says came: what did */
		*p = (struct kvc_op_pool){.present = (u32)((1ull << nr) - 1)};
	pthread_mutex_lock(&conn->lock);
	err = pools_keep(conn, p, fds, err);
	pthread_mutex_unlock(&conn->lock);
	return !err && p->nr && !(p->present & 1) ? -EACCES : err;
}

/* Whether @run can be mapped now: 0, -ENOENT (pool file not known), -EACCES, -EPROTO. */
static int run_check(struct conn *conn, const struct run *run, bool write)
{
	const struct pool_file *pool = NULL;
	int err = -ENOENT;

	pthread_mutex_lock(&conn->lock);
	if (run->pool < conn->nr_pools)
		pool = conn->pools[run->pool];
	if (pool) {
		err = write && !pool->writable ? -EACCES : 0;
		if (run->off > pool->bytes || run->bytes > pool->bytes - run->off)
			err = -EPROTO;
	}
	pthread_mutex_unlock(&conn->lock);
	return err;
}

/* What is not known is asked for once; a descriptor for reading may have become one for writing. */
static int run_fetch(struct conn *conn, const struct run *run, bool write)
{
	int err = run_check(conn, run, write);

	if (err != -ENOENT && err != -EACCES)
		return err;
	err = pools_ask(conn, run->pool);
	if (!err)
		err = run_check(conn, run, write);
	return err == -ENOENT ? -EPROTO : err;
}

int pools_fetch(struct conn *conn, const struct runs *runs, bool write)
{
	int err = 0;

	for (u32 i = 0; i < runs->nr && !err; i++)
		err = run_fetch(conn, &runs->run[i], write);
	return err;
}

/* Pool files are never taken off the table while the connection lives. */
static struct pool_file *pool_at(struct conn *conn, u32 nr, int *fd)
{
	struct pool_file *pool;

	pthread_mutex_lock(&conn->lock);
	pool = conn->pools[nr];
	*fd = pool->fd;
	pthread_mutex_unlock(&conn->lock);
	return pool;
}

static bool same_file(int a, int b)
{
	struct stat sa, sb;

	return !fstat(a, &sa) && !fstat(b, &sb) && sa.st_dev == sb.st_dev &&
	       sa.st_ino == sb.st_ino;
}

bool runs_same_memory(struct conn *a_conn, const struct runs *a, struct conn *b_conn,
		      const struct runs *b)
{
	if (a->nr != b->nr)
		return false;
	for (u32 i = 0; i < a->nr; i++) {
		int fa, fb;

		if (a->run[i].off != b->run[i].off || a->run[i].bytes != b->run[i].bytes)
			return false;
		pool_at(a_conn, a->run[i].pool, &fa);
		pool_at(b_conn, b->run[i].pool, &fb);
		if (!same_file(fa, fb))
			return false;
	}
	return true;
}

int pool_ro_fd(struct conn *conn, u32 nr)
{
	char path[40];
	int fd;
	struct pool_file *pool = pool_at(conn, nr, &fd);

	pthread_mutex_lock(&conn->lock);
	if (pool->ro_fd < 0 && !pool->writable)
		pool->ro_fd = pool->fd;
	if (pool->ro_fd < 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", pool->fd);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		pool->ro_fd = fd >= 0 ? fd : pool->fd;
	}
	fd = pool->ro_fd;
	pthread_mutex_unlock(&conn->lock);
	return fd;
}

/* ---- mappings ---- */

u8 *memory_reserve(u64 bytes, u64 off)
{
	u64 slack = bytes >= KVC_HUGE_SIZE ? KVC_HUGE_SIZE : 0;
	u8 *base = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			-1, 0);
	u64 head;

	if (base == MAP_FAILED)
		return NULL;
	head = slack ? (off - (uintptr_t)base) % KVC_HUGE_SIZE : 0;
	if (head)
		munmap(base, head);
	if (slack - head)
		munmap(base + head + bytes, slack - head);
	return base + head;
}

static int map_run(u8 *at, u64 bytes, int fd, u64 off, bool write)
{
	int prot = write ? PROT_READ | PROT_WRITE : PROT_READ;

	return mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)off) == MAP_FAILED ? -errno : 0;
}

/* All of a pool file; NULL: it does not fit into the address space. */
static u8 *window(struct conn *conn, u32 nr, bool write)
{
	int fd;
	struct pool_file *pool = pool_at(conn, nr, &fd);
	u8 *base;

	pthread_mutex_lock(&conn->lock);
	if (!pool->window[write]) {
		base = memory_reserve(pool->bytes, 0);
		if (base && map_run(base, pool->bytes, fd, 0, write)) {
			munmap(base, pool->bytes);
			base = NULL;
		}
		if (base)
			madvise(base, pool->bytes, MADV_DONTDUMP);
		pool->window[write] = base;
	}
	base = pool->window[write];
	pthread_mutex_unlock(&conn->lock);
	return base;
}

static int stitch(struct conn *conn, const struct runs *runs, bool write, struct mapping *map)
{
	u8 *at = memory_reserve(runs->bytes, runs->run[0].off);
	int err = at ? 0 : -ENOMEM;
	int fd;

	map->addr = at;
	map->stitched = true;
	for (u32 i = 0; i < runs->nr && !err; i++) {
		const struct run *run = &runs->run[i];

		pool_at(conn, run->pool, &fd);
		err = map_run(at, run->bytes, fd, run->off, write);
		at += run->bytes;
	}
	if (err && map->addr)
		munmap(map->addr, runs->bytes);
	else if (!err)
		madvise(map->addr, runs->bytes, MADV_DONTDUMP);
	return err;
}

int mapping_make(struct conn *conn, const struct runs *runs, bool write, struct mapping *map)
{
	int err = pools_fetch(conn, runs, write);
	u8 *base = NULL;

	*map = (struct mapping){.bytes = runs->bytes, .nr_runs = runs->nr};
	if (err || !runs->nr)
		return err;
	if (runs->nr == 1)
		base = window(conn, runs->run[0].pool, write);
	if (base)
		map->addr = base + runs->run[0].off;
	else
		err = stitch(conn, runs, write, map);
	if (!err)
		map->conn = conn_get(conn);
	return err;
}

void mapping_drop(struct mapping *map)
{
	if (map->addr && map->stitched)
		munmap(map->addr, map->bytes);
	if (map->used)
		conn_unuse(map->conn);
	if (map->conn)
		conn_put(map->conn);
	*map = (struct mapping){0};
}
