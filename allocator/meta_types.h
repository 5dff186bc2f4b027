/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the metadata store, shared by the meta_*.c files.
 *
 * Two threads do all I/O after the open:
 *   commit      writes groups, one frame each; turns to a new journal between two groups when asked
 *   checkpoint  copies live records into the next checkpoint; both keep space preallocated
 *
 * What is live: records are numbered (serial) over the life of the store, and the index holds for
 * each key the serial of its latest durable record. A record read from a file is live if the index
 * knows its serial. So nothing has to be looked up on disk, files are only read from front to back,
 * and a record keeps its identity when a checkpoint copies it.
 */
#ifndef KVC_META_TYPES_H
#define KVC_META_TYPES_H

#include <pthread.h>
#include "allocator/base/hash.h"
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "allocator/meta_format.h"

#define META_MAX_TXN	     MIB(16)	/* bytes of one transaction */
#define META_GROUP_BYTES     MIB(4)	/* a group takes no more transactions beyond this */
#define META_KICK_BYTES	     MIB(1)	/* queued bytes that are written without being asked */
#define META_MAX_AHEAD	     MIB(32)	/* journal space preallocated ahead of the queue */
#define META_MIN_AHEAD	     MIB(2)
#define META_ZERO_AHEAD	     KIB(128)
#define META_CHUNK_BYTES     KIB(256)	/* payload of a checkpoint's frame */
#define META_MAX_FRAME	     MIB(24)
#define META_INDEX_PARTS     256
#define META_NAME_BYTES	     48

/* ---- index (meta_index.c) ---- */

/** struct meta_slot - one key; free when @word is 0. Four-byte aligned: 20 bytes a key. */
struct meta_slot {
	u32 id_lo, id_hi, sub;
	u32 word_lo, word_hi;	/* serial 48 bits, type 8, size class 8 */
};

struct meta_part {
	struct meta_slot *slots;
	u32 nr_slots, used;
	u32 reserved;		/* insertions that must not need memory */
};

/** struct meta_index - key to serial of the latest record. Caller serialises. */
struct meta_index {
	struct meta_part parts[META_INDEX_PARTS];
	u64 keys;
	u64 live_bytes;		/* of their records, to within a sixteenth */
};

void meta_index_free(struct meta_index *index);
/** meta_index_reserve() - make sure of room for one more key like @rec's. Return: 0, -ENOMEM. */
int __must_check meta_index_reserve(struct meta_index *index, const struct meta_record *rec);
void meta_index_unreserve(struct meta_index *index, const struct meta_record *rec);
/**
 * meta_index_apply() - note @rec as its key's latest, or drop the key. Needs a reservation for a
 * put, and uses it up. Return: the serial that was there before, 0 for none.
 */
u64 meta_index_apply(struct meta_index *index, const struct meta_record *rec);
/** meta_index_live() - whether @rec is its key's latest record. */
bool meta_index_live(const struct meta_index *index, const struct meta_record *rec);
u64 meta_index_memory(const struct meta_index *index);

/* ---- files ---- */

/** struct meta_journal - the journal that takes frames, or one that was closed. */
struct meta_journal {
	int fd;			/* -1: none */
	u64 generation;
	u64 base_seq, base_serial;
	u64 seq, serial;	/* of the last frame */
	u64 end;		/* where the next frame goes; under the lock, written by commit */
	u64 alloc_end;		/* space is allocated up to here; under the lock */
	u64 zero_end;		/* blocks up to here have been written once */
	u64 nr_frames, nr_records;
	u64 chain;
	u64 count;		/* of the next seal */
};

/** struct meta_group - transactions that become one frame. */
struct meta_group {
	struct list_head link;
	u8 *buf;		/* room for the header, then records */
	size_t len, size;	/* bytes, header included; @size a multiple of META_BLOCK */
	u64 first_seq, last_seq, first_serial;
	u32 nr_records, nr_txns;
};

/** struct meta_reader - walks the frames of one file; every frame given out has been verified. */
struct meta_reader {
	int fd;
	enum meta_kind kind;
	u64 store, generation;
	u64 off;		/* of the next frame */
	u64 limit;		/* the file's bytes end here */
	u64 number, chain;	/* what the next frame must carry */
	u64 seq, serial;	/* journal: newest so far; checkpoint: @serial is the upper bound */
	u64 nr_records;
	const struct meta_frame *frame;		/* last one read, valid until the next call */
	const struct meta_record *records;
	const char *what;	/* after -EUCLEAN: what is wrong with the frame at @off */
	u8 *buf;
	u64 buf_off;
	size_t len, size;
};

struct meta {
	int dir_fd;		/* our own, set once */
	struct meta_opts opts;
	u64 store;
	u64 ahead;		/* bytes to keep preallocated; set once, from checkpoint_bytes */
	struct lock lock;	/* LOCK_STORE; protects what follows unless said otherwise */
	struct waitq work;	/* commit thread: something to do */
	struct waitq checkpoint_work;
	struct waitq done;	/* everybody else: durable_seq, checkpoints, extending, err moved */
	pthread_t commit_thread, checkpoint_thread;
	int nr_threads;
	enum { META_RUN, META_STOP_CHECKPOINT, META_STOP } stop;
	int err;		/* -EIO for good once a write or sync has failed */

