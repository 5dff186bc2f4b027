/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: find the newest generation, verify and index all of it, give out the live records, and
 * only then touch the disk.
 *
 * Every file is read twice from front to back, first for the index (which record is each key's
 * latest), then to hand out those records. Nothing is looked up on disk.
 *
 * Damage or torn tail? A frame that is wrong before the sealed end was acknowledged once: -EUCLEAN.
 * Behind the sealed end valid frames count (they were durable, or become so now), and the first
 * invalid one ends the journal. Whole files that are missing are found by the chain of bases:
 * checkpoint.G ends where journal.G begins, journal.G where journal.G+1 begins; a journal that says
 * CLOSED has a successor; a generation above 1 has a checkpoint.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/meta_types.h"

/** struct source - one file of the store and, once it was replayed, where its frames end. */
struct source {
	char name[META_NAME_BYTES];
	int fd;			/* -1: there is no such file */
	struct meta_head head;
	u64 size;
	struct meta_journal at;	/* fd unused */
};

struct recovery {
	struct meta *meta;
	struct textbuf *why;
	u64 generation;		/* newest checkpoint, or 1 */
	u64 max_checkpoint, max_journal;
	struct source checkpoint, journal, next;
};

static int damaged(struct recovery *rec, const char *name, const char *what)
{
	if (rec->why)
		textbuf_printf(rec->why,
			       "%s: %s; nothing was changed: check the disk, restore the store from a copy",
			       name, what);
	return kvc_err(-EUCLEAN, meta_damaged);
}

static int failed(struct recovery *rec, const char *name, int err)
{
	if (rec->why)
		textbuf_printf(rec->why, "%s: %s", name, strerror(-err));
	return err;
}

static bool parse_number(const char **text, u64 *number)
{
	const char *at = *text;

	*number = 0;
	if (*at < '1' || *at > '9')
		return false;
	for (; *at >= '0' && *at <= '9'; at++) {
		if (*number > UINT64_MAX / 10 - 1)
			return false;
		*number = *number * 10 + (u64)(*at - '0');
	}
	*text = at;
	return true;
}

/* journal.N, checkpoint.N, with or without .tmp; anything else in the directory is not ours. */
static bool parse_name(const char *name, enum meta_kind *kind, u64 *generation, bool *tmp)
{
	if (!strncmp(name, "journal.", 8)) {
		*kind = META_JOURNAL;
		name += 8;
	} else if (!strncmp(name, "checkpoint.", 11)) {
		*kind = META_CHECKPOINT;
		name += 11;
	} else {
		return false;
	}
	if (!parse_number(&name, generation))
		return false;
	*tmp = !strcmp(name, ".tmp");
	return *tmp || !*name;
}

static int open_dir(struct meta *meta, DIR **dir)
{
	int fd;
	int err = meta_open_file(meta->dir_fd, ".", O_RDONLY | O_DIRECTORY, &fd);

	if (err)
		return err;
	*dir = fdopendir(fd);
	if (*dir)
		return 0;
	close(fd);
	return -ENOMEM;
}

static int find_files(struct recovery *rec)
{
	struct dirent *entry;
	DIR *dir;
	int err;

	err = open_dir(rec->meta, &dir);
	if (err)
		return failed(rec, "store directory", err);
	while (errno = 0, (entry = readdir(dir))) {
		enum meta_kind kind;
		u64 generation;
		bool tmp;

		if (!parse_name(entry->d_name, &kind, &generation, &tmp) || tmp)
			continue;
		if (kind == META_JOURNAL)
			rec->max_journal = max(rec->max_journal, generation);
		else
			rec->max_checkpoint = max(rec->max_checkpoint, generation);
	}
	err = -errno;
	closedir(dir);
	return err ? failed(rec, "store directory", err) : 0;
}

