/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.kvc.*: most of them are no stored attributes but views of a sequence. Each has one entry in
 * the table below; where an attribute has no meaning (user.kvc.tokens on a plain file that somebody
 * copied out), it is stored like any other, so that it comes back with the file.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/kvxattr.h"
#include "fs/ops.h"
#include "fs/opts.h"
#include "fs/xattr.h"

#define VALUE_MAX 64 /* of those that are text */

static const char *const state_names[] = {
	[SEQ_IDLE] = "idle",
	[SEQ_PAUSED] = "paused",
	[SEQ_QUEUED] = "queued",
	[SEQ_DECODING] = "decoding",
};

const char *seq_state_name(unsigned int state)
{
	return state < ARRAY_SIZE(state_names) ? state_names[state] : "unknown";
}

/** struct target - what an attribute call is about. */
struct target {
	struct fs *fs;
	fuse_req_t req; /* when it sets */
	struct inode *inode;
	struct fseq *fseq;  /* one reference, or NULL */
	struct gates gates; /* shared: the inode and the sequence's files */
	const void *value;
	size_t bytes;
	char text[VALUE_MAX]; /* @value as text, empty when it is longer */
};

static struct fseq *fseq_of(const struct inode *inode)
{
	if (inode_is_dir(inode))
		return inode->dir->fseq;
	return inode_has_seq(inode) ? inode->fseq : NULL;
}

/* Find @ino and enter its gates, those of its sequence's files too. Lock not held. */
static int target_begin(struct target *t, struct fs *fs, u64 ino)
{
	t->fs = fs;
	fs_lock(fs);
	do {
		t->gates = GATES_INIT;
		t->inode = inode_find(fs, ino);
		if (!t->inode) {
			fs_unlock(fs);
			return -ESTALE;
		}
		t->fseq = fseq_of(t->inode);
		gates_add(&t->gates, t->inode, false);
		if (t->fseq) {
			gates_add(&t->gates, t->fseq->kv, false);
			gates_add(&t->gates, t->fseq->ids, false);
		}
	} while (!gates_take(fs, &t->gates));
	if (t->fseq)
		fseq_get(t->fseq);
	fs_unlock(fs);
	return 0;
}

static void target_end(struct target *t)
{
	fs_lock(t->fs);
	if (t->fseq)
		fseq_put(t->fs, t->fseq);
	gates_drop(t->fs, &t->gates);
	fs_unlock(t->fs);
}

static bool is_sequence_dir(const struct target *t)
{
	return inode_is_dir(t->inode) && t->fseq;
}

static bool is_plain_file(const struct target *t)
{
	return !inode_is_dir(t->inode) && !inode_has_seq(t->inode);
}

static int refuse_later(const char *name)
{
	log_warn("attribute %s: this version does not have it yet", name);
	return -EOPNOTSUPP;
}

/* ---- tokens ---- */

/* By way of the directory a caller changes files that he must be allowed to write. */
static int may_write_files(struct target *t)
{
	struct inode *files[2] = {t->fseq->kv, t->fseq->ids};
	struct cred cred;
	int err = 0;

	if (!inode_is_dir(t->inode))
		return 0;
	cred_of(&cred, t->req);
	fs_lock(t->fs);
	for (unsigned int i = 0; i < ARRAY_SIZE(files); i++)
		if (files[i] && !cred_may(&cred, files[i], W_OK))
			err = -EACCES;
	fs_unlock(t->fs);
	return err;
}

static int tokens_set(struct target *t)
{
	struct fs *fs = t->fs;
	u32 before;
	u64 nr;
	int err;

	if (is_plain_file(t) || (inode_is_dir(t->inode) && !dir_ns(t->inode)))
		return KVXATTR_PLAIN;
	if (!t->fseq || t->inode->kind == KIND_IDS)
		return -EINVAL;
	if (opts_number(t->text, 0, SEQ_MAX_IDS, &nr))
		return -EINVAL;
	err = may_write_files(t);
	if (err)
		return err;
	before = fseq_T(t->fseq);
	err = seq_set_tokens(t->fseq->seq, (u32)nr);
	if (err == -ENOSPC) {
		err = pool_tick(fs->pool);
		if (!err)
			err = seq_set_tokens(t->fseq->seq, (u32)nr);
	}
	if (err)
		return err;
	fs_lock(fs);
	fseq_mark_dirty(fs, t->fseq);
	if (nr < before) {
		if (t->fseq->kv) {
			inode_touch_mtime(t->fseq->kv);
			kvdir_changed(fs, t->fseq->kv);
		}
		if (t->fseq->ids)
			kvdir_changed(fs, t->fseq->ids);
	} else {
		inode_touch_ctime(t->inode);
	}
	fs_unlock(fs);
	return 0;
}

static int tokens_get(struct target *t, struct textbuf *tb)
{
	if (!t->fseq || t->inode->kind == KIND_IDS)
		return is_plain_file(t) || inode_is_dir(t->inode) ? KVXATTR_PLAIN : -ENODATA;
	textbuf_printf(tb, "%u", fseq_T(t->fseq));
	return 0;
}

