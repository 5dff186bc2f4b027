/* SPDX-License-Identifier: Apache-2.0 */
/* What the requests of .kvc/control do, as the caller and with the caller's permissions. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/ops.h"
#include "fs/opts.h"
#include "fs/uapi/kvc_control.h"
#include "fs/xattr.h"

static int refuse(struct request *r, int err, const char *what, const char *why)
{
	textbuf_printf(r->reply, "%s: %s", what, why);
	return err;
}

/* Option @key, NULL when it was not given. Each may be asked for once: what is left is unknown. */
static char *option(struct request *r, const char *key)
{
	for (unsigned int i = 0; i < r->nr_opts; i++) {
		char *value = r->opts[i].value;

		if (!r->opts[i].key || strcmp(r->opts[i].key, key))
			continue;
		r->opts[i].key = NULL;
		return value;
	}
	return NULL;
}

static int no_more_options(struct request *r, unsigned int nr_args)
{
	for (unsigned int i = 0; i < r->nr_opts; i++)
		if (r->opts[i].key)
			return refuse(r, -EINVAL, r->opts[i].key, "unknown key");
	if (r->nr_args != nr_args)
		return refuse(r, -EINVAL, r->args[0], "wrong number of arguments");
	return 0;
}

int request_walk(struct request *r, const char *path, struct inode **at, const char **name)
{
	char part[NAME_MAX_BYTES + 1];
	struct inode *inode = r->fs->root;
	struct dentry *d;

	while (*path && strcmp(path, ".")) {
		size_t len = strcspn(path, "/");
		bool last = !path[len];

		if (len > NAME_MAX_BYTES)
			return refuse(r, -ENAMETOOLONG, path, "name too long");
		if (!inode_is_dir(inode))
			return refuse(r, -ENOTDIR, path, "not below a directory");
		if (!cred_may(r->cred, inode, X_OK))
			return refuse(r, -EACCES, path, "permission denied");
		if (last && name) {
			*name = path;
			break;
		}
		memcpy(part, path, len);
		part[len] = '\0';
		d = tree_find(r->fs, inode, part);
		if (!d)
			return refuse(r, -ENOENT, part, "no such file or directory");
		inode = d->inode;
		path += len + !last;
	}
	*at = inode;
	return 0;
}

static int need(struct request *r, struct inode *inode, int mask, const char *path)
{
	return cred_may(r->cred, inode, mask) ? 0 : refuse(r, -EACCES, path, "permission denied");
}

/* ---- match ---- */

static int match_root(struct request *r, const char *salt, u32 *root, struct nspace **ns)
{
	struct inode *dir;
	int err = request_walk(r, r->args[1], &dir, NULL);

	if (!err)
		err = need(r, dir, R_OK | X_OK, r->args[1]);
	if (err)
		return err;
	if (!inode_is_dir(dir) || !dir_ns(dir))
		return refuse(r, -EINVAL, r->args[1], "not a directory in a namespace");
	*ns = nspace_get(dir_ns(dir));
	*root = kvdir_root(dir);
	if (!salt)
		return 0;
	return pool_root(r->fs->pool, (*ns)->space, salt, (u32)strlen(salt), root);
}

static int run_match(struct request *r)
{
	const char *salt = option(r, "salt"), *tokens = option(r, "tokens");
	struct pool_residency res = {0};
	struct prefix_key key = {.ids = r->ids, .nr_ids = r->nr_ids};
	struct nspace *ns = NULL;
	struct block_id *ids = NULL;
	unsigned int nr = 0;
	int err = no_more_options(r, 2);
	u64 announced;

	if (!err && (!tokens || opts_number(tokens, 0, KVC_CONTROL_TOKENS_MAX, &announced)))
		err = refuse(r, -EINVAL, "tokens", "expected a number of ids");
	if (err)
		return err;
	fs_lock(r->fs);
	err = match_root(r, salt, &key.root, &ns);
	fs_unlock(r->fs);
	if (!err) {
		key.block_tokens = ns->geo.block_tokens;
		ids = kvc_alloc_array(key.nr_ids / key.block_tokens, sizeof(*ids));
		err = ids ? 0 : -ENOMEM;
	}
	if (!err) {
		nr = prefix_match(r->fs->pool, &key, ids, false);
		pool_residency(r->fs->pool, ids, nr, &res);
		textbuf_printf(r->reply, "matched=%u blocks=%u dram=%u nvme=%u",
			       nr * key.block_tokens, nr, res.dram, res.nvme);
	}
	free(ids);
	fs_lock(r->fs);
	if (ns)
		nspace_put(ns);
	fs_unlock(r->fs);
	return err;
}