void meta_unlink_stale(struct meta *meta, u64 keep)
{
	struct dirent *entry;
	DIR *dir;

	if (open_dir(meta, &dir))
		return;
	while ((entry = readdir(dir))) {
		enum meta_kind kind;
		u64 generation;
		bool tmp;

		if (parse_name(entry->d_name, &kind, &generation, &tmp) &&
		    (tmp || generation < keep))
			unlinkat(meta->dir_fd, entry->d_name, 0);
	}
	closedir(dir);
}

static int read_head(struct recovery *rec, struct source *src, enum meta_kind kind)
{
	const char *what = NULL;
	size_t got;
	int err;

	if (kind == META_JOURNAL) {
		err = meta_journal_read_seals(src->fd, &src->head, &what);
		if (err == -EUCLEAN && rec->why)
			textbuf_printf(rec->why, "seals of ");
	} else {
		err = meta_pread(src->fd, &src->head, sizeof(src->head), 0, &got);
		what = got < sizeof(src->head) ? "the file ends inside its head" :
						 meta_head_wrong(&src->head);
		if (!err && (what || src->head.kind != META_CHECKPOINT))
			err = -EUCLEAN;
	}
	if (err == -EUCLEAN)
		return damaged(rec, src->name, what ? what : "not a checkpoint");
	return err ? failed(rec, src->name, err) : 0;
}

static int source_open(struct recovery *rec, struct source *src, enum meta_kind kind,
		       u64 generation)
{
	struct stat st;
	int err;

	meta_name(src->name, kind, generation, false);
	err = meta_open_file(rec->meta->dir_fd, src->name,
			     kind == META_JOURNAL ? O_RDWR : O_RDONLY, &src->fd);
	if (err == -ENOENT)
		return 0;
	if (!err && fstat(src->fd, &st))
		err = -errno;
	if (err)
		return failed(rec, src->name, err);
	src->size = (u64)st.st_size;
	err = read_head(rec, src, kind);
	if (err)
		return err;
	if (src->head.generation != generation)
		return damaged(rec, src->name, "it belongs to another generation");
	if (src->head.end > src->size ||
	    (kind == META_CHECKPOINT && src->head.end != src->size))
		return damaged(rec, src->name, "its length is not what it was: truncated");
	return 0;
}

/* Do the files that are there belong together? */
static int sources_check(struct recovery *rec)
{
	const struct meta_head *checkpoint = &rec->checkpoint.head;	/* zeros when there is none */
	const struct meta_head *journal = &rec->journal.head;
	const struct meta_head *next = &rec->next.head;

	if (rec->generation > 1 && checkpoint->store != journal->store)
		return damaged(rec, rec->journal.name, "it belongs to another store");
	if (checkpoint->base_seq != journal->base_seq ||
	    checkpoint->base_serial != journal->base_serial)
		return damaged(rec, rec->journal.name, "it does not begin where the checkpoint ends");
	if (rec->next.fd < 0) {
		if (journal->flags & META_HEAD_CLOSED)
			return damaged(rec, rec->next.name, "missing, although the journal before it was closed");
		return 0;
	}
	if (next->store != journal->store || next->base_seq != journal->seq ||
	    next->base_serial != journal->serial)
		return damaged(rec, rec->next.name, "it does not begin where the journal before it ends");
	if (!(journal->flags & META_HEAD_CLOSED) && next->seq != next->base_seq)
		return damaged(rec, rec->journal.name, "not closed, although its successor is in use");
	return 0;
}

static int sources_open(struct recovery *rec)
{
	int err = 0;

	rec->generation = max(rec->max_checkpoint, (u64)1);
	if (rec->generation > 1)
		err = source_open(rec, &rec->checkpoint, META_CHECKPOINT, rec->generation);
	if (!err)
		err = source_open(rec, &rec->journal, META_JOURNAL, rec->generation);
	if (err)
		return err;
	if (rec->journal.fd < 0)
		return damaged(rec, rec->journal.name, rec->max_checkpoint ? "missing" :
			       "missing, and no checkpoint is there either");
	if (rec->max_journal > rec->generation + 1)
		return damaged(rec, "checkpoint", "missing: there are journals newer than any checkpoint");
	err = source_open(rec, &rec->next, META_JOURNAL, rec->generation + 1);
	return err ? err : sources_check(rec);
}