	struct list_head queue;	/* groups, oldest first; the last one is open */
	struct meta_group *spare;
	u64 queued_bytes;	/* frame bytes of queued groups and of the one being written */
	u64 next_room;		/* limit on @queued_bytes while the next journal is being made */
	u64 submitted_seq, submitted_serial;
	u64 kick_seq;		/* write groups up to here */
	u64 durable_seq;

	struct meta_journal cur;	/* fd, seq, chain and such: commit thread only */
	struct meta_journal old;	/* fd >= 0: closed, its checkpoint is still to be written;
					 * read by the checkpoint thread while it is there */
	bool extending;		/* a thread is in fallocate() on cur.fd */
	u64 want_space;		/* bytes for which a submit has been refused, try again; or 0 */
	bool no_space;		/* the last attempt to preallocate failed */

	u64 checkpoint_generation;	/* of the newest checkpoint; 1 without a file */
	u64 checkpoint_bytes;	/* its length */
	u64 old_keys;		/* keys when old was closed */
	u64 old_replaced;	/* of those, replaced or removed since */
	bool want_rotate;
	int rotate_err;
	u64 tickets, served;	/* explicit checkpoints asked for, done */
	int served_err;
	u64 retry_at;		/* journal length at which a checkpoint that failed is tried again */

	struct meta_index index;
	struct meta_stats stats;	/* counters; the rest is filled in when asked */
};

/* ---- meta_io.c: syscalls that retry EINTR, finish short transfers and can be made to fail ---- */

int __must_check meta_pread(int fd, void *buf, size_t bytes, u64 off, size_t *got);
int __must_check meta_pwrite(int fd, const void *buf, size_t bytes, u64 off);
int __must_check meta_sync(int fd);
int __must_check meta_sync_all(int fd);
int __must_check meta_allocate(int fd, u64 off, u64 bytes);
int __must_check meta_open_file(int dir_fd, const char *name, int flags, int *fd);
int __must_check meta_rename(int dir_fd, const char *from, const char *to);
void *meta_realloc(void *old, size_t bytes);
void meta_close_fd(int *fd);
/** meta_name() - "journal.7", "checkpoint.7", with ".tmp" appended when @tmp. */
void meta_name(char name[META_NAME_BYTES], enum meta_kind kind, u64 generation, bool tmp);
void meta_head_seal(struct meta_head *head);
const char *meta_head_wrong(const struct meta_head *head);
void meta_frame_seal(u64 store, struct meta_frame *frame, size_t frame_bytes);

/* ---- meta_reader.c ---- */

void meta_reader_init(struct meta_reader *reader, int fd, const struct meta_head *head, u64 limit);
/** meta_reader_next() - Return: 0, -EUCLEAN (see @what), -EIO, -ENOMEM. Moves on only after 0. */
int __must_check meta_reader_next(struct meta_reader *reader);
void meta_reader_free(struct meta_reader *reader);

/* ---- meta_journal.c ---- */

/** meta_journal_create() - make @journal, empty, room for @need bytes at least, durable in its
 * directory. Return: 0, -ENOSPC, -EIO, ... with nothing left behind, or *@published and an error. */
int __must_check meta_journal_create(struct meta *meta, struct meta_journal *journal, u64 need,
				     bool *published);
int __must_check meta_journal_write(struct meta *meta, struct meta_group *group);
int __must_check meta_journal_seal(struct meta *meta, struct meta_journal *journal, u64 flags);
int __must_check meta_journal_read_seals(int fd, struct meta_head *head, const char **what);
/** meta_journal_extend() - keep space preallocated; called with the lock, drops and retakes it. */
void meta_journal_extend(struct meta *meta);
bool meta_journal_wants_space(const struct meta *meta);
/** meta_journal_rotate() - commit thread, between groups, no lock: go on in the next journal. Says
 * how it went in rotate_err. */
void meta_journal_rotate(struct meta *meta);

/* ---- meta_checkpoint.c ---- */

void *meta_checkpoint_main(void *arg);
/** meta_checkpoint_due() - the journal is long enough; lock held. */
bool meta_checkpoint_due(const struct meta *meta);

/* ---- meta_recover.c ---- */

/** meta_recover() - find, verify and load the store; nothing on disk changes before all is well. */
int __must_check meta_recover(struct meta *meta, const struct meta_loader *loader,
			      struct textbuf *why);
/** meta_unlink_stale() - remove files of generations before @generation and unfinished ones. */
void meta_unlink_stale(struct meta *meta, u64 generation);

/* ---- meta.c ---- */

/** meta_fail() - stop the store for good because of @err. Takes the lock. Return: -EIO. */
int meta_fail(struct meta *meta, const char *doing, int err);
/** meta_note() - @rec is durable (or was read at open): make it its key's latest. Lock held. */
void meta_note(struct meta *meta, const struct meta_record *rec);
/** meta_apply() - meta_note() for @nr records in a row; takes the lock. */
void meta_apply(struct meta *meta, const struct meta_record *rec, u32 nr);
void meta_count_written(struct meta *meta, u64 bytes);

#endif