/* ---- fork ---- */

/** struct fork - from one sequence directory to a new one. */
struct fork {
	struct inode *src, *dir;
	const char *name;
	struct fseq *from, *to;
	struct gates gates;
	u32 nr;
};

static int fork_source(struct request *r, struct fork *f)
{
	if (!r->from)
		return request_walk(r, r->args[1], &f->src, NULL);
	f->src = r->from->dir;
	return f->src ? 0 : refuse(r, -ESTALE, r->args[1], "the sequence is gone");
}

static int fork_resolve(struct request *r, struct fork *f)
{
	int err;

	do {
		f->gates = GATES_INIT;
		err = fork_source(r, f);
		if (!err)
			err = request_walk(r, r->args[2], &f->dir, &f->name);
		if (err)
			return err;
		if (!inode_is_dir(f->src) || !f->src->dir->fseq)
			return refuse(r, -EINVAL, r->args[1], "not a sequence");
		f->from = f->src->dir->fseq;
		gates_add(&f->gates, f->dir, true);
		gates_add(&f->gates, f->from->kv, false);
		gates_add(&f->gates, f->from->ids, false);
	} while (!gates_take(r->fs, &f->gates));
	return 0;
}

static int fork_check(struct request *r, struct fork *f)
{
	struct inode *files[2] = {f->from->kv, f->from->ids};
	int err = need(r, f->src, X_OK, r->args[1]);

	for (unsigned int i = 0; i < ARRAY_SIZE(files) && !err; i++)
		if (files[i])
			err = need(r, files[i], R_OK, r->args[1]);
	if (!err)
		err = need(r, f->dir, W_OK | X_OK, r->args[2]);
	if (err)
		return err;
	if (!f->name || !*f->name || strlen(f->name) > NAME_MAX_BYTES)
		return refuse(r, -EINVAL, r->args[2], "not a name");
	if (tree_find(r->fs, f->dir, f->name))
		return refuse(r, -EEXIST, r->args[2], "exists already");
	if (dir_ns(f->dir) != f->from->ns || kvdir_root(f->dir) != kvdir_root(f->src))
		return refuse(r, -EXDEV, r->args[2], "another namespace or salt than the source");
	return log_ready(r->fs);
}

static struct inode *fork_file(struct request *r, struct fork *f, struct inode *dir,
			       const char *name)
{
	enum inode_kind kind = kind_of_name(f->dir, name);
	struct inode *like = kind == KIND_KV ? f->from->kv : f->from->ids;
	struct inode *inode = inode_new(r->fs, kind, like ? like->mode : S_IFREG | 0644);

	if (!inode)
		return NULL;
	inode->uid = r->cred->uid;
	inode->gid = dir->gid;
	fseq_set_inode(r->fs, inode, f->to);
	if (tree_add(r->fs, dir, name, inode, 0)) {
		inode->flags |= INODE_WITH_SEQ;
		return inode;
	}
	inode_drop_if_unused(r->fs, inode);
	return NULL;
}

/* Lock held; all names or none. */
static int fork_names(struct request *r, struct fork *f)
{
	struct fs *fs = r->fs;
	struct inode *dir = inode_new(fs, KIND_DIR, f->src->mode), *kv = NULL, *ids = NULL;
	struct dentry *entry = NULL;

	if (!dir)
		return -ENOMEM;
	dir->uid = r->cred->uid;
	dir->gid = f->dir->mode & S_ISGID ? f->dir->gid : r->cred->gid;
	kvdir_enter(f->dir, dir);
	kv = fork_file(r, f, dir, "kv");
	ids = kv ? fork_file(r, f, dir, "tokens") : NULL;
	entry = ids ? tree_add(fs, f->dir, f->name, dir, 0) : NULL;
	if (entry) {
		fseq_set_root(f->to, kvdir_root(dir));
		f->to->seq->priority = kvdir_priority(dir);
		fseq_attach(fs, f->to, dir);
		inode_touch_mtime(f->dir);
		inode_dirty_atime(fs, f->dir);
		log_inode(fs, dir);
		return log_submit(fs);
	}
	for (struct inode *i = kv; i; i = i == kv ? ids : NULL) {
		tree_del(fs, i->links);
		inode_drop_if_unused(fs, i);
	}
	inode_drop_if_unused(fs, dir);
	return -ENOMEM;
}