static int cached_get(struct target *t, struct textbuf *tb)
{
	struct sequence *seq;
	u32 nr;

	if (!t->fseq)
		return -ENODATA;
	seq = t->fseq->seq;
	lock_acquire(&seq->tab.lock);
	nr = seq->cached_tokens;
	lock_release(&seq->tab.lock);
	textbuf_printf(tb, "%u", nr);
	return 0;
}

static int read_only(struct target *t)
{
	return -EPERM;
}

/* ---- salt ---- */

static bool ids_below(struct inode *dir)
{
	struct dentry *d = NULL;

	if (dir->dir->fseq && fseq_nr_ids(dir->dir->fseq))
		return true;
	while ((d = tree_walk(dir, d)))
		if (inode_is_dir(d->inode) && d->inode->dir->fseq &&
		    fseq_nr_ids(d->inode->dir->fseq))
			return true;
	return false;
}

static void refresh_below(struct fs *fs, struct inode *dir)
{
	struct dentry *d = NULL;
	struct fseq *fseq = dir->dir->fseq;

	do {
		if (fseq) {
			fseq_set_root(fseq, kvdir_root(fseq->dir));
			fseq->seq->priority = kvdir_priority(fseq->dir);
		}
		d = tree_walk(dir, d);
		fseq = d && inode_is_dir(d->inode) ? d->inode->dir->fseq : NULL;
	} while (d);
}

static int salt_set(struct target *t)
{
	struct xattr *x, *old;
	int err;
	u32 root;

	if (!inode_is_dir(t->inode) || !dir_ns(t->inode))
		return -EINVAL;
	x = xattr_make("user.kvc.salt", t->value, t->bytes);
	if (!x)
		return -ENOMEM;
	x->hidden = true;
	fs_lock(t->fs);
	err = ids_below(t->inode) ? -EBUSY : log_ready(t->fs);
	if (!err)
		err = pool_root(t->fs->pool, dir_ns(t->inode)->space, t->value, (u32)t->bytes,
				&root);
	if (!err) {
		t->inode->dir->salt_root = root;
		old = xattr_put(t->inode, x);
		x = old;
		refresh_below(t->fs, t->inode);
		inode_touch_ctime(t->inode);
		log_inode(t->fs, t->inode);
		err = log_submit(t->fs);
	}
	fs_unlock(t->fs);
	free(x);
	return err;
}

static int salt_get(struct target *t, struct textbuf *tb)
{
	return -ENODATA;
}

/* ---- state, pin, priority ---- */

static int state_set(struct target *t)
{
	u64 seconds = 0;
	unsigned int i;

	if (!is_sequence_dir(t))
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(state_names); i++)
		if (!strcmp(t->text, state_names[i]))
			break;
	if (!strncmp(t->text, "paused:", 7) && !opts_number(t->text + 7, 0, 1u << 30, &seconds))
		i = SEQ_PAUSED;
	if (i == ARRAY_SIZE(state_names))
		return -EINVAL;
	fseq_set_state(t->fs, t->fseq, (enum seq_state)i, seconds);
	return 0;
}

static int state_get(struct target *t, struct textbuf *tb)
{
	if (!is_sequence_dir(t))
		return -ENODATA;
	textbuf_printf(tb, "%s", seq_state_name(t->fseq->seq->state));
	return 0;
}

#define PIN_MAX_PCT 80 /* of DRAM may be pinned by name */

static u64 pin_bytes(struct fseq *fseq)
{
	struct sequence *seq = fseq->seq;
	u64 bytes;

	lock_acquire(&seq->tab.lock);
	bytes = (u64)seq->tab.nr_blocks * fseq->ns->geo.block_stride;
	lock_release(&seq->tab.lock);
	return bytes;
}

/*
 * Would @fseq pinned as well be more than the budget? Linux turns -EAGAIN of a setxattr into
 * EOPNOTSUPP, which would say that there are no pins at all: so it is -EBUSY here.
 */
static int pin_fits(struct fs *fs, struct fseq *fseq)
{
	struct pool_stats stats;
	struct fseq *other;
	u64 bytes = pin_bytes(fseq);

	pool_get_stats(fs->pool, &stats);
	fs_lock(fs);
	list_for_each_entry (other, &fs->seqs, live)
		if (other != fseq && other->seq->pinned)
			bytes += pin_bytes(other);
	fs_unlock(fs);
	return bytes > stats.tier[IN_DRAM].size / 100 * PIN_MAX_PCT ? kvc_err(-EBUSY, fs_pin_budget)
								    : 0;
}

/* Others may have pinned some of the blocks that were let go. Caller holds the lock. */
static void keep_pinned(struct fs *fs)
{
	struct fseq *other;

	list_for_each_entry (other, &fs->seqs, live)
		if (other->seq->pinned)
			seq_touch(other->seq);
}

