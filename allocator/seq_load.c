/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a sequence from its records. They come in any order, so each is only taken in at first;
 * when all are there they are checked against each other. Nothing on media is trusted.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/grow.h"
#include "allocator/seq_format.h"
#include "allocator/seq_impl.h"

/* An array that comes in records. */
struct loading_array {
	u8 *data;
	u32 max, end; /* elements: room, highest one seen + 1 */
	u32 records;
};

struct seq_loading {
	struct seq_record rec;
	bool have_rec;
	struct loading_array ids, cids, written;
};

void seq_loading_free(struct seq_loading *loading)
{
	if (!loading)
		return;
	free(loading->ids.data);
	free(loading->cids.data);
	free(loading->written.data);
	free(loading);
}

static int load_array(struct loading_array *a, u32 element, u32 sub, const void *value, u32 bytes)
{
	/* Elements per record are the same number for all of them. */
	u32 nr = bytes / element, chunk = SEQ_ID_CHUNK;
	int err;

	_Static_assert(SEQ_ID_CHUNK == SEQ_WRITTEN_CHUNK, "one size fits all");
	if (!nr || nr > chunk || bytes % element || sub >= SEQ_MAX_IDS / chunk)
		return -EUCLEAN;
	err = grow_array(&a->data, &a->max, (u64)sub * chunk + nr + 1, element);
	if (err)
		return err;
	memcpy(a->data + (size_t)sub * chunk * element, value, bytes);
	a->end = max(a->end, sub * chunk + nr);
	a->records++;
	return 0;
}

static int load_head(struct seq_loading *l, u32 sub, const void *value, u32 bytes)
{
	if (sub || bytes != sizeof(l->rec) || l->have_rec)
		return -EUCLEAN;
	memcpy(&l->rec, value, bytes);
	l->have_rec = true;
	return l->rec.version == SEQ_FORMAT_VERSION ? 0 : -EUCLEAN;
}

int seq_load(struct sequence *seq, u8 type, u32 sub, const void *value, u32 bytes)
{
	struct seq_loading *l = seq->loading;

	if (!l) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return -ENOMEM;
		seq->loading = l;
	}
	switch (type) {
	case META_SEQ:
		return load_head(l, sub, value, bytes);
	case META_SEQ_IDS:
		return load_array(&l->ids, sizeof(u32), sub, value, bytes);
	case META_SEQ_CIDS:
		return load_array(&l->cids, sizeof(u32), sub, value, bytes);
	case META_SEQ_WRITTEN:
		return load_array(&l->written, sizeof(struct written_range), sub, value, bytes);
	case META_TAB_CHUNK:
		return blktab_load_chunk(&seq->tab, sub, value, bytes);
	default:
		return -EUCLEAN;
	}
}

static bool array_whole(const struct loading_array *a, u32 nr)
{
	return a->end == nr && a->records == div_round_up(nr, SEQ_ID_CHUNK);
}

/* What is wrong with the head, taken alone and with the arrays; NULL: nothing. */
static const char *check_head(const struct sequence *seq)
{
	const struct seq_loading *l = seq->loading;
	const struct seq_record *r = &l->rec;
	const struct geometry *geo = seq->geo;
	bool cids = r->flags & SEQ_RECORD_CIDS;

	if (!l->have_rec)
		return "its main record is missing";
	if (r->block_bytes != geo->block_bytes)
		return "block size is not the namespace's";
	if (r->size > SEQ_MAX_BYTES || r->nr_blocks > SEQ_MAX_IDS / geo->block_tokens)
		return "too large";
	if (r->nr_ids > SEQ_MAX_IDS || !array_whole(&l->ids, r->nr_ids))
		return "token ids are incomplete";
	if (r->nr_cids > r->tokens || (!cids && r->nr_cids > r->nr_ids) ||
	    !array_whole(&l->cids, cids ? r->nr_cids : 0))
		return "committed ids are incomplete";
	if (!array_whole(&l->written, r->nr_written))
		return "written ranges are incomplete";
	if (r->sealed_blocks > r->nr_blocks || r->attached_blocks > r->sealed_blocks ||
	    r->tokens < (u64)r->sealed_blocks * geo->block_tokens ||
	    r->tokens > (u64)r->nr_blocks * geo->block_tokens ||
	    r->size < r->sealed_blocks * geo->block_bytes)
		return "numbers of blocks and tokens do not agree";
	if (r->state > SEQ_DECODING || r->priority > 100 || r->cached_tokens > r->tokens ||
	    (r->pending_tokens > SEQ_MAX_IDS && r->pending_tokens != SEQ_NO_TOKENS))
		return "a field is out of range";
	return NULL;
}

