/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading frames: large sequential reads, and nothing is given out before the header's checksum,
 * the place in the file (generation, number, chain), the payload's checksum and the shape of every
 * record have been checked. What is wrong is said in @what; whether it is damage or a tail torn by
 * a crash is the caller's to decide, by where it is.
 */
#include <errno.h>
#include <string.h>
#include "allocator/meta_types.h"

#define READ_BYTES MIB(1)

void meta_reader_init(struct meta_reader *reader, int fd, const struct meta_head *head, u64 limit)
{
	*reader = (struct meta_reader){
		.fd = fd,
		.kind = head->kind,
		.store = head->store,
		.generation = head->generation,
		.off = head->kind == META_JOURNAL ? META_JOURNAL_START : META_CHECKPOINT_START,
		.limit = limit,
		.chain = head->store,
		.seq = head->base_seq,
		.serial = head->base_serial,
	};
	reader->buf_off = reader->off;
}

void meta_reader_free(struct meta_reader *reader)
{
	free(reader->buf);
	reader->buf = NULL;
}

static int wrong(struct meta_reader *reader, const char *what)
{
	reader->what = what;
	return -EUCLEAN;
}

/* Make @bytes from the next frame's start available in one piece. */
static int reader_fill(struct meta_reader *reader, size_t bytes)
{
	size_t have = (size_t)(reader->buf_off + reader->len - reader->off);
	size_t want, got;
	int err;

	if (have >= bytes)
		return 0;
	if (reader->off + bytes > reader->limit)
		return wrong(reader, "the file ends inside it");
	if (have)
		memmove(reader->buf, reader->buf + (reader->off - reader->buf_off), have);
	reader->buf_off = reader->off;
	reader->len = have;
	want = max(bytes, (size_t)READ_BYTES);
	if (want > reader->size) {
		u8 *buf = meta_realloc(reader->buf, want);

		if (!buf)
			return -ENOMEM;
		reader->buf = buf;
		reader->size = want;
	}
	want = (size_t)min((u64)reader->size, reader->limit - reader->off);
	err = meta_pread(reader->fd, reader->buf + have, want - have, reader->off + have, &got);
	if (err)
		return err;
	reader->len += got;
	return reader->len < bytes ? wrong(reader, "the file ends inside it") : 0;
}

static const char *frame_head_wrong(const struct meta_reader *r, const struct meta_frame *f)
{
	bool journal = r->kind == META_JOURNAL;

	if (f->magic != META_FRAME_MAGIC)
		return "no frame there";
	if (f->head_sum != hash_bytes_seed(f, offsetof(struct meta_frame, head_sum), r->store))
		return "header checksum wrong";
	if (f->generation != r->generation)
		return "it belongs to another generation";
	if (f->number != r->number || f->chain != r->chain)
		return "it does not follow the frame before it";
	if (f->payload_bytes > META_MAX_FRAME)
		return "longer than any frame may be";
	if (journal && (f->first_seq != r->seq + 1 || f->last_seq < f->first_seq ||
			f->first_serial != r->serial + 1))
		return "transactions are not consecutive";
	if (!journal && (f->first_seq || f->last_seq || f->first_serial))
		return "a journal's frame in a checkpoint";
	return NULL;
}

static const char *records_wrong(const struct meta_reader *r, const struct meta_frame *f)
{
	const u8 *at = (const u8 *)(f + 1);
	const u8 *end = at + f->payload_bytes;
	bool journal = r->kind == META_JOURNAL;
	u64 serial = f->first_serial;

	if (f->payload_bytes % 8)
		return "length not a multiple of 8";
	for (u32 i = 0; i < f->nr_records; i++) {
		const struct meta_record *rec = (const void *)at;

		if ((size_t)(end - at) < sizeof(*rec) ||
		    meta_record_value_bytes(rec) > META_MAX_RECORD ||
		    (size_t)(end - at) < meta_record_bytes(rec))
			return "a record reaches over its end";
		if (!meta_record_type(rec))
			return "a record has no type";
		if (journal ? rec->serial != serial++ :
			      !rec->serial || rec->serial > r->serial || meta_record_deleted(rec))
			return "a record does not belong there";
		if (rec->serial > META_MAX_SERIAL)
			return "a record's number is too large";
		at += meta_record_bytes(rec);
	}
	return at == end ? NULL : "bytes left behind its last record";
}

int meta_reader_next(struct meta_reader *reader)
{
	const struct meta_frame *frame;
	const char *what;
	size_t bytes;
	int err;

	err = reader_fill(reader, META_BLOCK);
	if (err)
		return err;
	frame = (const void *)(reader->buf + (reader->off - reader->buf_off));
	what = frame_head_wrong(reader, frame);
	if (what)
		return wrong(reader, what);
	bytes = meta_frame_bytes(frame->payload_bytes);
	err = reader_fill(reader, bytes);
	if (err)
		return err;
	frame = (const void *)(reader->buf + (reader->off - reader->buf_off));
	if (frame->payload_sum !=
	    hash_bytes_seed(frame + 1, bytes - sizeof(*frame), reader->store))
		return wrong(reader, "payload checksum wrong");
	what = records_wrong(reader, frame);
	if (what)
		return wrong(reader, what);
	reader->frame = frame;
	reader->records = (const void *)(frame + 1);
	reader->off += bytes;
	reader->number++;
	reader->chain = frame->head_sum;
	reader->nr_records += frame->nr_records;
	if (reader->kind == META_JOURNAL) {
		reader->seq = frame->last_seq;
		reader->serial += frame->nr_records;
	}
	return 0;
}
