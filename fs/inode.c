/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/hash.h"
#include "fs/fs.h"
#include "fs/fseq.h"

struct inode *inode_find(struct fs *fs, u64 ino)
{
	struct hnode *node = htab_first(&fs->inodes, hash_u64(ino));

	for (; node; node = htab_next(node)) {
		struct inode *inode = container_of(node, struct inode, hash);

		if (inode->ino == ino)
			return inode;
	}
	return NULL;
}

struct inode *inode_insert(struct fs *fs, u64 ino, u32 mode)
{
	struct inode *inode = calloc(1, sizeof(*inode));

	if (!inode)
		return NULL;
	inode->ino = ino;
	inode->kind = (u8)ino_kind(ino);
	inode->mode = mode;
	inode->atime_ns = inode->mtime_ns = inode->ctime_ns = (int64_t)clock_real_ns();
	list_init(&inode->dirty);
	htab_add(&fs->inodes, &inode->hash, hash_u64(ino));
	return inode;
}

struct inode *inode_new(struct fs *fs, enum inode_kind kind, u32 mode)
{
	struct inode *inode = inode_insert(fs, fs->next_ino[kind], mode);

	if (!inode)
		return NULL;
	fs->next_ino[kind]++;
	if (kind == KIND_DIR && dir_init(inode)) {
		inode_drop_if_unused(fs, inode);
		return NULL;
	}
	return inode;
}

struct body *inode_body(struct fs *fs, struct inode *inode)
{
	if (!inode->body) {
		inode->body = calloc(1, sizeof(*inode->body));
		if (inode->body)
			plain_init(&inode->body->pf, fs->pool, inode->ino);
	}
	return inode->body;
}

/* Bytes go as soon as they can not be reached any more, so that statfs moves with the unlink. */
static void drop_content(struct fs *fs, struct inode *inode)
{
	list_del(&inode->dirty);
	inode->flags &= (u8) ~(INODE_DIRTY | INODE_ATIME);
	if (inode_has_body(inode) && inode->body) {
		inode->body->next_dead = fs->dead_bodies;
		fs->dead_bodies = inode->body;
		inode->body = NULL;
	} else if (inode_has_seq(inode)) {
		fseq_set_inode(fs, inode, NULL);
	}
}

static void free_xattrs(struct inode *inode)
{
	while (inode->xattrs) {
		struct xattr *next = inode->xattrs->next;

		free(inode->xattrs);
		inode->xattrs = next;
	}
}

static void inode_free(struct fs *fs, struct inode *inode)
{
	drop_content(fs, inode);
	if (inode_is_dir(inode))
		dir_free(inode);
	else if (S_ISLNK(inode->mode))
		free(inode->target);
	free_xattrs(inode);
	htab_del(&fs->inodes, &inode->hash);
	free(inode);
}

void inode_drop_if_unused(struct fs *fs, struct inode *inode)
{
	if (inode->nlink || inode->links || inode->nr_open || inode->gate_shared ||
	    inode->gate_alone)
		return;
	if (inode->flags & INODE_REPLACED && inode->nlookup)
		return;
	drop_content(fs, inode);
	if (!inode->nlookup && !inode->gate_waiting)
		inode_free(fs, inode);
}

struct inode *inode_next(struct fs *fs, u32 *pos, struct inode *last)
{
	struct hnode *node = last ? last->hash.next : NULL;

	while (!node && *pos <= fs->inodes.mask)
		node = fs->inodes.buckets[(*pos)++];
	return node ? container_of(node, struct inode, hash) : NULL;
}

void inode_free_all(struct fs *fs)
{
	struct inode *inode;
	u32 pos = 0;

	for (inode = inode_next(fs, &pos, NULL); inode; inode = inode_next(fs, &pos, inode)) {
		if (inode_is_dir(inode) && inode->dir && inode->dir->fseq)
			fseq_detach(fs, inode->dir->fseq);
		while (inode->links)
			tree_del(fs, inode->links);
	}
	for (pos = 0; pos <= fs->inodes.mask; pos++)
		while (fs->inodes.buckets[pos])
			inode_free(fs, container_of(fs->inodes.buckets[pos], struct inode, hash));
}

void inode_touch_ctime(struct inode *inode)
{
	inode->ctime_ns = (int64_t)clock_real_ns();
}

void inode_touch_mtime(struct inode *inode)
{
	inode->mtime_ns = inode->ctime_ns = (int64_t)clock_real_ns();
}
