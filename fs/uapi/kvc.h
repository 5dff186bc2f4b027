/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvc: the KV cache of a kvcachefs mount at memory speed.
 *
 *	kvc_open(&kvc, "/mnt/kv", NULL);
 *	kvc_seq_open(kvc, &seq, "llama-8b/alice", KVC_SEQ_CREATE | KVC_SEQ_WRITE);
 *	kvc_seq_match(seq, ids, nr_ids, &cached);		attach what is cached of this prompt
 *	kvc_seq_map(seq, &view);				one contiguous range, block after block
 *	... read the tokens [0, cached) ...
 *	kvc_seq_append(seq, nr_ids - cached, &room);		reserve room behind them
 *	... write the tokens [room.first_token, nr_ids) ...
 *	kvc_seq_commit(seq, nr_ids, NULL, 0);			now others may share it
 *	for each new token: kvc_seq_append(seq, 1, &room), write it, kvc_seq_commit(seq, ++n, &id, 1)
 *	kvc_view_unmap(&view);
 *	kvc_seq_close(seq);
 *	kvc_close(kvc);
 *
 * Where a token lies. A view or a room is blocks of B = block_tokens tokens; block i begins at
 * addr + (i - first_block) * block_stride, block_bytes long. A block is tables of B rows one after the
 * other, and a token is one row, row_bytes long, in each of them:
 *
 *	layout	tables of a block, in this order			how many
 *	hnd	for each layer: K of each KV head, V of each KV head	layers * 2 * kv_heads
 *	nhd	for each layer: K of all heads, V of all heads		layers * 2
 *	mla	for each layer: the latent				layers
 *	opaque	one; what is in a row is the engine's own		1
 *
 * row_bytes = token_bytes / how many. In table n the row of token t begins (n * B + t % B) * row_bytes
 * behind the block's beginning. The same for layer l, head h, p = 0 for K and 1 for V, E bytes per element:
 *
 *	block	addr + (t / B - first_block) * block_stride
 *	hnd	block + l * slice_bytes + p * slice_bytes / 2 + (h * B + t % B) * head_dim * E
 *	nhd	block + l * slice_bytes + p * slice_bytes / 2 + (t % B * kv_heads + h) * head_dim * E
 *	mla	block + l * slice_bytes + t % B * latent_dim * E
 *	opaque	block + t % B * token_bytes
 *
 * The last block is laid out so too when it is not full. kvc_seq_layout() tells what a block is;
 * kv_heads, head_dim, latent_dim, dtype and the fingerprint are the model's: an engine that wants to
 * compare reads the lines "key=value" of NS/.geometry on the mount.
 *
 * What is not here is done with files and attributes on the mount:
 *
 *	make a namespace	mkdir NS; write NS/.geometry (README: Geometry), or `kvctl ns create NS ...`
 *	salt, priority, pin	setxattr user.kvc.salt, user.kvc.priority on a directory, user.kvc.pin on
 *				a sequence
 *	make a directory	mkdir: kvc_seq_open() makes the sequence, never what is above it
 *	rename			rename() of its directory: handles stay good, but not beyond a
 *				kvc_reconnect(), which opens the old name
 *	remove			unlink() and rmdir(): views stay readable, calls on handles are -ESTALE;
 *				blocks with ids stay cached
 *	files beside kv		open() as anywhere
 *
 * Views are stitched from the daemon's pool memory: reading one costs no system call, it may be
 * registered for DMA, and the daemon never moves what is mapped. A view has a generation word:
 * kvc_view_check() says -ESTALE once the daemon or the sequence is gone; the bytes stay readable
 * until kvc_view_unmap(). After a restart of the daemon kvc_reconnect() makes views good again whose
 * blocks are where they were.
 *
 * Errors: functions return 0 (or a count) or a negative errno. No signals, no global state. Every call
 * on a session or a sequence may also return
 *
 *	-ESTALE		the daemon is gone: kvc_reconnect(); or the sequence was removed: for good
 *	-ETIMEDOUT	no answer in time, which ends the session, as nobody knows what was done:
 *			kvc_reconnect()
 *	-EPROTO		an answer that makes no sense
 *	-ENOMEM
 *	-E2BIG		more ids than the arena takes
 *	-EINVAL		`size` of a struct is not set, or too small
 *
 * Structs with `size` grow at their end: what is beyond the caller's size is not written. In batches the
 * library sets the size of what it gives.
 *
 * Threads: a struct kvc and what was opened from it may be used from any thread; calls on one struct
 * kvc_seq are serialised by the library, but kvc_seq_wait(). fork(): a child may read views that its parent
 * mapped and must call nothing else with the parent's handles; it opens its own.
 *
 * Manual page: libkvc(3). A whole program: tools/examples/session.c.
 */
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. The ABI is that of libkvc.so.1 while the major version stays. */
#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_VERSION_PATCH 0

