/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/extent.h"
#include "lib/test.h"

#define SIZE_40K ((u32)KIB(40))
#define SIZE_8M	 ((u32)MIB(8))

static struct extents *make(u64 bytes)
{
	struct extents *ex;

	assert_int_equal(extents_create(&ex, bytes), 0);
	return ex;
}

static u64 take(struct extents *ex, u32 bytes, u64 near)
{
	u64 off;

	assert_int_equal(extents_alloc(ex, bytes, near, 7, &off), 0);
	assert_int_equal(off % EXTENT_UNIT, 0);
	assert_true(off + bytes <= extents_size(ex));
	return off;
}

static void sizes(void **state)
{
	struct extents *ex;

	assert_int_equal(extents_create(&ex, MIB(2) - 1), -EINVAL);
	for (u64 bytes = EXTENT_UNIT; bytes < MIB(2); bytes += EXTENT_UNIT) {
		u64 taken = extents_slot_bytes((u32)bytes);

		assert_true(taken >= bytes && (taken - bytes) * 16 <= taken);
	}
	assert_int_equal(extents_slot_bytes((u32)KIB(64)), KIB(64));
	assert_int_equal(extents_slot_bytes((u32)MIB(2)), MIB(2));
	assert_int_equal(extents_slot_bytes((u32)MIB(20)), MIB(20));
	assert_int_equal(extents_slot_bytes((u32)MIB(20) + EXTENT_UNIT), MIB(22));
	assert_true(extents_slot_bytes((u32)KIB(2560)) <= KIB(2560) * 17 / 16 + KIB(64));
	ex = make(MIB(7));
	assert_int_equal(extents_size(ex), MIB(6));
	assert_int_equal(extents_free_pages(ex), 3);
	extents_destroy(ex);
}

static void large_costs_its_pages(void **state)
{
	struct extents *ex = make(MIB(320));
	u64 off[16], more;

	for (int i = 0; i < 16; i++) {
		assert_int_equal(extents_free_pages(ex), 160 - 10 * i);
		off[i] = take(ex, (u32)MIB(20), EXTENT_NONE);
	}
	assert_int_equal(extents_alloc(ex, (u32)MIB(2), EXTENT_NONE, 0, &more), -ENOSPC);
	assert_int_equal(extents_used(ex), MIB(320));
	for (int i = 0; i < 16; i++)
		extents_free(ex, off[i], (u32)MIB(20));
	assert_int_equal(extents_used(ex), 0);
	assert_int_equal(take(ex, (u32)MIB(256), EXTENT_NONE), 0);
	extents_destroy(ex);
}

static void largest_extent(void **state)
{
	struct extents *ex = make(GIB(2));
	u64 off = take(ex, (u32)EXTENT_MAX_BYTES, EXTENT_NONE);

	take(ex, (u32)EXTENT_MAX_BYTES, off + EXTENT_MAX_BYTES);
	assert_int_equal(extents_free_pages(ex), 0);
	extents_free(ex, off, (u32)EXTENT_MAX_BYTES);
	assert_int_equal(extents_free_pages(ex), 512);
	extents_destroy(ex);
}

/* Bytes in runs of 2 MiB or more, of @nr extents allocated one behind the other. */
static u64 sequential(struct extents *ex, u32 bytes, unsigned int nr)
{
	u64 near = EXTENT_NONE, run = 0, in_long = 0;

	for (unsigned int i = 0; i < nr; i++) {
		u64 off = take(ex, bytes, near);

		if (off != near) {
			in_long += run >= MIB(2) ? run : 0;
			run = 0;
		}
		run += bytes;
		near = off + bytes;
	}
	return in_long + (run >= MIB(2) ? run : 0);
}

static void sequences_form_runs(void **state)
{
	static const u64 kib[] = {4, 12, 16, 40, 60, 64, 100, 1228, 2560};

	for (unsigned int i = 0; i < ARRAY_SIZE(kib); i++) {
		struct extents *ex = make(GIB(2));
		u32 bytes = (u32)KIB(kib[i]);
		unsigned int nr = (unsigned int)(GIB(1) / bytes);

		assert_true(sequential(ex, bytes, nr) >= (u64)nr * bytes * 98 / 100);
		extents_destroy(ex);
	}
}

