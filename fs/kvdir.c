/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a namespace: what they mean, and sequences that come and go with them. */
#include <errno.h>
#include <string.h>
#include "allocator/base/log.h"
#include "fs/kvdir.h"
#include "fs/notify.h"
#include "fs/opts.h"
#include "fs/persist.h"
#include "fs/xattr.h"

/* "W", "W.*", "W~" and ".W.*" are all of W's kind: tools write aside under such names. */
static bool name_like(const char *name, const char *word)
{
	size_t len = strlen(word);

	if (*name == '.')
		return !strncmp(name + 1, word, len) && name[1 + len] == '.';
	if (strncmp(name, word, len))
		return false;
	name += len;
	return !*name || *name == '.' || !strcmp(name, "~");
}

enum inode_kind kind_of_name(const struct inode *dir, const char *name)
{
	if (!strcmp(name, GEOMETRY_NAME))
		return KIND_GEOMETRY;
	if (!dir_ns(dir))
		return KIND_PLAIN;
	if (name_like(name, "kv"))
		return KIND_KV;
	return name_like(name, "tokens") ? KIND_IDS : KIND_PLAIN;
}

bool name_is_special(const char *name)
{
	return name_like(name, "kv") || name_like(name, "tokens");
}

bool name_is_sequence(const struct inode *dir, const char *name)
{
	return dir_ns(dir) && (!strcmp(name, "kv") || !strcmp(name, "tokens"));
}

u32 kvdir_root(const struct inode *dir)
{
	struct nspace *ns = dir_ns(dir);

	if (!ns)
		return 0;
	for (; dir; dir = dir->links ? dir->links->dir : NULL) {
		if (dir->dir->salt_root)
			return dir->dir->salt_root;
		if (dir->dir->ns_root)
			break;
	}
	return ns->root;
}

u8 kvdir_priority(struct inode *dir)
{
	for (; dir; dir = dir_parent(dir)) {
		struct xattr *x = xattr_find(dir, "user.kvc.priority");
		char text[8] = "";
		u64 value;

		if (!x || x->bytes >= sizeof(text))
			continue;
		memcpy(text, xattr_value(x), x->bytes);
		if (!opts_number(text, 0, 100, &value))
			return (u8)value;
	}
	return 50;
}

void kvdir_enter(struct inode *dir, struct inode *inode)
{
	if (dir_ns(dir) && !inode->dir->ns)
		inode->dir->ns = nspace_get(dir_ns(dir));
}

void kvdir_gates(struct gates *gates, struct inode *dir)
{
	if (!dir->dir->fseq)
		return;
	gates_add(gates, dir->dir->fseq->kv, true);
	gates_add(gates, dir->dir->fseq->ids, true);
}

void kvdir_changed(struct fs *fs, struct inode *inode)
{
	inode->flags |= INODE_STALE_PAGES;
	notify_inval(inode->ino);
}

/* Nobody has pages of a file that is not open, or has to drop them at the next open anyway. */
void kvdir_changed_range(struct fs *fs, struct inode *inode, u64 off, u64 len)
{
	inode->flags |= INODE_STALE_PAGES;
	if (inode->nr_open)
		notify_inval_range(inode->ino, off, len);
}

/* @fseq is the sequence of @dir from now on: found by its prefix, with its directory's priority. */
static void settle_in(struct fs *fs, struct fseq *fseq, struct inode *dir)
{
	fseq_set_root(fseq, kvdir_root(dir));
	fseq->seq->priority = kvdir_priority(dir);
	fseq_attach(fs, fseq, dir);
}

int kvdir_new_file(struct fs *fs, struct inode *inode, struct inode *dir, const char *name)
{
	struct fseq *fseq;

	if (name_is_sequence(dir, name) && dir->dir->fseq) {
		fseq_set_inode(fs, inode, dir->dir->fseq);
		return 0;
	}
	fseq = fseq_new(fs, dir_ns(dir), 0);
	if (!fseq)
		return -ENOMEM;
	if (name_is_sequence(dir, name))
		settle_in(fs, fseq, dir);
	fseq_set_inode(fs, inode, fseq);
	fseq_put(fs, fseq);
	return 0;
}