static const char *check_written(const struct sequence *seq)
{
	const struct written *w = seq->written;
	u64 bs = seq->geo->block_bytes, last = seq->sealed_blocks * bs;

	for (u32 i = 0; i < w->nr; i++) {
		const struct written_range *r = &w->ranges[i];

		/* Touching ranges would have been one, but the first may begin where sealed ends.
		 */
		if (r->from < last || (i && r->from == last) || r->to <= r->from ||
		    r->to > seq->tab.nr_blocks * bs)
			return "written ranges are out of order";
		for (u64 k = r->from / bs; k * bs < r->to; k++)
			if (BLOCK_IS_NONE(seq->tab.blocks[k]))
				return "a written block is missing";
		last = r->to;
	}
	return NULL;
}

/*
 * Blocks as the head says; nothing is named yet. Holes at the end may be missing, and need not be
 * there: behind the last entry is nothing but holes anyway.
 */
static const char *check_blocks(struct sequence *seq)
{
	struct blktab *tab = &seq->tab;

	for (u32 i = 0; i < seq->sealed_blocks; i++)
		if (i >= tab->nr_blocks || BLOCK_IS_NONE(tab->blocks[i]))
			return "a sealed block is missing";
	if (tab->nr_blocks > seq->loading->rec.nr_blocks)
		return "it has more blocks than its record says";
	return NULL;
}

static void take_head(struct sequence *seq)
{
	struct seq_loading *l = seq->loading;
	const struct seq_record *r = &l->rec;

	seq->T = r->tokens;
	seq->nr_ids = r->nr_ids;
	seq->nr_cids = r->nr_cids;
	seq->sealed_blocks = r->sealed_blocks;
	seq->attached_blocks = r->attached_blocks;
	seq->cached_tokens = r->cached_tokens;
	seq->pending_T = r->pending_tokens;
	seq->loose = r->flags & SEQ_RECORD_LOOSE;
	seq->paired = r->flags & SEQ_RECORD_PAIRED;
	seq->estranged = r->flags & SEQ_RECORD_ESTRANGED;
	seq->pinned = r->flags & SEQ_RECORD_PINNED;
	/* Whoever decoded or waited to is gone. */
	seq->state = r->state >= SEQ_QUEUED ? SEQ_IDLE : (enum seq_state)r->state;
	seq->priority = r->priority;
	seq->last_use_ns = r->last_use_ns;
	seq->tab.size = r->size;
	seq->ids = (u32 *)(void *)l->ids.data;
	seq->max_ids = l->ids.max;
	seq->recorded_id_chunks = l->ids.records;
	l->ids.data = NULL;
	if (r->flags & SEQ_RECORD_CIDS) {
		seq->cids = (u32 *)(void *)l->cids.data;
		seq->recorded_cid_chunks = l->cids.records;
		l->cids.data = NULL;
	}
	seq->written->ranges = (struct written_range *)(void *)l->written.data;
	seq->written->nr = r->nr_written;
	seq->written->max = l->written.max;
	seq->recorded_written_chunks = l->written.records;
	l->written.data = NULL;
}

static int refuse(const struct sequence *seq, const char *what, struct textbuf *why)
{
	textbuf_printf(why, "sequence %llx: %s", (unsigned long long)seq->tab.id, what);
	return -EUCLEAN;
}

int seq_load_finish(struct sequence *seq, struct textbuf *why)
{
	const char *wrong;
	int err;

	if (!seq->loading)
		return refuse(seq, "it has no records", why);
	wrong = check_head(seq);
	if (wrong)
		return refuse(seq, wrong, why);
	take_head(seq);
	wrong = check_blocks(seq);
	if (wrong)
		return refuse(seq, wrong, why);
	wrong = check_written(seq);
	if (!wrong && !seq_tokens_written(seq, seq->T))
		wrong = "committed tokens are not wholly written";
	if (wrong)
		return refuse(seq, wrong, why);
	err = blktab_load_names(&seq->tab, false);
	if (err)
		return refuse(seq, "it names a block that does not exist", why);
	seq_loading_free(seq->loading);
	seq->loading = NULL;
	seq->meta_dirty = false;
	return 0;
}

int seq_load_kv_gone(struct sequence *seq)
{
	return seq_has_own_bytes(seq) ? seq_truncate(seq, 0) : 0;
}
