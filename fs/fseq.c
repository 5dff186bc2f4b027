/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/log.h"
#include "fs/fseq.h"

struct nspace *nspace_new(struct fs *fs, const struct geometry *geo, u32 space)
{
	struct nspace *ns = calloc(1, sizeof(*ns));

	if (!ns)
		return NULL;
	ns->ref = 1;
	ns->space = space;
	ns->geo = *geo;
	if (pool_root(fs->pool, space, "", 0, &ns->root)) {
		free(ns);
		return NULL;
	}
	return ns;
}

void nspace_set_owner(struct fs *fs, const struct inode *dir)
{
	struct pool_owner owner = {dir->uid, dir->gid, dir->mode & 0777};
	int err = pool_set_space_owner(fs->pool, dir->dir->ns->space, &owner);

	if (err)
		log_warn("namespace %u: its memory is not shared with clients: %s",
			 dir->dir->ns->space, strerror(-err));
}

struct nspace *nspace_get(struct nspace *ns)
{
	ns->ref++;
	return ns;
}

void nspace_put(struct nspace *ns)
{
	if (--ns->ref == 0)
		free(ns);
}

struct fseq *fseq_adopt(struct fs *fs, struct nspace *ns, u64 id, struct sequence *seq)
{
	struct fseq *fseq = calloc(1, sizeof(*fseq));

	if (!fseq) {
		seq_destroy(seq);
		return NULL;
	}
	fseq->seq = seq;
	fseq->ns = nspace_get(ns);
	fseq->id = id;
	fseq->ref = 1;
	list_init(&fseq->dirty);
	list_init(&fseq->live);
	list_init(&fseq->active);
	list_init(&fseq->dead);
	list_init(&fseq->watches);
	return fseq;
}

struct fseq *fseq_new(struct fs *fs, struct nspace *ns, u64 id)
{
	struct sequence *seq;

	if (!id)
		id = fs->next_seq_id++;
	if (seq_create(&seq, fs->pool, id, ns->space, &ns->geo))
		return NULL;
	return fseq_adopt(fs, ns, id, seq);
}

struct fseq *fseq_get(struct fseq *fseq)
{
	fseq->ref++;
	return fseq;
}

static void free_burials(struct fs *fs, struct fseq *fseq)
{
	while (fseq->buried) {
		struct burial *b = fseq->buried;

		fseq->buried = b->next;
		if (b->fseq)
			fseq_put(fs, b->fseq);
		free(b);
	}
}

void fseq_put(struct fs *fs, struct fseq *fseq)
{
	if (--fseq->ref)
		return;
	kvc_assert(!fseq->kv && !fseq->ids && !fseq->dir);
	free_burials(fs, fseq);
	if (fseq->dirty_on)
		list_del(&fseq->dirty);
	list_del(&fseq->active);
	nspace_put(fseq->ns);
	list_add_tail(&fseq->dead, &fs->dead_seqs);
}

void fseq_attach(struct fs *fs, struct fseq *fseq, struct inode *dir)
{
	KVC_BUG_ON(dir->dir->fseq || fseq->dir);
	dir->dir->fseq = fseq_get(fseq);
	fseq->dir = dir;
	list_add_tail(&fseq->live, &fs->seqs);
	fseq->live_on = true;
}

void fseq_detach(struct fs *fs, struct fseq *fseq)
{
	KVC_BUG_ON(!fseq->dir);
	fseq_gone(fseq);
	list_del(&fseq->live);
	fseq->live_on = false;
	fseq->dir->dir->fseq = NULL;
	fseq->dir = NULL;
	fseq_put(fs, fseq);
}

void fseq_watch(struct fseq *fseq, struct fseq_watch *watch)
{
	list_add_tail(&watch->link, &fseq->watches);
}

void fseq_gone(struct fseq *fseq)
{
	struct fseq_watch *watch;

	while (!list_empty(&fseq->watches)) {
		watch = list_first_entry(&fseq->watches, struct fseq_watch, link);
		list_del(&watch->link);
		watch->gone(watch);
	}
}

void fseq_set_state(struct fs *fs, struct fseq *fseq, enum seq_state state, u64 paused_s)
{
	seq_set_state(fseq->seq, state);
	if (state == SEQ_QUEUED)
		seq_prefetch(fseq->seq);
	fs_lock(fs);
	fseq->paused_until_ns = paused_s ? clock_real_ns() + paused_s * NSEC_PER_SEC : 0;
	list_del(&fseq->active);
	if (state == SEQ_QUEUED || state == SEQ_DECODING)
		list_add_tail(&fseq->active, &fs->active_seqs);
	fs_unlock(fs);
}

static struct inode **name_of(struct fseq *fseq, const struct inode *inode)
{
	return inode->kind == KIND_KV ? &fseq->kv : &fseq->ids;
}

void fseq_set_inode(struct fs *fs, struct inode *inode, struct fseq *fseq)
{
	struct fseq *old = inode->fseq;

	if (old == fseq)
		return;
	if (fseq) {
		fseq_get(fseq);
		*name_of(fseq, inode) = inode;
	}
	inode->fseq = fseq;
	if (!old)
		return;
	if (*name_of(old, inode) == inode)
		*name_of(old, inode) = NULL;
	fseq_put(fs, old);
}

void fseq_set_root(struct fseq *fseq, u32 root)
{
	lock_acquire(&fseq->seq->tab.lock);
	fseq->seq->root = root;
	lock_release(&fseq->seq->tab.lock);
}

void fseq_mark_dirty(struct fs *fs, struct fseq *fseq)
{
	if (fseq->dirty_on)
		return;
	fseq->dirty_on = true;
	fseq->dirty_tick = fs->tick;
	list_add_tail(&fseq->dirty, &fs->dirty_seqs);
}

int fseq_bury(struct fs *fs, struct fseq *fseq, u64 ino, struct fseq *old)
{
	struct burial *b = malloc(sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->ino = ino;
	b->fseq = old ? fseq_get(old) : NULL;
	b->next = fseq->buried;
	fseq->buried = b;
	return 0;
}

u32 fseq_T(struct fseq *fseq)
{
	u32 T;

	lock_acquire(&fseq->seq->tab.lock);
	T = fseq->seq->T;
	lock_release(&fseq->seq->tab.lock);
	return T;
}

u32 fseq_nr_ids(struct fseq *fseq)
{
	u32 nr;

	lock_acquire(&fseq->seq->tab.lock);
	nr = fseq->seq->nr_ids;
	lock_release(&fseq->seq->tab.lock);
	return nr;
}

void tab_prefetch(struct blktab *tab, u64 off, size_t len)
{
	u32 from = (u32)(off / tab->block_bytes);
	struct block_id ids[64];
	u32 nr = (u32)min(div_round_up(off % tab->block_bytes + len, tab->block_bytes),
			  (u64)ARRAY_SIZE(ids));

	lock_acquire(&tab->lock);
	nr = from < tab->nr_blocks ? min(nr, tab->nr_blocks - from) : 0;
	lock_release(&tab->lock);
	if (!nr)
		return;
	blktab_snapshot(tab, from, nr, ids);
	pool_prefetch(tab->pool, ids, nr);
	pool_put(tab->pool, ids, nr);
}
