/* SPDX-License-Identifier: Apache-2.0 */
/* Names and directory listings: random operations against a plain array, cookies under removal. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "fs/fs.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"

static struct fs fs;
static struct fs_opts opts;
static struct pool_fixture fx;

static int setup(void **state)
{
	pool_fixture_open(&fx, MIB(16), 0);
	assert_int_equal(fs_init(&fs, &opts, fx.pool), 0);
	fs_lock(&fs);
	return 0;
}

static int teardown(void **state)
{
	fs_unlock(&fs);
	fs_destroy(&fs);
	pool_fixture_close(&fx);
	return 0;
}

static struct inode *make(struct inode *dir, const char *name, bool is_dir)
{
	struct inode *inode = inode_new(&fs, is_dir ? KIND_DIR : KIND_PLAIN,
					is_dir ? S_IFDIR | 0755 : S_IFREG | 0644);

	assert_non_null(inode);
	assert_non_null(tree_add(&fs, dir, name, inode, 0));
	return inode;
}

static void drop(struct dentry *d)
{
	struct inode *inode = d->inode;

	tree_del(&fs, d);
	inode_drop_if_unused(&fs, inode);
}

static void test_names(void **state)
{
	struct inode *d = make(fs.root, "d", true), *f = make(d, "f", false);

	assert_ptr_equal(tree_find(&fs, d, "f")->inode, f);
	assert_null(tree_find(&fs, fs.root, "f"));
	assert_null(tree_find(&fs, d, "F"));
	assert_non_null(tree_add(&fs, fs.root, "link", f, 0));
	assert_int_equal(f->nlink, 2);
	assert_int_equal(fs.root->nlink, 3);
	assert_int_equal(d->nlink, 2);
	drop(tree_find(&fs, d, "f"));
	assert_int_equal(f->nlink, 1);
	assert_ptr_equal(tree_find(&fs, fs.root, "link")->inode, f);
	assert_true(dir_empty(d));
	assert_true(tree_is_below(d, fs.root));
	assert_false(tree_is_below(fs.root, d));
}

static void test_move_and_swap(void **state)
{
	struct inode *a = make(fs.root, "a", true), *b = make(fs.root, "b", true);
	struct inode *sub = make(a, "sub", true), *f = make(b, "f", false);
	struct textbuf tb = TEXTBUF_INIT;

	assert_non_null(tree_move(&fs, tree_find(&fs, a, "sub"), b, "s p"));
	assert_null(tree_find(&fs, a, "sub"));
	assert_int_equal(a->nlink, 2);
	assert_int_equal(b->nlink, 3);
	tree_path(sub, &tb);
	assert_string_equal(tb.text, "b/s\\040p");
	textbuf_free(&tb);
	assert_non_null(tree_move(&fs, tree_find(&fs, b, "s p"), a, "s"));
	tree_swap(tree_find(&fs, a, "s"), tree_find(&fs, b, "f"));
	assert_ptr_equal(tree_find(&fs, a, "s")->inode, f);
	assert_ptr_equal(tree_find(&fs, b, "f")->inode, sub);
	assert_int_equal(a->nlink, 2);
	assert_int_equal(b->nlink, 3);
	assert_ptr_equal(dir_parent(sub), b);
}

static void test_geometry_lists_first(void **state)
{
	char name[16];

	for (unsigned int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		make(fs.root, name, false);
	}
	make(fs.root, ".geometry", false);
	assert_string_equal(dir_next(fs.root, 0)->name, ".geometry");
	drop(tree_find(&fs, fs.root, ".geometry"));
	assert_string_equal(dir_next(fs.root, 0)->name, "f0");
	make(fs.root, ".geometry", false);
	assert_string_equal(dir_next(fs.root, 0)->name, ".geometry");
}

/* Whatever is removed or added meanwhile, a listing gives every name that stays, once, in order. */
static void test_cookies_survive(void **state)
{
	const u32 nr = 4000;
	struct test_rng rng;
	u8 *alive = calloc(nr, 1), *seen = calloc(nr, 1);
	u64 cookie = 0;
	struct dentry *d;
	char name[16];
	u32 late = nr;

	test_rng_init(&rng);
	for (u32 i = 0; i < nr; i++) {
		snprintf(name, sizeof(name), "%u", i);
		make(fs.root, name, false);
		alive[i] = 1;
	}
	while ((d = dir_next(fs.root, cookie))) {
		u32 i = (u32)strtoul(d->name, NULL, 10);

		assert_true(d->cookie > cookie);
		cookie = d->cookie;
		if (i < nr) {
			assert_true(alive[i] && !seen[i]);
			seen[i] = 1;
		}
		for (unsigned int k = 0; k < 2; k++) {
			u32 victim = (u32)test_rng_below(&rng, nr);

			snprintf(name, sizeof(name), "%u", victim);
			if (alive[victim])
				drop(tree_find(&fs, fs.root, name));
			alive[victim] = 0;
		}
		if (late < 2 * nr) {
			snprintf(name, sizeof(name), "%u", late++);
			make(fs.root, name, false);
		}
	}
	for (u32 i = 0; i < nr; i++)
		assert_true(seen[i] || !alive[i]);
	free(alive);
	free(seen);
}