static void two_growing_sequences_part(void **state)
{
	struct extents *ex = make(GIB(1));
	u64 near[2] = {EXTENT_NONE, EXTENT_NONE};
	unsigned int breaks = 0;

	for (unsigned int i = 0; i < 10000; i++) {
		u64 off = take(ex, SIZE_40K, near[i & 1]);

		breaks += off != near[i & 1];
		near[i & 1] = off + SIZE_40K;
	}
	/* 10000 * 40 KiB are 100 pairs of slabs */
	assert_true(breaks <= 140);
	extents_destroy(ex);
}

static void fresh_goes_to_fullest(void **state)
{
	struct extents *ex = make(MIB(64));
	u32 bytes = (u32)MIB(1);
	u64 off[16];

	for (int i = 0; i < 16; i++)
		off[i] = take(ex, bytes, i ? off[i - 1] + bytes : EXTENT_NONE);
	for (int i = 0; i < 16; i++)
		if (i != 6)
			extents_free(ex, off[i], bytes);
	/* a flush: cached slots are nearer than any slab */
	assert_int_equal(extents_free_pages(ex), 31);
	assert_int_equal(take(ex, bytes, EXTENT_NONE), off[7]);
	extents_destroy(ex);
}

static void cached_slots_are_free(void **state)
{
	struct extents *ex = make(MIB(2));
	u64 off[32], big;

	for (int i = 0; i < 32; i++)
		off[i] = take(ex, (u32)KIB(64), EXTENT_NONE);
	for (int i = 0; i < 32; i++) {
		extents_free(ex, off[i], (u32)KIB(64));
		assert_int_equal(extents_used(ex), KIB(64) * (31 - i));
	}
	assert_int_equal(extents_alloc(ex, (u32)MIB(2), EXTENT_NONE, 1, &big), 0);
	assert_int_equal(extents_used(ex), MIB(2));
	extents_destroy(ex);
}

static void many_sizes(void **state)
{
	struct extents *ex = make(MIB(256));
	u64 off[40], used = 0;

	for (u32 round = 0; round < 20; round++) {
		for (u32 i = 0; i < 40; i++) {
			off[i] = take(ex, (i + 1) * EXTENT_UNIT, EXTENT_NONE);
			used += (i + 1) * EXTENT_UNIT;
		}
		assert_int_equal(extents_used(ex), used);
		for (u32 i = 0; i < 40; i++)
			extents_free(ex, off[i], (i + 1) * EXTENT_UNIT);
		used = 0;
	}
	assert_int_equal(extents_used(ex), 0);
	assert_int_equal(extents_free_pages(ex), 128);
	extents_destroy(ex);
}

static void grows(void **state)
{
	struct extents *ex = make(MIB(2));
	u64 off = take(ex, (u32)MIB(2), EXTENT_NONE), more;

	assert_int_equal(extents_alloc(ex, EXTENT_UNIT, EXTENT_NONE, 0, &more), -ENOSPC);
	assert_int_equal(extents_grow(ex, MIB(1)), -EINVAL);
	assert_int_equal(extents_grow(ex, GIB(100)), 0);
	assert_int_equal(extents_free_pages(ex), 51199);
	more = take(ex, (u32)MIB(64), off + MIB(2));
	assert_int_equal(more, MIB(2));
	extents_free(ex, off, (u32)MIB(2));
	extents_free(ex, more, (u32)MIB(64));
	assert_int_equal(extents_free_pages(ex), 51200);
	assert_int_equal(extents_grow(ex, UINT64_MAX), -EINVAL);
	extents_destroy(ex);
}

static const u32 mixed[] = {4096, 12288, SIZE_40K, 65536, 1228 << 10, 2560 << 10, 2 << 20, 20 << 20};

