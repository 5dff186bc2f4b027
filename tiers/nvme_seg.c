/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of the nvme tier: how requests are cut and merged, and what a result means.
 *
 *	requests	|--a--|--b--|-----------------c-----------------|     |--d--|
 *	segments	|--a-----b--|------c 4 MiB------|------c rest---|     |--d--|
 *
 * A request counts the segments that carry a part of it (nr_parts); the last one to finish
 * completes it with the first error noted. A segment is a cursor: bytes before done_bytes are
 * settled, each transfer starts there. After an error in a segment of several requests it goes on
 * part by part, so that every request gets its own result. No memory is needed once a segment is
 * built.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "tiers/nvme_impl.h"
#include "tiers/tier_impl.h"

#define MAX_RETRIES 1000

/* Where the cutting stands in an array of requests. */
struct cursor {
	struct tier_io **ios;
	unsigned int nr, i;	/* ios[i] is next */
	unsigned int iov;	/* its vector, */
	u64 iov_done;		/* bytes used of that vector */
	u64 io_done;		/* bytes used of the request */
};

/*
 * Take @bytes of the current request into @seg. Neighbours in memory become one vector. With
 * seg->iov NULL the call only counts. Returns the bytes taken: fewer when the vectors run out.
 */
static u64 take_vectors(struct cursor *at, struct nvme_seg *seg, u64 bytes, char **mem_end)
{
	struct tier_io *io = at->ios[at->i];
	u64 taken = 0;

	while (taken < bytes) {
		const struct iovec *v = &io->iov[at->iov];
		char *base = (char *)v->iov_base + at->iov_done;
		u64 len = min((u64)v->iov_len - at->iov_done, bytes - taken);
		bool joins = seg->nr_iov && base == *mem_end;

		if (!joins && seg->nr_iov == NVME_SEG_IOV)
			break;
		if (!joins)
			seg->nr_iov++;
		if (seg->iov && joins)
			seg->iov[seg->nr_iov - 1].iov_len += len;
		else if (seg->iov)
			seg->iov[seg->nr_iov - 1] = (struct iovec){base, len};
		*mem_end = base + len;
		taken += len;
		at->iov_done += len;
		if (at->iov_done == v->iov_len) {
			at->iov++;
			at->iov_done = 0;
		}
	}
	at->io_done += taken;
	return taken;
}

/* How many bytes of the current request may join @seg, whose first byte is @start of the tier. */
static u64 joining_bytes(const struct nvme *nvme, const struct cursor *at,
			 const struct nvme_seg *seg, u64 start)
{
	const struct tier_io *io = at->ios[at->i];
	u64 off = io->off + at->io_done, left = io->bytes - at->io_done;
	u64 room = min(NVME_SEG_BYTES - seg->bytes, nvme->file_bytes - off % nvme->file_bytes);

	if (seg->bytes && (io->op != seg->op || off != start + seg->bytes ||
			   off % nvme->file_bytes == 0))
		return 0;
	/* A request that fits into one segment is not torn in two to fill up another. */
	if (seg->bytes && left > room && left <= NVME_SEG_BYTES)
		return 0;
	return min(left, room);
}

/* Fill @seg from @at, as far as it goes; with seg->iov NULL only count what it will need. */
static void fill_seg(struct nvme *nvme, struct cursor *at, struct nvme_seg *seg)
{
	u64 start = at->ios[at->i]->off + at->io_done;
	char *mem_end = NULL;

	seg->op = at->ios[at->i]->op;
	seg->file_off = start % nvme->file_bytes;
	seg->fd = nvme->fds[start / nvme->file_bytes];
	while (at->i < at->nr) {
		struct tier_io *io = at->ios[at->i];
		u64 bytes = joining_bytes(nvme, at, seg, start);
		u64 taken = bytes ? take_vectors(at, seg, bytes, &mem_end) : 0;

		if (!taken)
			break;
		seg->bytes += taken;
		if (seg->iov) {
			seg->parts[seg->nr_parts] = (struct nvme_part){io, seg->bytes};
			atomic_fetch_add(&io->nr_parts, 1);
		}
		seg->nr_parts++;
		if (at->io_done == io->bytes)
			*at = (struct cursor){.ios = at->ios, .nr = at->nr, .i = at->i + 1};
		if (taken < bytes)
			break;
	}
}

static struct nvme_seg *alloc_seg(unsigned int nr_parts, unsigned int nr_iov)
{
	struct nvme_seg *seg;
	size_t bytes = sizeof(*seg) + (size_t)nr_parts * sizeof(*seg->parts) +
		       (size_t)nr_iov * sizeof(*seg->iov);

	seg = fault_point(FAULT_MEMORY) ? NULL : malloc(bytes);
	if (!seg)
		return NULL;
	memset(seg, 0, sizeof(*seg));
	seg->parts = (struct nvme_part *)(seg + 1);
	seg->iov = (struct iovec *)(seg->parts + nr_parts);
	return seg;
}

