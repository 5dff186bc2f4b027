/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warm index: what lies where in DRAM, for the daemon after this one.
 *
 * DRAM's files can outlive the daemon, held open by somebody else; so can this index, which lies in
 * shared memory. It must be right wherever the daemon is killed, so each entry stands for itself: it is
 * complete when its check is written, last, and gone when that is cleared, first. An entry is cleared
 * before what it says ceases to be true: before bytes move, before room is freed, before a record is
 * removed. Nobody looks at it while the daemon lives.
 *
 * It speaks of two things, separately, since one must not be in doubt while the other changes:
 *
 *	content	a block's bytes are here, and its record says what they are. Only recorded blocks: of all
 *		others nothing would know their name. Whether record and bytes agree is checked when they
 *		are loaded, so that a wrong entry costs a read of NVMe at most
 *	place	clients map this memory
 *
 * It costs 48 bytes a block, and no content is noted beyond what 0.4 % of DRAM can hold.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/base/hash.h"
#include "allocator/pool_types.h"

#define CONTENT_BYTES 12288 /* of DRAM, for each content entry */

/* ---- layout ---- */

static u32 entries_of(u64 dram_bytes)
{
	return (u32)(dram_bytes / KVC_PAGE_SIZE);
}

static u64 entries_start(u32 nr_slabs)
{
	return KVC_PAGE_SIZE + round_up_pow2(nr_slabs * sizeof(struct warm_slab), KVC_PAGE_SIZE);
}

static u64 index_bytes(const struct pool *pool)
{
	return entries_start(pool->nr_slabs) +
	       entries_of(pool->dram_bytes) * sizeof(struct warm_entry);
}

