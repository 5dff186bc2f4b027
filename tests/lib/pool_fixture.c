/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "lib/tier_flaky.h"
#include "allocator/base/textbuf.h"

static void fixture_open(struct pool_fixture *fx, const struct tier_ops *ops, u64 dram_bytes,
			 u64 nvme_bytes)
{
	struct pool_opts opts = {.high_pct = 90, .low_pct = 80};
	struct tier_opts topts = {.size_bytes = dram_bytes, .dirfd = -1, .numa_node = -1,
				  .hugepages = "off"};
	struct textbuf why = TEXTBUF_INIT;

	*fx = (struct pool_fixture){0};
	assert_int_equal(tier_open(&fx->dram, ops, "dram", &topts, &why), 0);
	if (nvme_bytes) {
		topts.size_bytes = nvme_bytes;
		assert_int_equal(tier_open(&fx->disk, &tier_null_ops, "disk", &topts, &why), 0);
		assert_int_equal(tier_flaky_open(&fx->flaky, fx->disk), 0);
	}
	opts.dram = fx->dram;
	opts.nvme = fx->flaky;
	assert_int_equal(pool_create(&fx->pool, &opts), 0);
	assert_int_equal(pool_start(fx->pool), 0);
	textbuf_free(&why);
}

void pool_fixture_open(struct pool_fixture *fx, u64 dram_bytes, u64 nvme_bytes)
{
	fixture_open(fx, &tier_null_ops, dram_bytes, nvme_bytes);
}

void pool_fixture_open_files(struct pool_fixture *fx, u64 dram_bytes, u64 nvme_bytes)
{
	fixture_open(fx, &tier_dram_ops, dram_bytes, nvme_bytes);
}

void pool_fixture_close(struct pool_fixture *fx)
{
	pool_destroy(fx->pool);
	if (fx->flaky)
		tier_close(fx->flaky);
	if (fx->disk)
		tier_close(fx->disk);
	tier_close(fx->dram);
}

static u64 word(u64 seed, u64 i)
{
	return (seed + i) * 0x9e3779b97f4a7c15ull ^ seed;
}

int pool_fixture_block(struct pool_fixture *fx, u32 bytes, u32 space, u64 seed,
		       struct block_id *id)
{
	struct pool_want want = {.bytes = bytes, .space = space, .near = BLOCK_NONE};
	void *addr;
	int err = pool_alloc(fx->pool, &want, 1, id);

	if (err)
		return err;
	err = pool_begin_write(fx->pool, *id, true, &addr);
	if (err) {
		pool_put(fx->pool, id, 1);
		return err;
	}
	for (u64 i = 0; i < bytes / 8; i++)
		((u64 *)addr)[i] = word(seed, i);
	pool_end_write(fx->pool, *id);
	return 0;
}

int pool_fixture_holds(struct pool_fixture *fx, struct block_id id, u64 seed)
{
	u64 words = pool_bytes(fx->pool, id) / 8;
	const void *addr;
	int err = pool_pin(fx->pool, id, &addr), same = 1;

	if (err)
		return err;
	for (u64 i = 0; i < words && same; i++)
		same = addr && ((const u64 *)addr)[i] == word(seed, i);
	pool_unpin(fx->pool, &id, 1);
	return same;
}
