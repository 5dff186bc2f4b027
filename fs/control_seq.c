/* SPDX-License-Identifier: Apache-2.0 */
/* status/PATH and sequences: texts about what lies in the tree. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/control.h"
#include "fs/fseq.h"
#include "fs/kvdir.h"
#include "fs/kvxattr.h"

#define SLICE 256u /* sequences told per hold of the lock */

/** struct seq_facts - one moment of a sequence. */
struct seq_facts {
	u32 T, nr_ids, nr_blocks, block_tokens;
	u64 size, last_use_ns;
	enum seq_state state;
	bool pinned;
	u8 priority;
};

static void get_facts(struct fseq *fseq, struct seq_facts *f)
{
	struct sequence *s = fseq->seq;

	lock_acquire(&s->tab.lock);
	*f = (struct seq_facts){.T = s->T,
				.nr_ids = s->nr_ids,
				.nr_blocks = s->tab.nr_blocks,
				.block_tokens = s->geo->block_tokens,
				.size = s->tab.size,
				.last_use_ns = s->last_use_ns,
				.state = s->state,
				.pinned = s->pinned,
				.priority = s->priority};
	lock_release(&s->tab.lock);
}

static void put_time(struct textbuf *tb, u64 ns)
{
	time_t sec = (time_t)(ns / NSEC_PER_SEC);
	char text[32];
	struct tm tm;

	if (!ns || !gmtime_r(&sec, &tm)) {
		textbuf_printf(tb, "unknown");
		return;
	}
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	textbuf_printf(tb, "%s.%03uZ", text, (unsigned int)(ns % NSEC_PER_SEC / 1000000));
}

static void put_residency(struct textbuf *tb, const struct pool_residency *res)
{
	textbuf_printf(tb,
		       "tier.hbm: 0\ntier.dram: %u\ntier.nvme: %u\ntier.remote: 0\n"
		       "lossy_blocks: %u\nprefetching: unknown\n",
		       res->dram, res->nvme, res->lossy);
}

static void put_advice(struct textbuf *tb, const struct pool_residency *res)
{
	bool resident = res->dram >= res->nr;

	textbuf_printf(tb, "restore_ms: %s\nrecompute_ms: unknown\nadvice: %s\n",
		       resident ? "0" : "unknown", resident ? "resident" : "restore");
}

static void seq_status(struct fseq *fseq, struct textbuf *tb)
{
	struct pool_residency res;
	struct seq_facts f;

	get_facts(fseq, &f);
	seq_residency(fseq->seq, &res);
	textbuf_printf(tb, "tokens: %u\nids: %u\nblocks: %u\nopen_tail_tokens: %u\nsize: %llu\n",
		       f.T, f.nr_ids, f.nr_blocks, f.T % f.block_tokens,
		       (unsigned long long)f.size);
	textbuf_printf(tb,
		       "shared_blocks: %u\nexclusive_bytes: %llu\nstate: %s\npriority: %u\n"
		       "pins: %s\n",
		       res.shared, (unsigned long long)res.exclusive_bytes, seq_state_name(f.state),
		       f.priority, f.pinned ? "dram" : "none");
	put_residency(tb, &res);
	textbuf_printf(tb, "last_use: ");
	put_time(tb, f.last_use_ns);
	textbuf_printf(tb, "\n");
	put_advice(tb, &res);
}

static void file_status(struct fs *fs, u64 ino, u64 size, struct textbuf *tb)
{
	struct pool_residency res = {0};

	if (residency_of(fs, ino, &res))
		res = (struct pool_residency){0};
	textbuf_printf(tb, "blocks: %u\nsize: %llu\nshared_blocks: %u\nexclusive_bytes: %llu\n",
		       res.nr, (unsigned long long)size, res.shared,
		       (unsigned long long)res.exclusive_bytes);
	put_residency(tb, &res);
	put_advice(tb, &res);
}

int text_status(struct fs *fs, u64 ino, struct textbuf *tb)
{
	struct fseq *fseq = NULL;
	struct inode *inode;
	u64 size = 0;

	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (!inode) {
		fs_unlock(fs);
		return -ESTALE;
	}
	textbuf_printf(tb, "name: ");
	tree_path(inode, tb);
	textbuf_printf(tb, "\n");
	if (inode_is_dir(inode))
		fseq = inode->dir->fseq;
	else if (inode_has_seq(inode))
		fseq = inode->fseq;
	else if (inode_has_body(inode) && inode->body)
		size = inode->body->size;
	if (fseq)
		fseq_get(fseq);
	fs_unlock(fs);
	if (!fseq) {
		file_status(fs, ino, size, tb);
		return 0;
	}
	seq_status(fseq, tb);
	fs_lock(fs);
	fseq_put(fs, fseq);
	fs_unlock(fs);
	return 0;
}

/* ---- sequences ---- */

static bool visible(struct fseq *fseq, const struct cred *cred)
{
	struct inode *file = fseq->kv ? fseq->kv : fseq->ids;

	return file && cred_reaches(cred, file) && cred_may(cred, file, R_OK);
}

static void seq_line(struct fseq *fseq, struct textbuf *tb)
{
	struct pool_residency res;
	struct seq_facts f;

	get_facts(fseq, &f);
	seq_residency(fseq->seq, &res);
	textbuf_printf(tb, " %u %u %s %u %u 0 0 ", f.T, f.nr_blocks, seq_state_name(f.state),
		       res.dram, res.nvme);
	put_time(tb, f.last_use_ns);
	textbuf_printf(tb, "\n");
}

/* The next SLICE sequences from @at on (one reference; NULL: the first); the new place, or NULL. */
static struct fseq *tell_slice(struct fs *fs, struct fseq *at, const struct cred *cred,
			       struct textbuf *tb)
{
	struct list_head *pos = at ? &at->live : fs->seqs.next;

	for (unsigned int i = 0; i < SLICE && pos != &fs->seqs; i++, pos = pos->next) {
		struct fseq *fseq = list_entry(pos, struct fseq, live);

		if (!visible(fseq, cred))
			continue;
		tree_path(fseq->dir, tb);
		seq_line(fseq, tb);
	}
	return pos == &fs->seqs ? NULL : fseq_get(list_entry(pos, struct fseq, live));
}

void text_sequences(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	struct fseq *at = NULL, *next;

	textbuf_printf(tb, "path tokens blocks state dram nvme hbm remote last_use\n");
	do {
		fs_lock(fs);
		/* a place that left the list meanwhile has lost its neighbours: end here */
		next = at && !at->live_on ? NULL : tell_slice(fs, at, cred, tb);
		if (at)
			fseq_put(fs, at);
		fs_unlock(fs);
		at = next;
	} while (at);
}