static int fork_run(struct request *r, struct fork *f)
{
	struct fs *fs = r->fs;
	u64 seq;
	int err;

	f->to = fseq_new(fs, f->from->ns, 0);
	if (!f->to)
		return -ENOMEM;
	fseq_get(f->from);
	fseq_set_root(f->to, kvdir_root(f->dir));
	fs_unlock(fs);
	err = seq_fork(f->from->seq, f->to->seq, f->nr);
	fs_lock(fs);
	if (err == -EINVAL)
		textbuf_printf(r->reply, "tokens: more than the source has");
	if (!err)
		err = fork_names(r, f);
	if (!err) {
		fs_unlock(fs);
		err = persist_fseq(fs, f->to, &seq);
		fs_lock(fs);
	}
	fseq_put(fs, f->from);
	return err;
}

static int run_fork(struct request *r)
{
	const char *tokens = option(r, "tokens");
	struct fork f = {.nr = SEQ_NO_TOKENS};
	int err = no_more_options(r, 3);
	u32 T, bt;
	u64 nr;

	if (!err && tokens) {
		if (opts_number(tokens, 0, SEQ_MAX_IDS, &nr))
			return refuse(r, -EINVAL, "tokens", "expected a number");
		f.nr = (u32)nr;
	}
	if (err)
		return err;
	fs_lock(r->fs);
	err = fork_resolve(r, &f);
	if (err) {
		fs_unlock(r->fs);
		return err;
	}
	err = fork_check(r, &f);
	if (!err)
		err = fork_run(r, &f);
	if (!err) {
		T = fseq_T(f.to);
		bt = f.to->ns->geo.block_tokens;
		textbuf_printf(r->reply, "tokens=%u shared_blocks=%u copied_bytes=%llu", T, T / bt,
			       T % bt ? (unsigned long long)f.to->ns->geo.block_bytes : 0ull);
	}
	if (f.to)
		fseq_put(r->fs, f.to);
	gates_drop(r->fs, &f.gates);
	fs_unlock(r->fs);
	return err;
}

/* ---- prefetch, demote ---- */

/** struct blocks - those of a file or sequence, each named once more. */
struct blocks {
	struct block_id *ids;
	u32 nr;
};

static struct blktab *table_of(struct inode *inode)
{
	if (inode_is_dir(inode))
		return inode->dir->fseq ? &inode->dir->fseq->seq->tab : NULL;
	if (inode_has_seq(inode))
		return inode->fseq ? &inode->fseq->seq->tab : NULL;
	return inode_has_body(inode) && inode->body ? plain_table(&inode->body->pf) : NULL;
}

static int get_blocks(struct request *r, struct blocks *b)
{
	struct blktab *tab = NULL;
	struct inode *inode;
	int err;

	fs_lock(r->fs);
	err = request_walk(r, r->args[1], &inode, NULL);
	if (!err)
		err = need(r, inode, R_OK, r->args[1]);
	if (!err && inode_is_dir(inode) && !inode->dir->fseq)
		err = refuse(r, -EINVAL, r->args[1], "neither a sequence nor a file");
	if (!err)
		tab = table_of(inode);
	if (tab) {
		lock_acquire(&tab->lock);
		b->nr = tab->nr_blocks;
		lock_release(&tab->lock);
		b->ids = kvc_alloc_array(b->nr, sizeof(*b->ids));
		err = b->ids ? 0 : -ENOMEM;
	}
	if (tab && !err)
		blktab_snapshot(tab, 0, b->nr, b->ids);
	fs_unlock(r->fs);
	return err;
}

static void put_blocks(struct request *r, struct blocks *b)
{
	if (b->ids)
		pool_put(r->fs->pool, b->ids, b->nr);
	free(b->ids);
}

/* In the given order, until the caller loses patience. */
static int wait_resident(struct request *r, const struct blocks *b)
{
	const void *addr;
	int err = 0;

	for (u32 i = 0; i < b->nr && !err; i++) {
		if (BLOCK_IS_NONE(b->ids[i]))
			continue;
		if (fuse_req_interrupted(r->req))
			return -EINTR;
		err = pool_pin(r->fs->pool, b->ids[i], &addr);
		if (!err)
			pool_unpin(r->fs->pool, &b->ids[i], 1);
	}
	return err;
}

static u32 not_resident(struct request *r, const struct blocks *b)
{
	struct pool_residency res = {0};

	if (b->nr)
		pool_residency(r->fs->pool, b->ids, b->nr, &res);
	return res.nr - min(res.dram, res.nr);
}

