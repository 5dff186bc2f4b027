/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens file: ids as shown, and the ids under which tokens were committed.
 *
 * Committed ids take no memory of their own while they are the leading ids as shown. Whatever is
 * about to change a shown id below nr_cids gives them an array first.
 */
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/grow.h"
#include "allocator/seq_impl.h"

void seq_dirty_ids(struct sequence *seq, u32 from)
{
	seq->ids_dirty_from = min(seq->ids_dirty_from, from);
	seq->meta_dirty = true;
}

void seq_dirty_cids(struct sequence *seq, u32 from)
{
	seq->cids_dirty_from = min(seq->cids_dirty_from, from);
	seq->meta_dirty = true;
}

int seq_reserve_ids(struct sequence *seq, u64 nr)
{
	u32 room = seq->max_ids + seq->max_ids / 2;
	u32 *ids;

	if (nr > SEQ_MAX_IDS)
		return -EFBIG;
	/* One more than asked for: a part of an id may follow. */
	if (nr + 1 <= seq->max_ids)
		return 0;
	room = max(room, (u32)nr + 1);
	ids = fault_point(FAULT_MEMORY) ? NULL : kvc_alloc_array(room, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	lock_acquire(&seq->tab.lock);
	if (seq->ids)
		memcpy(ids, seq->ids, (size_t)seq->nr_ids * sizeof(*ids) + seq->nr_part);
	free(seq->ids);
	seq->ids = ids;
	seq->max_ids = room;
	lock_release(&seq->tab.lock);
	return 0;
}

int seq_own_cids(struct sequence *seq)
{
	u32 *cids;

	if (seq->cids || !seq->nr_cids)
		return 0;
	cids = fault_point(FAULT_MEMORY) ? NULL : kvc_alloc_array(seq->nr_cids, sizeof(*cids));
	if (!cids)
		return -ENOMEM;
	memcpy(cids, seq->ids, seq->nr_cids * sizeof(*cids));
	lock_acquire(&seq->tab.lock);
	seq->cids = cids;
	seq_dirty_cids(seq, 0);
	lock_release(&seq->tab.lock);
	return 0;
}

void seq_set_nr_ids(struct sequence *seq, u32 nr)
{
	lock_acquire(&seq->tab.lock);
	seq_dirty_ids(seq, nr);
	seq->nr_ids = nr;
	seq->nr_part = 0;
	lock_release(&seq->tab.lock);
}

/* Would writing @buf at byte @off change an id below nr_cids? */
static bool changes_committed(const struct sequence *seq, const void *buf, size_t len, u64 off)
{
	u64 end = (u64)seq->nr_cids * sizeof(u32);

	if (off >= end)
		return false;
	return memcmp((const u8 *)seq->ids + off, buf, (size_t)min((u64)len, end - off)) != 0;
}

/*
 * Write at byte @off of ids of which @keep stay (all, or none when loose ones are replaced). Bytes
 * that do not make a whole id are held behind the last one.
 */
static int write_ids(struct sequence *seq, const void *buf, size_t len, u64 off)
{
	u64 held = (u64)seq->nr_ids * sizeof(u32) + seq->nr_part, end = off + len;
	bool part_goes_on = off == held;
	int err = seq_reserve_ids(seq, end / sizeof(u32));

	if (!err && !seq->cids && changes_committed(seq, buf, len, off))
		err = seq_own_cids(seq);
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	seq->paired &= off >= (u64)seq->nr_ids * sizeof(u32);
	memcpy((u8 *)seq->ids + off, buf, len);
	end = max(end, part_goes_on ? held : (u64)seq->nr_ids * sizeof(u32));
	seq->nr_ids = (u32)(end / sizeof(u32));
	seq->nr_part = (u8)(end % sizeof(u32));
	seq_dirty_ids(seq, (u32)(off / sizeof(u32)));
	lock_release(&seq->tab.lock);
	return 0;
}

/* Loose ids go when new ones come from offset 0; then there are no committed ids either. */
static int write_over_loose(struct sequence *seq, const void *buf, size_t len)
{
	int err = seq_reserve_ids(seq, len / sizeof(u32));

	if (!err)
		err = seq_own_cids(seq);
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	memcpy(seq->ids, buf, len);
	seq->nr_ids = (u32)(len / sizeof(u32));
	seq->nr_part = (u8)(len % sizeof(u32));
	seq->loose = false;
	seq->estranged &= !seq_is_blank(seq);
	seq_dirty_ids(seq, 0);
	lock_release(&seq->tab.lock);
	return 0;
}

int seq_write_ids(struct sequence *seq, const void *buf, size_t len, u64 off)
{
	u64 end;
	int err = 0;

	if (!len)
		return 0;
	blktab_begin(&seq->tab);
	if (off > (u64)seq->nr_ids * sizeof(u32) &&
	    off != (u64)seq->nr_ids * sizeof(u32) + seq->nr_part)
		err = kvc_err(-EINVAL, seq_ids_behind_end);
	else if (__builtin_add_overflow(off, len, &end) ||
		 end > (u64)SEQ_MAX_IDS * sizeof(u32))
		err = -EFBIG;
	else if (!off && seq->loose)
		err = write_over_loose(seq, buf, len);
	else
		err = write_ids(seq, buf, len, off);
	blktab_end(&seq->tab);
	return err;
}

ssize_t seq_read_ids(struct sequence *seq, void *buf, size_t len, u64 off)
{
	ssize_t n = 0;
	u64 size;

	lock_acquire(&seq->tab.lock);
	size = (u64)seq->nr_ids * sizeof(u32);
	if (off < size) {
		n = (ssize_t)min((u64)len, size - off);
		memcpy(buf, (const u8 *)seq->ids + off, (size_t)n);
	}
	lock_release(&seq->tab.lock);
	return n;
}

int seq_drop_ids(struct sequence *seq)
{
	int err = 0;

	if (!seq_has_own_bytes(seq))
		err = seq_drop_bytes(seq);
	if (!err)
		err = seq_own_cids(seq);
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	seq->loose = false;
	seq->paired = false;
	seq->estranged &= !seq_is_blank(seq);
	lock_release(&seq->tab.lock);
	seq_set_nr_ids(seq, 0);
	return 0;
}

static int truncate_ids(struct sequence *seq, u32 nr)
{
	int err;

	if (nr > seq->nr_ids)
		return kvc_err(-EINVAL, seq_ids_truncated_up);
	if (nr == seq->nr_ids) {
		lock_acquire(&seq->tab.lock);
		seq->nr_part = 0;
		lock_release(&seq->tab.lock);
		return 0;
	}
	if (!nr)
		return seq_drop_ids(seq);
	if (nr < seq->T) {
		err = __seq_set_tokens(seq, nr);
		if (err)
			return err;
	}
	seq_set_nr_ids(seq, nr);
	return 0;
}

int seq_truncate_ids(struct sequence *seq, u64 size)
{
	int err;

	if (size % sizeof(u32) || size > (u64)SEQ_MAX_IDS * sizeof(u32))
		return kvc_err(-EINVAL, seq_ids_size_odd);
	err = seq_begin_change(seq);
	if (err)
		return err;
	err = truncate_ids(seq, (u32)(size / sizeof(u32)));
	blktab_end(&seq->tab);
	return err;
}

int seq_close_ids(struct sequence *seq)
{
	int err;

	blktab_begin(&seq->tab);
	err = seq_match(seq);
	blktab_end(&seq->tab);
	return err;
}

/*
 * @fresh, of @nr ids and room for one more, becomes the shown ids; all committed tokens have theirs from
 * it. @same: leading ids that are shown already. Return: the old array.
 */
static u32 *swap_ids(struct sequence *seq, u32 *fresh, u32 nr, u32 same)
{
	u32 *old = seq->ids;

	lock_acquire(&seq->tab.lock);
	if (same < max(nr, seq->nr_ids))
		seq_dirty_ids(seq, same);
	seq->ids = fresh;
	seq->nr_ids = nr;
	seq->max_ids = nr + 1;
	seq->nr_part = 0;
	seq->loose = seq->estranged = false;
	free(seq->cids);
	seq->cids = NULL;
	seq->pending_T = SEQ_NO_TOKENS;
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
	return old;
}

/* What can fail comes first; ids are the last to change. */
static int set_ids(struct sequence *seq, u32 **fresh, u32 nr, u32 *matched)
{
	u32 same = min(nr, seq->nr_ids);
	int err;

	if (same && memcmp(seq->ids, *fresh, same * sizeof(**fresh)))
		same = 0;
	err = seq_become(seq, *fresh, nr, matched);
	if (err)
		return err;
	*fresh = swap_ids(seq, *fresh, nr, same);
	return seq_index(seq);
}

int seq_set_ids(struct sequence *seq, const u32 *ids, u32 nr, u32 *matched)
{
	u32 *fresh;
	int err;

	if (nr > SEQ_MAX_IDS)
		return -EFBIG;
	/* As everywhere one more than asked for: a part of an id may follow. */
	fresh = fault_point(FAULT_MEMORY) ? NULL : kvc_alloc_array((size_t)nr + 1, sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	if (nr)
		memcpy(fresh, ids, nr * sizeof(*fresh));
	err = seq_begin_change(seq);
	if (!err) {
		err = set_ids(seq, &fresh, nr, matched);
		blktab_end(&seq->tab);
	}
	free(fresh);
	return err;
}

int seq_reserve_more_ids(struct sequence *seq, const struct room_commit *c, u32 *from)
{
	int err;

	*from = seq->loose ? 0 : seq->nr_ids;
	if (!c->nr_ids)
		return 0;
	err = seq_reserve_ids(seq, (u64)*from + c->nr_ids);
	return err || !seq->loose ? err : seq_own_cids(seq);
}

void seq_take_more_ids(struct sequence *seq, const struct room_commit *c, u32 from)
{
	if (!c->nr_ids)
		return;
	memcpy(seq->ids + from, c->ids, c->nr_ids * sizeof(*seq->ids));
	seq->nr_ids = from + c->nr_ids;
	seq->nr_part = 0;
	seq->loose = false;
	seq_dirty_ids(seq, from);
}

int seq_ids_gone(struct sequence *seq)
{
	int err;

	blktab_begin(&seq->tab);
	err = seq_room_revoke(seq);
	if (!err)
		err = seq_drop_ids(seq);
	blktab_end(&seq->tab);
	return err;
}

static int take_ids(struct sequence *seq, const struct sequence *from)
{
	int err = seq_reserve_ids(seq, from->nr_ids);

	if (!err)
		err = seq_drop_ids(seq);
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	if (from->nr_ids)
		memcpy(seq->ids, from->ids, from->nr_ids * sizeof(*seq->ids));
	seq->nr_ids = from->nr_ids;
	seq_dirty_ids(seq, 0);
	lock_release(&seq->tab.lock);
	/* They are here, whether or not something can be attached to them now. */
	if (seq_match(seq))
		kvc_err(-ENOMEM, seq_match_skipped);
	return 0;
}

int seq_ids_arrived(struct sequence *seq, struct sequence *from)
{
	int err = 0;

	if (seq == from)
		return 0;
	blktab_begin2(&seq->tab, &from->tab);
	err = seq_room_revoke(seq);
	if (!err)
		err = take_ids(seq, from);
	blktab_end2(&seq->tab, &from->tab);
	return err;
}
