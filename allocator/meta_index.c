/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index of the metadata store: linear probing in 256 separate tables, so that growing one copies
 * only a small part of the keys while its user waits. Tables are filled to 80 % and grow by a
 * quarter: 25 to 31 bytes a key. Removal shifts the run behind it back, so there are no tombstones.
 *
 * A slot remembers its record's size as a class (4 bits of exponent, 4 of mantissa, rounded down);
 * the same class is added and subtracted, so @live_bytes does not drift.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/meta_types.h"

#define SIZE_UNIT 8

static u8 size_class(u32 bytes)
{
	u32 units = bytes / SIZE_UNIT;
	u32 exp = 0;

	while (units >> exp >= 32)
		exp++;
	return units < 16 ? (u8)units : (u8)((exp + 1) << 4 | ((units >> exp) & 15));
}

static u32 class_bytes(u8 class)
{
	return class < 16 ? class * SIZE_UNIT : ((16u | (class & 15)) << ((class >> 4) - 1)) * SIZE_UNIT;
}

static u64 key_hash(u64 id, u32 sub, u8 type)
{
	return hash_u64(id + hash_u64((u64)sub << 8 | type));
}

static u64 slot_word(const struct meta_slot *slot)
{
	return (u64)slot->word_hi << 32 | slot->word_lo;
}

static u64 slot_serial(const struct meta_slot *slot)
{
	return slot_word(slot) >> 16;
}

static u8 slot_type(const struct meta_slot *slot)
{
	return (u8)(slot->word_lo >> 8);
}

static u32 slot_bytes(const struct meta_slot *slot)
{
	return class_bytes((u8)slot->word_lo);
}

static u64 slot_hash(const struct meta_slot *slot)
{
	return key_hash((u64)slot->id_hi << 32 | slot->id_lo, slot->sub, slot_type(slot));
}

static bool slot_is(const struct meta_slot *slot, const struct meta_record *rec)
{
	return slot->id_lo == (u32)rec->id && slot->id_hi == rec->id >> 32 && slot->sub == rec->sub &&
	       slot_type(slot) == meta_record_type(rec);
}

/* The low 32 bits of the hash choose the home slot, the top 8 the part. */
static u32 home_of(u64 hash, u32 nr_slots)
{
	return (u32)((hash & UINT32_MAX) * nr_slots >> 32);
}

static u64 rec_hash(const struct meta_record *rec)
{
	return key_hash(rec->id, rec->sub, meta_record_type(rec));
}

static u32 next_slot(const struct meta_part *part, u32 at)
{
	return at + 1 == part->nr_slots ? 0 : at + 1;
}

/* Where the key is, or the free slot where it would go. The part has free slots. */
static u32 find_slot(const struct meta_part *part, u64 hash, const struct meta_record *rec)
{
	u32 at = home_of(hash, part->nr_slots);

	while (slot_word(&part->slots[at]) && !slot_is(&part->slots[at], rec))
		at = next_slot(part, at);
	return at;
}

static int part_grow(struct meta_part *part)
{
	u32 nr = part->nr_slots < 64 ? part->nr_slots * 2 + 8 : part->nr_slots + part->nr_slots / 4;
	struct meta_part grown = {.nr_slots = nr, .used = part->used, .reserved = part->reserved};

	if (nr <= part->nr_slots)
		return -ENOMEM;
	grown.slots = meta_realloc(NULL, (size_t)nr * sizeof(*grown.slots));
	if (!grown.slots)
		return -ENOMEM;
	memset(grown.slots, 0, (size_t)nr * sizeof(*grown.slots));
	for (u32 i = 0; i < part->nr_slots; i++) {
		u32 at;

		if (!slot_word(&part->slots[i]))
			continue;
		at = home_of(slot_hash(&part->slots[i]), nr);
		while (slot_word(&grown.slots[at]))
			at = next_slot(&grown, at);
		grown.slots[at] = part->slots[i];
	}
	free(part->slots);
	*part = grown;
	return 0;
}

static struct meta_part *part_of(struct meta_index *index, u64 hash)
{
	return &index->parts[hash >> 56];
}

int meta_index_reserve(struct meta_index *index, const struct meta_record *rec)
{
	struct meta_part *part = part_of(index, rec_hash(rec));

	if (meta_record_deleted(rec))
		return 0;
	while ((u64)part->used + part->reserved + 1 > (u64)part->nr_slots * 4 / 5) {
		int err = part_grow(part);

		if (err)
			return err;
	}
	part->reserved++;
	return 0;
}

void meta_index_unreserve(struct meta_index *index, const struct meta_record *rec)
{
	struct meta_part *part = part_of(index, rec_hash(rec));

	if (meta_record_deleted(rec))
		return;
	KVC_BUG_ON(!part->reserved);
	part->reserved--;
}

static void slot_remove(struct meta_part *part, u32 hole)
{
	u32 at = hole;

	for (;;) {
		u32 home;

		at = next_slot(part, at);
		if (!slot_word(&part->slots[at]))
			break;
		home = home_of(slot_hash(&part->slots[at]), part->nr_slots);
		/* An entry may move back to the hole unless its home lies behind the hole. */
		if (hole <= at ? (home > hole && home <= at) : (home > hole || home <= at))
			continue;
		part->slots[hole] = part->slots[at];
		hole = at;
	}
	part->slots[hole] = (struct meta_slot){0};
	part->used--;
}

u64 meta_index_apply(struct meta_index *index, const struct meta_record *rec)
{
	u64 hash = rec_hash(rec);
	struct meta_part *part = part_of(index, hash);
	u64 before = 0;
	u64 word;
	u32 at;

	meta_index_unreserve(index, rec);
	if (!part->nr_slots)
		return 0;
	at = find_slot(part, hash, rec);
	before = slot_serial(&part->slots[at]);
	if (before)
		index->live_bytes -= slot_bytes(&part->slots[at]);
	if (meta_record_deleted(rec)) {
		if (before) {
			slot_remove(part, at);
			index->keys--;
		}
		return before;
	}
	word = rec->serial << 16 | (u64)meta_record_type(rec) << 8 |
	       size_class(meta_record_bytes(rec));
	part->slots[at] = (struct meta_slot){.id_lo = (u32)rec->id, .id_hi = (u32)(rec->id >> 32),
					     .sub = rec->sub, .word_lo = (u32)word,
					     .word_hi = (u32)(word >> 32)};
	index->live_bytes += slot_bytes(&part->slots[at]);
	part->used += !before;
	index->keys += !before;
	return before;
}

bool meta_index_live(const struct meta_index *index, const struct meta_record *rec)
{
	u64 hash = rec_hash(rec);
	const struct meta_part *part = &index->parts[hash >> 56];

	return part->nr_slots && !meta_record_deleted(rec) &&
	       slot_serial(&part->slots[find_slot(part, hash, rec)]) == rec->serial;
}

u64 meta_index_memory(const struct meta_index *index)
{
	u64 bytes = sizeof(*index);

	for (int i = 0; i < META_INDEX_PARTS; i++)
		bytes += (u64)index->parts[i].nr_slots * sizeof(struct meta_slot);
	return bytes;
}

void meta_index_free(struct meta_index *index)
{
	for (int i = 0; i < META_INDEX_PARTS; i++)
		free(index->parts[i].slots);
	*index = (struct meta_index){0};
}
