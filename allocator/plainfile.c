/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain files. A file begins inline and gets a table when it outgrows that; it never goes back.
 *
 * Inline bytes are guarded by one of a few shared locks, since a million small files should not
 * carry one each. `tab` is set once, under that lock.
 *
 * Blocks are 64 KiB, but the last one shrinks to what it needs when the file is persisted. Such a
 * short block is sealed and always the last entry: whatever makes the file longer replaces it
 * first.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/grow.h"
#include "allocator/meta.h"
#include "allocator/plainfile.h"
#include "allocator/plainfile_impl.h"

#define NR_INLINE_LOCKS 64u
#define INLINE_STEP	64u

static struct lock inline_locks[NR_INLINE_LOCKS];
static pthread_once_t inline_once = PTHREAD_ONCE_INIT;

static void init_inline_locks(void)
{
	for (unsigned int i = 0; i < NR_INLINE_LOCKS; i++)
		lock_init(&inline_locks[i], LOCK_LEAF);
}

static struct lock *inline_lock(const struct plainfile *pf)
{
	pthread_once(&inline_once, init_inline_locks);
	return &inline_locks[hash_u64((uintptr_t)pf) % NR_INLINE_LOCKS];
}

/* Bytes that inline_data has for a file of @size. */
static size_t inline_room(u64 size)
{
	return round_up_pow2(min(size, (u64)PLAIN_INLINE), INLINE_STEP);
}

void plain_init(struct plainfile *pf, struct pool *pool, u64 id)
{
	*pf = (struct plainfile){.pool = pool, .id = id};
}

void plain_destroy(struct plainfile *pf)
{
	free(pf->inline_data);
	if (pf->tab) {
		blktab_destroy(pf->tab);
		free(pf->tab);
	}
	*pf = (struct plainfile){0};
}

struct blktab *plain_table(struct plainfile *pf)
{
	struct lock *lock = inline_lock(pf);
	struct blktab *tab;

	lock_acquire(lock);
	tab = pf->tab;
	lock_release(lock);
	return tab;
}

u64 plain_size(struct plainfile *pf)
{
	struct blktab *tab = plain_table(pf);
	struct lock *lock = tab ? &tab->lock : inline_lock(pf);
	u64 size;

	lock_acquire(lock);
	size = tab ? tab->size : pf->inline_size;
	lock_release(lock);
	return size;
}

u64 plain_allocated(struct plainfile *pf)
{
	struct blktab *tab = plain_table(pf);
	struct block_id last = BLOCK_NONE;
	u64 bytes;

	if (!tab)
		return 0;
	lock_acquire(&tab->lock);
	bytes = (u64)tab->nr_real * PLAIN_BLOCK;
	if (tab->nr_blocks)
		last = tab->blocks[tab->nr_blocks - 1];
	if (!BLOCK_IS_NONE(last)) /* the only one that may be short */
		bytes -= PLAIN_BLOCK - round_up_pow2(pool_bytes(tab->pool, last), KVC_PAGE_SIZE);
	lock_release(&tab->lock);
	return bytes;
}

/* ---- inline ---- */

static ssize_t read_inline(struct plainfile *pf, void *buf, size_t len, u64 off)
{
	size_t have = 0;

	if (off >= pf->inline_size)
		return 0;
	len = (size_t)min((u64)len, pf->inline_size - off);
	if (off < inline_room(pf->inline_size)) {
		have = min(len, inline_room(pf->inline_size) - (size_t)off);
		memcpy(buf, pf->inline_data + off, have);
	}
	memset((u8 *)buf + have, 0, len - have);
	return (ssize_t)len;
}

/* Set the size; the bytes of a longer file are zeros. */
static int resize_inline(struct plainfile *pf, u64 size)
{
	size_t room = inline_room(size), had = inline_room(pf->inline_size);
	u8 *data = pf->inline_data;

	if (room > had) {
		data = fault_point(FAULT_MEMORY) ? NULL : realloc(data, room);
		if (!data)
			return -ENOMEM;
		memset(data + had, 0, room - had);
		pf->inline_data = data;
	}
	if (size < pf->inline_size && size < had)
		memset(data + size, 0, had - size);
	if (!room) {
		free(pf->inline_data);
		pf->inline_data = NULL;
	}
	pf->inline_size = size;
	return 0;
}

/*
 * What inline files do under their lock; each gives -EAGAIN when the file has a table, or needs
 * one.
 */
static int write_inline(struct plainfile *pf, const void *buf, size_t len, u64 off)
{
	struct lock *lock = inline_lock(pf);
	int err = -EAGAIN;

	lock_acquire(lock);
	if (!pf->tab && off + len <= PLAIN_INLINE) {
		err = off + len > pf->inline_size ? resize_inline(pf, off + len) : 0;
		if (!err)
			memcpy(pf->inline_data + off, buf, len);
	}
	lock_release(lock);
	return err;
}

