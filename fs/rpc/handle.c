/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles: sequences that a client has open. A handle's number is its place plus one; its generation
 * word lies in the slot of the same place. Rights to pool memory follow from handles: who may open a
 * sequence may see the memory of its namespace's trust domain, who opens one for writing may write it: to be
 * allowed to is not enough, so that a client that only reads has nothing to write through. When a
 * namespace gets another owner or other permissions it is another domain's: handles stay, as open files
 * do, but give no memory any more to whom the new ones do not let in.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "fs/kvdir.h"
#include "fs/make.h"
#include "fs/persist.h"
#include "fs/rpc/endpoint.h"

#define MAX_HANDLES ((u32)RPC_SLOTS)

static void set_word(struct handle *h, u64 value)
{
	if (h->nr && h->nr <= h->ep->nr_slots)
		__atomic_store_n(&h->ep->slots[h->nr - 1], value, __ATOMIC_RELEASE);
}

/* The sequence is gone; filesystem's lock held. */
static void handle_gone(struct fseq_watch *watch)
{
	struct handle *h = container_of(watch, struct handle, watch);

	atomic_store(&h->stale, true);
	set_word(h, 0);
}

/* A free number; 0: none. */
static u32 number(struct endpoint *ep)
{
	u32 old = ep->nr_handles, size = min(old ? old * 2 : 16, MAX_HANDLES);
	struct handle **v;

	for (u32 i = 0; i < ep->nr_handles; i++)
		if (!ep->handles[i])
			return i + 1;
	if (old == MAX_HANDLES)
		return 0;
	v = reallocarray(ep->handles, size, sizeof(struct handle *));
	if (!v)
		return 0;
	memset(v + old, 0, (size - old) * sizeof(*v));
	ep->handles = v;
	ep->nr_handles = size;
	return old + 1;
}

struct handle *handle_add(struct endpoint *ep, struct fseq *fseq, bool writable)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->ep = ep;
	h->fseq = fseq;
	h->writable = writable;
	h->stride = fseq->ns->geo.block_stride;
	h->watch.gone = handle_gone;
	h->generation = ++ep->fs->generation;
	fseq_watch(fseq, &h->watch);
	return h;
}

void handle_end_room(struct handle *h)
{
	if (!h->room)
		return;
	ep_show_pins(h->ep, -(int64_t)h->room->nr, -(int64_t)h->room_bytes);
	seq_room_end(h->room);
	h->room = NULL;
	h->ep->room_bytes -= h->room_bytes;
	h->room_bytes = 0;
}

/* The sequence is somebody else's matter from here on. */
static void let_go(struct handle *h)
{
	struct fs *fs = h->ep->fs;

	if (h->state_set && !atomic_load(&h->stale))
		fseq_set_state(fs, h->fseq, SEQ_IDLE, 0);
	fs_lock(fs);
	list_del(&h->watch.link);
	set_word(h, 0);
	fseq_put(fs, h->fseq);
	fs_unlock(fs);
	h->fseq = NULL;
}

bool handle_leave(struct handle *h)
{
	handle_end_prefetch(h);
	if (h->room)
		seq_room_leave(h->room);
	let_go(h);
	return h->room || h->maps;
}

void handle_free(struct handle *h)
{
	if (!h)
		return;
	handle_end_prefetch(h);
	handle_end_room(h);
	handle_unmap_all(h);
	if (h->fseq)
		let_go(h);
	if (h->nr)
		h->ep->handles[h->nr - 1] = NULL;
	free(h);
}

/* The namespace's own directory; NULL: the sequence is nowhere any more. */
static const struct inode *space_dir(const struct fseq *fseq)
{
	const struct inode *dir = fseq->dir;

	while (dir && !dir->dir->ns_root)
		dir = dir->links ? dir->links->dir : NULL;
	return dir;
}

static struct right *right_of(const struct endpoint *ep, u32 domain)
{
	for (u32 i = 0; i < ep->nr_rights; i++)
		if (ep->rights[i].domain == domain)
			return &ep->rights[i];
	return NULL;
}

