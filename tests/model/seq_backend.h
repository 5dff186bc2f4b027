/* SPDX-License-Identifier: Apache-2.0 */
/* The pool that the sequence model test runs on: the stub, or the real one on host memory. */
#ifndef KVC_TEST_SEQ_BACKEND_H
#define KVC_TEST_SEQ_BACKEND_H

#include "allocator/sequence.h"

struct pool *backend_open(u64 capacity);
void backend_close(void);
/** backend_feed() - give the records of @id to @seq. Return: false when there are none to be had.
 */
bool backend_feed(u64 id, struct sequence *seq);
/** backend_apply() - @txn is durable. */
void backend_apply(struct meta_txn *txn);
/** backend_drops_leaves_only() - does dropping the cache keep unnamed parents of named blocks? */
bool backend_drops_leaves_only(void);

#endif
