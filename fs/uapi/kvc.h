/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvc: the KV cache of a kvcachefs mount at memory speed.
 *
 *	struct kvc *kvc;
 *	struct kvc_seq *seq;
 *	kvc_open(&kvc, "/mnt/kv", NULL);
 *	kvc_seq_open(kvc, &seq, "llama-8b/alice", KVC_SEQ_CREATE | KVC_SEQ_WRITE);
 *	kvc_seq_match(seq, ids, nr_ids, &cached);		attach what is cached of this prompt
 *	kvc_seq_map(seq, &view);				one contiguous range, block after block
 *	... read view.addr + block * view.block_stride ...
 *	kvc_seq_append(seq, nr_new, &room);			reserve, then fill in place
 *	kvc_seq_commit(seq, cached + nr_new, ids, nr_ids);	now others may share it
 *	kvc_seq_close(seq);
 *	kvc_close(kvc);
 *
 * Views are stitched from the daemon's pool memory: reading one costs no system call, it may be
 * registered for DMA, and the daemon never moves what is mapped. A view has a generation word:
 * kvc_view_check() says -ESTALE once the daemon or the sequence is gone; the bytes stay readable
 * until kvc_view_unmap(). After a restart of the daemon kvc_reconnect() makes views good again whose
 * blocks are where they were.
 *
 * Errors: functions return 0 (or a count) or a negative errno. No signals, no global state. -ESTALE:
 * the daemon or the sequence is gone; -ETIMEDOUT: no answer in time, which ends the session, as nobody
 * knows what was done; after both kvc_reconnect(). -E2BIG: more ids than the arena takes.
 * Threads: a struct kvc and what was opened from it may be used from any thread; calls on one struct
 * kvc_seq are serialised by the library. fork(): a child may read views that its parent mapped and
 * must call nothing else with the parent's handles; it opens its own.
 */
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvc;
struct kvc_seq;

/** struct kvc_options - set size to sizeof(struct kvc_options); zeros are defaults. */
struct kvc_options {
	size_t size;
	uint64_t arena_bytes;	/* shared memory for ids and extents; default 8 MiB */
	uint64_t timeout_ms;	/* of one call, default 30 s; 0: default */
};

/**
 * kvc_open() - a session with the daemon that serves @mount (any path on the mount).
 * Return: 0, -ENOENT (not a kvcachefs mount), -EACCES, -EUSERS (one user has 256 at most, but for
 * root and who runs the daemon), -EPROTO (other version), -ENOMEM.
 */
int kvc_open(struct kvc **kvc, const char *mount, const struct kvc_options *options);
/** kvc_close() - end the session; its pins and reservations go. Views and sequences first. */
void kvc_close(struct kvc *kvc);
/**
 * kvc_reconnect() - after -ESTALE: attach to a daemon that was restarted. Handles are reopened; one whose
 * sequence is not there any more fails with -ESTALE for good. A view whose blocks are in the same memory as
 * before is pinned again and good, at its old address; any other stays -ESTALE, its bytes as they were,
 * until it is unmapped. Rooms are gone: append again; what was not committed is lost, but nobody else uses
 * that memory before the next append or the close.
 * Return: 0 (also when nothing was wrong), -ENOTCONN, -ENOENT, -ECONNREFUSED and the like while there is no
 * daemon: try again.
 */
int kvc_reconnect(struct kvc *kvc);

enum { KVC_SEQ_CREATE = 1, KVC_SEQ_WRITE = 2, KVC_SEQ_EXCL = 4 };

/** struct kvc_layout - of a sequence's blocks (see UAPI: geometry). */
struct kvc_layout {
	size_t size;		/* set to sizeof(struct kvc_layout) */
	uint32_t layers, block_tokens, layout;
	uint64_t token_bytes, block_bytes, block_stride;
};

/** kvc_seq_open() - @path is the sequence's directory, relative to the mount's root. */
int kvc_seq_open(struct kvc *kvc, struct kvc_seq **seq, const char *path, unsigned int flags);
void kvc_seq_close(struct kvc_seq *seq);
int kvc_seq_layout(struct kvc_seq *seq, struct kvc_layout *layout);
/** kvc_seq_tokens() - committed tokens. */
int64_t kvc_seq_tokens(struct kvc_seq *seq);

/**
 * kvc_seq_match() - give the sequence its ids and attach the longest cached chain.
 * @ids: @nr_ids token ids, the whole prompt
 * @cached: out, leading tokens whose KV is there now
 */
int kvc_seq_match(struct kvc_seq *seq, const uint32_t *ids, uint32_t nr_ids, uint32_t *cached);

/** struct kvc_view - blocks [first_block, first_block + nr_blocks) of a sequence, contiguous. */
struct kvc_view {
	size_t size;		/* set to sizeof(struct kvc_view) */
	const uint8_t *addr;	/* block i at addr + (i - first_block) * block_stride */
	uint64_t bytes;
	uint64_t first_block, nr_blocks, block_stride;
	uint32_t nr_runs;	/* pieces it was stitched from */
	void *priv;
};

/**
 * kvc_seq_map() - all of it; kvc_seq_map_range() - a part, as far as tokens are committed (-EINVAL: it
 * begins behind them). Brings missing blocks to memory. The view of a
 * sequence opened with KVC_SEQ_WRITE is mapped writable, since the kernel pins nothing else for DMA:
 * that is all it is for, sealed blocks have checksums. A view keeps its sequence open.
 */