static int build_transfer(struct nvme *nvme, struct cursor *at, struct list_head *segs)
{
	struct cursor probe = *at;
	struct nvme_seg counted = {0}, *seg;

	fill_seg(nvme, &probe, &counted);
	seg = alloc_seg(counted.nr_parts, counted.nr_iov);
	if (!seg)
		return -ENOMEM;
	fill_seg(nvme, at, seg);
	kvc_assert(seg->nr_parts == counted.nr_parts && seg->nr_iov == counted.nr_iov);
	list_add_tail(&seg->link, segs);
	return 0;
}

/* One segment per data file. */
static int build_flush(struct nvme *nvme, struct tier_io *io, struct list_head *segs)
{
	unsigned int nr;

	lock_acquire(&nvme->lock);
	nr = nvme->nr_files;
	lock_release(&nvme->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct nvme_seg *seg = alloc_seg(1, 0);

		if (!seg)
			return -ENOMEM;
		seg->op = TIER_FLUSH;
		seg->fd = nvme->fds[i];
		seg->parts[seg->nr_parts++] = (struct nvme_part){io, 0};
		atomic_fetch_add(&io->nr_parts, 1);
		list_add_tail(&seg->link, segs);
	}
	return 0;
}

static void free_segs(struct list_head *segs)
{
	struct nvme_seg *seg, *next;

	list_for_each_entry_safe(seg, next, segs, link)
		free(seg);
	list_init(segs);
}

int nvme_segs_build(struct nvme *nvme, struct tier_io **ios, unsigned int nr,
		    struct list_head *segs)
{
	struct cursor at = {.ios = ios, .nr = nr};
	int err = 0;

	while (!err && at.i < nr) {
		if (ios[at.i]->op == TIER_FLUSH)
			err = build_flush(nvme, ios[at.i++], segs);
		else
			err = build_transfer(nvme, &at, segs);
	}
	if (!err)
		return 0;
	free_segs(segs);
	return kvc_err(err, nvme_no_memory);
}

unsigned int nvme_seg_next(struct nvme_seg *seg, const struct iovec **iov, u64 *off)
{
	struct iovec *left = &seg->iov[seg->cur_iov];
	u64 part_left;

	*off = seg->file_off + seg->done_bytes;
	*iov = left;
	if (!seg->one_by_one)
		return seg->nr_iov - seg->cur_iov;
	part_left = seg->parts[seg->cur_part].end - seg->done_bytes;
	seg->one = (struct iovec){left->iov_base, min((u64)left->iov_len, part_left)};
	*iov = &seg->one;
	return 1;
}

static void advance(struct nvme_seg *seg, u64 bytes)
{
	seg->done_bytes += bytes;
	while (bytes) {
		struct iovec *v = &seg->iov[seg->cur_iov];
		u64 step = min((u64)v->iov_len, bytes);

		v->iov_base = (char *)v->iov_base + step;
		v->iov_len -= step;
		bytes -= step;
		if (!v->iov_len)
			seg->cur_iov++;
	}
	while (seg->cur_part < seg->nr_parts &&
	       seg->parts[seg->cur_part].end <= seg->done_bytes)
		seg->cur_part++;
}

static void note_error(struct tier_io *io, int err)
{
	int none = 0;

	atomic_compare_exchange_strong(&io->err, &none, err);
}

bool nvme_seg_result(struct nvme_seg *seg, long res)
{
	struct nvme_part *part = &seg->parts[seg->cur_part];

	if ((res == -EINTR || res == -EAGAIN) && seg->nr_retries++ < MAX_RETRIES)
		return true;
	if (seg->op == TIER_FLUSH) {
		if (res < 0)
			note_error(part->io, kvc_err((int)res, nvme_flush_error));
		return false;
	}
	if (res > 0) {
		seg->nr_retries = 0;
		advance(seg, res);
		return seg->done_bytes < seg->bytes;
	}
	if (!seg->one_by_one && seg->nr_parts - seg->cur_part > 1) {
		seg->one_by_one = true;
		return true;
	}
	/* Nothing transferred: the end of a file that was long enough when it was opened. */
	note_error(part->io, res ? kvc_err((int)res, nvme_io_error) : kvc_err(-EIO, nvme_short));
	advance(seg, part->end - seg->done_bytes);
	return seg->done_bytes < seg->bytes;
}

static void put_part(struct tier_io *io)
{
	int err;

	if (atomic_fetch_sub(&io->nr_parts, 1) != 1)
		return;
	err = atomic_load(&io->err);
	if (!err && fault_point(io->op == TIER_READ ? FAULT_READ : FAULT_WRITE))
		err = -EIO;
	tier_io_done(io, err);
}

void nvme_seg_finish(struct nvme_seg *seg)
{
	for (unsigned int i = 0; i < seg->nr_parts; i++)
		put_part(seg->parts[i].io);
	free(seg);
}

void nvme_seg_fail(struct nvme_seg *seg)
{
	for (unsigned int i = seg->cur_part; i < seg->nr_parts; i++)
		note_error(seg->parts[i].io, -EIO);
	nvme_seg_finish(seg);
}