static void claim_rebuilds(void **state)
{
	struct extents *ex = make(GIB(1)), *twin = make(GIB(1));
	struct textbuf a = TEXTBUF_INIT, b = TEXTBUF_INIT;
	struct extent_ref ref[400];
	struct test_rng rng;
	u64 used = 0;

	test_rng_init(&rng);
	for (u32 i = 0; i < ARRAY_SIZE(ref); i++) {
		ref[i] = (struct extent_ref){.bytes = mixed[test_rng_below(&rng, i < 20 ? 8 : 7)]};
		ref[i].off = take(ex, ref[i].bytes, EXTENT_NONE);
		used += ref[i].bytes;
	}
	for (u32 i = ARRAY_SIZE(ref); i; i--) {
		u32 j = (u32)test_rng_below(&rng, i);
		struct extent_ref r = ref[j];

		ref[j] = ref[i - 1];
		assert_int_equal(extents_claim(twin, r.off, r.bytes, i), 0);
		assert_int_equal(extents_claim(twin, r.off, r.bytes, i), -EEXIST);
		ref[i - 1] = r;
	}
	assert_int_equal(extents_used(twin), used);
	extents_to_text(ex, &a);
	extents_to_text(twin, &b);
	assert_string_equal(a.text, b.text);
	for (u32 i = 0; i < ARRAY_SIZE(ref); i++)
		extents_free(twin, ref[i].off, ref[i].bytes);
	assert_int_equal(extents_free_pages(twin), 512);
	textbuf_free(&a);
	textbuf_free(&b);
	extents_destroy(ex);
	extents_destroy(twin);
}

static void claim_refuses(void **state)
{
	struct extents *ex = make(MIB(64));
	u64 off;

	assert_int_equal(extents_claim(ex, MIB(64), 4096, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, MIB(64) - 4096, 8192, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, UINT64_MAX - 4095, 8192, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, 0, 0, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, 0, 100, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, 2048, 4096, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, 0, UINT32_MAX, 0), -EINVAL);
	assert_int_equal(extents_claim(ex, 4096, (u32)KIB(8), 0), -EINVAL);
	assert_int_equal(extents_claim(ex, MIB(1), (u32)MIB(2), 0), -EINVAL);
	assert_int_equal(extents_claim(ex, MIB(2), (u32)MIB(4), 0), 0);
	assert_int_equal(extents_claim(ex, MIB(4), (u32)MIB(2), 0), -EEXIST);
	assert_int_equal(extents_claim(ex, MIB(4), 4096, 0), -EEXIST);
	assert_int_equal(extents_claim(ex, MIB(32), 4096, 0), 0);
	assert_int_equal(extents_claim(ex, MIB(32) + 8192, 8192, 0), -EEXIST);
	/* a slot that only a cache holds is free */
	off = take(ex, (u32)KIB(64), EXTENT_NONE);
	extents_free(ex, off, (u32)KIB(64));
	assert_int_equal(extents_claim(ex, off, (u32)KIB(64), 0), 0);
	assert_int_equal(extents_used(ex), MIB(4) + 4096 + KIB(64));
	extents_destroy(ex);
}

/* A slab that the end of the space cuts off is none. */
static void claim_at_the_end(void **state)
{
	struct extents *ex = make(MIB(18));

	assert_int_equal(extents_claim(ex, MIB(16), (u32)KIB(1228), 0), -EINVAL);
	assert_int_equal(extents_claim(ex, MIB(16), (u32)KIB(64), 0), 0);
	extents_destroy(ex);
}

static void frees_twice(void *arg)
{
	struct extents *ex = make(MIB(2));
	u64 off = take(ex, *(u32 *)arg, EXTENT_NONE);

	extents_free(ex, off, *(u32 *)arg);
	extents_free(ex, off, *(u32 *)arg);
}

static void double_free_aborts(void **state)
{
	u32 small = 4096, large = (u32)MIB(2);

	assert_true(test_aborts(frees_twice, &small));
	assert_true(test_aborts(frees_twice, &large));
}

/* Empty one run for @bytes by moving, as reclaim does. Return: false when that cannot be done. */
static bool make_room(struct extents *ex, u32 bytes, struct extent_victims *v)
{
	int nr = extents_find_victims(ex, bytes, v);

	assert_true(nr >= 0 || nr == -ENOSPC || nr == -E2BIG);
	for (int i = 0; i < nr; i++) {
		const struct extent_ref *r = &v->refs[i];
		u64 off;

		if (extents_alloc_outside(ex, r->bytes, r->owner, &v->run, &off))
			return false;
		assert_true(off + r->bytes <= v->run.off || off >= v->run.off + v->run.bytes);
		extents_free(ex, r->off, r->bytes);
	}
	return nr > 0;
}