int ep_grant(struct endpoint *ep, struct fseq *fseq, bool write)
{
	u32 domain = pool_space_domain(ep->fs->pool, fseq->ns->space);
	const struct inode *dir = space_dir(fseq);
	struct right *right = right_of(ep, domain);

	if (!dir || !domain || !cred_may(&ep->cred, dir, R_OK | X_OK))
		return 0;
	if (!right) {
		right = reallocarray(ep->rights, ep->nr_rights + 1, sizeof(*right));
		if (!right)
			return -ENOMEM;
		ep->rights = right;
		right = &ep->rights[ep->nr_rights++];
		*right = (struct right){.domain = domain};
	}
	right->write |= write && cred_may(&ep->cred, dir, W_OK) && !ep->fs->opts->read_only;
	return 0;
}

/* A right is to a domain, and follows from who the client is and whose the domain is: neither changes. */
static const struct right *right_to(const struct endpoint *ep, const struct fseq *fseq)
{
	return right_of(ep, pool_space_domain(ep->fs->pool, fseq->ns->space));
}

int ep_may_see(struct endpoint *ep, struct fseq *fseq, bool write)
{
	const struct right *right = right_to(ep, fseq);
	int err = 0;

	if (!right || (write && !right->write)) { /* the namespace has come to be another domain's */
		fs_lock(ep->fs);
		err = ep_grant(ep, fseq, write);
		fs_unlock(ep->fs);
		right = right_to(ep, fseq);
	}
	if (err)
		return err;
	return right && (right->write || !write) ? 0 : kvc_err(-EACCES, rpc_no_right);
}

/* ---- open ---- */

/** struct opening - a path on its way to a handle. */
struct opening {
	struct endpoint *ep;
	struct request r; /* for the walk */
	u32 flags;
	struct gates gates;
	struct inode *dir; /* the sequence's; NULL: to be made */
	struct inode *parent;
	const char *name; /* last part */
};

static int need(struct opening *o, const struct inode *inode, int mask)
{
	return cred_may(&o->ep->cred, inode, mask) ? 0 : -EACCES;
}

/* Find what is there; gates of parent and directory are taken alone when something is missing. */
static int resolve(struct opening *o, const char *path)
{
	struct dentry *d;
	int err;

	do {
		o->gates = GATES_INIT;
		o->name = NULL;
		err = request_walk(&o->r, path, &o->parent, &o->name);
		if (!err && (!o->name || !*o->name || !inode_is_dir(o->parent)))
			err = -EINVAL;
		if (!err && (!strcmp(o->name, ".") || !strcmp(o->name, "..") ||
			     (o->parent == o->ep->fs->root && !strcmp(o->name, CONTROL_NAME))))
			err = -EINVAL;
		if (err)
			return err;
		d = tree_find(o->ep->fs, o->parent, o->name);
		o->dir = d ? d->inode : NULL;
		if (o->dir && !inode_is_dir(o->dir))
			return -ENOTDIR;
		gates_add(&o->gates, o->parent, !o->dir);
		gates_add(&o->gates, o->dir, true);
	} while (!gates_take(o->ep->fs, &o->gates));
	return 0;
}

static struct inode *make(struct opening *o, struct inode *dir, const char *name, u32 mode,
			  int *err)
{
	struct make m = {.uid = o->ep->cred.uid,
			 .gid = o->ep->cred.gid,
			 .name = name,
			 .mode = mode};

	*err = need(o, dir, W_OK | X_OK);
	if (!*err)
		*err = log_ready(o->ep->fs);
	return *err ? NULL : make_inode(o->ep->fs, dir, &m, err);
}

/* The directory, made when it is missing and may be made. */
static int open_dir(struct opening *o)
{
	int err;

	if (o->dir)
		return need(o, o->dir, X_OK);
	if (!(o->flags & KVC_OPEN_CREATE))
		return -ENOENT;
	if (!dir_ns(o->parent))
		return -EINVAL;
	if (!o->parent->links && o->parent != o->ep->fs->root)
		return -ENOENT;
	o->dir = make(o, o->parent, o->name, S_IFDIR | 0755, &err);
	if (!o->dir)
		return err;
	/* Nobody else has seen it: the lock was held since. */
	gates_add(&o->gates, o->dir, true);
	o->dir->gate_alone = true;
	return 0;
}

