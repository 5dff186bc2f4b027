/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence: KV bytes and token ids that belong together (UAPI section 4). No FUSE in here: the
 * mount, the session socket and the model tests drive the same calls.
 *
 * State beside the block table:
 *   ids[0..nr_ids)     what `tokens` shows
 *   T                  committed tokens (user.kvc.tokens)
 *   cids[0..nr_cids)   the ids under which committed tokens were committed (nr_cids <= T); NULL while
 *                      equal to ids: a committed token keeps its id for ever
 *   loose              kv was cut to zero, unlinked or renamed: ids are shown, index nothing
 *   paired             bytes were committed under the shown ids, and these not written again since: who
 *                      replaces kv now will replace `tokens` next
 *   estranged          kv was replaced when they were not paired: its bytes may be those of the ids that
 *                      are there or of ids that will come. They get none, until they go
 *   attached           leading blocks that came from the prefix cache, not written here
 *   pending_T          T asked for while there were no bytes; applied at the first commit that reaches it
 *   written ranges     of open blocks, so that a commit knows holes
 *   sealed             leading sealed blocks; blocks behind them are open or holes
 *
 * Every function below waits for the table's exclusion where it changes something, so it is called
 * with no lock held and, for one sequence, runs alone among the changers; readers run beside it.
 *
 * Rules (asserted by the model test):
 *  S1 nothing seals on a write; commits are fsync, close and seq_set_tokens().
 *  S2 a block is indexed only under ids that equal the ids its tokens were committed under.
 *  S3 a sealed block is never written: -EPERM (cut first).
 *  S4 each call succeeds whole or changes nothing.
 *  S5 while a client appends in place (seq_room.h), other changes of bytes or T are -EBUSY; kv's end
 *     takes the room away.
 */
#ifndef KVC_SEQUENCE_H
#define KVC_SEQUENCE_H

#include "allocator/blktab.h"
#include "allocator/geometry.h"

struct written;
struct seq_room;
struct seq_loading;
struct textbuf;

#define SEQ_MAX_BYTES	(1ull << 46)
#define SEQ_MAX_IDS	(1u << 28)
#define SEQ_NO_TOKENS	UINT32_MAX	/* pending_T: none; seq_fork(): all */

enum seq_state { SEQ_IDLE, SEQ_PAUSED, SEQ_QUEUED, SEQ_DECODING };

struct sequence {
	struct blktab tab;	/* tab.lock protects what follows too; tab.busy excludes changes */
	const struct geometry *geo;	/* the namespace's, outlives the sequence */
	u32 root;		/* chain root (namespace, salt); 0: never indexed (a kv.* temp file) */
	u32 *ids;
	u32 nr_ids, max_ids;
	u32 *cids;
	u32 nr_cids;
	u32 T;
	u32 sealed_blocks;
	u32 indexed_blocks;	/* leading blocks that the index holds for their committed ids... */
	u32 indexed_root;	/* ...under this root */
	u32 attached_blocks;
	u32 cached_tokens;	/* attached at the last match, for user.kvc.cached_tokens */
	u32 pending_T;		/* UINT32_MAX: none */
	bool loose;
	bool paired, estranged;
	u8 nr_part;		/* bytes of an unfinished id held behind ids[nr_ids), 0..3 */
	bool meta_dirty;	/* record stale; ids and table have their own marks */
	u32 changes, emitted_changes; /* of what changes without busy: state, pinned */
	u32 ids_dirty_from, cids_dirty_from; /* first stale id, UINT32_MAX: none */
	u32 recorded_id_chunks, recorded_cid_chunks, recorded_written_chunks;
	enum seq_state state;
	u8 priority;		/* 0..100, what blocks are touched with */
	bool pinned;		/* user.kvc.pin=dram */
	u64 last_use_ns;	/* CLOCK_REALTIME */
	struct seq_room *room;	/* tokens are being appended in place (seq_room.h); NULL: no */
	struct written *written;	/* owned; read and changed by who holds tab.busy only */
	struct seq_loading *loading;	/* owned; between the first record and seq_load_finish() */
};

int __must_check seq_create(struct sequence **seq, struct pool *pool, u64 id, u32 space,
			    const struct geometry *geo);
/** seq_destroy() - drop all names and free. NULL is fine. */
void seq_destroy(struct sequence *seq);

/* ---- bytes ---- */
/** seq_write() - into unsealed blocks only. -EPERM (sealed), -EBUSY (S5), -ENOSPC, -EFBIG, -EIO. May block. */
int __must_check seq_write(struct sequence *seq, const void *buf, size_t len, u64 off);
ssize_t seq_read(struct sequence *seq, void *buf, size_t len, u64 off);
u64 seq_size(struct sequence *seq);
u64 seq_allocated(struct sequence *seq);
/** seq_truncate() - kv to @size: UAPI "cut", "kv to zero", up. -EINVAL inside a block. May block. */
int __must_check seq_truncate(struct sequence *seq, u64 size);
int __must_check seq_fallocate(struct sequence *seq, u64 off, u64 len, bool keep_size);
/** seq_restart() - kv newly created with O_EXCL, O_TRUNC or mknod: bytes go, ids stay, not loose. */
int __must_check seq_restart(struct sequence *seq);

/* ---- ids ---- */
/** seq_write_ids() - write to `tokens`. @off and @len in bytes. -EINVAL behind the end. A trailing
 * part of an id is held until the next write continues it. */
