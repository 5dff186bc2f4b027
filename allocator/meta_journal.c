/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal: frames, seals, space ahead, and the turn to the next journal.
 *
 * Acknowledging a group: pwrite the frame, fdatasync, write the seal, wake. The seal gets no sync
 * of its own. After a kill it is in the page cache; after power loss it may be missing, but then
 * its frame is durable and is accepted at the next open because it is valid. The next group's
 * fdatasync carries it, so at most one acknowledged group is ever without a durable seal.
 *
 * The two seals alternate, so the older one stays while the newer one is written. Their counts are
 * consecutive: the write of seal N+2 comes after a sync that covered seal N+1. meta_format.h says
 * why a torn seal cannot happen; hence the rule at open: either seal damaged, or counts that are
 * not consecutive, is damage (-EUCLEAN). Going on with the older one could lose acknowledged
 * groups without a word.
 *
 * Turning (checkpoint's first step), done by the commit thread between two groups, so that the last
 * group of journal.G is exactly known:
 *   1. journal.G+1 is written as .tmp with base = that group, synced, renamed, directory synced
 *   2. journal.G's seal says CLOSED, synced: from here on journal.G alone is not the whole store
 *   3. groups go to journal.G+1
 * Killed between 1 and 2, journal.G+1 has no frames; the open closes journal.G and goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/log.h"
#include "allocator/meta_types.h"

int meta_journal_seal(struct meta *meta, struct meta_journal *journal, u64 flags)
{
	_Alignas(8) u8 block[META_BLOCK] = {0};
	struct meta_head *head = (void *)block;
	int err;

	*head = (struct meta_head){
		.kind = META_JOURNAL,
		.store = meta->store,
		.generation = journal->generation,
		.base_seq = journal->base_seq,
		.base_serial = journal->base_serial,
		.seq = journal->seq,
		.serial = journal->serial,
		.end = journal->end,
		.nr_frames = journal->nr_frames,
		.nr_records = journal->nr_records,
		.chain = journal->chain,
		.count = journal->count,
		.flags = flags,
	};
	meta_head_seal(head);
	meta_count_written(meta, META_BLOCK);
	err = meta_pwrite(journal->fd, block, META_BLOCK, (journal->count & 1) * META_BLOCK);
	if (!err)
		journal->count++;
	return err;
}

int meta_journal_read_seals(int fd, struct meta_head *head, const char **what)
{
	struct meta_head slots[2];

	for (unsigned int i = 0; i < 2; i++) {
		size_t got;
		int err = meta_pread(fd, &slots[i], sizeof(slots[i]), i * META_BLOCK, &got);

		if (err)
			return err;
		*what = got < sizeof(slots[i]) ? "the file ends inside it" :
						 meta_head_wrong(&slots[i]);
		if (!*what && (slots[i].kind != META_JOURNAL || (slots[i].count & 1) != i))
			*what = "not the seal that belongs there";
		if (*what)
			return -EUCLEAN;
	}
	*head = slots[slots[1].count > slots[0].count];
	if (slots[0].store != slots[1].store || slots[0].generation != slots[1].generation ||
	    slots[0].base_seq != slots[1].base_seq ||
	    (slots[0].count + 1 != slots[1].count && slots[1].count + 1 != slots[0].count) ||
	    head->end < META_JOURNAL_START || head->end % META_BLOCK) {
		*what = "the two seals contradict each other";
		return -EUCLEAN;
	}
	return 0;
}

/* Allocate @want bytes behind @off, or as much less as there is, but not less than @least. */
static int allocate_some(int fd, u64 off, u64 want, u64 least, u64 *got)
{
	int err;

	least = max(least, KIB(64));
	for (;;) {
		err = meta_allocate(fd, off, want);
		if (err != -ENOSPC || want <= least)
			break;
		want = max(want / 2, least);
	}
	*got = err ? 0 : want;
	return err;
}

bool meta_journal_wants_space(const struct meta *meta)
{
	u64 room = meta->cur.alloc_end - meta->cur.end - meta->queued_bytes;

	return !meta->extending && !meta->err &&
	       (meta->want_space || (!meta->no_space && room < meta->ahead / 2));
}

void meta_journal_extend(struct meta *meta)
{
	u64 from = meta->cur.alloc_end;
	u64 want = meta->cur.end + meta->queued_bytes + max(meta->ahead, meta->want_space);
	int fd = meta->cur.fd;
	u64 got = 0;
	int err = 0;

	lock_assert_held(&meta->lock);
	meta->want_space = 0;
	want = want > from ? round_up_pow2(want - from, META_BLOCK) : 0;
	meta->extending = true;	/* keeps cur what it is, see meta_journal_rotate() */
	lock_release(&meta->lock);
	if (want)
		err = allocate_some(fd, from, want, 0, &got);
	lock_acquire(&meta->lock);
	meta->extending = false;
	meta->cur.alloc_end = from + got;
	if (err && !meta->no_space)
		log_warn("metadata: no space ahead in journal.%llu: %s; changes are refused",
			 (unsigned long long)meta->cur.generation, strerror(-err));
	meta->no_space = err != 0;
	waitq_wake_all(&meta->done);
}

/* Give @journal its first space, its seals, and make it durable, all under its temporary name. */
static int journal_fill(struct meta *meta, struct meta_journal *journal, u64 need)
{
	u64 got;
	int err;

	need += META_JOURNAL_START + META_BLOCK;
	err = allocate_some(journal->fd, 0, need + meta->ahead, need, &got);
	if (err)
		return err;
	journal->alloc_end = got & ~(u64)(META_BLOCK - 1);
	for (int i = 0; i < 2; i++) {
		err = meta_journal_seal(meta, journal, 0);
		if (err)
			return err;
	}
	return meta_sync_all(journal->fd);
}

int meta_journal_create(struct meta *meta, struct meta_journal *journal, u64 need, bool *published)
{
	char tmp[META_NAME_BYTES], name[META_NAME_BYTES];
	int err;

	*published = false;
	journal->end = META_JOURNAL_START;
	journal->zero_end = journal->end;
	journal->seq = journal->base_seq;
	journal->serial = journal->base_serial;
	journal->chain = meta->store;
	meta_name(tmp, META_JOURNAL, journal->generation, true);
	meta_name(name, META_JOURNAL, journal->generation, false);
	err = meta_open_file(meta->dir_fd, tmp, O_RDWR | O_CREAT | O_TRUNC, &journal->fd);
	if (err)
		return err;
	err = journal_fill(meta, journal, need);
	if (err)
		goto undo;
	err = meta_rename(meta->dir_fd, tmp, name);
	if (err)
		goto undo;
	*published = true;
	return meta_sync_all(meta->dir_fd);
undo:
	unlinkat(meta->dir_fd, tmp, 0);
	meta_close_fd(&journal->fd);
	return err;
}

/*
 * Small frames also write zeros some way ahead: the first write to a preallocated block makes
 * fdatasync() commit the filesystem's own journal, later ones do not.
 */
static size_t zeros_after(const struct meta_journal *journal, u64 end, u64 alloc_end)
{
	if (end <= journal->zero_end || end - journal->end > META_ZERO_AHEAD / 4)
		return 0;
	return (size_t)(min(end + META_ZERO_AHEAD, alloc_end) - end);
}

static int frame_write(struct meta *meta, struct meta_journal *journal, const u8 *frame,
		       size_t bytes)
{
	static const u8 zeros[META_ZERO_AHEAD];
	u64 end = journal->end + bytes;
	size_t nr_zeros;
	int err;

	lock_acquire(&meta->lock);
	nr_zeros = zeros_after(journal, end, journal->alloc_end);
	lock_release(&meta->lock);
	if (nr_zeros) {
		err = meta_pwrite(journal->fd, zeros, nr_zeros, end);
		if (err)
			return err;
	}
	journal->zero_end = max(journal->zero_end, end + nr_zeros);
	meta_count_written(meta, bytes + nr_zeros);
	err = meta_pwrite(journal->fd, frame, bytes, journal->end);
	return err ? err : meta_sync(journal->fd);
}

int meta_journal_write(struct meta *meta, struct meta_group *group)
{
	struct meta_journal *journal = &meta->cur;
	struct meta_frame *frame = (void *)group->buf;
	size_t bytes = round_up_pow2(group->len, META_BLOCK);
	int err;

	*frame = (struct meta_frame){
		.generation = journal->generation,
		.number = journal->nr_frames,
		.first_seq = group->first_seq,
		.last_seq = group->last_seq,
		.first_serial = group->first_serial,
		.payload_bytes = (u32)(group->len - sizeof(*frame)),
		.nr_records = group->nr_records,
		.chain = journal->chain,
	};
	memset(group->buf + group->len, 0, bytes - group->len);
	meta_frame_seal(meta->store, frame, bytes);
	err = frame_write(meta, journal, group->buf, bytes);
	if (err)
		return err;
	meta_apply(meta, (const void *)(frame + 1), frame->nr_records);
	lock_acquire(&meta->lock);
	journal->end += bytes;
	meta->queued_bytes -= bytes;
	lock_release(&meta->lock);
	journal->nr_frames++;
	journal->nr_records += frame->nr_records;
	journal->chain = frame->head_sum;
	journal->seq = group->last_seq;
	journal->serial += frame->nr_records;
	return meta_journal_seal(meta, journal, 0);
}

/* The next journal has room for all that may be queued until it takes over. */
static int rotate_prepare(struct meta *meta, struct meta_journal *next, bool *published)
{
	u64 need;

	lock_acquire(&meta->lock);
	while (meta->extending)
		waitq_wait(&meta->done, &meta->lock);
	need = meta->queued_bytes + meta->ahead / 2;
	meta->next_room = need;
	lock_release(&meta->lock);
	*next = (struct meta_journal){
		.fd = -1,
		.generation = meta->cur.generation + 1,
		.base_seq = meta->cur.seq,
		.base_serial = meta->cur.serial,
	};
	return meta_journal_create(meta, next, need, published);
}

void meta_journal_rotate(struct meta *meta)
{
	struct meta_journal next;
	bool published;
	int err;

	err = rotate_prepare(meta, &next, &published);
	if (!err)
		err = meta_journal_seal(meta, &meta->cur, META_HEAD_CLOSED);
	if (!err)
		err = meta_sync(meta->cur.fd);
	if (err) {
		meta_close_fd(&next.fd);
		if (published || (err != -ENOSPC && err != -ENOMEM))
			err = meta_fail(meta, "turning to a new journal", err);
	}
	lock_acquire(&meta->lock);
	while (meta->extending)
		waitq_wait(&meta->done, &meta->lock);
	meta->next_room = UINT64_MAX;
	if (!err) {
		meta->old = meta->cur;
		meta->cur = next;
		meta->old_keys = meta->index.keys;
		meta->old_replaced = 0;
		meta->no_space = false;
	}
	meta->rotate_err = err;
	meta->want_rotate = false;
	waitq_wake_all(&meta->checkpoint_work);
	waitq_wake_all(&meta->done);
	lock_release(&meta->lock);
}