/* 40 KiB extents fill the space, all but 5 % go: nine tenths of it must be had as 8 MiB ones. */
static void scattered_extents_move(void **state)
{
	u64 size = MIB(768), *off, got = 0, unused;
	struct extent_ref refs[512];
	struct extent_victims v = {.refs = refs, .max = ARRAY_SIZE(refs)};
	struct extents *ex = make(size);
	struct test_rng rng;
	u32 nr = 0;

	test_rng_init(&rng);
	off = kvc_alloc_array(size / SIZE_40K, sizeof(*off));
	assert_non_null(off);
	while (!extents_alloc(ex, SIZE_40K, nr ? off[nr - 1] + SIZE_40K : EXTENT_NONE, nr, &off[nr]))
		nr++;
	assert_true(nr >= size / SIZE_40K * 99 / 100);
	for (u32 i = 0; i < nr; i++)
		if (test_rng_below(&rng, 100) >= 5)
			extents_free(ex, off[i], SIZE_40K);
	for (;;) {
		if (!extents_alloc(ex, SIZE_8M, EXTENT_NONE, UINT32_MAX - 2, &unused))
			got += SIZE_8M;
		else if (!make_room(ex, SIZE_8M, &v))
			break;
	}
	print_message("8 MiB extents got %llu %% of the space\n",
		      (unsigned long long)(got * 100 / size));
	assert_true(got >= size * 9 / 10);
	free(off);
	extents_destroy(ex);
}

static bool is_even(void *ctx, u32 owner)
{
	++*(unsigned int *)ctx;
	return owner % 2 == 0;
}

static void victims_respect_pins(void **state)
{
	struct extents *ex = make(MIB(8));
	struct extent_ref refs[64];
	unsigned int asked = 0;
	struct extent_victims v = {
		.movable = is_even, .ctx = &asked, .refs = refs, .max = ARRAY_SIZE(refs)};

	/* page 0: one extent that must stay; 1: three; 2: two; 3: full */
	assert_int_equal(extents_claim(ex, 0, 65536, 1), 0);
	for (u32 i = 0; i < 3; i++)
		assert_int_equal(extents_claim(ex, MIB(2) + i * 65536, 65536, 2), 0);
	for (u32 i = 0; i < 2; i++)
		assert_int_equal(extents_claim(ex, MIB(4) + i * 65536, 65536, 4 + 2 * i), 0);
	for (u32 i = 0; i < 32; i++)
		assert_int_equal(extents_claim(ex, MIB(6) + i * 65536, 65536, 2), 0);
	assert_int_equal(extents_find_victims(ex, 65536, &v), 0);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(2), &v), 2);
	assert_true(v.run.off == MIB(4) && v.run.bytes == MIB(2));
	assert_true(refs[0].off == MIB(4) && refs[0].bytes == 65536 && refs[0].owner == 4);
	assert_int_equal(refs[1].owner, 6);
	assert_true(asked <= 38);
	/* the cheapest has an extent that must stay now */
	extents_set_owner(ex, MIB(4), 65536, 3);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(2), &v), 3);
	assert_int_equal(v.run.off, MIB(2));
	assert_int_equal(extents_find_victims(ex, (u32)MIB(4), &v), -ENOSPC);
	extents_set_owner(ex, MIB(4), 65536, 4);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(4), &v), 34);
	assert_int_equal(v.run.off, MIB(4));
	v.max = 1;
	assert_int_equal(extents_find_victims(ex, (u32)MIB(4), &v), -E2BIG);
	extents_set_owner(ex, MIB(4), 65536, EXTENT_NO_OWNER);
	v.movable = NULL;
	v.max = ARRAY_SIZE(refs);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(6), &v), -ENOSPC);
	extents_destroy(ex);
}

/* Large extents of odd places are victims too, and a free block is not counted in whole. */
static void victims_among_runs(void **state)
{
	struct extents *ex = make(MIB(64));
	struct extent_ref refs[8];
	struct extent_victims v = {.refs = refs, .max = ARRAY_SIZE(refs)};
	u64 off;

	assert_int_equal(extents_claim(ex, MIB(30), (u32)MIB(4), 9), 0);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(30), &v), 0);
	assert_int_equal(extents_find_victims(ex, (u32)MIB(40), &v), 1);
	assert_true(refs[0].off == MIB(30) && refs[0].bytes == MIB(4) && refs[0].owner == 9);
	assert_true(v.run.bytes == MIB(40) && v.run.off <= MIB(30));
	assert_int_equal(extents_alloc_outside(ex, (u32)MIB(4), 9, &v.run, &off), 0);
	assert_true(off >= v.run.off + v.run.bytes || off + MIB(4) <= v.run.off);
	extents_free(ex, MIB(30), (u32)MIB(4));
	take(ex, (u32)MIB(40), EXTENT_NONE);
	assert_int_equal(extents_claim(ex, MIB(50), (u32)MIB(2), 9), 0);
	/* aligned slabs: 1228 KiB ones take 16 MiB */
	assert_int_equal(extents_find_victims(ex, (u32)KIB(1228), &v), 1);
	extents_destroy(ex);
}