#define KVC_ALL	       UINT64_MAX /* as nr_blocks: to the end */
#define KVC_ALL_TOKENS UINT32_MAX /* of kvc_seq_fork() */

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
 * Return: 0, -ENOENT (no such path, no kvcachefs there, or one mounted with socket=none), -EACCES,
 * -ECONNREFUSED (its daemon ended), -EUSERS (one user has 256 at most, but for root and who runs the
 * daemon), -EPROTO (other version), -EINVAL (options), -ENOMEM, -EMFILE.
 */
int kvc_open(struct kvc **kvc, const char *mount, const struct kvc_options *options);
/** kvc_close() - end the session; its pins and reservations go. Views and sequences first. NULL is fine. */
void kvc_close(struct kvc *kvc);
/**
 * kvc_reconnect() - after -ESTALE: attach to a daemon that was restarted. Handles are reopened; one whose
 * sequence is not there any more fails with -ESTALE for good. A view whose blocks are in the same memory as
 * before is pinned again and good, at its old address; any other stays -ESTALE, its bytes as they were,
 * until it is unmapped. A block that is not full has a new place in the new daemon: a view that has the
 * last, partial block never comes back. So map whole blocks apart from it: kvc_seq_map_range(seq, 0,
 * tokens / block_tokens), and the block behind them by itself. Rooms are gone: append again; what was not committed is lost, but nobody else uses
 * that memory before the next append or the close.
 * Return: 0 (also when nothing was wrong), -ENOTCONN, -ENOENT, -ECONNREFUSED and the like while there is no
 * daemon: try again.
 */
int kvc_reconnect(struct kvc *kvc);

enum {
	KVC_SEQ_CREATE = 1,	/* make directory, kv and tokens where they are missing */
	KVC_SEQ_WRITE = 2,	/* to match and attach, append, commit, truncate, set the state */
	KVC_SEQ_EXCL = 4,	/* -EEXIST when there is a kv */
};

/** enum kvc_layout_kind - order of a block's bytes; see "Where a token lies" above, and README: Geometry. */
enum kvc_layout_kind { KVC_LAYOUT_HND, KVC_LAYOUT_NHD, KVC_LAYOUT_MLA, KVC_LAYOUT_OPAQUE };

/** struct kvc_layout - of a sequence's blocks. */
struct kvc_layout {
	size_t size;		/* set to sizeof(struct kvc_layout) */
	uint32_t layers, block_tokens;
	uint32_t layout;	/* enum kvc_layout_kind */
	uint64_t token_bytes, block_bytes, block_stride;
	uint64_t slice_bytes;	/* one layer of one block; opaque: 0 where layers do not divide it */
};

/**
 * kvc_seq_open() - @path is the sequence's directory, relative to the mount's root; a leading slash does
 * not matter, one at the end is not taken. Directories above it are not made.
 * Return: 0, -EINVAL (outside of a namespace; flags), -ENOENT (a directory above it; without
 * KVC_SEQ_CREATE: it, or its kv), -ENOTDIR, -EEXIST, -EACCES, -EROFS, -ENAMETOOLONG, -EMFILE (too many
 * handles in this session).
 */
