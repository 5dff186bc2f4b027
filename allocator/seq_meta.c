/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence's records: writing them in operation. Open blocks go with their written ranges. */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/meta.h"
#include "allocator/seq_format.h"
#include "allocator/seq_impl.h"

bool seq_dirty(struct sequence *seq)
{
	bool dirty;

	lock_acquire(&seq->tab.lock);
	dirty = seq->meta_dirty || seq->tab.dirty;
	lock_release(&seq->tab.lock);
	return dirty;
}

/* An array that is kept in records of @chunk elements each. */
struct chunked {
	u8 type;
	u32 chunk, element; /* elements per record, bytes per element */
	const void *data;
	u32 nr, from; /* elements, first stale one */
	u32 recorded; /* records in the store */
};

static u32 nr_records(const struct chunked *a)
{
	return (u32)div_round_up(a->nr, a->chunk);
}

static void emit_chunked(const struct sequence *seq, const struct chunked *a, struct meta_txn *txn)
{
	struct meta_key key = {.id = seq->tab.id, .type = a->type};
	u32 end = nr_records(a);

	for (u32 c = a->from / a->chunk; c < end; c++) {
		u32 nr = min(a->chunk, a->nr - c * a->chunk);

		key.sub = c;
		meta_txn_put(txn, key, (const u8 *)a->data + (size_t)c * a->chunk * a->element,
			     nr * a->element);
	}
	for (u32 c = end; c < a->recorded; c++) {
		key.sub = c;
		meta_txn_del(txn, key);
	}
}

static struct chunked ids_of(const struct sequence *seq)
{
	return (struct chunked){
		META_SEQ_IDS,	     SEQ_ID_CHUNK,	     sizeof(u32), seq->ids, seq->nr_ids,
		seq->ids_dirty_from, seq->recorded_id_chunks};
}

static struct chunked cids_of(const struct sequence *seq)
{
	return (struct chunked){META_SEQ_CIDS,
				SEQ_ID_CHUNK,
				sizeof(u32),
				seq->cids,
				seq->cids ? seq->nr_cids : 0,
				seq->cids_dirty_from,
				seq->recorded_cid_chunks};
}

static struct chunked written_of(const struct sequence *seq)
{
	return (struct chunked){META_SEQ_WRITTEN,
				SEQ_WRITTEN_CHUNK,
				sizeof(struct written_range),
				seq->written->ranges,
				seq->written->nr,
				0,
				seq->recorded_written_chunks};
}

static void emit_head(struct sequence *seq, struct meta_txn *txn)
{
	struct meta_key key = {.id = seq->tab.id, .type = META_SEQ};
	struct seq_record rec;

	lock_acquire(&seq->tab.lock);
	rec = (struct seq_record){
		.version = SEQ_FORMAT_VERSION,
		.block_bytes = seq->tab.block_bytes,
		.size = seq->tab.size,
		.last_use_ns = seq->last_use_ns,
		.tokens = seq->T,
		.nr_ids = seq->nr_ids,
		.nr_cids = seq->nr_cids,
		.nr_blocks = seq->tab.nr_blocks,
		.sealed_blocks = seq->sealed_blocks,
		.attached_blocks = seq->attached_blocks,
		.cached_tokens = seq->cached_tokens,
		.pending_tokens = seq->pending_T,
		.nr_written = seq->written->nr,
		.flags = (u16)((seq->loose ? SEQ_RECORD_LOOSE : 0) |
			       (seq->cids ? SEQ_RECORD_CIDS : 0) |
			       (seq->paired ? SEQ_RECORD_PAIRED : 0) |
			       (seq->estranged ? SEQ_RECORD_ESTRANGED : 0) |
			       (seq->pinned ? SEQ_RECORD_PINNED : 0)),
		.state = (u8)seq->state,
		.priority = seq->priority,
	};
	seq->emitted_changes = seq->changes;
	lock_release(&seq->tab.lock);
	meta_txn_put(txn, key, &rec, sizeof(rec));
}

void seq_emit(struct sequence *seq, struct meta_txn *txn)
{
	struct chunked ids = ids_of(seq), cids = cids_of(seq), written = written_of(seq);

	kvc_assert(seq->tab.busy);
	emit_head(seq, txn);
	emit_chunked(seq, &ids, txn);
	emit_chunked(seq, &cids, txn);
	emit_chunked(seq, &written, txn);
	blktab_emit(&seq->tab, txn);
}

void seq_emitted(struct sequence *seq)
{
	struct chunked ids = ids_of(seq), cids = cids_of(seq), written = written_of(seq);

	blktab_emitted(&seq->tab);
	lock_acquire(&seq->tab.lock);
	seq->recorded_id_chunks = nr_records(&ids);
	seq->recorded_cid_chunks = nr_records(&cids);
	seq->recorded_written_chunks = nr_records(&written);
	seq->ids_dirty_from = seq->cids_dirty_from = UINT32_MAX;
	seq->meta_dirty = seq->changes != seq->emitted_changes;
	lock_release(&seq->tab.lock);
}

void seq_emit_delete(struct sequence *seq, struct meta_txn *txn)
{
	struct chunked all[] = {ids_of(seq), cids_of(seq), written_of(seq)};
	struct meta_key key = {.id = seq->tab.id, .type = META_SEQ};

	meta_txn_del(txn, key);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		all[i].nr = 0;
		all[i].from = 0;
		emit_chunked(seq, &all[i], txn);
	}
	blktab_emit_delete(&seq->tab, txn);
}

int seq_write_back(struct sequence *seq, struct block_id **ids, u32 *nr)
{
	struct pool *pool = seq->tab.pool;
	int err = seq_room_settle(seq);

	*ids = NULL;
	*nr = 0;
	if (!err)
		err = blktab_dirty_blocks(&seq->tab, ids, nr);
	if (err || !*nr)
		return err;
	err = pool_writeback(pool, *ids, *nr);
	if (!err)
		err = pool_flush(pool);
	if (err) {
		free(*ids);
		*ids = NULL;
	}
	return err;
}

int seq_persist(struct sequence *seq, void (*emit)(void *ctx, struct meta_txn *txn), void *ctx,
		u64 *seq_nr)
{
	struct meta_txn txn = META_TXN_INIT;
	struct block_id *ids;
	u32 nr;
	int err;

	blktab_begin(&seq->tab);
	err = seq_write_back(seq, &ids, &nr);
	if (!err) {
		seq_emit(seq, &txn);
		if (emit)
			emit(ctx, &txn);
		err = pool_submit(seq->tab.pool, ids, nr, &txn, seq_nr);
		free(ids);
	}
	if (!err)
		seq_emitted(seq);
	blktab_end(&seq->tab);
	meta_txn_free(&txn);
	return err;
}