/* Nothing is left of a sequence when neither of its files is. */
static void leave_if_empty(struct fs *fs, struct inode *dir)
{
	struct fseq *fseq = dir->dir->fseq;

	if (!fseq || (fseq->kv && fseq->kv->links) || (fseq->ids && fseq->ids->links))
		return;
	fseq_set_root(fseq, 0);
	log_fseq_gone(fs, fseq);
	fseq_detach(fs, fseq);
}

void kvdir_unname(struct fs *fs, struct inode *inode, struct inode *dir)
{
	fseq_set_inode(fs, inode, NULL);
	leave_if_empty(fs, dir);
}

/* ---- taking a sequence apart; lock held, released in between ---- */

/* A sequence of its own with the ids of @fseq. */
static struct fseq *copy_ids(struct fs *fs, struct fseq *fseq)
{
	size_t bytes = (size_t)fseq_nr_ids(fseq) * 4;
	struct fseq *copy = fseq_new(fs, fseq->ns, 0);
	void *buf = malloc(bytes ? bytes : 1);
	ssize_t got;
	int err = -ENOMEM;

	if (copy && buf) {
		fs_unlock(fs);
		got = seq_read_ids(fseq->seq, buf, bytes, 0);
		err = got < 0 ? (int)got : 0;
		if (got > 0)
			err = seq_write_ids(copy->seq, buf, (size_t)got, 0);
		fs_lock(fs);
	}
	free(buf);
	if (!err)
		return copy;
	if (copy)
		fseq_put(fs, copy);
	return NULL;
}

/* The bytes leave @fseq, whose ids stay, loose. The result owns them. */
static struct fseq *split_kv(struct fs *fs, struct fseq *fseq, int *err)
{
	u64 id = fs->next_seq_id++;
	struct sequence *out = NULL;
	struct fseq *split;

	fs_unlock(fs);
	*err = seq_kv_gone(fseq->seq, id, &out);
	fs_lock(fs);
	if (*err)
		return NULL;
	split = fseq_adopt(fs, fseq->ns, id, out);
	if (!split)
		*err = -ENOMEM;
	else
		fseq_set_root(split, 0);
	fseq_mark_dirty(fs, fseq);
	return split;
}

/* The ids leave @fseq, whose bytes stay. The result owns a copy, NULL unless @keep. */
static struct fseq *split_ids(struct fs *fs, struct fseq *fseq, bool keep, int *err)
{
	struct fseq *split = keep ? copy_ids(fs, fseq) : NULL;

	*err = keep && !split ? -ENOMEM : 0;
	if (*err)
		return NULL;
	fs_unlock(fs);
	*err = seq_ids_gone(fseq->seq);
	fs_lock(fs);
	if (*err && split) {
		fseq_put(fs, split);
		split = NULL;
	}
	fseq_mark_dirty(fs, fseq);
	if (fseq->kv)
		kvdir_changed(fs, fseq->kv);
	return split;
}

/*
 * Make @inode own what it shows: the bytes when it is a `kv`, the ids when it is a `tokens`. Its
 * directory keeps the rest, or nothing when there is no rest.
 */
static int part(struct fs *fs, struct inode *inode, bool keep)
{
	struct fseq *fseq = inode->fseq, *split = NULL;
	struct inode *other = inode->kind == KIND_KV ? fseq->ids : fseq->kv;
	int err = 0;

	if (!fseq->dir)
		return 0;
	if (!other || !other->links) {
		fseq_get(fseq);
		fs_unlock(fs);
		err = seq_let_go(fseq->seq);
		fs_lock(fs);
		if (!err) {
			fseq_set_root(fseq, 0);
			fseq_detach(fs, fseq);
		}
		fseq_put(fs, fseq);
		return err;
	}
	fseq_get(fseq);
	if (inode->kind == KIND_KV)
		split = split_kv(fs, fseq, &err);
	else
		split = split_ids(fs, fseq, keep, &err);
	if (!err) {
		if (inode->kind == KIND_KV)
			fseq_gone(fseq);
		fseq_set_inode(fs, inode, split);
		if (split)
			fseq_put(fs, split);
	}
	fseq_put(fs, fseq);
	return err;
}

