/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage to a metadata store that was closed cleanly, or was killed with a frame not yet
 * acknowledged. A flipped bit in a byte that means something is found and told; in a byte that
 * means nothing it changes nothing; nothing is ever wrong without a word.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/meta_types.h"
#include "lib/metastore.h"
#include "lib/test.h"

#define NR_TXNS 90u

/** struct image - a file of the store: which bytes mean something. */
struct image {
	char name[META_NAME_BYTES];
	u64 first_frame, end;
	u64 size;		/* the end and a little of what follows, if anything does */
};

static const struct meta_opts no_create = {.checkpoint_bytes = MIB(4)};
static const struct meta_opts create = {.create = true, .checkpoint_bytes = MIB(4)};

static u64 sealed_end(struct metastore *store, const char *name)
{
	struct meta_head heads[2] = {0};
	int fd = openat(store->dir_fd, name, O_RDONLY);

	assert_true(fd >= 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pread(fd, &heads[i], sizeof(heads[i]), i * META_BLOCK),
				 sizeof(heads[i]));
	close(fd);
	return heads[1].count > heads[0].count ? heads[1].end : heads[0].end;
}

static struct image image_of(struct metastore *store, enum meta_kind kind, u64 generation)
{
	struct image image = {.first_frame = kind == META_JOURNAL ? META_JOURNAL_START :
								    META_CHECKPOINT_START};
	struct stat st;

	meta_name(image.name, kind, generation, false);
	assert_int_equal(fstatat(store->dir_fd, image.name, &st, 0), 0);
	image.end = kind == META_JOURNAL ? sealed_end(store, image.name) : (u64)st.st_size;
	image.size = min(image.end + 2 * META_BLOCK, (u64)st.st_size);
	return image;
}

static bool meaningful(const struct image *image, u64 off)
{
	if (off < image->first_frame)
		return off % META_BLOCK < sizeof(struct meta_head);
	return off < image->end;
}

static void flip(struct metastore *store, const char *name, u64 bit)
{
	int fd = openat(store->dir_fd, name, O_RDWR);
	u8 byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
	byte ^= (u8)(1u << bit % 8);
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
	close(fd);
}

/* Open: refused with a line, or exactly transaction @last. Return: whether it was refused. */
static bool refused(struct metastore *store, u64 last)
{
	struct metastore_state state;
	struct textbuf why = TEXTBUF_INIT;
	struct meta *meta;
	int err = metastore_open(store, &no_create, &meta, &state, &why);

	if (err) {
		assert_int_equal(err, -EUCLEAN);
		assert_true(why.len > 20);
	} else {
		assert_true(metastore_check(&state));
		assert_int_equal(state.last, last);
		assert_int_equal(meta_close(meta), 0);
	}
	textbuf_free(&why);
	return err != 0;
}

static void attack(struct metastore *store, const struct image *image, u64 last)
{
	struct test_rng rng;
	u64 bits = image->size * 8;
	u64 nr = test_count(500);
	u64 nr_found = 0;

	test_rng_init(&rng);
	for (u64 i = 0; i < nr; i++) {
		/* Half of them evenly spread, half where headers are. */
		u64 bit = i % 2 ? bits / nr * i + test_rng_below(&rng, bits / nr) :
				  test_rng_below(&rng, bits / META_BLOCK / 8) * META_BLOCK * 8 +
					  test_rng_below(&rng, 128 * 8);
		bool found;

		flip(store, image->name, bit);
		found = refused(store, last);
		if (found != meaningful(image, bit / 8))
			fail_msg("%s: bit %llu: %s", image->name, (unsigned long long)bit,
				 found ? "refused but means nothing" : "not noticed");
		nr_found += found;
		flip(store, image->name, bit);
	}
	print_message("%s: %llu flips, %llu found, the others in dead bytes\n", image->name,
		      (unsigned long long)nr, (unsigned long long)nr_found);
	assert_false(refused(store, last));
}

static void truncate_and_restore(struct metastore *store, const struct image *image, u64 len,
				 u64 last)
{
	int fd = openat(store->dir_fd, image->name, O_RDWR);
	size_t lost = (size_t)(image->end - len);
	u8 *tail = malloc(lost);

	assert_true(fd >= 0);
	assert_non_null(tail);
	assert_int_equal(pread(fd, tail, lost, (off_t)len), lost);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_true(refused(store, last));
	assert_int_equal(pwrite(fd, tail, lost, (off_t)len), lost);
	close(fd);
	free(tail);
}