static int truncate_inline(struct plainfile *pf, u64 size)
{
	struct lock *lock = inline_lock(pf);
	int err = -EAGAIN;

	lock_acquire(lock);
	if (!pf->tab)
		err = resize_inline(pf, size);
	lock_release(lock);
	return err;
}

static int new_table(struct plainfile *pf, struct blktab **tab)
{
	int err;

	*tab = fault_point(FAULT_MEMORY) ? NULL : malloc(sizeof(**tab));
	if (!*tab)
		return -ENOMEM;
	err = blktab_init(*tab, pf->pool, pf->id, 0, PLAIN_BLOCK);
	if (err)
		free(*tab);
	return err;
}

static int fill_table(struct blktab *tab, const u8 *data, u64 size)
{
	int err;

	blktab_begin(tab);
	err = blktab_write(tab, data, (size_t)min(size, (u64)PLAIN_INLINE), 0);
	if (!err)
		blktab_set_size(tab, size);
	blktab_end(tab);
	return err;
}

/* Make @tab the file's, unless the file has changed since @data and @size were taken. */
static bool publish_table(struct plainfile *pf, struct blktab *tab, const u8 *data, u64 size)
{
	struct lock *lock = inline_lock(pf);
	bool same;

	lock_acquire(lock);
	same = !pf->tab && pf->inline_size == size &&
	       (!size || !memcmp(data, pf->inline_data, min(size, (u64)PLAIN_INLINE)));
	if (same) {
		pf->tab = tab;
		free(pf->inline_data);
		pf->inline_data = NULL;
	}
	lock_release(lock);
	return same;
}

/* Give the file a table that holds its inline bytes. Writers that come in between win: try again.
 */
int plain_to_table(struct plainfile *pf)
{
	u8 data[PLAIN_INLINE];
	struct blktab *tab;
	u64 size;
	int err;

	while (!plain_table(pf)) {
		struct lock *lock = inline_lock(pf);

		lock_acquire(lock);
		size = pf->tab ? 0 : pf->inline_size;
		if (!pf->tab)
			read_inline(pf, data, sizeof(data), 0);
		lock_release(lock);
		err = new_table(pf, &tab);
		if (err)
			return err;
		err = fill_table(tab, data, size);
		if (!err && publish_table(pf, tab, data, size))
			return 0;
		blktab_destroy(tab);
		free(tab);
		if (err)
			return err;
	}
	return 0;
}

/* ---- bytes ---- */

ssize_t plain_read(struct plainfile *pf, void *buf, size_t len, u64 off)
{
	struct lock *lock = inline_lock(pf);
	struct blktab *tab;
	ssize_t n = 0;

	lock_acquire(lock);
	tab = pf->tab;
	if (!tab)
		n = read_inline(pf, buf, len, off);
	lock_release(lock);
	return tab ? blktab_read(tab, buf, len, off) : n;
}

int plain_grow_tail(struct blktab *tab, u64 end)
{
	u32 last = tab->nr_blocks - 1;
	struct block_id id;
	int err;

	if (!tab->nr_blocks || end <= (u64)tab->nr_blocks * PLAIN_BLOCK ||
	    BLOCK_IS_NONE(tab->blocks[last]) ||
	    pool_bytes(tab->pool, tab->blocks[last]) == PLAIN_BLOCK)
		return 0;
	err = blktab_reserve(tab, tab->nr_blocks, 1);
	if (!err)
		err = pool_copy(tab->pool, tab->blocks[last], PLAIN_BLOCK, &id);
	return err ? err : blktab_set(tab, last, id);
}

static bool too_big(u64 off, u64 len)
{
	u64 end;

	return __builtin_add_overflow(off, len, &end) || end > PLAIN_MAX_BYTES;
}

int plain_write(struct plainfile *pf, const void *buf, size_t len, u64 off)
{
	int err;

	if (too_big(off, len))
		return -EFBIG;
	if (!len)
		return 0;
	err = write_inline(pf, buf, len, off);
	if (err != -EAGAIN)
		return err;
	err = plain_to_table(pf);
	if (err)
		return err;
	blktab_begin(pf->tab);
	err = plain_grow_tail(pf->tab, off + len);
	if (!err)
		err = blktab_write(pf->tab, buf, len, off);
	blktab_end(pf->tab);
	return err;
}

static int truncate_table(struct blktab *tab, u64 size)
{
	u32 nr = (u32)div_round_up(size, PLAIN_BLOCK);
	int err;

	if (size >= tab->size) {
		blktab_set_size(tab, size);
		return 0;
	}
	err = blktab_reserve(tab, tab->nr_blocks,
			     1 + (tab->nr_blocks > nr ? tab->nr_blocks - nr : 0));
	if (!err)
		err = blktab_zero_from(tab, size);
	return err ? err : blktab_cut(tab, nr, size);
}