static int pin_set(struct target *t)
{
	bool dram = !strcmp(t->text, "dram");
	int err;

	if (!is_sequence_dir(t))
		return -EINVAL;
	if (!strcmp(t->text, "hbm"))
		return refuse_later("user.kvc.pin=hbm");
	if (strcmp(t->text, "none") && !dram)
		return -EINVAL;
	err = dram ? pin_fits(t->fs, t->fseq) : 0;
	if (err)
		return err;
	seq_set_pinned(t->fseq->seq, dram);
	if (dram)
		seq_prefetch(t->fseq->seq);
	fs_lock(t->fs);
	if (!dram)
		keep_pinned(t->fs);
	fseq_mark_dirty(t->fs, t->fseq);
	fs_unlock(t->fs);
	return 0;
}

static int pin_get(struct target *t, struct textbuf *tb)
{
	if (!is_sequence_dir(t))
		return -ENODATA;
	textbuf_printf(tb, "%s", t->fseq->seq->pinned ? "dram" : "none");
	return 0;
}

/* Checked here, stored as any other: kvxattr_stored() makes it count. */
static int priority_set(struct target *t)
{
	u64 value;

	if (!inode_is_dir(t->inode))
		return -EINVAL;
	return opts_number(t->text, 0, 100, &value) ? -EINVAL : KVXATTR_PLAIN;
}

static int priority_get(struct target *t, struct textbuf *tb)
{
	if (!inode_is_dir(t->inode))
		return -ENODATA;
	fs_lock(t->fs);
	textbuf_printf(tb, "%u", kvdir_priority(t->inode));
	fs_unlock(t->fs);
	return 0;
}

void kvxattr_stored(struct fs *fs, struct inode *inode, const char *name)
{
	if (!strcmp(name, "user.kvc.priority") && inode_is_dir(inode))
		refresh_below(fs, inode);
}

/* ---- residency ---- */

static void plain_residency(struct body *body, struct pool_residency *res)
{
	struct blktab *tab = body ? plain_table(&body->pf) : NULL;

	*res = (struct pool_residency){0};
	if (!tab)
		return;
	lock_acquire(&tab->lock);
	pool_residency(tab->pool, tab->blocks, tab->nr_blocks, res);
	lock_release(&tab->lock);
}

static int target_residency(struct target *t, struct pool_residency *res)
{
	if (t->fseq)
		seq_residency(t->fseq->seq, res);
	else if (inode_has_body(t->inode))
		plain_residency(t->inode->body, res);
	else
		return -ENODATA;
	return 0;
}

int residency_of(struct fs *fs, u64 ino, struct pool_residency *res)
{
	struct target t = {0};
	int err = target_begin(&t, fs, ino);

	if (err)
		return err;
	err = target_residency(&t, res);
	target_end(&t);
	return err;
}

static int residency_get(struct target *t, struct textbuf *tb)
{
	struct pool_residency res;
	int err = target_residency(t, &res);

	if (!err)
		textbuf_printf(tb, "hbm=0 dram=%u nvme=%u remote=0 lossy=%u", res.dram, res.nvme,
			       res.lossy);
	return err;
}

/* ---- the table ---- */

static int later_set(struct target *t)
{
	return refuse_later("user.kvc.ttl, quota and cache");
}

static int later_get(struct target *t, struct textbuf *tb)
{
	return -ENODATA;
}

static const struct kvxattr {
	const char *name;
	int (*set)(struct target *t);
	int (*get)(struct target *t, struct textbuf *tb);
} kvxattrs[] = {
	{"user.kvc.tokens", tokens_set, tokens_get},
	{"user.kvc.cached_tokens", read_only, cached_get},
	{"user.kvc.salt", salt_set, salt_get},
	{"user.kvc.state", state_set, state_get},
	{"user.kvc.pin", pin_set, pin_get},
	{"user.kvc.priority", priority_set, priority_get},
	{"user.kvc.residency", read_only, residency_get},
	{"user.kvc.ttl", later_set, later_get},
	{"user.kvc.quota", later_set, later_get},
	{"user.kvc.cache", later_set, later_get},
};

static const struct kvxattr *kvxattr_find(const char *name)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(kvxattrs); i++)
		if (!strcmp(kvxattrs[i].name, name))
			return &kvxattrs[i];
	return NULL;
}

int kvxattr_set(fuse_req_t req, u64 ino, const char *name, const void *value, size_t bytes)
{
	const struct kvxattr *x = kvxattr_find(name);
	struct target t = {.req = req, .value = value, .bytes = bytes};
	int ret;

	if (!x)
		return kvc_err(-EINVAL, fs_xattr_unknown); /* a typing error, most likely */
	if (bytes < sizeof(t.text))
		memcpy(t.text, value, bytes);
	ret = target_begin(&t, fs_of(req), ino);
	if (ret)
		return ret;
	ret = x->set(&t);
	target_end(&t);
	return ret;
}

int kvxattr_get(struct fs *fs, u64 ino, const char *name, struct textbuf *tb)
{
	const struct kvxattr *x = kvxattr_find(name);
	struct target t = {0};
	int ret;

	if (!x)
		return KVXATTR_PLAIN;
	ret = target_begin(&t, fs, ino);
	if (ret)
		return ret;
	ret = x->get(&t, tb);
	target_end(&t);
	return ret;
}
