/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: which inode a (directory, name) pair means, and in which order a directory lists.
 *
 * Lookup goes through one hash table over all directories. For listing, a directory keeps an array
 * of (cookie, entry) in rising cookie order: a cookie is given once per name and is never a
 * position, so readdir goes on at the right place whatever was removed meanwhile. Removal leaves a
 * gap; gaps are squeezed out when they are the majority. `.geometry`, `kv` and `tokens` have small
 * cookies of their own, which puts them first.
 */
#ifndef KVC_FS_TREE_H
#define KVC_FS_TREE_H

#include "fs/inode.h"

struct nspace;

/* Cookies are what readdir's offset says; 0 is the start. */
enum {
	COOKIE_DOT = 1,
	COOKIE_DOTDOT,
	COOKIE_GEOMETRY,
	COOKIE_KV,
	COOKIE_TOKENS,
	COOKIE_FIRST = 16
};

#define NAME_MAX_BYTES 255

struct dentry {
	struct hnode hash;
	struct inode *dir, *inode; /* neither goes while the name is there */
	struct dentry *next_link;  /* next name of the same inode */
	u64 cookie;
	u8 len;
	char name[]; /* NUL-terminated */
};

struct slot {
	u64 cookie;
	struct dentry *dentry; /* NULL: removed */
};

/** struct dir - what a directory has beside an inode's usual parts. */
struct dir {
	struct slot *slots;
	u32 nr_slots, max_slots;
	u32 nr_live; /* entries */
	u32 nr_subdirs;
	u64 next_cookie;
	struct nspace *ns; /* namespace that it is in, one reference, or NULL */
	bool ns_root;	   /* it is the namespace's own directory */
	u32 salt_root;	   /* chain root of its own salt; 0: inherits */
	struct fseq *fseq; /* the sequence that `kv` and `tokens` here are, one reference */
};

/** dir_init() - give @inode an empty directory. */
int __must_check dir_init(struct inode *inode);
void dir_free(struct inode *inode);

/** tree_find() - entry @name of @dir, or NULL. All functions here: caller holds the lock. */
struct dentry *tree_find(struct fs *fs, struct inode *dir, const char *name);
/**
 * tree_add() - enter @inode as @name, which must not exist there.
 * @cookie: 0: the next one (or the one that the name always has); at mount the recorded one
 * Return: the entry, NULL without memory. Counts links; moves no times.
 */
struct dentry *tree_add(struct fs *fs, struct inode *dir, const char *name, struct inode *inode,
			u64 cookie);
/** tree_del() - remove an entry and free it; the inode stays, with one link less. */
void tree_del(struct fs *fs, struct dentry *dentry);
/**
 * tree_move() - @dentry becomes @name in @dir, which must not exist there. The recorded memory is
 * taken first. Return: the new entry (the old one is gone), NULL without memory (nothing changed).
 */
struct dentry *tree_move(struct fs *fs, struct dentry *dentry, struct inode *dir, const char *name);
/** tree_swap() - two entries exchange their inodes. */
void tree_swap(struct dentry *a, struct dentry *b);

/** dir_next() - first live entry with a cookie above @cookie, or NULL. O(log n). */
struct dentry *dir_next(struct inode *dir, u64 cookie);
bool dir_empty(struct inode *dir);
/**
 * tree_walk() - the entry after @dentry (NULL: the first) in a walk over everything below @top, a
 * directory before what it holds. NULL at the end.
 */
struct dentry *tree_walk(struct inode *top, struct dentry *dentry);
/** dir_parent() - of a directory; NULL for the root and for a removed one. */
struct inode *dir_parent(struct inode *dir);
/** tree_is_below() - whether directory @inode is @top or lies below it. */
bool tree_is_below(struct inode *inode, struct inode *top);

struct textbuf;
/** tree_path() - path of @inode from the root, without a leading slash, escaped; "." the root. */
void tree_path(struct inode *inode, struct textbuf *tb);

#endif