static int open_file(struct opening *o, const char *name, bool must)
{
	struct dentry *d = tree_find(o->ep->fs, o->dir, name);
	int mask = R_OK | (o->flags & KVC_OPEN_WRITE ? W_OK : 0), err;

	if (d)
		return inode_has_seq(d->inode) ? need(o, d->inode, mask) : -EINVAL;
	if (o->flags & KVC_OPEN_CREATE)
		return make(o, o->dir, name, S_IFREG | 0644, &err) ? 0 : err;
	return must ? -ENOENT : 0;
}

static int open_files(struct opening *o)
{
	int err = open_dir(o);

	if (err)
		return err;
	if (!dir_ns(o->dir))
		return -EINVAL;
	if (o->flags & KVC_OPEN_EXCL && tree_find(o->ep->fs, o->dir, "kv"))
		return -EEXIST;
	err = open_file(o, "kv", true);
	if (!err)
		err = open_file(o, "tokens", false);
	return !err && !o->dir->dir->fseq ? -ENOENT : err;
}

static void tell(const struct handle *h, struct kvc_cmd *cmd)
{
	const struct geometry *geo = &h->fseq->ns->geo;

	cmd->handle = h->nr;
	cmd->open.slot = h->nr - 1;
	cmd->open.block_tokens = geo->block_tokens;
	cmd->open.tokens = fseq_T(h->fseq);
	cmd->open.block_bytes = geo->block_bytes;
	cmd->open.block_stride = geo->block_stride;
	cmd->open.token_bytes = geo->token_bytes;
	cmd->open.layers = geo->layers;
	cmd->open.layout = geo->layout;
	cmd->open.generation = h->generation;
}

/* Lock held: a numbered handle of @fseq. */
static struct handle *enter(struct endpoint *ep, struct fseq *fseq, bool writable)
{
	u32 nr = number(ep);
	struct handle *h = nr ? handle_add(ep, fseq_get(fseq), writable) : NULL;

	if (!h) {
		if (nr)
			fseq_put(ep->fs, fseq);
		return NULL;
	}
	h->nr = nr;
	ep->handles[nr - 1] = h;
	set_word(h, h->generation);
	return h;
}

static int open_path(struct endpoint *ep, const char *path, u32 flags, struct handle **h)
{
	struct textbuf why = TEXTBUF_INIT;
	struct opening o = {.ep = ep, .flags = flags};
	struct fs *fs = ep->fs;
	struct fseq *fseq = NULL;
	int err;

	o.r = (struct request){.fs = fs, .cred = &ep->cred, .reply = &why};
	fs_lock(fs);
	err = resolve(&o, path);
	if (!err)
		err = open_files(&o);
	if (!err) {
		fseq = fseq_get(o.dir->dir->fseq);
		err = ep_grant(ep, fseq, flags & KVC_OPEN_WRITE);
		if (!err)
			*h = enter(ep, fseq, flags & KVC_OPEN_WRITE);
		if (!err && !*h)
			err = -EMFILE;
	}
	gates_drop(fs, &o.gates);
	if (fseq)
		fseq_put(fs, fseq);
	fs_unlock(fs);
	textbuf_free(&why);
	return err;
}

int op_rpc_open(struct endpoint *ep, struct handle *unused, struct kvc_cmd *cmd)
{
	const u32 known = KVC_OPEN_CREATE | KVC_OPEN_WRITE | KVC_OPEN_EXCL;
	u32 flags = cmd->open.flags;
	struct handle *h = NULL;
	const void *path;
	int err;

	if (flags & ~known || cmd->open.path.bytes > 4096)
		return -EINVAL;
	if (flags & (KVC_OPEN_CREATE | KVC_OPEN_WRITE) && ep->fs->opts->read_only)
		return -EROFS;
	err = ep_copy_in(ep, &cmd->open.path, &path);
	if (!err && strlen(path) != cmd->open.path.bytes)
		err = -EINVAL;
	if (!err)
		err = open_path(ep, path, flags, &h);
	if (!err)
		tell(h, cmd);
	return err;
}

int op_rpc_close(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	if (h == ep->own)
		return -EBADF;
	ep_settle(ep);
	handle_free(h);
	return 0;
}
