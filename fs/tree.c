/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/hash.h"
#include "allocator/base/textbuf.h"
#include "fs/fs.h"
#include "fs/fseq.h"

#define SLOTS_MIN 4u

static u64 name_hash(const struct inode *dir, const char *name, size_t len)
{
	return hash_bytes(name, len) ^ hash_u64(dir->ino);
}

struct dentry *tree_find(struct fs *fs, struct inode *dir, const char *name)
{
	size_t len = strlen(name);
	struct hnode *node = htab_first(&fs->names, name_hash(dir, name, len));

	for (; node; node = htab_next(node)) {
		struct dentry *dentry = container_of(node, struct dentry, hash);

		if (dentry->dir == dir && dentry->len == len && !memcmp(dentry->name, name, len))
			return dentry;
	}
	return NULL;
}

int dir_init(struct inode *inode)
{
	inode->dir = calloc(1, sizeof(*inode->dir));
	if (!inode->dir)
		return -ENOMEM;
	inode->dir->next_cookie = COOKIE_FIRST;
	return 0;
}

void dir_free(struct inode *inode)
{
	struct dir *dir = inode->dir;

	if (!dir)
		return;
	if (dir->ns)
		nspace_put(dir->ns);
	free(dir->slots);
	free(dir);
	inode->dir = NULL;
}

static u64 cookie_for(struct dir *dir, const char *name)
{
	if (!strcmp(name, ".geometry"))
		return COOKIE_GEOMETRY;
	if (dir->ns && !strcmp(name, "kv"))
		return COOKIE_KV;
	if (dir->ns && !strcmp(name, "tokens"))
		return COOKIE_TOKENS;
	return dir->next_cookie;
}