int plain_truncate(struct plainfile *pf, u64 size)
{
	int err;

	if (too_big(0, size))
		return -EFBIG;
	err = truncate_inline(pf, size);
	if (err != -EAGAIN)
		return err;
	blktab_begin(pf->tab);
	err = truncate_table(pf->tab, size);
	blktab_end(pf->tab);
	return err;
}

int plain_fallocate(struct plainfile *pf, u64 off, u64 len, bool keep_size)
{
	u64 end = off + len;
	int err;

	if (too_big(off, len))
		return -EFBIG;
	err = plain_to_table(pf);
	if (err)
		return err;
	blktab_begin(pf->tab);
	err = plain_grow_tail(pf->tab, end);
	if (!err)
		err = blktab_fill(pf->tab, (u32)(off / PLAIN_BLOCK),
				  (u32)div_round_up(end, PLAIN_BLOCK));
	if (!err && !keep_size && end > pf->tab->size)
		blktab_set_size(pf->tab, end);
	blktab_end(pf->tab);
	return err;
}

/* ---- persistence ---- */

bool plain_dirty(struct plainfile *pf)
{
	struct blktab *tab = plain_table(pf);
	bool dirty;

	if (!tab)
		return false;
	lock_acquire(&tab->lock);
	dirty = tab->dirty;
	lock_release(&tab->lock);
	return dirty;
}

/* Let the last block shrink to what the file needs of it. Without room for that it stays as it is.
 */
static int fit_tail(struct blktab *tab)
{
	u32 last = tab->nr_blocks - 1;
	u64 start = (u64)last * PLAIN_BLOCK, need;
	struct block_id id;
	int err;

	if (!tab->nr_blocks || last < tab->dirty_from || BLOCK_IS_NONE(tab->blocks[last]) ||
	    tab->size <= start)
		return 0;
	need = round_up_pow2(tab->size - start, KVC_PAGE_SIZE);
	if (need >= pool_bytes(tab->pool, tab->blocks[last]) ||
	    pool_sealed(tab->pool, tab->blocks[last]))
		return 0;
	err = blktab_reserve(tab, tab->nr_blocks, 1);
	if (!err)
		err = pool_copy(tab->pool, tab->blocks[last], (u32)need, &id);
	if (err)
		return err == -ENOSPC ? 0 : err;
	return blktab_set(tab, last, id);
}

static int persist_table(struct blktab *tab, struct block_id **ids, u32 *nr)
{
	int err = fit_tail(tab);

	if (!err)
		err = blktab_dirty_blocks(tab, ids, nr);
	if (err || !*nr)
		return err;
	err = pool_seal(tab->pool, *ids, *nr);
	if (!err)
		err = pool_writeback(tab->pool, *ids, *nr);
	return err ? err : pool_flush(tab->pool);
}

int plain_persist(struct plainfile *pf, void (*emit)(void *ctx, struct meta_txn *txn), void *ctx,
		  u64 *seq)
{
	struct blktab *tab = plain_table(pf);
	struct meta_txn txn = META_TXN_INIT;
	struct block_id *ids = NULL;
	u32 nr = 0;
	int err = 0;

	if (tab) {
		blktab_begin(tab);
		err = persist_table(tab, &ids, &nr);
	}
	if (!err) {
		if (tab)
			blktab_emit(tab, &txn);
		emit(ctx, &txn);
		err = pool_submit(pf->pool, ids, nr, &txn, seq);
	}
	if (tab) {
		if (!err)
			blktab_emitted(tab);
		blktab_end(tab);
	}
	meta_txn_free(&txn);
	free(ids);
	return err;
}

void plain_emit_delete(struct plainfile *pf, struct meta_txn *txn)
{
	struct blktab *tab = plain_table(pf);

	if (tab)
		blktab_emit_delete(tab, txn);
}

/* ---- loading ---- */

int plain_load_chunk(struct plainfile *pf, u32 chunk, const void *value, u32 bytes)
{
	int err = pf->tab ? 0 : new_table(pf, &pf->tab);

	return err ? err : blktab_load_chunk(pf->tab, chunk, value, bytes);
}

int plain_load_finish(struct plainfile *pf, u64 size, const void *data, u32 bytes)
{
	int err;

	if (size > PLAIN_MAX_BYTES || (bytes && (pf->tab || bytes > min(size, (u64)PLAIN_INLINE))))
		return -EUCLEAN;
	if (!pf->tab) {
		err = resize_inline(pf, size);
		if (!err && bytes)
			memcpy(pf->inline_data, data, bytes);
		return err;
	}
	pf->tab->size = size;
	return blktab_load_names(pf->tab, true);
}
