/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier: a linear array of bytes on some medium, behind one small ops table.
 *
 * Tiers know offsets and bytes, neither blocks nor files nor policy. Work is asynchronous: a
 * tier_io is submitted, its @done is called once, on the tier's own thread (or, for tiers that
 * complete at once, on the submitter's), with no lock held; it must be short and must not block.
 * Everything outside this folder calls tiers through the checked wrappers below, never through the
 * table: the wrapper checks the request on the way in and counts it on the way out.
 */
#ifndef KVC_TIER_H
#define KVC_TIER_H

#include <sys/uio.h>
#include <stdatomic.h>
#include "allocator/base/compiler.h"
#include "allocator/base/list.h"

struct textbuf;
struct tier;

enum tier_op { TIER_READ, TIER_WRITE, TIER_FLUSH };

/**
 * struct tier_io - one transfer. The submitter owns it until submit and again from @done.
 * Offsets and each iovec's base and length are multiples of the tier's @align.
 */
struct tier_io {
	enum tier_op op;
	u64 off;			/* bytes; ignored by TIER_FLUSH */
	const struct iovec *iov;	/* host memory; stays valid until @done */
	unsigned int nr_iov;
	/* err: 0 or negative errno; a short transfer is -EIO */
	void (*done)(struct tier_io *io, int err);
	void *ctx;			/* the submitter's */
	/* private to the tier layer, set by tier_submit() */
	struct tier *tier;
	u64 bytes;			/* sum of iov */
	atomic_uint state;		/* enum tier_io_state; catches a second completion */
	atomic_uint nr_parts;		/* back end's: pieces not yet transferred */
	atomic_int err;			/* back end's: first error of a piece, or 0 */
	struct list_head link;		/* back end's */
	void *priv;			/* back end's */
};

/** struct tier_opts - how to open a tier. Back ends read only what names them. */
struct tier_opts {
	u64 size_bytes;		/* multiple of 2 MiB */
	int dirfd;		/* nvme: the store directory, -1 where unused */
	bool create;		/* nvme: make the data files */
	u64 depth_bytes;	/* nvme: bytes in flight, 0: 96 MiB */
	u64 file_bytes;		/* nvme: a full data file, 0: 64 GiB; fixed for a store's life */
	bool no_uring;		/* nvme: use threads even where the kernel has io_uring */
	const char *hugepages;	/* dram: "auto", "tmpfs", "hugetlb", "off" */
	int numa_node;		/* dram: -1 none */
	/* dram: slab files that there are already, one for each slab, -1: make it; NULL: make all. Stay
	 * the caller's, the tier uses copies */
	const int *files;
	/* dram: told of every file that is made, when it takes its place; may be NULL */
	void (*file_made)(void *ctx, u32 slab, int fd);
	void *file_ctx;
};

/* Calls arrive checked, through the wrappers below; back ends complete through tier_io_done(). */
struct tier_ops {
	const char *name;
	u32 align;		/* bytes: offsets, memory and lengths */
	int (*open)(struct tier *tier, const struct tier_opts *opts, struct textbuf *why);
	void (*close)(struct tier *tier);
	/* queue @nr requests; completion comes through done(); -errno only when none was taken */
	int (*submit)(struct tier *tier, struct tier_io **ios, unsigned int nr);
	/* wait until all submitted requests have completed and their done() has returned */
	void (*poll)(struct tier *tier);
	void *(*map)(struct tier *tier, u64 off, u64 bytes);		/* optional */
	void (*discard)(struct tier *tier, u64 off, u64 bytes);		/* optional */
	int (*grow)(struct tier *tier, u64 size_bytes);			/* optional */
	/* optional; else zeroed through map */
	int (*renew)(struct tier *tier, u32 slab, bool empty);
	void (*to_text)(struct tier *tier, struct textbuf *tb);		/* optional */
};

struct tier {
	const struct tier_ops *ops;
	const char *name;	/* "dram", "nvme", "hbm0": set once before publish */
	u64 size_bytes;		/* atomic (tier_size()): grows while requests run */
	void *priv;		/* the tier's own state */
	atomic_uint_fast64_t reads, read_bytes, writes, write_bytes, errors, in_flight;
};

extern const struct tier_ops tier_null_ops;	/* reference: host memory, at once */
extern const struct tier_ops tier_dram_ops;
extern const struct tier_ops tier_nvme_ops;

/**
 * tier_open() - open a tier of a kind.
 * @why: gets one clear line on failure
 * Return: 0 and *tier, else -errno.
 */
int __must_check tier_open(struct tier **tier, const struct tier_ops *ops, const char *name,
			   const struct tier_opts *opts, struct textbuf *why);
/** tier_close() - wait for all requests, then close. NULL is ignored. */
void tier_close(struct tier *tier);
/** tier_drain() - wait until everything submitted so far has completed, done() included. */
void tier_drain(struct tier *tier);

static inline u64 tier_size(const struct tier *tier)
{
	return __atomic_load_n(&tier->size_bytes, __ATOMIC_ACQUIRE);
}

/**
 * tier_submit() - start @nr transfers. Each one's done() is called exactly once when this returns
 * 0; none is called when it returns an error (-EINVAL: a malformed request; -EIO: tier has failed;
 * -ENOMEM). Adjacent requests of one call travel as one transfer, so a sequence should be submitted
 * whole and in order. Requests of a call complete in any order.
 * Context: may block for queue space (depth in bytes), so no lock may be held. From within done()
 * it does not block.
 */
int __must_check tier_submit(struct tier *tier, struct tier_io **ios, unsigned int nr);

/** tier_rw_sync() - one transfer, waited for. For mount, tools and tests. */
int __must_check tier_rw_sync(struct tier *tier, enum tier_op op, u64 off, void *buf, u64 bytes);
/**
 * tier_flush_sync() - make every write durable that had completed before the call (fdatasync of the
 * data files).
 */
int __must_check tier_flush_sync(struct tier *tier);

/** tier_map() - host address of [@off, @off + @bytes), NULL when the tier cannot be mapped. */
void *tier_map(struct tier *tier, u64 off, u64 bytes);
/** tier_discard() - the range's bytes are not needed any more (punch, trim); best effort. */
void tier_discard(struct tier *tier, u64 off, u64 bytes);
/** tier_grow() - enlarge to @size_bytes; -EOPNOTSUPP where the tier cannot, unchanged on error. */
int __must_check tier_grow(struct tier *tier, u64 size_bytes);
/** tier_to_text() - size, counters and the back end's own state, as "key=value" on one line. */
void tier_to_text(struct tier *tier, struct textbuf *tb);

/* ---- slabs: the pieces of memory that clients may be given ---- */

/**
 * tier_slab_bytes() - size of a slab, a power of two; the last one may be shorter. The tier consists
 * of slabs side by side: as many as help sharing it between trust domains, and at most 1024.
 */
u64 tier_slab_bytes(const struct tier *tier);
/** tier_dram_file() - descriptor of a slab's file (mode 0600), the tier's own; -1 for other tiers. */
int tier_dram_file(struct tier *tier, u32 slab);
/**
 * tier_renew() - a slab becomes zeros, and out of reach for whoever has its file. Nobody uses it
 * meanwhile. @empty: those who have the old file find zeros there; else what there was, as long as
 * they keep it. May block. Return: 0 or -errno, and its bytes are then undefined.
 */
int __must_check tier_renew(struct tier *tier, u32 slab, bool empty);

#endif
