/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash table of embedded nodes. The caller hashes, compares and locks; the table keeps chains and
 * doubles its buckets when they hold more than one node on average.
 */
#ifndef KVC_FS_HTAB_H
#define KVC_FS_HTAB_H

#include "allocator/base/compiler.h"

/** struct hnode - embedded in a member; protected by the table's lock. */
struct hnode {
	struct hnode *next;
	u64 hash;
};

struct htab {
	struct hnode **buckets;
	u32 nr;	  /* nodes */
	u32 mask; /* buckets - 1 */
};

int __must_check htab_init(struct htab *tab);
void htab_destroy(struct htab *tab);
/** htab_add() - add @node under @hash; never fails (a table that cannot grow gets longer chains).
 */
void htab_add(struct htab *tab, struct hnode *node, u64 hash);
void htab_del(struct htab *tab, struct hnode *node);

/** htab_first() / htab_next() - nodes whose whole hash is @hash. */
struct hnode *htab_first(const struct htab *tab, u64 hash);
struct hnode *htab_next(const struct hnode *node);

#endif
