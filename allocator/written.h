/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of a sequence's open blocks were written: a sorted set of disjoint byte ranges of the
 * file. Sealed blocks are whole by definition and not in it, so a sequence that is written front to
 * back has one range or none.
 */
#ifndef KVC_WRITTEN_H
#define KVC_WRITTEN_H

#include "allocator/base/compiler.h"

struct written_range {
	u64 from, to; /* bytes, from < to */
};

struct written {
	struct written_range *ranges; /* sorted, neither overlapping nor touching */
	u32 nr, max;
};

#define WRITTEN_INIT ((struct written){0})

void written_free(struct written *w);
/** written_reserve() - have room for @extra more ranges, so that as many next calls cannot fail. */
int __must_check written_reserve(struct written *w, u32 extra);
/** written_add() - needs room for one more range (written_reserve()). */
void written_add(struct written *w, u64 from, u64 to);
/** written_remove() - needs room for one more range, unless @from is 0 or @to UINT64_MAX. */
void written_remove(struct written *w, u64 from, u64 to);
/** written_covers() - is every byte of [@from, @to) written? An empty range is. */
bool written_covers(const struct written *w, u64 from, u64 to);
/** written_run() - end of the written bytes that begin at @from; @from when it is not written. */
u64 written_run(const struct written *w, u64 from);
/** written_count() - ranges that overlap [@from, @to). */
u32 written_count(const struct written *w, u64 from, u64 to);
/** written_copy() - add what @src has in [@from, @to); needs room for written_count() ranges. */
void written_copy(struct written *w, const struct written *src, u64 from, u64 to);

#endif