int kvc_seq_map(struct kvc_seq *seq, struct kvc_view *view);
int kvc_seq_map_range(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
		      struct kvc_view *view);
/** kvc_seq_map_resident() - kvc_seq_map_range() that does not wait: -EAGAIN when a block is not in memory. */
int kvc_seq_map_resident(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
			 struct kvc_view *view);
/** kvc_view_check() - 0 while the view is the sequence's, -ESTALE when daemon or sequence went. */
int kvc_view_check(const struct kvc_view *view);
void kvc_view_unmap(struct kvc_view *view);

/** struct kvc_room - writable memory for tokens behind the committed ones. */
struct kvc_room {
	size_t size;		/* set to sizeof(struct kvc_room) */
	uint8_t *addr;		/* block first_block starts here */
	uint64_t bytes;
	uint64_t first_block, nr_blocks, block_stride;
	uint32_t first_token;	/* committed tokens at the time */
};

/**
 * kvc_seq_append() - reserve room for @nr_tokens more tokens; the memory stays valid until the next
 * append, commit of its last block, or close. Whole or not at all: -ENOSPC, -EAGAIN (pins).
 */
int kvc_seq_append(struct kvc_seq *seq, uint32_t nr_tokens, struct kvc_room *room);
/**
 * kvc_seq_commit() - exactly @tokens tokens are final (all filled). @ids: ids of tokens
 * [nr known, tokens), may be NULL when they are known.
 */
int kvc_seq_commit(struct kvc_seq *seq, uint32_t tokens, const uint32_t *ids, uint32_t nr_ids);
/** kvc_seq_sync() - what is committed is durable. */
int kvc_seq_sync(struct kvc_seq *seq);

int kvc_seq_fork(struct kvc_seq *seq, const char *path, uint32_t tokens);
int kvc_seq_truncate(struct kvc_seq *seq, uint32_t tokens);

/**
 * kvc_seq_prefetch() - start to bring all of the sequence to memory; one at a time.
 * @deadline_us: when it is wanted, from now; 0: no matter when. Earlier ones are read first, and one
 *	that has time gives way to whoever waits for a read.
 * A prefetch under way on the same handle ends, as it does with the handle. Return: 0, -EAGAIN (too
 * many are under way).
 */
int kvc_seq_prefetch(struct kvc_seq *seq, uint64_t deadline_us);
/**
 * kvc_seq_wait() - until the sequence's last prefetch has ended. Other calls on the sequence go on.
 * @timeout_ms: negative: no limit
 * Return: 0 (all of it was brought to memory, or there was no prefetch), -ETIMEDOUT (it goes on),
 * -EIO (a block could not be read), -ENOMEM (no memory for all of it), -ECANCELED (another one was
 * started meanwhile), -ESTALE.
 */
int kvc_seq_wait(struct kvc_seq *seq, int timeout_ms);
/**
 * kvc_event_fd() - a descriptor for poll(): readable once a prefetch of this session has ended. Read it
 * until -EAGAIN, what comes says nothing, then ask kvc_seq_wait(seq, 0). It is the session's: not to be closed, and another one
 * after kvc_reconnect(). POLLHUP: the daemon is gone.
 */
int kvc_event_fd(struct kvc *kvc);

enum kvc_state { KVC_IDLE, KVC_PAUSED, KVC_QUEUED, KVC_DECODING };
int kvc_seq_set_state(struct kvc_seq *seq, enum kvc_state state, uint32_t paused_seconds);

struct kvc_info {
	size_t size;		/* set to sizeof(struct kvc_info) */
	uint32_t tokens, ids, cached_tokens, state;
	uint32_t blocks, dram_blocks, nvme_blocks, shared_blocks;
};
int kvc_seq_query(struct kvc_seq *seq, struct kvc_info *info);

enum kvc_admission { KVC_RUN, KVC_WAIT, KVC_RUN_RECOMPUTE };
/** kvc_admit() - may a sequence with @tokens of input run now? Return: enum kvc_admission. */
int kvc_admit(struct kvc_seq *seq, uint32_t tokens);

/* ---- batches: one message for many sequences; each entry has its own result ---- */

struct kvc_match_entry {
	struct kvc_seq *seq;
	const uint32_t *ids;
	uint32_t nr_ids;
	uint32_t cached;	/* out */
	int result;		/* out */
};
int kvc_match_many(struct kvc *kvc, struct kvc_match_entry *entries, unsigned int nr);

struct kvc_map_entry {
	struct kvc_seq *seq;
	uint64_t first_block;
	uint64_t nr_blocks;	/* UINT64_MAX: to the end */
	int result;		/* out */
	struct kvc_view view;	/* out: to be unmapped where result is 0 */
};
/** kvc_map_many() - as kvc_seq_map_range() for each entry. */
int kvc_map_many(struct kvc *kvc, struct kvc_map_entry *entries, unsigned int nr);

struct kvc_append_entry {
	struct kvc_seq *seq;
	uint32_t nr_tokens;
	int result;		/* out */
	struct kvc_room room;	/* out */
};
int kvc_append_many(struct kvc *kvc, struct kvc_append_entry *entries, unsigned int nr);

struct kvc_commit_entry {
	struct kvc_seq *seq;
	uint32_t tokens;
	const uint32_t *ids;
	uint32_t nr_ids;
	int result;		/* out */
};
int kvc_commit_many(struct kvc *kvc, struct kvc_commit_entry *entries, unsigned int nr);

#ifdef __cplusplus
}
#endif

#endif