/* Index of the first slot with a cookie above @cookie. */
static u32 slot_above(const struct dir *dir, u64 cookie)
{
	u32 lo = 0, hi = dir->nr_slots;

	while (lo < hi) {
		u32 mid = lo + (hi - lo) / 2;

		if (dir->slots[mid].cookie > cookie)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static int slots_reserve(struct dir *dir)
{
	u32 max_slots = dir->max_slots ? dir->max_slots + dir->max_slots / 2 : SLOTS_MIN;
	struct slot *slots;

	if (dir->nr_slots < dir->max_slots)
		return 0;
	slots = reallocarray(dir->slots, max_slots, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	dir->slots = slots;
	dir->max_slots = max_slots;
	return 0;
}

static void slots_squeeze(struct dir *dir)
{
	struct slot *slots;
	u32 to = 0;

	for (u32 i = 0; i < dir->nr_slots; i++)
		if (dir->slots[i].dentry)
			dir->slots[to++] = dir->slots[i];
	dir->nr_slots = to;
	slots = reallocarray(dir->slots, max(to, SLOTS_MIN), sizeof(*slots));
	if (!slots)
		return;
	dir->slots = slots;
	dir->max_slots = max(to, SLOTS_MIN);
}

/* Room has been reserved. A name with a cookie of its own may find its old gap. */
static int slots_insert(struct dir *dir, struct dentry *dentry)
{
	u32 at = slot_above(dir, dentry->cookie);

	if (at && dir->slots[at - 1].cookie == dentry->cookie) {
		if (dir->slots[at - 1].dentry)
			return -EEXIST;
		dir->slots[at - 1].dentry = dentry;
		return 0;
	}
	memmove(dir->slots + at + 1, dir->slots + at, sizeof(struct slot) * (dir->nr_slots - at));
	dir->slots[at] = (struct slot){.cookie = dentry->cookie, .dentry = dentry};
	dir->nr_slots++;
	return 0;
}

static void slots_remove(struct dir *dir, struct dentry *dentry)
{
	u32 at = slot_above(dir, dentry->cookie);

	KVC_BUG_ON(!at || dir->slots[at - 1].dentry != dentry);
	dir->slots[at - 1].dentry = NULL;
	if (dir->nr_slots > 64 && dir->nr_live < dir->nr_slots / 2)
		slots_squeeze(dir);
}

static struct dentry *dentry_new(struct inode *dir, const char *name, u64 cookie)
{
	size_t len = strlen(name);
	struct dentry *dentry;

	if (len > NAME_MAX_BYTES || slots_reserve(dir->dir))
		return NULL;
	dentry = malloc(offsetof(struct dentry, name) + len + 1);
	if (!dentry)
		return NULL;
	dentry->dir = dir;
	dentry->cookie = cookie ? cookie : cookie_for(dir->dir, name);
	dentry->len = (u8)len;
	memcpy(dentry->name, name, len + 1);
	return dentry;
}

static void dentry_link(struct fs *fs, struct dentry *dentry, struct inode *inode)
{
	struct dir *dir = dentry->dir->dir;

	dentry->inode = inode;
	dentry->next_link = inode->links;
	inode->links = dentry;
	dir->nr_live++;
	dir->next_cookie = max(dir->next_cookie, dentry->cookie + 1);
	htab_add(&fs->names, &dentry->hash, name_hash(dentry->dir, dentry->name, dentry->len));
	if (!inode_is_dir(inode)) {
		inode->nlink++;
		return;
	}
	inode->nlink = 2 + inode->dir->nr_subdirs;
	dir->nr_subdirs++;
	dentry->dir->nlink++;
}

struct dentry *tree_add(struct fs *fs, struct inode *dir, const char *name, struct inode *inode,
			u64 cookie)
{
	struct dentry *dentry = dentry_new(dir, name, cookie);

	if (!dentry)
		return NULL;
	if (slots_insert(dir->dir, dentry)) {
		free(dentry);
		return NULL;
	}
	dentry_link(fs, dentry, inode);
	return dentry;
}

static void dentry_unlink(struct fs *fs, struct dentry *dentry)
{
	struct inode *inode = dentry->inode;
	struct dentry **at = &inode->links;

	while (*at != dentry)
		at = &(*at)->next_link;
	*at = dentry->next_link;
	htab_del(&fs->names, &dentry->hash);
	dentry->dir->dir->nr_live--;
	slots_remove(dentry->dir->dir, dentry);
	if (!inode_is_dir(inode)) {
		inode->nlink--;
		return;
	}
	inode->nlink = 0;
	dentry->dir->dir->nr_subdirs--;
	dentry->dir->nlink--;
}

void tree_del(struct fs *fs, struct dentry *dentry)
{
	dentry_unlink(fs, dentry);
	free(dentry);
}

struct dentry *tree_move(struct fs *fs, struct dentry *dentry, struct inode *dir, const char *name)
{
	struct dentry *to = dentry_new(dir, name, 0);
	struct inode *inode = dentry->inode;

	if (!to)
		return NULL;
	if (slots_insert(dir->dir, to)) {
		free(to);
		return NULL;
	}
	tree_del(fs, dentry);
	dentry_link(fs, to, inode);
	return to;
}

/* In @inode's list of names, @from becomes @to. */
static void relink(struct inode *inode, struct dentry *from, struct dentry *to)
{
	struct dentry **at = &inode->links;

	while (*at != from)
		at = &(*at)->next_link;
	*at = to;
}

void tree_swap(struct dentry *a, struct dentry *b)
{
	struct inode *ia = a->inode, *ib = b->inode;
	struct dentry *next = a->next_link;
	int more_in_b = inode_is_dir(ia) - inode_is_dir(ib);

	if (ia == ib)
		return;
	relink(ia, a, b);
	relink(ib, b, a);
	a->next_link = b->next_link;
	b->next_link = next;
	a->inode = ib;
	b->inode = ia;
	a->dir->dir->nr_subdirs -= (u32)more_in_b;
	a->dir->nlink -= (u32)more_in_b;
	b->dir->dir->nr_subdirs += (u32)more_in_b;
	b->dir->nlink += (u32)more_in_b;
}

struct dentry *dir_next(struct inode *dir, u64 cookie)
{
	struct dir *d = dir->dir;

	for (u32 i = slot_above(d, cookie); i < d->nr_slots; i++)
		if (d->slots[i].dentry)
			return d->slots[i].dentry;
	return NULL;
}

bool dir_empty(struct inode *dir)
{
	return dir->dir->nr_live == 0;
}

struct dentry *tree_walk(struct inode *top, struct dentry *dentry)
{
	struct inode *dir = dentry ? dentry->inode : top;
	struct dentry *next = inode_is_dir(dir) ? dir_next(dir, 0) : NULL;

	while (!next && dentry) {
		next = dir_next(dentry->dir, dentry->cookie);
		dentry = dentry->dir == top ? NULL : dentry->dir->links;
	}
	return next;
}

struct inode *dir_parent(struct inode *dir)
{
	return dir->links ? dir->links->dir : NULL;
}

bool tree_is_below(struct inode *inode, struct inode *top)
{
	for (; inode; inode = dir_parent(inode))
		if (inode == top)
			return true;
	return false;
}

void tree_path(struct inode *inode, struct textbuf *tb)
{
	const struct dentry *chain[256];
	unsigned int nr = 0;

	for (const struct dentry *d = inode->links; d && nr < ARRAY_SIZE(chain); d = d->dir->links)
		chain[nr++] = d;
	if (!nr)
		textbuf_printf(tb, ".");
	while (nr--) {
		textbuf_escape(tb, chain[nr]->name);
		if (nr)
			textbuf_printf(tb, "/");
	}
}