int kvc_seq_open(struct kvc *kvc, struct kvc_seq **seq, const char *path, unsigned int flags);
/** kvc_seq_close() - its room goes; its views stay until they are unmapped. NULL is fine. */
void kvc_seq_close(struct kvc_seq *seq);
/** kvc_seq_layout() - what a block is; asks nobody. Return: 0, -EINVAL (size). */
int kvc_seq_layout(struct kvc_seq *seq, struct kvc_layout *layout);
/** kvc_seq_tokens() - Return: committed tokens, as the daemon has them now, or -errno. */
int64_t kvc_seq_tokens(struct kvc_seq *seq);

/**
 * kvc_seq_match() - give the sequence its ids and attach the longest cached chain.
 * @ids: @nr_ids token ids, the whole prompt; all that the sequence had before are replaced
 * @cached: out, leading tokens whose KV is there now; may be NULL
 * Afterwards the sequence has exactly @cached committed tokens: those that it had under the same ids, or,
 * where that is more, those of the cache, which come in whole blocks. What it had beyond is cut, and its
 * room is gone.
 * Of a handle without KVC_SEQ_WRITE it is a question only: how many leading tokens are cached; nothing
 * is attached, pinned or renewed.
 * Return: 0, -EBUSY (another client appends, or writes), -EFBIG (more than 2^28 ids).
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
 * kvc_seq_map() - all of it.
 * kvc_seq_map_range() - @nr_blocks from @first_block on (KVC_ALL: to the end), as far as tokens are
 * committed. kvc_seq_map_resident() - the same, but does not wait for what is not in memory.
 *
 * Brings missing blocks to memory. A sequence without tokens, or @first_block just behind the last block,
 * makes an empty view. The last block, while not full, is as of this call: map it again after a commit.
 * The view of a sequence opened with KVC_SEQ_WRITE is mapped writable, since the kernel pins nothing else
 * for DMA: that is all it is for, sealed blocks have checksums. A view keeps its sequence open.
 * Return: 0, -EINVAL (nr_blocks 0, or it begins behind the end), -EAGAIN (pins beyond the budget: half of
 * DRAM for one session, 80 % for all; kvc_seq_map_resident(): a block is not in memory, and is being read
 * now), -EACCES (no permission to read the namespace's memory), -EIO (a block could not be read), -EMFILE.
 */
int kvc_seq_map(struct kvc_seq *seq, struct kvc_view *view);
int kvc_seq_map_range(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
		      struct kvc_view *view);
int kvc_seq_map_resident(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
			 struct kvc_view *view);
/**
 * kvc_view_check() - Return: 0 while the daemon and the sequence that it was mapped from are there, else
 * -ESTALE; -EINVAL (not mapped). Tokens that were cut since are no matter: it shows what was mapped.
 */
int kvc_view_check(const struct kvc_view *view);
/** kvc_view_unmap() - and set to "not mapped", which may be unmapped again. */
void kvc_view_unmap(struct kvc_view *view);

/**
 * struct kvc_room - writable memory for tokens behind the committed ones. It begins with the whole block
 * that token first_token falls in: when that is not the block's first, the block holds committed tokens,
 * which must not be written.
 */
struct kvc_room {
	size_t size;		/* set to sizeof(struct kvc_room) */
	uint8_t *addr;		/* block first_block starts here */
	uint64_t bytes;
	uint64_t first_block, nr_blocks, block_stride;
	uint32_t first_token;	/* committed tokens at the time */
};

/**
 * kvc_seq_append() - reserve room for @nr_tokens (at least 1) tokens behind the committed ones; the memory
 * stays valid until the next append, commit of its last block, match, truncate, or close. Appending again
 * before a commit begins at the same token; what was filled stays. Whole or not at all.
 * Return: 0, -EINVAL (nr_tokens 0), -ENOSPC, -EAGAIN (pins beyond the budget), -EBUSY (another client
 * appends), -EACCES (opened without KVC_SEQ_WRITE, or no permission to write the namespace's memory),
 * -EFBIG (more than 2^28 tokens).
 */