#define NR_KEPT 64

struct worker {
	struct extents *ex;
	struct test_rng rng;
	u32 owner;
	u64 ops, used;
	struct extent_ref kept[NR_KEPT];
};

static void worker_step(struct worker *w)
{
	struct extent_ref *r = &w->kept[test_rng_below(&w->rng, NR_KEPT)];
	u64 near = test_rng_below(&w->rng, 2) ? w->kept[0].off + w->kept[0].bytes : EXTENT_NONE;

	if (r->bytes) {
		extents_set_owner(w->ex, r->off, r->bytes, w->owner + 2);
		extents_free(w->ex, r->off, r->bytes);
		w->used -= r->bytes;
		r->bytes = 0;
		return;
	}
	r->bytes = mixed[test_rng_below(&w->rng, ARRAY_SIZE(mixed))];
	if (extents_alloc(w->ex, r->bytes, near, w->owner, &r->off))
		r->bytes = 0;
	w->used += r->bytes;
}

static void *worker_run(void *arg)
{
	struct worker *w = arg;
	struct extent_ref refs[64];
	struct extent_victims v = {.refs = refs, .max = ARRAY_SIZE(refs)};

	for (u64 i = 0; i < w->ops; i++) {
		worker_step(w);
		if (i % 256 == 0)
			(void)!extents_find_victims(w->ex, SIZE_8M, &v);
		if (i % 64 == 0 && extents_used(w->ex) > extents_size(w->ex))
			abort();
	}
	return NULL;
}

static void threads_share(void **state)
{
	struct extents *ex = make(MIB(384));
	struct worker w[2];
	pthread_t thread[2];

	memset(w, 0, sizeof(w));
	for (u32 i = 0; i < 2; i++) {
		w[i].ex = ex;
		w[i].owner = i;
		w[i].ops = test_count(100000);
		test_rng_init(&w[i].rng);
		w[i].rng.state += i;
		assert_int_equal(pthread_create(&thread[i], NULL, worker_run, &w[i]), 0);
	}
	for (u32 i = 0; i < 2; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(extents_used(ex), w[0].used + w[1].used);
	for (u32 i = 0; i < 2; i++)
		for (u32 k = 0; k < NR_KEPT; k++)
			if (w[i].kept[k].bytes)
				extents_free(ex, w[i].kept[k].off, w[i].kept[k].bytes);
	assert_int_equal(extents_used(ex), 0);
	assert_int_equal(extents_free_pages(ex), 192);
	extents_destroy(ex);
}

static void tells_in_text(void **state)
{
	struct extents *ex = make(MIB(8));
	struct textbuf tb = TEXTBUF_INIT;

	take(ex, SIZE_40K, EXTENT_NONE);
	extents_to_text(ex, &tb);
	assert_non_null(strstr(tb.text, "size 40960 slabs 1 slots 51 used 1\n"));
	assert_non_null(strstr(tb.text, "free 2 pages 1\n"));
	textbuf_free(&tb);
	extents_destroy(ex);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(large_costs_its_pages),
		cmocka_unit_test(largest_extent),
		cmocka_unit_test(sequences_form_runs),
		cmocka_unit_test(two_growing_sequences_part),
		cmocka_unit_test(fresh_goes_to_fullest),
		cmocka_unit_test(cached_slots_are_free),
		cmocka_unit_test(many_sizes),
		cmocka_unit_test(grows),
		cmocka_unit_test(claim_rebuilds),
		cmocka_unit_test(claim_refuses),
		cmocka_unit_test(claim_at_the_end),
		cmocka_unit_test(double_free_aborts),
		cmocka_unit_test(scattered_extents_move),
		cmocka_unit_test(victims_respect_pins),
		cmocka_unit_test(victims_among_runs),
		cmocka_unit_test(threads_share),
		cmocka_unit_test(tells_in_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
