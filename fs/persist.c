/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "fs/fs_format.h"
#include "fs/persist.h"

int log_submit(struct fs *fs)
{
	u64 seq;
	int err;

	if (!fs->meta || !fs->log.nr_records)
		return 0;
	err = pool_submit(fs->pool, NULL, 0, &fs->log, &seq);
	if (!err)
		fs->log_seq = seq;
	return err;
}

int log_ready(struct fs *fs)
{
	int err = log_submit(fs);

	return err ? kvc_err(err, fs_log_full) : 0;
}

void log_inode(struct fs *fs, struct inode *inode)
{
	if (!fs->meta)
		return;
	if (inode->flags & INODE_WITH_SEQ && inode->fseq) {
		fseq_mark_dirty(fs, inode->fseq);
		return;
	}
	if (inode->links || inode == fs->root)
		record_put(fs, &fs->log, inode);
}

static void del_inode_record(struct meta_txn *txn, u64 ino)
{
	meta_txn_del(txn, (struct meta_key){.id = ino, .type = META_FS_INODE});
}

void log_fseq_gone(struct fs *fs, struct fseq *fseq)
{
	if (fs->meta)
		seq_emit_delete(fseq->seq, &fs->log);
}

void log_gone(struct fs *fs, struct inode *inode)
{
	list_del(&inode->dirty);
	inode->flags &= (u8) ~(INODE_DIRTY | INODE_ATIME | INODE_WITH_SEQ);
	if (!fs->meta)
		return;
	del_inode_record(&fs->log, inode->ino);
	if (inode_has_body(inode) && inode->body)
		plain_emit_delete(&inode->body->pf, &fs->log);
}

void log_counters(struct fs *fs)
{
	struct fs_counters_record rec = {
		.version = 1, .next_space = fs->next_space, .next_seq_id = fs->next_seq_id};

	if (!fs->meta)
		return;
	for (unsigned int kind = 1; kind < NR_KINDS; kind++)
		rec.next_ino[kind] = fs->next_ino[kind];
	meta_txn_put(&fs->log, (struct meta_key){.type = META_FS_COUNTERS}, &rec, sizeof(rec));
}

static void enlist(struct fs *fs, struct inode *inode, u8 flag)
{
	if (!(inode->flags & (INODE_DIRTY | INODE_ATIME))) {
		inode->dirty_tick = fs->tick;
		list_add_tail(&inode->dirty, &fs->dirty_inodes);
	}
	inode->flags |= flag;
}

int inode_dirty_body(struct fs *fs, struct inode *inode)
{
	struct body *body = inode->body;
	struct saved_body *saved;
	u32 bytes = 0;

	if (inode->flags & INODE_DIRTY || !inode->links)
		return 0;
	if (!body->pf.tab && body->pf.inline_data)
		bytes = (u32)min(body->size, (u64)PLAIN_INLINE);
	saved = malloc(sizeof(*saved) + bytes);
	if (!saved)
		return -ENOMEM;
	saved->size = body->size;
	saved->inline_bytes = bytes;
	if (bytes)
		memcpy(saved->inline_data, body->pf.inline_data, bytes);
	kvc_assert(!body->saved);
	body->saved = saved;
	enlist(fs, inode, INODE_DIRTY);
	return 0;
}

void inode_dirty_atime(struct fs *fs, struct inode *inode)
{
	if (fs->meta && (inode->links || inode == fs->root))
		enlist(fs, inode, INODE_ATIME);
}

static void clean_inode(struct inode *inode)
{
	list_del(&inode->dirty);
	inode->flags &= (u8) ~(INODE_DIRTY | INODE_ATIME | INODE_TRUNCATED);
}

/*
 * The record of an inode must reach the store in the order in which the inode changed. So the lock
 * is taken when the record is encoded, and stays taken until the transaction was submitted.
 */
struct emitting {
	struct fs *fs;
	struct inode *inode;
	struct fseq *fseq;
	struct saved_body *saved;
	bool locked;
};

static void emit_begin(struct emitting *e, struct meta_txn *txn)
{
	int err;

	kvc_assert(!e->locked);
	fs_lock(e->fs);
	e->locked = true;
	err = log_submit(e->fs);
	if (err)
		txn->err = err;
}