static void shorten(struct metastore *store, const struct image *image, u64 last)
{
	struct test_rng rng;

	test_rng_init(&rng);
	for (u64 i = 0; i < test_count(40); i++)
		truncate_and_restore(store, image, test_rng_below(&rng, image->end), last);
	truncate_and_restore(store, image, image->end - 1, last);
	truncate_and_restore(store, image, image->end - META_BLOCK, last);
	truncate_and_restore(store, image, image->first_frame, last);
	truncate_and_restore(store, image, 0, last);
	assert_int_equal(renameat(store->dir_fd, image->name, store->dir_fd, "away"), 0);
	assert_true(refused(store, last));
	assert_int_equal(renameat(store->dir_fd, "away", store->dir_fd, image->name), 0);
	assert_false(refused(store, last));
}

/* A frame moved, doubled or taken out of the middle of a file. */
static void shuffle(struct metastore *store, const struct image *image, u64 last)
{
	u64 nr = (image->end - image->first_frame) / META_BLOCK;
	int fd = openat(store->dir_fd, image->name, O_RDWR);
	u8 a[META_BLOCK], b[META_BLOCK];
	struct test_rng rng;

	assert_true(fd >= 0);
	test_rng_init(&rng);
	for (int i = 0; i < 20; i++) {
		off_t from = (off_t)(image->first_frame + test_rng_below(&rng, nr) * META_BLOCK);
		off_t to = (off_t)(image->first_frame + test_rng_below(&rng, nr) * META_BLOCK);

		if (from == to)
			continue;
		assert_int_equal(pread(fd, a, sizeof(a), from), sizeof(a));
		assert_int_equal(pread(fd, b, sizeof(b), to), sizeof(b));
		assert_int_equal(pwrite(fd, a, sizeof(a), to), sizeof(a));
		assert_true(refused(store, last));
		assert_int_equal(pwrite(fd, b, sizeof(b), to), sizeof(b));
	}
	close(fd);
}

static void open_ok(struct metastore *store, struct meta **meta, u64 last)
{
	struct metastore_state state;

	assert_int_equal(metastore_open(store, &create, meta, &state, NULL), 0);
	assert_true(metastore_check(&state));
	assert_int_equal(state.last, last);
}

/* checkpoint.2 and journal.2 with frames on top */
static void settled(void **unused)
{
	struct metastore store;
	struct meta *meta;
	struct image files[2];

	metastore_make(&store);
	open_ok(&store, &meta, 0);
	assert_int_equal(metastore_run(meta, 1, NR_TXNS - 20), 0);
	assert_int_equal(meta_checkpoint(meta), 0);
	assert_int_equal(metastore_run(meta, NR_TXNS - 19, NR_TXNS), 0);
	assert_int_equal(meta_close(meta), 0);
	files[0] = image_of(&store, META_CHECKPOINT, 2);
	files[1] = image_of(&store, META_JOURNAL, 2);
	for (unsigned int i = 0; i < ARRAY_SIZE(files); i++) {
		attack(&store, &files[i], NR_TXNS);
		shorten(&store, &files[i], NR_TXNS);
		shuffle(&store, &files[i], NR_TXNS);
	}
	metastore_remove(&store);
}

/* Turn to the next journal and leave the copy undone, as a kill in the middle of it would. */
static void rotate_only(struct meta *meta)
{
	lock_acquire(&meta->lock);
	meta->retry_at = UINT64_MAX;
	meta->want_rotate = true;
	waitq_wake_all(&meta->work);
	while (meta->want_rotate)
		waitq_wait(&meta->done, &meta->lock);
	assert_int_equal(meta->rotate_err, 0);
	lock_release(&meta->lock);
}

static int load_none(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	return -EINTR;
}