static u32 resident(struct request *r, const struct blocks *b)
{
	struct pool_residency res = {0};

	if (b->nr)
		pool_residency(r->fs->pool, b->ids, b->nr, &res);
	return res.dram;
}

static u64 block_bytes(struct request *r, const struct blocks *b)
{
	for (u32 i = 0; i < b->nr; i++)
		if (!BLOCK_IS_NONE(b->ids[i]))
			return pool_bytes(r->fs->pool, b->ids[i]);
	return 0;
}

static int run_prefetch(struct request *r)
{
	const char *tier = option(r, "tier"), *wait = option(r, "wait");
	struct blocks b = {0};
	int err = no_more_options(r, 2);
	u32 nr;

	if (!err && (!tier || strcmp(tier, "dram")))
		err = refuse(r, -EINVAL, "tier", "blocks can be brought to dram");
	if (!err)
		err = get_blocks(r, &b);
	if (!err) {
		nr = not_resident(r, &b);
		pool_prefetch(r->fs->pool, b.ids, b.nr);
		if (wait && !strcmp(wait, "1"))
			err = wait_resident(r, &b);
		if (!err)
			textbuf_printf(r->reply, "blocks=%u bytes=%llu", nr,
				       (unsigned long long)nr * block_bytes(r, &b));
	}
	put_blocks(r, &b);
	return err;
}

static int run_demote(struct request *r)
{
	const char *tier = option(r, "tier");
	struct blocks b = {0};
	u32 before, after;
	int err;

	option(r, "wait");
	err = no_more_options(r, 2);
	if (!err && (!tier || strcmp(tier, "nvme")))
		err = refuse(r, -EINVAL, "tier", "blocks can go down to nvme");
	if (!err && !r->fs->meta)
		err = refuse(r, -ENODEV, "tier", "this mount has no nvme tier");
	if (!err)
		err = get_blocks(r, &b);
	if (!err) {
		before = resident(r, &b);
		err = b.nr ? pool_demote(r->fs->pool, b.ids, b.nr) : 0;
		after = min(resident(r, &b), before);
		if (!err)
			textbuf_printf(r->reply, "blocks=%u bytes=%llu busy=%u", before - after,
				       (unsigned long long)(before - after) * block_bytes(r, &b),
				       after);
	}
	put_blocks(r, &b);
	return err;
}

/* ---- drop ---- */

static int drop_space(struct request *r, const char *path, u32 *space)
{
	struct inode *dir;
	int err = request_walk(r, path, &dir, NULL);

	if (!err)
		err = need(r, dir, W_OK, path);
	if (!err && (!inode_is_dir(dir) || !dir_ns(dir)))
		err = refuse(r, -EINVAL, path, "not a namespace");
	if (!err)
		*space = dir_ns(dir)->space;
	return err;
}

static int run_drop(struct request *r)
{
	const char *ns = option(r, "namespace"), *tier = option(r, "tier");
	enum block_tier from = NR_BLOCK_TIERS;
	u64 blocks = 0, bytes = 0;
	u32 space = 0;
	int err = no_more_options(r, 1);

	if (!err && tier && strcmp(tier, "dram") && strcmp(tier, "nvme"))
		err = refuse(r, -EINVAL, "tier", "expected dram or nvme");
	if (err)
		return err;
	if (tier)
		from = *tier == 'd' ? IN_DRAM : IN_NVME;
	fs_lock(r->fs);
	if (ns)
		err = drop_space(r, ns, &space);
	else if (r->cred->uid && r->cred->uid != r->fs->root->uid)
		err = refuse(r, -EPERM, "drop", "only the owner of the mount's root may drop all");
	fs_unlock(r->fs);
	if (err)
		return err;
	pool_drop_cached(r->fs->pool, space, from, &blocks, &bytes);
	textbuf_printf(r->reply, "dropped_blocks=%llu dropped_bytes=%llu",
		       (unsigned long long)blocks, (unsigned long long)bytes);
	return 0;
}

int request_run(struct request *r)
{
	static const struct {
		const char *verb;
		int (*run)(struct request *r);
	} verbs[] = {
		{KVC_CONTROL_MATCH, run_match},	      {KVC_CONTROL_FORK, run_fork},
		{KVC_CONTROL_PREFETCH, run_prefetch}, {KVC_CONTROL_DEMOTE, run_demote},
		{KVC_CONTROL_DROP, run_drop},
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(verbs); i++)
		if (!strcmp(r->args[0], verbs[i].verb))
			return verbs[i].run(r);
	return refuse(r, -EINVAL, r->args[0], "unknown request");
}
