/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the block table, for blktab*.c only. */
#ifndef KVC_BLKTAB_IMPL_H
#define KVC_BLKTAB_IMPL_H

#include "allocator/blktab.h"

#define BLKTAB_MAX_BLOCKS (1u << 31)

static inline bool blktab_is_recorded(const struct blktab *tab, u32 i)
{
	return tab->recorded[i / 64] >> (i % 64) & 1;
}

static inline void blktab_set_recorded(struct blktab *tab, u32 i, bool recorded)
{
	u64 bit = 1ull << (i % 64);

	if (recorded)
		tab->recorded[i / 64] |= bit;
	else
		tab->recorded[i / 64] &= ~bit;
}

/**
 * __blktab_replace() - entry @i (reserved) becomes @id; lock held.
 * Return: the old block when its name is to be dropped by the caller, else BLOCK_NONE (retired).
 */
struct block_id __blktab_replace(struct blktab *tab, u32 i, struct block_id id);
/** __blktab_extend() - have at least @nr entries (reserved), new ones being holes; lock held. */
void __blktab_extend(struct blktab *tab, u32 nr);
/** __blktab_mark() - as blktab_mark(), lock held. */
void __blktab_mark(struct blktab *tab, u32 from, u32 to);

#endif