/* checkpoint.2, journal.2 (closed) and journal.3: refused opens must leave all three alone. */
static void between(void **unused)
{
	struct metastore store;
	struct metastore_state state;
	struct textbuf why = TEXTBUF_INIT;
	struct meta *meta;
	struct image files[3];
	struct test_rng rng;

	metastore_make(&store);
	open_ok(&store, &meta, 0);
	assert_int_equal(metastore_run(meta, 1, 40), 0);
	assert_int_equal(meta_checkpoint(meta), 0);
	assert_int_equal(metastore_run(meta, 41, 60), 0);
	rotate_only(meta);
	assert_int_equal(metastore_run(meta, 61, NR_TXNS), 0);
	assert_int_equal(meta_close(meta), 0);
	files[0] = image_of(&store, META_CHECKPOINT, 2);
	files[1] = image_of(&store, META_JOURNAL, 2);
	files[2] = image_of(&store, META_JOURNAL, 3);
	test_rng_init(&rng);
	for (u64 i = 0; i < test_count(600); i++) {
		const struct image *image = &files[i % 3];
		u64 off = test_rng_below(&rng, image->size);
		u64 bit = off * 8 + test_rng_below(&rng, 8);
		int err;

		flip(&store, image->name, bit);
		/* A load that stops the open keeps the checkpoint from being finished. */
		err = meta_open(&meta, store.dir_fd, &no_create,
						   &(struct meta_loader){load_none, NULL}, &why);
		assert_int_equal(err, meaningful(image, off) ? -EUCLEAN : -EINTR);
		flip(&store, image->name, bit);
	}
	for (int i = 0; i < 3; i++) {
		assert_int_equal(renameat(store.dir_fd, files[i].name, store.dir_fd, "away"), 0);
		assert_int_equal(meta_open(&meta, store.dir_fd, &no_create,
						   &(struct meta_loader){load_none, NULL}, &why),
				 -EUCLEAN);
		assert_int_equal(renameat(store.dir_fd, "away", store.dir_fd, files[i].name), 0);
	}
	textbuf_free(&why);
	assert_int_equal(metastore_open(&store, &create, &meta, &state, NULL), 0);
	assert_true(metastore_check(&state));
	assert_int_equal(state.last, NR_TXNS);
	assert_int_equal(meta_checkpoint(meta), 0);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(faccessat(store.dir_fd, files[1].name, F_OK, 0), -1);
	assert_false(refused(&store, NR_TXNS));
	metastore_remove(&store);
}

/* What was not acknowledged may come back whole or not at all; then the store goes on. */
static void tails(void **unused)
{
	struct test_rng rng;
	struct metastore store;
	struct meta *meta;

	test_rng_init(&rng);
	for (u64 i = 0; i < test_count(60); i++) {
		struct image image;
		u8 seals[2 * META_BLOCK];
		u64 last = 5;
		u64 extra;
		int fd;

		metastore_make(&store);
		open_ok(&store, &meta, 0);
		assert_int_equal(metastore_run(meta, 1, 5), 0);
		assert_int_equal(meta_close(meta), 0);
		fd = openat(store.dir_fd, "journal.1", O_RDWR);
		assert_int_equal(pread(fd, seals, sizeof(seals), 0), sizeof(seals));
		open_ok(&store, &meta, 5);
		assert_int_equal(metastore_run(meta, 6, 6), 0);
		assert_int_equal(meta_close(meta), 0);
		/* As if killed between the sync of the last frame and its seal. */
		assert_int_equal(pwrite(fd, seals, sizeof(seals), 0), sizeof(seals));
		image = image_of(&store, META_JOURNAL, 1);
		extra = test_rng_below(&rng, META_BLOCK);
		switch (i % 3) {
		case 0:		/* whole */
			last = 6;
			break;
		case 1:		/* a piece of it is missing */
			assert_int_equal(ftruncate(fd, (off_t)(image.end + extra)), 0);
			break;
		case 2:		/* torn inside */
			flip(&store, image.name, (image.end + extra) * 8 + i % 8);
			break;
		}
		close(fd);
		open_ok(&store, &meta, last);
		assert_int_equal(metastore_run(meta, last + 1, last + 9), 0);
		assert_int_equal(meta_close(meta), 0);
		assert_false(refused(&store, last + 9));
		metastore_remove(&store);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(settled),
		cmocka_unit_test(between),
		cmocka_unit_test(tails),
	};

	return cmocka_run_group_tests_name("meta_damage", tests, NULL, NULL);
}
