/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A metadata store under test: a temporary directory, and a history whose state after transaction T
 * is a function of T alone. So whatever a test does to the store, the records that an open loads say
 * which transactions are in it and whether they are there whole and in order.
 */
#ifndef KVC_TEST_LIB_METASTORE_H
#define KVC_TEST_LIB_METASTORE_H

#include "allocator/base/textbuf.h"
#include "allocator/meta.h"

struct metastore {
	char path[64];
	int dir_fd;
};

/** metastore_make() - a fresh empty directory; metastore_remove() - with all that is in it. */
void metastore_make(struct metastore *store);
/** metastore_make_in() - the same below @dir, at most 40 bytes long. */
void metastore_make_in(struct metastore *store, const char *dir);
void metastore_remove(struct metastore *store);

#define METASTORE_RING	50	/* keys (2, t % RING): value t and some bytes, always put */
#define METASTORE_TOGGLE 7	/* keys (3, t % TOGGLE): put and removed in turn */

/** struct metastore_state - what an open loaded. */
struct metastore_state {
	u64 last;			/* key (1, 0): the last transaction */
	u64 ring[METASTORE_RING];
	u64 toggle[METASTORE_TOGGLE];
	u64 nr_bad;			/* records that no transaction could have written, or twice */
};

int metastore_load(void *state, const struct meta_key *key, const void *value, u32 bytes);
/** metastore_check() - is @state exactly the one after transaction @state->last? */
bool metastore_check(const struct metastore_state *state);
/** metastore_txn() - fill @txn with transaction @t. */
void metastore_txn(struct meta_txn *txn, u64 t);
/** metastore_open() - open with @opts (NULL: create, default) into @state. Return: meta_open()'s. */
int metastore_open(struct metastore *store, const struct meta_opts *opts, struct meta **meta,
		   struct metastore_state *state, struct textbuf *why);
/** metastore_run() - submit transactions @from to @to, commit each. Return: 0 or the first error. */
int metastore_run(struct meta *meta, u64 from, u64 to);

#endif
