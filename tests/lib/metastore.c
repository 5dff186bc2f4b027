/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "lib/metastore.h"
#include "lib/test.h"

#define FILL_BYTES 900

/* Memory unless it is small: most tests sync a thousand times and are not about the disk. */
static const char *scratch_dir(void)
{
	const char *tmp = getenv("TMPDIR");
	struct statvfs st;

	if (tmp && strlen(tmp) < 40)
		return tmp;
	if (!statvfs("/dev/shm", &st) && (u64)st.f_bavail * st.f_frsize >= MIB(256) &&
	    !access("/dev/shm", W_OK))
		return "/dev/shm";
	return "/tmp";
}

void metastore_make_in(struct metastore *store, const char *dir)
{
	snprintf(store->path, sizeof(store->path), "%s/kvc-meta-XXXXXX", dir);
	assert_non_null(mkdtemp(store->path));
	store->dir_fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(store->dir_fd >= 0);
}

void metastore_make(struct metastore *store)
{
	metastore_make_in(store, scratch_dir());
}

void metastore_remove(struct metastore *store)
{
	DIR *dir = fdopendir(store->dir_fd);
	struct dirent *entry;

	assert_non_null(dir);
	rewinddir(dir);
	while ((entry = readdir(dir)))
		unlinkat(store->dir_fd, entry->d_name, 0);
	closedir(dir);
	assert_int_equal(rmdir(store->path), 0);
}

static u32 fill_bytes(u64 t)
{
	return (u32)(t * 37 % FILL_BYTES);
}

static void fill(u8 *bytes, u64 t)
{
	for (u32 i = 0; i < fill_bytes(t); i++)
		bytes[i] = (u8)(t * 31 + i);
}

void metastore_txn(struct meta_txn *txn, u64 t)
{
	struct meta_key last = {.id = 1, .type = 1};
	struct meta_key ring = {.id = 2, .sub = (u32)(t % METASTORE_RING), .type = 2};
	struct meta_key toggle = {.id = 3, .sub = (u32)(t % METASTORE_TOGGLE), .type = 3};
	u8 bytes[FILL_BYTES];

	fill(bytes, t);
	meta_txn_put(txn, last, &t, sizeof(t));
	meta_txn_putv(txn, ring, (struct iovec[]){{&t, sizeof(t)}, {bytes, fill_bytes(t)}}, 2);
	if (t / METASTORE_TOGGLE % 2)
		meta_txn_del(txn, toggle);
	else
		meta_txn_put(txn, toggle, &t, sizeof(t));
}

static bool ring_value_ok(u64 t, const u8 *value, u32 bytes)
{
	u8 expect[FILL_BYTES];

	fill(expect, t);
	return bytes == sizeof(t) + fill_bytes(t) &&
	       !memcmp(value + sizeof(t), expect, fill_bytes(t));
}

int metastore_load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct metastore_state *state = ctx;
	u64 *at = NULL;
	u64 t = 0;

	if (bytes >= sizeof(t))
		memcpy(&t, value, sizeof(t));
	if (key->id == 1 && key->type == 1 && key->sub == 0 && bytes == sizeof(t))
		at = &state->last;
	else if (key->id == 2 && key->type == 2 && key->sub < METASTORE_RING &&
		 ring_value_ok(t, value, bytes))
		at = &state->ring[key->sub];
	else if (key->id == 3 && key->type == 3 && key->sub < METASTORE_TOGGLE &&
		 bytes == sizeof(t))
		at = &state->toggle[key->sub];
	if (!t || !at || *at)
		state->nr_bad++;
	else
		*at = t;
	return 0;
}

/* The newest transaction up to @last that has remainder @rest, or 0. */
static u64 newest(u64 last, u64 rest, u64 modulus)
{
	u64 back = (last + modulus - rest) % modulus;

	return back < last ? last - back : 0;
}

bool metastore_check(const struct metastore_state *state)
{
	for (u64 i = 0; i < METASTORE_RING; i++)
		if (state->ring[i] != newest(state->last, i, METASTORE_RING))
			return false;
	for (u64 i = 0; i < METASTORE_TOGGLE; i++) {
		u64 t = newest(state->last, i, METASTORE_TOGGLE);

		if (state->toggle[i] != (t / METASTORE_TOGGLE % 2 ? 0 : t))
			return false;
	}
	return !state->nr_bad;
}

int metastore_open(struct metastore *store, const struct meta_opts *opts, struct meta **meta,
		   struct metastore_state *state, struct textbuf *why)
{
	const struct meta_opts create = {.create = true};

	*state = (struct metastore_state){0};
	return meta_open(meta, store->dir_fd, opts ? opts : &create,
					   &(struct meta_loader){metastore_load, state}, why);
}

int metastore_run(struct meta *meta, u64 from, u64 to)
{
	struct meta_txn txn = META_TXN_INIT;
	int err = 0;

	for (u64 t = from; t <= to && !err; t++) {
		u64 seq;

		metastore_txn(&txn, t);
		err = meta_submit(meta, &txn, &seq);
		if (!err)
			err = meta_commit(meta, seq);
	}
	meta_txn_free(&txn);
	return err;
}
