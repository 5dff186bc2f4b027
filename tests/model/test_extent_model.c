/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on an extent allocator against the dumbest model there is: an array of the
 * extents in use, searched in full. Run again with KVC_TEST_SEED, or the seed as the argument.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/extent.h"
#include "lib/test.h"

#define MAX_LIVE 3000
#define MAX_REFS 4096

static struct model {
	struct extents *ex;
	struct test_rng rng;
	struct extent_ref live[MAX_LIVE];
	u32 nr, next_owner;
	u64 used, size;
} m;

static struct extent_ref refs[MAX_REFS];

static u32 random_bytes(void)
{
	static const u32 strides[] = {16 << 10, 40 << 10,   64 << 10, 64 << 10, 1228 << 10,
				      2 << 20,	2560 << 10, 8 << 20,  20 << 20};

	if (test_rng_below(&m.rng, 3) == 0)
		return EXTENT_UNIT * (u32)(1 + test_rng_below(&m.rng, 16));
	if (test_rng_below(&m.rng, 40) == 0)
		return EXTENT_UNIT * (u32)(1 + test_rng_below(&m.rng, 6000));
	return strides[test_rng_below(&m.rng, ARRAY_SIZE(strides))];
}

/* An extent in use that shares bytes with [@off, @off + @bytes), or NULL. */
static const struct extent_ref *overlap(u64 off, u64 bytes)
{
	for (u32 i = 0; i < m.nr; i++)
		if (off < m.live[i].off + m.live[i].bytes && m.live[i].off < off + bytes)
			return &m.live[i];
	return NULL;
}

static void model_add(u64 off, u32 bytes, u32 owner)
{
	assert_int_equal(off % EXTENT_UNIT, 0);
	assert_true(off < m.size && bytes <= m.size - off);
	assert_null(overlap(off, bytes));
	m.live[m.nr++] = (struct extent_ref){off, bytes, owner};
	m.used += bytes;
}

static void free_one(u32 i)
{
	extents_free(m.ex, m.live[i].off, m.live[i].bytes);
	m.used -= m.live[i].bytes;
	m.live[i] = m.live[--m.nr];
}

static void op_alloc(void)
{
	u32 bytes = random_bytes(), owner = m.next_owner++;
	u64 near = EXTENT_NONE, off;
	int err;

	if (m.nr == MAX_LIVE)
		return;
	if (m.nr && test_rng_below(&m.rng, 2)) {
		const struct extent_ref *r = &m.live[test_rng_below(&m.rng, m.nr)];

		near = r->off + r->bytes;
		bytes = test_rng_below(&m.rng, 4) ? r->bytes : bytes;
	} else if (test_rng_below(&m.rng, 20) == 0) {
		near = test_rng_u64(&m.rng) >> test_rng_below(&m.rng, 64);
	}
	err = extents_alloc(m.ex, bytes, near, owner, &off);
	assert_true(!err || err == -ENOSPC);
	if (!err)
		model_add(off, bytes, owner);
}

static void op_free(void)
{
	u32 nr = test_rng_below(&m.rng, 2000) ? 1 : (u32)test_rng_below(&m.rng, 400);

	while (nr-- && m.nr)
		free_one((u32)test_rng_below(&m.rng, m.nr));
}

static void op_set_owner(void)
{
	struct extent_ref *r = &m.live[test_rng_below(&m.rng, m.nr)];

	if (!m.nr)
		return;
	r->owner = m.next_owner++;
	extents_set_owner(m.ex, r->off, r->bytes, r->owner);
}

/* Anything at all, as a damaged record might say. */
static void op_claim(void)
{
	u32 bytes = random_bytes(), owner = m.next_owner++;
	u64 off = test_rng_below(&m.rng, m.size / EXTENT_UNIT + 4) * EXTENT_UNIT;
	int err;

	if (m.nr == MAX_LIVE)
		return;
	if (test_rng_below(&m.rng, 20) == 0)
		bytes = (u32)test_rng_u64(&m.rng) >> test_rng_below(&m.rng, 32);
	if (test_rng_below(&m.rng, 3) == 0)
		off = off / KVC_HUGE_SIZE * KVC_HUGE_SIZE;
	err = extents_claim(m.ex, off, bytes, owner);
	assert_true(!err || err == -EINVAL || err == -EEXIST);
	if (!err)
		model_add(off, bytes, owner);
}

