/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes: every file, directory and symlink in memory, and who may touch which one when.
 *
 * All metadata live in memory; the table is searched by number. Parts that few files need (a body,
 * extended attributes, a directory's entries) hang off the inode and are allocated on demand, so
 * that a million names stay small.
 *
 * Two things protect an inode:
 *  - the filesystem's one lock (LOCK_FS_TABLE), short: numbers, names, attributes, counts;
 *  - its *gate*, a sleeping exclusion for operations that wait for tiers in between. Readers enter
 *    shared; whoever changes a plain file's bytes, swaps the sequence behind a name, or changes a
 *    directory's names enters alone. An operation takes all the gates that it needs at once
 *    (gates_take()), so that no two can wait for each other. stat and lookup take none.
 *
 * An inode is freed when it has no name, the kernel has forgotten it, nothing is open and no gate
 * is taken or waited for. Its bytes go earlier: when it has no name and nothing is open. Only a
 * file that another replaced keeps them until the kernel forgets it, since an open may be under
 * way, and opens find the old file or the new one.
 */
#ifndef KVC_FS_INODE_H
#define KVC_FS_INODE_H

#include <sys/stat.h>
#include "allocator/base/list.h"
#include "allocator/plainfile.h"
#include "fs/htab.h"

struct fs;
struct fseq;
struct dentry;
struct dir;

/* In the order of inode numbers: tools that sort by number then see geometry first, kv before ids.
 */
enum inode_kind {
	KIND_GEOMETRY = 1, /* created under the name .geometry */
	KIND_PLAIN,	   /* plain files, symlinks, special files */
	KIND_KV,
	KIND_IDS,
	KIND_DIR,
	NR_KINDS,
};

#define INO_KIND_SHIFT 48
#define INO_ROOT       1ull

enum inode_flags {
	INODE_DIRTY = 1 << 0,	    /* on the dirty list: its body has no record yet */
	INODE_ATIME = 1 << 1,	    /* on the dirty list: only its record is stale */
	INODE_WITH_SEQ = 1 << 2,    /* its record goes out only together with its sequence's */
	INODE_STALE_PAGES = 1 << 3, /* bytes changed behind the page cache: next open drops it */
	INODE_TRUNCATED = 1 << 4,   /* rewritten after O_TRUNC: no record before close or fsync */
	INODE_GEO_WRITTEN = 1 << 5, /* .geometry written to since it was judged */
	INODE_REPLACED = 1 << 6, /* lost its name to another: opens under way still get its bytes */
};

/** struct saved_body - what the last submitted record says about a body that has changed since. */
struct saved_body {
	u64 size;
	u32 inline_bytes;
	u8 inline_data[];
};

/** struct body - bytes of a plain file. Changed with the gate taken alone; sizes under the lock. */
struct body {
	struct plainfile pf;
	u64 size, allocated_bytes; /* copies for stat, which never waits */
	struct saved_body *saved;  /* owned; NULL: as it is now */
	char *shown;		   /* .geometry: text that readers see instead, owned, or NULL */
	struct body *next_dead;	   /* until the lock is released */
};

struct xattr {
	struct xattr *next;
	u32 bytes;
	bool hidden; /* neither listed nor answered: user.kvc.salt */
	u8 name_len;
	char data[]; /* name, NUL, value */
};

static inline const char *xattr_value(const struct xattr *x)
{
	return x->data + x->name_len + 1;
}

/** struct inode - protected by the filesystem's lock but where said. */
struct inode {
	struct hnode hash;
	u64 ino;			      /* set once before publish */
	u64 nlookup;			      /* references of the kernel */
	int64_t atime_ns, mtime_ns, ctime_ns; /* since 1970 */
	u32 mode, uid, gid, nlink;
	u32 nr_open, nr_writers;
	u16 gate_shared, gate_waiting;
	bool gate_alone;
	u8 kind;     /* enum inode_kind, set once */
	u8 flags;    /* enum inode_flags */
	u8 late_err; /* errno of a write that failed after it was accepted, 0: none */
	u32 dirty_tick;
	struct dentry *links; /* its names, owned by the tree */
	struct xattr *xattrs; /* owned */
	struct list_head dirty;
	union { /* by mode and kind; owned, may be NULL */
		struct body *body;
		struct fseq *fseq; /* KIND_KV, KIND_IDS: one reference */
		struct dir *dir;
		char *target; /* symlink */
		u64 rdev;
	};
};

static inline bool inode_is_dir(const struct inode *inode)
{
	return inode->kind == KIND_DIR;
}

static inline bool inode_has_body(const struct inode *inode)
{
	return (inode->mode & S_IFMT) == S_IFREG && inode->kind <= KIND_PLAIN;
}

static inline bool inode_has_seq(const struct inode *inode)
{
	return inode->kind == KIND_KV || inode->kind == KIND_IDS;
}

/**
 * inode_is_gone() - a file unlinked between the kernel's lookup and what it asks now; its
 * bytes may be gone too. -ESTALE makes the kernel look the name up again.
 */
static inline bool inode_is_gone(const struct inode *inode)
{
	return !inode->links && !inode->nr_open && !inode_is_dir(inode) &&
	       !(inode->flags & INODE_REPLACED);
}

/** inode_new() - a nameless inode of @kind with the next number. Caller holds the lock. */
struct inode *inode_new(struct fs *fs, enum inode_kind kind, u32 mode);
/** inode_insert() - as inode_new(), under a given number (mount). -EEXIST as NULL and errno. */
struct inode *inode_insert(struct fs *fs, u64 ino, u32 mode);
struct inode *inode_find(struct fs *fs, u64 ino);
/** inode_drop_if_unused() - free body and inode as far as nobody needs them. Holds the lock. */
void inode_drop_if_unused(struct fs *fs, struct inode *inode);
/** inode_free_all() - at the very end: every inode, whatever its counts. */
void inode_free_all(struct fs *fs);
/** inode_body() - its body, made when it has none. NULL: no memory. */
struct body *inode_body(struct fs *fs, struct inode *inode);
/** inode_next() - iterate over all inodes: the one after bucket position *@pos; NULL at the end. */
struct inode *inode_next(struct fs *fs, u32 *pos, struct inode *last);

static inline enum inode_kind ino_kind(u64 ino)
{
	return ino == INO_ROOT ? KIND_DIR : (enum inode_kind)(ino >> INO_KIND_SHIFT);
}

/* Times. */
void inode_touch_mtime(struct inode *inode); /* mtime and ctime */
void inode_touch_ctime(struct inode *inode);

/* ---- gates (gate.c); caller holds the lock ---- */

#define MAX_GATES 8

struct gates {
	unsigned int nr;
	struct {
		struct inode *inode;
		bool alone;
	} gate[MAX_GATES];
};

#define GATES_INIT ((struct gates){0})

/** gates_add() - want @inode's gate; NULL is skipped, twice is once, alone wins. */
void gates_add(struct gates *gates, struct inode *inode, bool alone);
/**
 * gates_take() - take all of @gates, or wait for a change and take none.
 * Return: whether they are taken. When not, the lock was released in between: look everything up
 * again before the next try.
 */
bool gates_take(struct fs *fs, struct gates *gates);
/** gates_drop() - leave, and free what became unused meanwhile. */
void gates_drop(struct fs *fs, struct gates *gates);

#endif