int kvc_seq_append(struct kvc_seq *seq, uint32_t nr_tokens, struct kvc_room *room);
/**
 * kvc_seq_commit() - exactly @tokens tokens are final (all filled).
 * @tokens: not fewer than are committed, nor more than those and what was appended; on a handle that
 *	has appended nothing, tokens that were written wholly to kv through the mount
 * @ids: @nr_ids ids that follow those that are known, up to token @tokens or beyond it; NULL when they are
 *	known. Tokens without ids are committed, but not shared until their ids come.
 * Return: 0, -EINVAL (@tokens), -EACCES, -EBUSY (another client appends), -ENOSPC, -EIO.
 */
int kvc_seq_commit(struct kvc_seq *seq, uint32_t tokens, const uint32_t *ids, uint32_t nr_ids);
/** kvc_seq_sync() - what is committed is durable. Return: 0, -EACCES (no KVC_SEQ_WRITE), -EIO, -ENOSPC. */
int kvc_seq_sync(struct kvc_seq *seq);

/**
 * kvc_seq_fork() - a new sequence @path (as in kvc_seq_open()) with the first @tokens tokens of this one,
 * in the same namespace and under the same salt. Whole blocks are shared, the rest is copied: kv and
 * tokens only, no other files, no attributes. It is not opened.
 * @tokens: 1 to those committed, or KVC_ALL_TOKENS
 * Return: 0, -EINVAL (@tokens), -EEXIST, -ENOENT (a directory above it), -EXDEV (another namespace or
 * salt), -EACCES, -EROFS, -ENOSPC.
 */
int kvc_seq_fork(struct kvc_seq *seq, const char *path, uint32_t tokens);
/**
 * kvc_seq_truncate() - cut to @tokens; a partial block becomes a private open copy. Its room is gone.
 * Return: 0, -EINVAL (more than are committed), -EACCES, -EBUSY, -ENOSPC.
 */
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
 * until -EAGAIN, what comes says nothing, then ask kvc_seq_wait(seq, 0). It is the session's: not to be
 * closed, and another one after kvc_reconnect(). POLLHUP: the daemon is gone.
 */
int kvc_event_fd(struct kvc *kvc);

enum kvc_state { KVC_IDLE, KVC_PAUSED, KVC_QUEUED, KVC_DECODING };
/**
 * kvc_seq_set_state() - who is evicted first: idle, then paused, queued, decoding. @paused_seconds: when it
 * is expected back, with KVC_PAUSED; 0: unknown. Queued and decoding last as long as the handle.
 * Return: 0, -EACCES (no KVC_SEQ_WRITE), -EINVAL (state).
 */
int kvc_seq_set_state(struct kvc_seq *seq, enum kvc_state state, uint32_t paused_seconds);

/** struct kvc_info - of a sequence, as it is now. */
struct kvc_info {
	size_t size;		/* set to sizeof(struct kvc_info) */
	uint32_t tokens;	/* committed */
	uint32_t ids;		/* known */
	uint32_t cached_tokens;	/* that came from the cache at the last match */
	uint32_t state;		/* enum kvc_state */
	uint32_t blocks;
	uint32_t dram_blocks, nvme_blocks; /* with a copy there */
	uint32_t shared_blocks;	/* named by others too */
};
int kvc_seq_query(struct kvc_seq *seq, struct kvc_info *info);

enum kvc_admission { KVC_RUN, KVC_WAIT, KVC_RUN_RECOMPUTE };
/**
 * kvc_admit() - may a sequence with @tokens of input run now? Return: enum kvc_admission, or -errno. The
 * daemon of this version holds nobody back: KVC_RUN.
 */
int kvc_admit(struct kvc_seq *seq, uint32_t tokens);

/*
 * ---- batches: one message for many sequences ----
 *
 * Each entry has its own result, 0 or what the call for one sequence would have returned. The call itself
 * returns 0 when all were asked, though some or all entries failed: look at each result; or a
 * negative errno when the session ended or memory ran out (those not answered have that as their result,
 * but for -ENOMEM of the call). A sequence of another session: -EINVAL. Views and rooms are set by the
 * library, `size` too. Entries are done in order, so a sequence may be there twice; but the room of the
 * second append takes the place of the first's, which is not to be used any more.
 */

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
	uint64_t nr_blocks;	/* KVC_ALL: to the end */
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