static bool movable(void *ctx, u32 owner)
{
	return owner % *(u32 *)ctx != 1;
}

static void check_ref(const struct extent_ref *r, const struct extent_run *run)
{
	const struct extent_ref *live = overlap(r->off, r->bytes);

	assert_non_null(live);
	assert_true(live->off == r->off && live->bytes == r->bytes && live->owner == r->owner);
	assert_true(r->off < run->off + run->bytes && run->off < r->off + r->bytes);
}

/* Move the victims, or free those that find no place; then there must be room. */
static void empty_run(u32 bytes, const struct extent_victims *v, u32 nr)
{
	u64 off;

	for (u32 i = 0; i < nr; i++) {
		const struct extent_ref *r = &refs[i];
		struct extent_ref *live = (struct extent_ref *)overlap(r->off, r->bytes);
		int err = extents_alloc_outside(m.ex, r->bytes, r->owner, &v->run, &off);

		assert_true(!err || err == -ENOSPC);
		free_one((u32)(live - m.live));
		if (err)
			continue;
		assert_true(off >= v->run.off + v->run.bytes || off + r->bytes <= v->run.off);
		model_add(off, r->bytes, r->owner);
	}
	assert_null(overlap(v->run.off, v->run.bytes));
	assert_int_equal(extents_alloc(m.ex, bytes, EXTENT_NONE, 0, &off), 0);
	extents_free(m.ex, off, bytes);
}

static void op_victims(void)
{
	u32 bytes = random_bytes(), pins = 2 + (u32)test_rng_below(&m.rng, 200);
	struct extent_victims v = {
		.movable = movable, .ctx = &pins, .refs = refs, .max = MAX_REFS};
	int nr = extents_find_victims(m.ex, bytes, &v);
	u64 off;

	assert_true(nr >= 0 || nr == -ENOSPC || nr == -E2BIG);
	if (nr == 0) {
		assert_int_equal(extents_alloc(m.ex, bytes, EXTENT_NONE, 0, &off), 0);
		extents_free(m.ex, off, bytes);
	}
	if (nr <= 0)
		return;
	assert_int_equal(extents_alloc(m.ex, bytes, EXTENT_NONE, 0, &off), -ENOSPC);
	for (int i = 0; i < nr; i++) {
		check_ref(&refs[i], &v.run);
		assert_true(movable(&pins, refs[i].owner));
	}
	empty_run(bytes, &v, (u32)nr);
}

/* A mount: claim everything in another order. */
static void op_rebuild(void)
{
	extents_destroy(m.ex);
	assert_int_equal(extents_create(&m.ex, m.size), 0);
	for (u32 i = m.nr; i; i--) {
		u32 k = (u32)test_rng_below(&m.rng, i);
		struct extent_ref r = m.live[k];

		m.live[k] = m.live[i - 1];
		m.live[i - 1] = r;
		assert_int_equal(extents_claim(m.ex, r.off, r.bytes, r.owner), 0);
	}
}

static void op_grow(void)
{
	if (m.size > GIB(1))
		return;
	m.size += MIB(2) * (1 + test_rng_below(&m.rng, 20));
	assert_int_equal(extents_grow(m.ex, m.size), 0);
}

static void step(void)
{
	u64 dice = test_rng_below(&m.rng, 10000);

	if (dice < 5400)
		op_alloc();
	else if (dice < 9000)
		op_free();
	else if (dice < 9500)
		op_claim();
	else if (dice < 9800)
		op_set_owner();
	else if (dice < 9985)
		op_victims();
	else if (dice < 9995)
		op_rebuild();
	else
		op_grow();
	assert_int_equal(extents_used(m.ex), m.used);
	assert_int_equal(extents_size(m.ex), m.size);
}

static void random_operations(void **state)
{
	test_rng_init(&m.rng);
	for (u32 round = 0; round < 5; round++) {
		m.size = MIB(2) * (1 + test_rng_below(&m.rng, round ? 300 : 40));
		assert_int_equal(extents_create(&m.ex, m.size), 0);
		for (u64 i = test_count(40000); i; i--)
			step();
		while (m.nr)
			free_one(m.nr - 1);
		assert_int_equal(m.used, 0);
		assert_int_equal(extents_free_pages(m.ex), m.size / MIB(2));
		extents_destroy(m.ex);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_operations)};

	if (argc > 1)
		setenv("KVC_TEST_SEED", argv[1], 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
