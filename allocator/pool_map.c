/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that clients map: pinned where they are, and told as places in pool files.
 *
 * A hold waits for one block while it has others. That cannot go round in a circle for good: holds
 * never have more than their share of DRAM, the rest of it keeps moving, and whoever gets no room
 * in the end gives up what it has.
 *
 * Who gives out descriptors has to see to it that a client gets only files of domains whose namespaces
 * it may read; here is seen to it that such a file never has bytes of another domain.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/pool_types.h"

#define HOLD_PCT 80 /* of DRAM, for all mappings together */

u64 pool_hold_limit(struct pool *pool)
{
	return tier_size(pool->tier[IN_DRAM]) / 100 * HOLD_PCT;
}

u64 pool_block_limit(struct pool *pool)
{
	return pool->dram_bytes / 4;
}

static struct pool_place place_of(struct pool *pool, const struct block *b)
{
	u64 off = b->ext[IN_DRAM];

	return (struct pool_place){.file = pool->slabs[off / pool->slab_bytes].file,
				   .off = off % pool->slab_bytes};
}

static bool in_one_file(struct pool *pool, const struct block *b)
{
	return b->ext[IN_DRAM] % pool->slab_bytes + block_stride(b) <= pool->slab_bytes;
}

/* Does it lie where the clients of its namespace may look? Not after that changed its owner. */
static bool at_home(struct pool *pool, const struct block *b)
{
	return domain_at(pool, b->ext[IN_DRAM]) == domain_of_space(pool, b->space);
}

/* Would pinning @ids be more than mappings may have? Lock held. */
static bool over_limit(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	u64 more = 0;

	for (unsigned int i = 0; i < nr; i++) {
		const struct block *b = pool_block(pool, ids[i].v);

		more += b->pin ? 0 : block_stride(b);
	}
	return more && pool->pinned_bytes_now + orphan_bytes(pool) + more >
			       pool_hold_limit(pool);
}

/* Pin and place those of @ids that are resident, up to the first that is not. Lock held. */
static unsigned int hold_resident(struct pool *pool, const struct block_id *ids, unsigned int nr,
				  struct pool_place *places)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		const struct block *b = pool_block(pool, ids[i].v);

		KVC_BUG_ON(!(b->flags & BLOCK_LIVE));
		if (b->flags & (BLOCK_IO | BLOCK_BAD | BLOCK_EMPTY) ||
		    !(b->flags & BLOCK_DRAM_VALID) || !at_home(pool, b) || !in_one_file(pool, b))
			break;
		pool_pin_locked(pool, ids[i].v);
		pool_block(pool, ids[i].v)->held++;
		warm_place(pool, ids[i].v);
		places[i] = place_of(pool, b);
	}
	return i;
}

int pool_try_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  struct pool_place *places)
{
	unsigned int done = 0;
	int err = 0;

	lock_acquire(&pool->lock);
	if (over_limit(pool, ids, nr))
		err = kvc_err(-EAGAIN, hold_budget);
	else
		done = hold_resident(pool, ids, nr, places);
	lock_release(&pool->lock);
	if (!err && done == nr)
		return 0;
	pool_unhold(pool, ids, done);
	return -EAGAIN;
}

/* Without a store it can only be moved. Lock held, dropped meanwhile. */
static int move_home(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u16 domain;
	u64 to;
	int err;

	block_wait_io(pool, id);
	if (at_home(pool, b))
		return 0;
	if (b->pin)
		return kvc_err(-EAGAIN, hold_elsewhere);
	block_io_begin(pool, id);
	domain = domain_use(pool, b->space);
	do
		err = dram_alloc(pool, id, EXTENT_NONE, &to);
	while (err == -ENOSPC && domain_takeover(pool, domain, block_stride(b)));
	domain_unuse(pool, domain);
	if (err) {
		block_io_end(pool, id);
		return -ENOMEM;
	}
	if (b->flags & BLOCK_DRAM_VALID) {
		migrate_shift(pool, id, to);
		return 0;
	}
	/* What its room happens to hold is of another domain, and must not come along. */
	block_release_ext(pool, id, IN_DRAM);
	block_set_ext(pool, id, IN_DRAM, to);
	block_io_end(pool, id);
	return 0;
}