/* What the head says must be what its frames add up to, at the offset that it names. */
static bool head_agrees(const struct meta_head *head, const struct meta_reader *reader)
{
	return reader->off == head->end && reader->number == head->nr_frames &&
	       reader->nr_records == head->nr_records && reader->chain == head->chain &&
	       (head->kind != META_JOURNAL ||
		(reader->seq == head->seq && reader->serial == head->serial));
}

static int frame_error(struct recovery *rec, struct source *src, struct meta_reader *reader, int err)
{
	if (err != -EUCLEAN)
		return failed(rec, src->name, err);
	if (rec->why)
		textbuf_printf(rec->why, "frame at offset %" PRIu64 " of ", reader->off);
	return damaged(rec, src->name, reader->what);
}

static int index_frame(struct meta *meta, const struct meta_reader *reader)
{
	const struct meta_record *record = reader->records;

	for (u32 i = 0; i < reader->frame->nr_records; i++, record = meta_record_next(record)) {
		int err = meta_index_reserve(&meta->index, record);

		if (err)
			return err;
		meta_note(meta, record);
	}
	return 0;
}

static void source_ends(struct source *src, const struct meta_reader *reader)
{
	src->at = (struct meta_journal){
		.fd = -1,
		.generation = src->head.generation,
		.base_seq = src->head.base_seq,
		.base_serial = src->head.base_serial,
		.seq = reader->seq,
		.serial = reader->serial,
		.end = reader->off,
		.alloc_end = reader->off,
		.zero_end = reader->off,
		.nr_frames = reader->number,
		.nr_records = reader->nr_records,
		.chain = reader->chain,
		.count = src->head.count + 1,
	};
}

static int source_replay(struct recovery *rec, struct source *src)
{
	bool journal = src->head.kind == META_JOURNAL;
	struct meta_reader reader;
	int err = 0;

	if (src->fd < 0)
		return 0;
	meta_reader_init(&reader, src->fd, &src->head, src->size);
	for (;;) {
		if (reader.off >= src->head.end && reader.number <= src->head.nr_frames &&
		    !head_agrees(&src->head, &reader)) {
			err = damaged(rec, src->name, "its frames are not what its head or seal says");
			break;
		}
		if (!journal && reader.off == src->head.end)
			break;
		err = meta_reader_next(&reader);
		if (err == -EUCLEAN && journal && reader.off >= src->head.end) {
			err = 0;	/* torn tail, or simply the end */
			break;
		}
		if (!err)
			err = index_frame(rec->meta, &reader);
		if (err) {
			err = frame_error(rec, src, &reader, err);
			break;
		}
	}
	source_ends(src, &reader);
	meta_reader_free(&reader);
	return err;
}

static int load_frame(const struct meta *meta, const struct meta_reader *reader,
		      const struct meta_loader *loader)
{
	const struct meta_record *record = reader->records;
	int err = 0;

	for (u32 i = 0; i < reader->frame->nr_records && !err; i++) {
		struct meta_key key = {
			.id = record->id,
			.sub = record->sub,
			.type = meta_record_type(record),
		};

		if (meta_index_live(&meta->index, record))
			err = loader->fn(loader->ctx, &key, record + 1, meta_record_value_bytes(record));
		record = meta_record_next(record);
	}
	return err;
}

static int source_load(struct recovery *rec, struct source *src, const struct meta_loader *loader)
{
	struct meta_reader reader;
	int err = 0;

	if (src->fd < 0 || !loader->fn)
		return 0;
	meta_reader_init(&reader, src->fd, &src->head, src->at.end);
	while (!err && reader.off < src->at.end) {
		err = meta_reader_next(&reader);
		if (err)
			err = frame_error(rec, src, &reader, err);
		else
			err = load_frame(rec->meta, &reader, loader);
	}
	meta_reader_free(&reader);
	return err;
}

