/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence as the mount sees it: the allocator's sequence, who names it, and what must be
 * written.
 *
 * A directory with `kv` or `tokens` has one fseq, shared by both inodes. A file kv.* or tokens.*
 * has one of its own, never indexed, until it is renamed to be a sequence's. Which fseq an inode
 * has changes only with that inode's gate taken alone.
 *
 * On disk an inode names its sequence by number, and a sequence's records are its own. When names
 * and sequences change together (a rename of kv), the records must too: the inodes are marked
 * INODE_WITH_SEQ and go out in the transaction of the sequence, together with the removals of what
 * they replace (*buried*).
 */
#ifndef KVC_FS_FSEQ_H
#define KVC_FS_FSEQ_H

#include "allocator/geometry.h"
#include "allocator/sequence.h"
#include "fs/fs.h"

#define SEQ_ID_FIRST (1ull << 63)

/** struct nspace - a namespace: its geometry and its number. Counted by directories and fseqs. */
struct nspace {
	u32 ref;   /* protected by the filesystem's lock */
	u32 space; /* number of the namespace; set once, as all that follows */
	u32 root;  /* chain root without a salt */
	struct geometry geo;
};

/** struct burial - records to remove in the transaction of the sequence that took their place. */
struct burial {
	struct burial *next;
	u64 ino;	   /* 0: none */
	struct fseq *fseq; /* one reference, or NULL */
};

/**
 * struct fseq_watch - somebody who has a sequence open by way of a session, and is told when its
 * directory has it no more, or its kv loses its bytes to another name. Protected by the filesystem's
 * lock.
 */
struct fseq_watch {
	struct list_head link;
	void (*gone)(struct fseq_watch *watch); /* called once, lock held */
};

/** struct fseq - protected by the filesystem's lock; @seq has its own. */
struct fseq {
	struct sequence *seq;	/* owned, set once */
	struct nspace *ns;	/* one reference, set once */
	u64 id;			/* set once */
	u32 ref;		/* inodes, its directory, operations under way */
	bool dirty_on, live_on; /* on fs->dirty_seqs, on fs->seqs */
	bool loaded;		/* at mount: records of it were seen */
	u32 dirty_tick;
	struct inode *dir, *kv, *ids; /* who names it now; not counted */
	struct burial *buried;	      /* owned */
	struct list_head dirty, live, active, dead;
	struct list_head watches;     /* struct fseq_watch */
	u64 paused_until_ns; /* expected return, 0: not told */
};

/* ---- namespaces ---- */
struct nspace *nspace_new(struct fs *fs, const struct geometry *geo, u32 space);
/**
 * nspace_set_owner() - tell the pool whose the namespace at @dir is: who may see its memory. Where that
 * fails, clients are given none of it. Lock held.
 */
void nspace_set_owner(struct fs *fs, const struct inode *dir);
struct nspace *nspace_get(struct nspace *ns);
void nspace_put(struct nspace *ns);

/* ---- sequences; caller holds the lock ---- */

/** fseq_new() - an empty sequence in @ns. @id: 0: the next one. NULL: no memory. */
struct fseq *fseq_new(struct fs *fs, struct nspace *ns, u64 id);
/** fseq_adopt() - wrap @seq, which was made under number @id; frees it on failure. */
struct fseq *fseq_adopt(struct fs *fs, struct nspace *ns, u64 id, struct sequence *seq);
struct fseq *fseq_get(struct fseq *fseq);
void fseq_put(struct fs *fs, struct fseq *fseq);

/** fseq_attach() - it is directory @dir's sequence from now on. */
void fseq_attach(struct fs *fs, struct fseq *fseq, struct inode *dir);
/** fseq_detach() - its directory has none any more. */
void fseq_detach(struct fs *fs, struct fseq *fseq);
/** fseq_watch() - tell @watch when the sequence goes; list_del() ends it. */
void fseq_watch(struct fseq *fseq, struct fseq_watch *watch);
/** fseq_gone() - what its watchers had open is not this sequence any more. */
void fseq_gone(struct fseq *fseq);
/** fseq_set_inode() - @inode (KV or ids) has @fseq from now on (one more reference). */
void fseq_set_inode(struct fs *fs, struct inode *inode, struct fseq *fseq);
/** fseq_set_root() - chain root under which its blocks are indexed, 0: never. */
void fseq_set_root(struct fseq *fseq, u32 root);
/** fseq_mark_dirty() - its records are stale: the tick writes them. */
void fseq_mark_dirty(struct fs *fs, struct fseq *fseq);
/** fseq_bury() - remove @ino's record and @old's records (either may be missing) with @fseq's. */
int __must_check fseq_bury(struct fs *fs, struct fseq *fseq, u64 ino, struct fseq *old);

/** fseq_set_state() - as user.kvc.state; @paused_s: expected return, 0 unknown. Lock not held. */
void fseq_set_state(struct fs *fs, struct fseq *fseq, enum seq_state state, u64 paused_s);

/** fseq_T() - committed tokens. */
u32 fseq_T(struct fseq *fseq);
u32 fseq_nr_ids(struct fseq *fseq);
/** tab_prefetch() - start loading the blocks of [@off, @off + @len). No lock held. */
void tab_prefetch(struct blktab *tab, u64 off, size_t len);

#endif
