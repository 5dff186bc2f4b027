/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata that do not fit together are refused with a line; those that do come back as they were.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "fs/fs_format.h"
#include "fs/persist.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"

static struct fs fs;
static struct fs_opts opts;
static struct pool_fixture fx;
static struct loader *loader;
static struct textbuf why;

static int setup(void **state)
{
	pool_fixture_open(&fx, MIB(16), 0);
	why = TEXTBUF_INIT;
	assert_int_equal(fs_init(&fs, &opts, fx.pool), 0);
	loader = loader_new(&fs);
	assert_non_null(loader);
	return 0;
}

static int teardown(void **state)
{
	loader_free(loader);
	textbuf_free(&why);
	fs_destroy(&fs);
	pool_fixture_close(&fx);
	return 0;
}

#define DIR(n)	 (((u64)KIND_DIR << INO_KIND_SHIFT) + (n))
#define PLAIN(n) (((u64)KIND_PLAIN << INO_KIND_SHIFT) + (n))

/** struct rec - the interesting parts of a record with one name. */
struct rec {
	u64 ino, parent, cookie;
	const char *name;
	u32 mode;
	const char *data;
};

static u32 encode(u8 *buf, struct rec r)
{
	struct fs_inode_record rec = {.version = FS_INODE_RECORD_VERSION,
				      .kind = (u8)ino_kind(r.ino),
				      .mode = r.mode,
				      .size = r.data ? strlen(r.data) : 0,
				      .nr_links = 1,
				      .inline_bytes = r.data ? (u32)strlen(r.data) : 0};
	struct fs_link_record link = {
		.parent = r.parent, .cookie = r.cookie, .len = (u8)strlen(r.name)};
	u32 at = 0;

	memcpy(buf, &rec, sizeof(rec));
	at += sizeof(rec);
	memcpy(buf + at, &link, sizeof(link));
	at += sizeof(link);
	memcpy(buf + at, r.name, link.len);
	at += link.len;
	memcpy(buf + at, r.data ? r.data : "", rec.inline_bytes);
	return at + rec.inline_bytes;
}

static int load(struct rec r)
{
	struct meta_key key = {.id = r.ino, .type = META_FS_INODE};
	u8 buf[1024];
	u32 bytes = encode(buf, r);

	return loader_record(loader, &key, buf, bytes);
}

static struct rec dir(u64 n, u64 parent, const char *name)
{
	return (struct rec){.ino = DIR(n),
			    .parent = parent,
			    .cookie = 100 + n,
			    .name = name,
			    .mode = S_IFDIR | 0755};
}

static struct rec file(u64 n, u64 parent, const char *name)
{
	return (struct rec){.ino = PLAIN(n),
			    .parent = parent,
			    .cookie = 200 + n,
			    .name = name,
			    .mode = S_IFREG | 0640,
			    .data = "bytes"};
}

static void bad_at_finish(const char *word)
{
	assert_int_equal(loader_finish(loader, &why), -EUCLEAN);
	assert_non_null(why.text);
	if (!strstr(why.text, word))
		fail_msg("says '%s', not '%s'", why.text, word);
}

static void test_any_order(void **state)
{
	struct inode *f, *d;

	assert_int_equal(load(file(7, DIR(3), "f")), 0);
	assert_int_equal(load(dir(3, DIR(2), "sub")), 0);
	assert_int_equal(load(dir(2, INO_ROOT, "d")), 0);
	assert_int_equal(loader_finish(loader, &why), 0);
	d = tree_find(&fs, fs.root, "d")->inode;
	f = tree_find(&fs, tree_find(&fs, d, "sub")->inode, "f")->inode;
	assert_int_equal(f->mode, S_IFREG | 0640);
	assert_int_equal(f->nlink, 1);
	assert_int_equal(f->body->size, 5);
	assert_int_equal(d->nlink, 3);
	assert_true(fs.next_ino[KIND_PLAIN] == PLAIN(8));
	assert_true(fs.next_ino[KIND_DIR] == DIR(4));
}

static void test_no_parent(void **state)
{
	assert_int_equal(load(file(7, DIR(9), "f")), 0);
	bad_at_finish("does not exist");
}

static void test_parent_is_a_file(void **state)
{
	assert_int_equal(load(file(7, INO_ROOT, "f")), 0);
	assert_int_equal(load(file(8, PLAIN(7), "g")), 0);
	bad_at_finish("does not exist");
}

static void test_ring(void **state)
{
	assert_int_equal(load(dir(2, DIR(3), "a")), 0);
	assert_int_equal(load(dir(3, DIR(2), "b")), 0);
	bad_at_finish("do not hang on the root");
}

static void test_name_twice(void **state)
{
	assert_int_equal(load(file(7, INO_ROOT, "f")), 0);
	assert_int_equal(load(file(8, INO_ROOT, "f")), 0);
	bad_at_finish("taken");
}

static void test_cookie_twice(void **state)
{
	struct rec a = file(7, INO_ROOT, "f"), b = file(8, INO_ROOT, "g");

	b.cookie = a.cookie;
	assert_int_equal(load(a), 0);
	assert_int_equal(load(b), 0);
	bad_at_finish("taken");
}

static void test_malformed(void **state)
{
	struct rec r = file(7, INO_ROOT, "f");
	struct meta_key key = {.id = r.ino, .type = META_FS_INODE};
	u8 buf[1024];
	u32 bytes = encode(buf, r);

	for (u32 n = 0; n < bytes; n++) {
		assert_int_equal(loader_record(loader, &key, buf, n), -EUCLEAN);
		fs_lock(&fs);
		inode_free_all(&fs);
		fs_unlock(&fs);
	}
	fs_destroy(&fs);
	assert_int_equal(fs_init(&fs, &opts, fx.pool), 0);
	r.mode = S_IFDIR | 0755;
	assert_int_equal(load(r), -EUCLEAN);
	r = file(7, INO_ROOT, "a/b");
	assert_int_equal(load(r), -EUCLEAN);
}

static void test_unknown_type(void **state)
{
	struct meta_key key = {.id = 1, .type = 60};

	assert_int_equal(loader_record(loader, &key, "", 0), -EUCLEAN);
	assert_non_null(strstr(loader_why(loader)->text, "unknown type"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_any_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_parent, setup, teardown),
		cmocka_unit_test_setup_teardown(test_parent_is_a_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ring, setup, teardown),
		cmocka_unit_test_setup_teardown(test_name_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cookie_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_malformed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unknown_type, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
