/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the metadata store writes. All integers are little-endian, all structs a multiple of 8 bytes
 * without padding.
 *
 *   journal.G      seal slot 0 | seal slot 1 | frame 0 | frame 1 | ... | preallocated space
 *   checkpoint.G   head        | frame 0 | frame 1 | ... | end of file
 *
 * Slots, heads and frames start at multiples of 4 KiB. A frame is a header, records one after the
 * other, and zeros up to the next 4 KiB; the payload checksum covers the zeros too, so that a frame
 * has no byte that may change unseen. In a journal a frame is one group commit; in a checkpoint it
 * is a piece of about 256 KiB.
 *
 * Generation G of the store is checkpoint.G and journal.G, and during and after a checkpoint that
 * did not finish also journal.G+1. Generation 1 begins empty and has no checkpoint.1. Files called
 * *.tmp are unfinished and mean nothing.
 *
 * A seal slot or head fills 120 bytes of one 512-byte sector: a write torn by power loss leaves the
 * old or the new one. One that does not check out is therefore always damage, never an accident of
 * a crash, and the two slots of a journal always carry consecutive counts.
 */
#ifndef KVC_META_FORMAT_H
#define KVC_META_FORMAT_H

#include "allocator/base/compiler.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the metadata store writes host integers and needs a little-endian host"
#endif

#define META_HEAD_MAGIC	      0x6461654861746d4bull	/* "KmtaHead" */
#define META_FRAME_MAGIC      0x656d617246746d4bull	/* "KmtFrame" */
#define META_FORMAT	      1u
#define META_BLOCK	      4096u
#define META_JOURNAL_START    (2 * META_BLOCK)
#define META_CHECKPOINT_START META_BLOCK
#define META_HEAD_CLOSED      1ull	/* frames go on in the next generation's journal */
#define META_MAX_SERIAL	      ((1ull << 48) - 1)

enum meta_kind { META_JOURNAL = 1, META_CHECKPOINT = 2 };

/** struct meta_head - seal slot of a journal (two, count & 1 says which), head of a checkpoint. */
struct meta_head {
	u64 magic;
	u32 format;
	u32 kind;
	u64 store;		/* random number of this store; seed of the frames' checksums */
	u64 generation;
	u64 base_seq;		/* newest transaction before this journal; checkpoint: in it */
	u64 base_serial;	/* the same, record */
	u64 seq;		/* newest acknowledged transaction */
	u64 serial;		/* its last record */
	u64 end;		/* offset behind the last frame that counts */
	u64 nr_frames;		/* up to @end */
	u64 nr_records;		/* up to @end */
	u64 chain;		/* head_sum of the last frame before @end, or @store */
	u64 count;		/* seals of this journal, from 0 */
	u64 flags;
	u64 sum;		/* XXH3-64 of the fields above */
};

/** struct meta_frame - header of a frame. */
struct meta_frame {
	u64 magic;
	u64 generation;
	u64 number;		/* consecutive in the file, from 0 */
	u64 first_seq, last_seq;	/* transactions; 0 in a checkpoint */
	u64 first_serial;	/* of the first record; the rest follow by one; 0 in a checkpoint */
	u32 payload_bytes;	/* records, without the zeros behind them */
	u32 nr_records;
	u64 chain;		/* head_sum of the frame before, or the store's number */
	u64 payload_sum;	/* XXH3-64, seed @store, of all bytes behind this header */
	u64 head_sum;		/* XXH3-64, seed @store, of the fields above */
};

/** struct meta_record - one key's put or removal; the value follows, zero-filled to 8 bytes. */
struct meta_record {
	u64 id;
	u64 serial;	/* number of the record in the life of the store, from 1 */
	u32 sub;
	u32 what;	/* type in bits 0..7; bytes of the value above, or META_DELETED */
};

#define META_DELETED 0xffffffu

_Static_assert(sizeof(struct meta_head) == 120, "on-disk size");
_Static_assert(sizeof(struct meta_frame) == 80, "on-disk size");
_Static_assert(sizeof(struct meta_record) == 24, "on-disk size");

static inline u8 meta_record_type(const struct meta_record *rec)
{
	return (u8)rec->what;
}

static inline bool meta_record_deleted(const struct meta_record *rec)
{
	return rec->what >> 8 == META_DELETED;
}

/** meta_record_value_bytes() - length of the value, 0 for a removal. */
static inline u32 meta_record_value_bytes(const struct meta_record *rec)
{
	return meta_record_deleted(rec) ? 0 : rec->what >> 8;
}

/** meta_record_bytes() - length of record, value and fill. */
static inline u32 meta_record_bytes(const struct meta_record *rec)
{
	return (u32)sizeof(*rec) + (u32)round_up_pow2(meta_record_value_bytes(rec), 8);
}

static inline const struct meta_record *meta_record_next(const struct meta_record *rec)
{
	return (const void *)((const u8 *)rec + meta_record_bytes(rec));
}

/** meta_frame_bytes() - length of a frame on disk. */
static inline u64 meta_frame_bytes(u64 payload_bytes)
{
	return round_up_pow2(sizeof(struct meta_frame) + payload_bytes, META_BLOCK);
}

#endif