/* All sources into the index. A closed journal's successor is told apart for meta_note(). */
static int replay_all(struct recovery *rec)
{
	struct meta *meta = rec->meta;
	int err;

	meta->store = rec->journal.head.store;
	err = source_replay(rec, &rec->checkpoint);
	if (!err)
		err = source_replay(rec, &rec->journal);
	if (err)
		return err;
	if (rec->next.fd < 0) {
		meta->cur = rec->journal.at;
		meta->cur.fd = rec->journal.fd;
		return 0;
	}
	if (rec->journal.at.end != rec->journal.head.end)
		return damaged(rec, rec->journal.name, "frames behind the end at which it was closed");
	meta->old = rec->journal.at;
	meta->old.fd = rec->journal.fd;
	meta->old_keys = meta->index.keys;
	meta->cur.base_serial = rec->next.head.base_serial;
	err = source_replay(rec, &rec->next);
	meta->cur = rec->next.at;
	meta->cur.fd = rec->next.fd;
	return err;
}

/* From here on the disk is written. Frames that had no seal yet get one once they are durable. */
static int settle(struct recovery *rec)
{
	struct meta *meta = rec->meta;
	const struct meta_head *head = rec->next.fd < 0 ? &rec->journal.head : &rec->next.head;
	int err = 0;

	if (meta->cur.seq != head->seq) {
		err = meta_sync(meta->cur.fd);
		if (!err)
			err = meta_journal_seal(meta, &meta->cur, 0);
	}
	if (!err && meta->old.fd >= 0 && !(rec->journal.head.flags & META_HEAD_CLOSED)) {
		err = meta_journal_seal(meta, &meta->old, META_HEAD_CLOSED);
		if (!err)
			err = meta_sync(meta->old.fd);
	}
	if (err)
		return failed(rec, "journal", err);
	meta->checkpoint_generation = rec->generation;
	meta->checkpoint_bytes = rec->checkpoint.size;
	lock_acquire(&meta->lock);
	meta_journal_extend(meta);
	lock_release(&meta->lock);
	meta_unlink_stale(meta, rec->generation);
	return 0;
}

/* Generation 1 is an empty journal and no checkpoint: one rename makes it. */
static int create(struct recovery *rec)
{
	struct meta *meta = rec->meta;
	bool published;
	int err;

	if (!meta->opts.create)
		return failed(rec, "metadata", -ENOENT);
	if (getrandom(&meta->store, sizeof(meta->store), 0) != sizeof(meta->store))
		return failed(rec, "random number", -EIO);
	meta->cur.generation = 1;
	meta->checkpoint_generation = 1;
	err = meta_journal_create(meta, &meta->cur, meta->ahead / 2, &published);
	return err ? failed(rec, "journal.1", err) : 0;
}

int meta_recover(struct meta *meta, const struct meta_loader *loader, struct textbuf *why)
{
	struct recovery rec = {
		.meta = meta,
		.why = why,
		.checkpoint.fd = -1,
		.journal.fd = -1,
		.next.fd = -1,
	};
	int err;

	err = find_files(&rec);
	if (!err && !rec.max_journal && !rec.max_checkpoint)
		return create(&rec);
	if (!err)
		err = sources_open(&rec);
	if (!err)
		err = replay_all(&rec);
	if (!err)
		err = source_load(&rec, &rec.checkpoint, loader);
	if (!err)
		err = source_load(&rec, &rec.journal, loader);
	if (!err)
		err = source_load(&rec, &rec.next, loader);
	if (!err)
		err = settle(&rec);
	meta->submitted_seq = meta->cur.seq;
	meta->submitted_serial = meta->cur.serial;
	meta->kick_seq = meta->cur.seq;
	meta->durable_seq = meta->cur.seq;
	/* The journals belong to @meta once it knows their descriptors. */
	meta_close_fd(&rec.checkpoint.fd);
	if (meta->cur.fd != rec.journal.fd && meta->old.fd != rec.journal.fd)
		meta_close_fd(&rec.journal.fd);
	if (meta->cur.fd != rec.next.fd)
		meta_close_fd(&rec.next.fd);
	return err;
}