int kvdir_unlink(struct fs *fs, struct dentry *dentry)
{
	struct inode *inode = dentry->inode, *dir = dentry->dir;
	int err = part(fs, inode, inode->nr_open > 0);

	if (err)
		return err;
	if (inode->fseq)
		log_fseq_gone(fs, inode->fseq);
	tree_del(fs, dentry);
	log_gone(fs, inode);
	leave_if_empty(fs, dir);
	return 0;
}

/* ---- putting together ---- */

/* @old lost its place to what @fseq became: its records go in the same transaction. */
static void bury(struct fs *fs, struct fseq *fseq, struct inode *inode, struct fseq *old)
{
	if (fs->meta && fseq_bury(fs, fseq, inode ? inode->ino : 0, old)) {
		if (old)
			log_fseq_gone(fs, old);
		if (inode)
			log_gone(fs, inode);
	}
}

/* `kv` arrives in @dir with its own sequence and merges with the ids that are there. */
static void join_kv(struct fs *fs, struct inode *inode, struct inode *dir)
{
	struct fseq *from = inode->fseq, *old = dir->dir->fseq;
	struct inode *ids = old ? old->ids : NULL;
	int err;

	fseq_set_root(from, kvdir_root(dir));
	fs_unlock(fs);
	err = seq_kv_arrived(from->seq, old ? old->seq : NULL);
	fs_lock(fs);
	if (err)
		log_warn("inode %llu: renamed to kv, but its ids could not be merged: %d",
			 (unsigned long long)inode->ino, -err);
	if (old) {
		fseq_get(old);
		fseq_detach(fs, old);
		bury(fs, from, NULL, old);
		if (ids) {
			fseq_set_inode(fs, ids, from);
			ids->flags |= INODE_WITH_SEQ;
			kvdir_changed(fs, ids);
		}
		fseq_put(fs, old);
	}
	settle_in(fs, from, dir);
}

/* `tokens` arrives in @dir: its ids become those of the sequence there. */
static int join_ids(struct fs *fs, struct inode *inode, struct inode *dir)
{
	struct fseq *from = inode->fseq, *to = dir->dir->fseq;
	int err = 0;

	if (!to) {
		settle_in(fs, from, dir);
		fs_unlock(fs);
		err = seq_close_ids(from->seq);
		fs_lock(fs);
		return err;
	}
	fs_unlock(fs);
	err = seq_ids_arrived(to->seq, from->seq);
	if (!err)
		err = seq_close_ids(to->seq);
	fs_lock(fs);
	bury(fs, to, NULL, from);
	fseq_set_inode(fs, inode, to);
	if (to->kv)
		kvdir_changed(fs, to->kv);
	return err;
}

static int kv_join(struct fs *fs, struct inode *inode, const struct kv_rename *r)
{
	if (!name_is_sequence(r->to_dir, r->to_name)) {
		fseq_set_root(inode->fseq, 0);
		return 0;
	}
	if (inode->kind == KIND_IDS)
		return join_ids(fs, inode, r->to_dir);
	join_kv(fs, inode, r->to_dir);
	return 0;
}

int kvdir_rename(struct fs *fs, const struct kv_rename *r)
{
	struct inode *inode = r->from->inode, *from_dir = r->from->dir;
	struct inode *over = r->over ? r->over->inode : NULL;
	struct dentry *dentry = r->from;
	struct fseq *fseq;
	int err = part(fs, inode, true);
	u64 seq;

	if (err)
		return err;
	if (over)
		err = part(fs, over, true);
	if (!err)
		err = kv_join(fs, inode, r);
	if (err)
		log_warn("rename to %s: %d", r->to_name, -err);
	inode->flags |= INODE_WITH_SEQ;
	fseq = fseq_get(inode->fseq);
	if (over) {
		tree_del(fs, r->over);
		over->flags |= INODE_REPLACED;
		bury(fs, fseq, over, over->fseq);
	}
	dentry = tree_move(fs, dentry, r->to_dir, r->to_name);
	leave_if_empty(fs, from_dir);
	if (over)
		inode_drop_if_unused(fs, over);
	fs_unlock(fs);
	err = dentry ? persist_fseq(fs, fseq, &seq) : -ENOMEM;
	fs_lock(fs);
	fseq_put(fs, fseq);
	return err;
}
