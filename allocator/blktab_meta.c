/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table's records: one per 512 entries, little-endian block ids, UINT32_MAX for a hole. A chunk
 * of nothing but holes has no record. How many entries there are, the owner's record says or
 * implies.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/blktab_impl.h"
#include "allocator/meta.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records hold little-endian words");
_Static_assert(sizeof(struct block_id) == sizeof(u32), "entries are written as they are");

static struct meta_key chunk_key(const struct blktab *tab, u32 chunk)
{
	return (struct meta_key){.id = tab->id, .sub = chunk, .type = META_TAB_CHUNK};
}

static u32 nr_chunks(const struct blktab *tab)
{
	return (u32)div_round_up(tab->nr_blocks, BLKTAB_CHUNK);
}

static void emit_chunk(struct blktab *tab, u32 chunk, struct meta_txn *txn)
{
	u32 from = chunk * BLKTAB_CHUNK, to = min(from + BLKTAB_CHUNK, tab->nr_blocks);

	for (u32 i = from; i < to; i++) {
		if (BLOCK_IS_NONE(tab->blocks[i]))
			continue;
		meta_txn_put(txn, chunk_key(tab, chunk), tab->blocks + from,
			     (to - from) * (u32)sizeof(u32));
		return;
	}
	if (chunk < tab->recorded_chunks)
		meta_txn_del(txn, chunk_key(tab, chunk));
}

void blktab_emit(struct blktab *tab, struct meta_txn *txn)
{
	u32 end = nr_chunks(tab);

	kvc_assert(tab->busy);
	if (tab->dirty_from < tab->dirty_to)
		for (u32 c = tab->dirty_from / BLKTAB_CHUNK;
		     c < end && c * BLKTAB_CHUNK < tab->dirty_to; c++)
			emit_chunk(tab, c, txn);
	for (u32 c = end; c < tab->recorded_chunks; c++)
		meta_txn_del(txn, chunk_key(tab, c));
}

void blktab_emitted(struct blktab *tab)
{
	struct block_id *retired;
	u32 nr_retired;

	kvc_assert(tab->busy);
	lock_acquire(&tab->lock);
	for (u32 i = tab->dirty_from; i < tab->dirty_to && i < tab->nr_blocks; i++)
		blktab_set_recorded(tab, i, !BLOCK_IS_NONE(tab->blocks[i]));
	tab->dirty_from = tab->dirty_to = 0;
	tab->dirty = false;
	tab->recorded_chunks = nr_chunks(tab);
	retired = tab->retired;
	nr_retired = tab->nr_retired;
	tab->retired = NULL;
	tab->nr_retired = tab->max_retired = 0;
	lock_release(&tab->lock);
	if (nr_retired)
		pool_put(tab->pool, retired, nr_retired);
	free(retired);
}

void blktab_emit_delete(struct blktab *tab, struct meta_txn *txn)
{
	for (u32 c = 0; c < tab->recorded_chunks; c++)
		meta_txn_del(txn, chunk_key(tab, c));
}

int blktab_dirty_blocks(struct blktab *tab, struct block_id **ids, u32 *nr)
{
	u32 from = tab->dirty_from, to = min(tab->dirty_to, tab->nr_blocks);

	kvc_assert(tab->busy);
	*nr = 0;
	*ids = NULL;
	if (from >= to)
		return 0;
	*ids = kvc_alloc_array(to - from, sizeof(**ids));
	if (!*ids)
		return -ENOMEM;
	for (u32 i = from; i < to; i++)
		if (!BLOCK_IS_NONE(tab->blocks[i]))
			(*ids)[(*nr)++] = tab->blocks[i];
	return 0;
}

int blktab_load_chunk(struct blktab *tab, u32 chunk, const void *value, u32 bytes)
{
	u32 from = chunk * BLKTAB_CHUNK, nr = bytes / (u32)sizeof(u32);
	int err;

	if (chunk >= BLKTAB_MAX_BLOCKS / BLKTAB_CHUNK || !nr || nr > BLKTAB_CHUNK ||
	    bytes % sizeof(u32))
		return -EUCLEAN;
	err = blktab_reserve(tab, max(tab->nr_blocks, from + nr), 0);
	if (err)
		return err;
	tab->unnamed = true;
	__blktab_extend(tab, from + nr);
	memcpy(tab->blocks + from, value, bytes);
	for (u32 i = from; i < from + nr; i++) {
		bool real = !BLOCK_IS_NONE(tab->blocks[i]);

		tab->nr_real += real;
		blktab_set_recorded(tab, i, real);
	}
	tab->recorded_chunks = max(tab->recorded_chunks, chunk + 1);
	return 0;
}

static int load_name(struct blktab *tab, u32 i, bool any_bytes)
{
	struct block_id id = tab->blocks[i];
	int err;

	if (BLOCK_IS_NONE(id))
		return 0;
	err = pool_load_ref(tab->pool, id, tab->block_bytes);
	for (u32 bytes = KVC_PAGE_SIZE; err == -EUCLEAN && any_bytes && bytes < tab->block_bytes;
	     bytes += KVC_PAGE_SIZE)
		err = pool_load_ref(tab->pool, id, bytes);
	return err;
}

int blktab_load_names(struct blktab *tab, bool any_tail)
{
	int err = 0;
	u32 i;

	for (i = 0; i < tab->nr_blocks && !err; i++)
		err = load_name(tab, i, any_tail && i + 1 == tab->nr_blocks);
	if (err) {
		pool_put(tab->pool, tab->blocks, i - 1);
		tab->nr_blocks = tab->nr_real = 0;
	}
	tab->unnamed = false;
	return err;
}