static int make_index(u64 bytes)
{
	int fd = fault_point(FAULT_MEMORY)
			 ? -1
			 : memfd_create("kvcachefs-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -ENOMEM;
	if (fchmod(fd, 0600) || ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		close(fd);
		return -ENOMEM;
	}
	return fd;
}

static int map_index(struct warm *warm, const struct pool *pool)
{
	u8 *base = mmap(NULL, warm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, warm->fd, 0);

	if (base == MAP_FAILED)
		return -ENOMEM;
	madvise(base, warm->bytes, MADV_DONTDUMP);
	warm->header = (void *)base;
	warm->slabs = (void *)(base + KVC_PAGE_SIZE);
	warm->entries = (void *)(base + entries_start(pool->nr_slabs));
	return 0;
}

static void write_header(struct warm *warm, const struct pool *pool)
{
	*warm->header = (struct warm_header){
		.magic = WARM_MAGIC,
		.version = WARM_VERSION,
		.nr_slabs = pool->nr_slabs,
		.dram_bytes = pool->dram_bytes,
		.slab_bytes = pool->slab_bytes,
		.nr_entries = entries_of(pool->dram_bytes),
	};
}

static bool header_good(const struct warm *warm, const struct pool *pool)
{
	const struct warm_header *h = warm->header;

	return h->magic == WARM_MAGIC && h->version == WARM_VERSION &&
	       h->nr_slabs == pool->nr_slabs && h->dram_bytes == pool->dram_bytes &&
	       h->slab_bytes == pool->slab_bytes &&
	       h->nr_entries == entries_of(pool->dram_bytes) && h->nr_used <= h->nr_entries;
}

static struct warm *warm_new(struct pool *pool, int fd)
{
	struct warm *warm = calloc(1, sizeof(*warm));

	if (!warm)
		return NULL;
	warm->fd = fd;
	warm->bytes = index_bytes(pool);
	warm->max_content = (u32)(pool->dram_bytes / CONTENT_BYTES);
	warm->files = calloc(pool->nr_slabs, sizeof(*warm->files));
	if (warm->files && !map_index(warm, pool))
		return warm;
	free(warm->files);
	free(warm);
	return NULL;
}

void warm_free(struct warm *warm)
{
	if (!warm)
		return;
	munmap(warm->header, warm->bytes);
	close(warm->fd);
	free(warm->files);
	free(warm->legacy);
	free(warm->orphans);
	free(warm);
}

/* Is @fd an index of this pool? What is mapped must not end early. */
static bool index_fits(const struct pool *pool, int fd)
{
	struct stat st;

	return !fstat(fd, &st) && (u64)st.st_size == index_bytes(pool);
}

static int begin_fresh(struct pool *pool)
{
	int fd = make_index(index_bytes(pool));

	if (fd < 0)
		return fd;
	pool->warm = warm_new(pool, fd);
	if (!pool->warm) {
		close(fd);
		return -ENOMEM;
	}
	write_header(pool->warm, pool);
	return 0;
}

int pool_warm_begin(struct pool *pool, int fd)
{
	bool taken = fd >= 0;
	int err = 0;

	if (taken && index_fits(pool, fd)) {
		pool->warm = warm_new(pool, fd);
		if (pool->warm && !header_good(pool->warm, pool)) {
			warm_free(pool->warm);
			pool->warm = NULL;
			fd = -1;
		}
	}
	if (!pool->warm) {
		if (fd >= 0)
			close(fd);
		err = begin_fresh(pool);
	}
	if (err)
		return err;
	pool->warm->taken = taken;
	for (u32 i = 0; i < pool->nr_slabs; i++)
		warm_file(pool, i);
	lock_acquire(&pool->lock);
	for (u32 i = 0; i < pool->nr_slabs && !taken; i++)
		warm_slab(pool, i);
	lock_release(&pool->lock);
	return pool->warm->fd;
}

/* ---- slabs ---- */

static u64 slab_check(const struct warm_slab *s)
{
	return hash_bytes(s, offsetof(struct warm_slab, check)) | 1;
}

bool warm_slab_good(const struct warm *warm, u32 slab)
{
	const struct warm_slab *s = &warm->slabs[slab];

	return s->check == slab_check(s) && s->dev == warm->files[slab].dev &&
	       s->ino == warm->files[slab].ino && s->ino;
}

void warm_file(struct pool *pool, u32 slab)
{
	struct stat st;
	int fd;

	if (!pool->warm)
		return;
	fd = tier_dram_file(pool->tier[IN_DRAM], slab);
	pool->warm->files[slab] = (struct warm_file){0};
	if (fd >= 0 && !fstat(fd, &st))
		pool->warm->files[slab] = (struct warm_file){st.st_dev, st.st_ino};
}

void warm_slab_drop(struct pool *pool, u32 slab)
{
	if (pool->warm)
		__atomic_store_n(&pool->warm->slabs[slab].check, 0, __ATOMIC_SEQ_CST);
}

void warm_slab(struct pool *pool, u32 slab)
{
	const struct dram_slab *s = &pool->slabs[slab];
	const struct pool_owner *owner;
	struct warm_slab *w;

	if (!pool->warm || pool->warm->taken)
		return;
	warm_slab_drop(pool, slab);
	owner = &pool->domains[s->domain].owner;
	w = &pool->warm->slabs[slab];
	w->dev = pool->warm->files[slab].dev;
	w->ino = pool->warm->files[slab].ino;
	w->uid = owner->uid;
	w->gid = owner->gid;
	w->mode = owner->mode;
	w->flags = (s->domain ? WARM_SLAB_DOMAIN : 0) | (s->touched ? WARM_SLAB_TOUCHED : 0);
	__atomic_store_n(&w->check, slab_check(w), __ATOMIC_SEQ_CST);
}

/* ---- entries ---- */

static u64 entry_check(const struct warm_entry *e)
{
	return hash_bytes(e, offsetof(struct warm_entry, check)) | 1;
}

bool warm_entry_good(const struct warm_entry *e)
{
	return e->check == entry_check(e) && e->kind < NR_WARM_KINDS;
}

/* 0: none left. */
static u32 slot_take(struct warm *warm)
{
	u32 slot = warm->free;

	if (slot) {
		warm->free = warm->entries[slot - 1].id;
		return slot;
	}
	if (warm->header->nr_used == warm->header->nr_entries)
		return 0;
	slot = warm->header->nr_used + 1;
	/* Counted before it is written: the next daemon looks at no others. */
	__atomic_store_n(&warm->header->nr_used, slot, __ATOMIC_SEQ_CST);
	return slot;
}

void warm_slot_put(struct warm *warm, u32 slot)
{
	struct warm_entry *e = &warm->entries[slot - 1];

	__atomic_store_n(&e->check, 0, __ATOMIC_SEQ_CST);
	e->id = warm->free;
	warm->free = slot;
}

static u32 entry_add(struct warm *warm, const struct warm_entry *entry)
{
	u32 slot = slot_take(warm);
	struct warm_entry *e;

	if (!slot)
		return 0;
	e = &warm->entries[slot - 1];
	*e = *entry;
	__atomic_store_n(&e->check, entry_check(e), __ATOMIC_SEQ_CST);
	return slot;
}

/* The index while it is to be written. */
static struct warm *writable(const struct pool *pool)
{
	return pool->warm && !pool->warm->ended ? pool->warm : NULL;
}

static struct warm_entry entry_of(const struct block *b, u32 id, enum warm_kind kind)
{
	bool content = kind == WARM_CONTENT;

	return (struct warm_entry){
		.off = b->ext[IN_DRAM],
		.nvme_off = content ? b->ext[IN_NVME] : 0,
		.csum = content ? b->csum : 0,
		.id = id,
		.bytes = b->bytes,
		.kind = kind,
	};
}

void warm_content(struct pool *pool, u32 id)
{
	const u32 need = BLOCK_DRAM_VALID | BLOCK_RECORDED;
	struct block *b = pool_block(pool, id);
	struct warm *warm = writable(pool);
	struct warm_entry e;

	if (!warm || b->warm[WARM_CONTENT] || (b->flags & (need | BLOCK_BAD)) != need ||
	    warm->nr_content >= warm->max_content)
		return;
	e = entry_of(b, id, WARM_CONTENT);
	b->warm[WARM_CONTENT] = entry_add(warm, &e);
	warm->nr_content += !!b->warm[WARM_CONTENT];
}

void warm_forget(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	struct warm *warm = writable(pool);

	if (!warm || !b->warm[WARM_CONTENT])
		return;
	warm_slot_put(warm, b->warm[WARM_CONTENT]);
	b->warm[WARM_CONTENT] = 0;
	warm->nr_content--;
}

void warm_place(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	struct warm *warm = writable(pool);
	struct warm_entry e;

	if (!warm || !b->held == !b->warm[WARM_PLACE])
		return;
	if (b->warm[WARM_PLACE]) {
		if (!warm->leaving)
			warm_slot_put(warm, b->warm[WARM_PLACE]);
		b->warm[WARM_PLACE] = 0;
		return;
	}
	e = entry_of(b, id, WARM_PLACE);
	b->warm[WARM_PLACE] = entry_add(warm, &e);
}

void pool_warm_leave(struct pool *pool)
{
	lock_acquire(&pool->lock);
	if (pool->warm)
		pool->warm->leaving = true;
	lock_release(&pool->lock);
}