/* There is no room to move it to: give up its copy, and leave no bytes behind. Lock held, dropped meanwhile. */
static void leave_dram(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	if (b->pin || !(b->flags & BLOCK_NVME_VALID) || at_home(pool, b))
		return;
	block_io_begin(pool, id);
	lock_release(&pool->lock);
	memset(block_addr(pool, b), 0, block_stride(b));
	lock_acquire(&pool->lock);
	block_release_ext(pool, id, IN_DRAM);
	block_io_end(pool, id);
}

/* Bring a block into its domain's slabs that is in another's. Lock held, dropped meanwhile. */
static int bring_home(struct pool *pool, u32 id)
{
	struct block_id one = {id};
	int err = move_home(pool, id);

	if (err != -ENOMEM || pool_volatile(pool))
		return err;
	lock_release(&pool->lock);
	err = pool_writeback(pool, &one, 1);
	lock_acquire(&pool->lock);
	block_wait_io(pool, id);
	if (!err && pool_block(pool, id)->ext[IN_DRAM] != EXTENT_NONE)
		leave_dram(pool, id);
	return err;
}

/* Has it bytes in DRAM where its namespace's clients would not find them, that can be moved? Lock held. */
static bool is_lost(struct pool *pool, u32 id, u32 space)
{
	const struct block *b = pool_block(pool, id);

	return b->flags & BLOCK_LIVE && b->space == space && b->ext[IN_DRAM] != EXTENT_NONE &&
	       !b->pin && !at_home(pool, b);
}

void pool_bring_home(struct pool *pool, u32 space)
{
	lock_assert_none();
	lock_acquire(&pool->lock);
	for (u32 id = 0; id < pool->nr_ids; id++) {
		if (id % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (is_lost(pool, id, space) && pool_block(pool, id)->flags & BLOCK_IO)
			block_wait_io(pool, id);
		/* It may be another block by now, or none. */
		if (is_lost(pool, id, space))
			(void)!bring_home(pool, id);
	}
	lock_release(&pool->lock);
}

/* One block that is not resident, EMPTY, or not where it should be. */
static int hold_one(struct pool *pool, struct block_id id, struct pool_place *place)
{
	const struct block *b;
	const void *addr;
	int err = 0;

	/* Zeros come before the pin: a writer has BLOCK_IO and waits for pins. */
	lock_acquire(&pool->lock);
	b = pool_block(pool, id.v);
	if (b->ext[IN_DRAM] != EXTENT_NONE && !at_home(pool, b))
		err = bring_home(pool, id.v);
	if (!err && b->flags & BLOCK_EMPTY)
		err = block_materialise(pool, id.v);
	lock_release(&pool->lock);
	if (!err)
		err = pool_pin(pool, id, &addr);
	if (err)
		return err;
	lock_acquire(&pool->lock);
	if (!at_home(pool, b))
		err = -EAGAIN; /* the owner changed just now, or somebody else was faster */
	if (!err && !in_one_file(pool, b))
		err = kvc_err(-EOPNOTSUPP, hold_crosses);
	if (!err) {
		*place = place_of(pool, b);
		pool_block(pool, id.v)->held++;
		warm_place(pool, id.v);
	}
	lock_release(&pool->lock);
	if (err)
		pool_unpin(pool, &id, 1);
	return err;
}

int pool_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
	      struct pool_place *places)
{
	unsigned int done = 0, got;
	bool over;
	int err = 0;