static void emit_body(void *ctx, struct meta_txn *txn)
{
	struct emitting *e = ctx;

	emit_begin(e, txn);
	e->saved = e->inode->body->saved;
	e->inode->body->saved = NULL;
	if (e->fs->meta && e->inode->links)
		record_put(e->fs, txn, e->inode);
}

/* A body without blocks is its record. */
static int persist_inline(struct fs *fs, struct inode *inode, u64 *seq)
{
	struct saved_body *saved = inode->body->saved;
	int err;

	inode->body->saved = NULL;
	log_inode(fs, inode);
	err = log_submit(fs);
	*seq = fs->log_seq;
	clean_inode(inode);
	free(saved);
	return err;
}

int persist_body(struct fs *fs, struct inode *inode, u64 *seq)
{
	struct emitting e = {.fs = fs, .inode = inode};
	int err = 0;

	fs_lock(fs);
	*seq = fs->log_seq;
	if (!(inode->flags & INODE_DIRTY) || !inode->body || !inode->body->pf.tab) {
		if (inode->flags & INODE_DIRTY)
			err = persist_inline(fs, inode, seq);
		fs_unlock(fs);
		return err;
	}
	fs_unlock(fs);
	err = plain_persist(&inode->body->pf, emit_body, &e, seq);
	if (!e.locked)
		fs_lock(fs);
	if (err) {
		if (e.locked)
			inode->body->saved = e.saved;
	} else {
		if (!e.locked) {
			e.saved = inode->body->saved;
			inode->body->saved = NULL;
			log_inode(fs, inode);
			err = log_submit(fs);
			*seq = fs->log_seq;
		}
		free(e.saved);
		clean_inode(inode);
		inode->body->allocated_bytes = plain_allocated(&inode->body->pf);
	}
	fs->log_seq = max(fs->log_seq, err ? 0 : *seq);
	fs_unlock(fs);
	return err;
}

static void put_fseq_records(struct emitting *e, struct meta_txn *txn)
{
	struct inode *names[2] = {e->fseq->kv, e->fseq->ids};

	if (!e->fs->meta)
		return;
	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++)
		if (names[i] && names[i]->links)
			record_put(e->fs, txn, names[i]);
	for (struct burial *b = e->fseq->buried; b; b = b->next) {
		if (b->ino)
			del_inode_record(txn, b->ino);
		if (b->fseq)
			seq_emit_delete(b->fseq->seq, txn);
	}
}

static void emit_fseq(void *ctx, struct meta_txn *txn)
{
	struct emitting *e = ctx;

	emit_begin(e, txn);
	put_fseq_records(e, txn);
}

static void fseq_persisted(struct fs *fs, struct fseq *fseq)
{
	if (fseq->kv)
		fseq->kv->flags &= (u8)~INODE_WITH_SEQ;
	if (fseq->ids)
		fseq->ids->flags &= (u8)~INODE_WITH_SEQ;
	while (fseq->buried) {
		struct burial *b = fseq->buried;

		fseq->buried = b->next;
		if (b->fseq)
			fseq_put(fs, b->fseq);
		free(b);
	}
}

int persist_fseq(struct fs *fs, struct fseq *fseq, u64 *seq)
{
	struct emitting e = {.fs = fs, .fseq = fseq};
	int err;

	fs_lock(fs);
	*seq = fs->log_seq;
	if (!fseq->kv && !fseq->ids) {
		fs_unlock(fs);
		return 0;
	}
	if (fseq->dirty_on) {
		list_del(&fseq->dirty);
		fseq->dirty_on = false;
	}
	fs_unlock(fs);
	err = seq_persist(fseq->seq, emit_fseq, &e, seq);
	if (!e.locked)
		fs_lock(fs);
	if (!err && !e.locked) {
		put_fseq_records(&e, &fs->log);
		err = log_submit(fs);
		*seq = fs->log_seq;
	}
	if (err)
		fseq_mark_dirty(fs, fseq);
	else
		fseq_persisted(fs, fseq);
	fs->log_seq = max(fs->log_seq, err ? 0 : *seq);
	fs_unlock(fs);
	return err;
}
