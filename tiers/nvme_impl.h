/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the nvme tier: its state, its segments, its two engines. Essay in nvme.c. */
#ifndef KVC_NVME_IMPL_H
#define KVC_NVME_IMPL_H

#include <sys/uio.h>
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "tiers/tier.h"

#define NVME_MAX_FILES	 1024
#define NVME_FILE_BYTES	 GIB(64)
#define NVME_DEPTH_BYTES MIB(96)
#define NVME_SEG_BYTES	 MIB(4)	/* largest single transfer */
#define NVME_SEG_IOV	 1024	/* IOV_MAX */

struct nvme;

/** struct nvme_part - what a segment carries of one request. */
struct nvme_part {
	struct tier_io *io;
	u64 end;	/* bytes from the segment's start to behind this part */
};

/**
 * struct nvme_seg - one transfer on one data file: several adjacent requests, or a piece of one.
 * A cursor over its bytes. Belongs to the submitter, then to the queue, then to the engine.
 */
struct nvme_seg {
	struct list_head link;
	enum tier_op op;
	int fd;
	u64 file_off, bytes;	/* whole segment */
	u64 done_bytes;		/* transferred, or given up */
	struct iovec *iov;	/* what is left: iov[cur_iov..nr_iov) */
	unsigned int cur_iov, nr_iov;
	struct nvme_part *parts;
	unsigned int cur_part, nr_parts;
	unsigned int nr_retries;
	bool one_by_one;	/* after an error: part by part, to find the one to blame */
	struct iovec one;
};

/** struct nvme_engine - moves segments from the queue to the disk and back. */
struct nvme_engine {
	const char *name;
	/* -ENOSYS, -EPERM, -ENOMEM: not available here */
	int (*start)(struct nvme *nvme);
	/* finish what is queued, then end all threads */
	void (*stop)(struct nvme *nvme);
	/* the queue has members; called without the lock, after each batch of additions */
	void (*kick)(struct nvme *nvme);
};

extern const struct nvme_engine nvme_uring, nvme_threads;

struct nvme {
	struct tier *tier;
	u64 file_bytes, depth_bytes;		/* set once at open */
	int dirfd;				/* owned, for growing */
	bool direct;				/* set once at open: O_DIRECT works here */
	const struct nvme_engine *engine;	/* set once at open */
	void *engine_priv;			/* the engine's */
	int fds[NVME_MAX_FILES];		/* owned; members below nr_files never change */
	unsigned int nr_files;			/* protected by lock */

	struct lock lock;
	struct waitq work;		/* threads engine: queue grew, or stop */
	struct waitq room;		/* bytes or nr_segs fell */
	struct list_head queue;		/* protected by lock: segments, oldest first */
	u64 bytes;			/* protected by lock: queued or at the engine */
	unsigned int nr_segs;		/* protected by lock: queued or at the engine */
	bool stop;			/* protected by lock */
	bool failed;			/* protected by lock; for good */
};

/* nvme_files.c */

/** nvme_files_open() - open or create (opts->create) the data files for opts->size_bytes. */
int nvme_files_open(struct nvme *nvme, const struct tier_opts *opts, struct textbuf *why);
void nvme_files_close(struct nvme *nvme);
/** nvme_files_grow() - extend to @size_bytes; on failure all is as before. */
int nvme_files_grow(struct nvme *nvme, u64 size_bytes);

/* nvme_seg.c */

/** nvme_segs_build() - cut and merge checked requests into segments, appended to @segs. */
int nvme_segs_build(struct nvme *nvme, struct tier_io **ios, unsigned int nr,
		    struct list_head *segs);
/** nvme_seg_next() - the next transfer of @seg: *iov of the returned count, at file offset *off. */
unsigned int nvme_seg_next(struct nvme_seg *seg, const struct iovec **iov, u64 *off);
/** nvme_seg_result() - note a transfer's result. Return: true when @seg must be issued again. */
bool nvme_seg_result(struct nvme_seg *seg, long res);
/** nvme_seg_finish() - complete the requests that @seg was the last of, free it. No lock held. */
void nvme_seg_finish(struct nvme_seg *seg);
/** nvme_seg_fail() - give up on all of @seg that is not transferred yet, then finish it. */
void nvme_seg_fail(struct nvme_seg *seg);

/* nvme.c */

/** nvme_room() - @nr_segs segments of @bytes in all have been finished. */
void nvme_room(struct nvme *nvme, u64 bytes, unsigned int nr_segs);
/** nvme_fail() - refuse requests from now on, move the queue to @orphans. */
void nvme_fail(struct nvme *nvme, struct list_head *orphans);
/** nvme_thread() - start a thread of the tier: signals blocked, named, marked as the tier's own. */
int nvme_thread(pthread_t *thread, void *(*fn)(void *), void *arg);
/** nvme_thread_enter() - first call of such a thread. */
void nvme_thread_enter(void);

#endif