static void test_walk(void **state)
{
	static const char *const want[] = {"a", "a1", "a2", "a21", "b", "c"};
	struct inode *a = make(fs.root, "a", true), *a2;
	struct dentry *d = NULL;
	unsigned int n = 0;

	make(a, "a1", false);
	a2 = make(a, "a2", true);
	make(a2, "a21", false);
	make(fs.root, "b", true);
	make(fs.root, "c", false);
	while ((d = tree_walk(fs.root, d)))
		assert_string_equal(d->name, want[n++]);
	assert_int_equal(n, ARRAY_SIZE(want));
	n = 1;
	while ((d = tree_walk(a, d)))
		assert_string_equal(d->name, want[n++]);
	assert_int_equal(n, 4);
	assert_null(tree_walk(make(fs.root, "e", true), NULL));
}

/* A nameless file lives while the kernel remembers it; its bytes only while it is open. */
static void test_lifetime(void **state)
{
	struct inode *f = make(fs.root, "f", false);
	u64 ino = f->ino;

	f->nlookup = 1;
	f->nr_open = 1;
	assert_non_null(inode_body(&fs, f));
	drop(tree_find(&fs, fs.root, "f"));
	assert_ptr_equal(inode_find(&fs, ino), f);
	assert_non_null(f->body);
	f->nr_open = 0;
	inode_drop_if_unused(&fs, f);
	assert_ptr_equal(inode_find(&fs, ino), f);
	assert_null(f->body);
	f->nlookup = 0;
	inode_drop_if_unused(&fs, f);
	assert_null(inode_find(&fs, ino));
}

static void test_gates(void **state)
{
	struct inode *f = make(fs.root, "f", false), *g = make(fs.root, "g", false);
	struct gates a = GATES_INIT, b = GATES_INIT;

	gates_add(&a, f, false);
	gates_add(&a, NULL, true);
	gates_add(&a, f, true);
	gates_add(&a, g, false);
	assert_int_equal(a.nr, 2);
	assert_true(gates_take(&fs, &a));
	assert_true(f->gate_alone);
	assert_int_equal(g->gate_shared, 1);
	gates_add(&b, g, false);
	assert_true(gates_take(&fs, &b));
	assert_int_equal(g->gate_shared, 2);
	gates_drop(&fs, &b);
	gates_drop(&fs, &a);
	assert_false(f->gate_alone);
	assert_int_equal(g->gate_shared, 0);
}

/* At most 300 bytes a file, all included: measured over what malloc has given out. */
static void test_memory_per_file(void **state)
{
	const size_t nr = test_count(100000);
	size_t before = mallinfo2().uordblks + mallinfo2().hblkhd, after;
	char name[48];

	for (size_t i = 0; i < nr; i++) {
		snprintf(name, sizeof(name), "a-name-of-20-b-%05zu", i);
		make(fs.root, name, false);
	}
	after = mallinfo2().uordblks + mallinfo2().hblkhd;
	print_message("%zu bytes per file\n", (after - before) / nr);
	assert_true(nr < 50000 || (after - before) / nr <= 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_names, setup, teardown),
		cmocka_unit_test_setup_teardown(test_move_and_swap, setup, teardown),
		cmocka_unit_test_setup_teardown(test_geometry_lists_first, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cookies_survive, setup, teardown),
		cmocka_unit_test_setup_teardown(test_walk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lifetime, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gates, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_per_file, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