int __must_check seq_write_ids(struct sequence *seq, const void *buf, size_t len, u64 off);
ssize_t seq_read_ids(struct sequence *seq, void *buf, size_t len, u64 off);
/** seq_truncate_ids() - `tokens` to @size bytes: 0 drops the ids; > 0 also cuts kv. May block. */
int __must_check seq_truncate_ids(struct sequence *seq, u64 size);
/** seq_close_ids() - tokens closed or fsynced by a writer: match, or index what agrees. May block. */
int __must_check seq_close_ids(struct sequence *seq);
/**
 * seq_set_ids() - @nr ids instead of all that `tokens` showed, and just what is cached of them.
 * @ids: copied before anything is done with them: somebody else may change them meanwhile
 * @matched: leading tokens with these ids, its own or attached. All others are cut, whether they
 *	were committed under other ids, under none, or not at all
 * Return: 0, or with nothing changed: -EBUSY (S5), -EFBIG, -ENOSPC, -ENOMEM, -EIO. May block.
 */
int __must_check seq_set_ids(struct sequence *seq, const u32 *ids, u32 nr, u32 *matched);

/* ---- commits ---- */
/** seq_commit() - fsync or close of kv: seal whole blocks, apply a pending T, index. May block. */
int __must_check seq_commit(struct sequence *seq);
/** seq_set_tokens() - user.kvc.tokens = @nr: exactly @nr tokens. -EINVAL. May block. */
int __must_check seq_set_tokens(struct sequence *seq, u32 nr);

/* ---- copies and names ---- */
/**
 * seq_copy_range() - copy_file_range by sharing: block-aligned equal offsets in one namespace and
 * salt. At the end of the source also the tail with T and ids. Not from block 0 on: only where both
 * are committed up to there under the same ids.
 * Return: bytes, -EXDEV (let the kernel copy), -EPERM (onto sealed), -ENOSPC. Below 2 GiB. May block.
 */
ssize_t seq_copy_range(struct sequence *src, u64 off_in, struct sequence *dst, u64 off_out, u64 len);
/** seq_fork() - @dst (empty) becomes @src's first @nr tokens (UINT32_MAX: all), one call. May block. */
int __must_check seq_fork(struct sequence *src, struct sequence *dst, u32 nr);
/** seq_kv_gone() - kv unlinked or renamed away from this sequence: bytes go, ids become loose.
 * Returns through @out a sequence that owns the bytes (for open descriptors, or the new name). */
int __must_check seq_kv_gone(struct sequence *seq, u64 new_id, struct sequence **out);
/** seq_kv_arrived() - @from (a kv file renamed to be the sequence's kv) merges into the ids that the
 * directory had: UAPI rename rows. @old_ids is the directory's sequence before (may be NULL). */
int __must_check seq_kv_arrived(struct sequence *from, struct sequence *old_ids);
/** seq_let_go() - kv loses its name: whoever appends in place does so no more. May block. */
int __must_check seq_let_go(struct sequence *seq);
/** seq_ids_gone() - tokens unlinked or renamed over: ids go, attached-only blocks are detached. */
int __must_check seq_ids_gone(struct sequence *seq);
/** seq_ids_arrived() - ids of @from (a tokens.* file renamed to `tokens`) become this one's. */
int __must_check seq_ids_arrived(struct sequence *seq, struct sequence *from);

/* ---- state ---- */
void seq_touch(struct sequence *seq);
/** seq_set_state() - and class of its blocks for reclaim. */
void seq_set_state(struct sequence *seq, enum seq_state state);
void seq_set_pinned(struct sequence *seq, bool pinned);
void seq_residency(struct sequence *seq, struct pool_residency *res);
void seq_prefetch(struct sequence *seq);

/* ---- persistence ---- */
enum { META_SEQ = 17, META_SEQ_IDS = 18, META_SEQ_CIDS = 19, META_SEQ_WRITTEN = 20 };
#define SEQ_ID_CHUNK 1024	/* ids per record */

bool seq_dirty(struct sequence *seq);
/**
 * seq_persist() - write back and flush sealed blocks and the open tail, then submit its records
 * together with what @emit adds. @seq_nr: for pool_commit(). Does not commit (seal) by itself.
 */
int __must_check seq_persist(struct sequence *seq, void (*emit)(void *ctx, struct meta_txn *txn),
			     void *ctx, u64 *seq_nr);
/**
 * seq_write_back(), seq_emit(), seq_emitted() - the parts of seq_persist(), for transactions over
 * several sequences: seq_begin() all, write back all, emit all into one transaction, pool_submit()
 * it with the @ids of all, then seq_emitted() all and seq_end().
 * @ids: blocks for pool_submit(), freed by the caller
 */
int __must_check seq_write_back(struct sequence *seq, struct block_id **ids, u32 *nr);
void seq_emit(struct sequence *seq, struct meta_txn *txn);
void seq_emitted(struct sequence *seq);
/** seq_emit_delete() - put the removal of all its records into @txn. */
void seq_emit_delete(struct sequence *seq, struct meta_txn *txn);
/** seq_load() - one META_SEQ* or META_TAB_CHUNK record of this sequence, any order. -EUCLEAN. */
int __must_check seq_load(struct sequence *seq, u8 type, u32 sub, const void *value, u32 bytes);
/** seq_load_finish() - all records seen: check them against each other, name the blocks. */
int __must_check seq_load_finish(struct sequence *seq, struct textbuf *why);
/**
 * seq_load_kv_gone() - after seq_load_finish(), for one whose directory has no kv: the name went, the
 * record that says what follows was not written any more. Bytes of its own go, ids become loose.
 */
int __must_check seq_load_kv_gone(struct sequence *seq);

#endif