	lock_assert_none();
	lock_acquire(&pool->lock);
	over = over_limit(pool, ids, nr);
	if (!over)
		done = hold_resident(pool, ids, nr, places);
	lock_release(&pool->lock);
	if (over)
		return kvc_err(-EAGAIN, hold_over_budget);
	while (done < nr && !err) {
		pool_fetch(pool, ids + done, nr - done);
		lock_acquire(&pool->lock);
		got = hold_resident(pool, ids + done, nr - done, places + done);
		lock_release(&pool->lock);
		done += got;
		if (got || done == nr)
			continue;
		err = hold_one(pool, ids[done], &places[done]);
		done += !err;
	}
	if (err)
		pool_unhold(pool, ids, done);
	return err;
}

void pool_unhold(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b = pool_block(pool, ids[i].v);

		KVC_BUG_ON(!b->held);
		b->held--;
		warm_place(pool, ids[i].v);
	}
	lock_release(&pool->lock);
	pool_unpin(pool, ids, nr);
}

int pool_fill_begin(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	int err = 0;

	lock_assert_none();
	for (unsigned int i = 0; i < nr && !err; i++) {
		void *addr;

		/* Beginning a write waits for a write-back under way, and voids the copy it made. */
		err = pool_begin_write(pool, ids[i], false, &addr);
		if (err)
			break;
		lock_acquire(&pool->lock);
		pool_block(pool, ids[i].v)->flags |= BLOCK_FILLING | BLOCK_ROOM;
		lock_release(&pool->lock);
		pool_end_write(pool, ids[i]);
	}
	return err;
}

void pool_fill_end(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		pool_block(pool, ids[i].v)->flags &= ~(BLOCK_FILLING | BLOCK_ROOM);
	lock_release(&pool->lock);
}

/* ---- files ---- */

unsigned int pool_nr_files(struct pool *pool)
{
	unsigned int nr;

	lock_acquire(&pool->lock);
	nr = pool->nr_files;
	lock_release(&pool->lock);
	return nr;
}

u64 pool_file_bytes(struct pool *pool)
{
	return pool->slab_bytes;
}

/*
 * The slab whose file it is, which a namespace's domain has; NULL: none. A domain that all its namespaces
 * left has only what nobody is to see any more. Lock held.
 */
static struct dram_slab *slab_of_file(struct pool *pool, unsigned int file)
{
	for (u32 i = 0; i < pool->nr_slabs; i++) {
		struct dram_slab *s = &pool->slabs[i];

		if (s->file == file)
			return s->domain && s->domain < pool->nr_domains &&
				domain_has_spaces(pool, s->domain) ? s : NULL;
	}
	return NULL;
}

u32 pool_file_domain(struct pool *pool, unsigned int file)
{
	const struct dram_slab *s;
	u32 domain;

	lock_acquire(&pool->lock);
	s = slab_of_file(pool, file);
	domain = s ? pool->domains[s->domain].id : 0;
	lock_release(&pool->lock);
	return domain;
}

u32 pool_space_domain(struct pool *pool, u32 space)
{
	u32 domain;

	lock_acquire(&pool->lock);
	domain = pool->domains[domain_of_space(pool, space)].id;
	lock_release(&pool->lock);
	return domain;
}

/* A descriptor opened for reading stays so: another uid may not open a file of mode 0600 anew. */
static int open_file(struct pool *pool, u32 slab, bool writable)
{
	int fd = tier_dram_file(pool->tier[IN_DRAM], slab), copy;
	char path[32];

	if (fd < 0)
		return -EOPNOTSUPP;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = writable ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
	return copy < 0 ? -errno : copy;
}

int pool_file_fd(struct pool *pool, unsigned int file, bool writable)
{
	struct dram_slab *s;
	int fd;

	lock_assert_none();
	lock_acquire(&pool->lock);
	s = slab_of_file(pool, file);
	if (s) {
		s->opening++; /* its file stays meanwhile */
		if (!s->touched) {
			s->touched = true;
			warm_slab(pool, (u32)(s - pool->slabs));
		}
	}
	lock_release(&pool->lock);
	if (!s)
		return kvc_err(-ENOENT, pool_file_gone);
	fd = open_file(pool, (u32)(s - pool->slabs), writable);
	lock_acquire(&pool->lock);
	s->opening--;
	lock_release(&pool->lock);
	return fd;
}
