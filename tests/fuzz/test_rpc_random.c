/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random batches of two clients at the dispatcher: commands that make sense in most fields, with some
 * bits flipped. Nothing may crash, and nothing may be held when both clients are gone.
 */
#include <stdio.h>
#include <string.h>
#include "fuzz/rpc_world.h"
#include "lib/test.h"

#define MAX_INPUT 8192u

/* Small numbers, powers of two and ends, where limits are. */
static u64 some(struct test_rng *rng)
{
	switch (test_rng_below(rng, 6)) {
	case 0:
		return test_rng_below(rng, 4);
	case 1:
		return test_rng_below(rng, 100);
	case 2:
		return 1ull << test_rng_below(rng, 64);
	case 3:
		return UINT64_MAX - test_rng_below(rng, 3);
	default:
		return test_rng_below(rng, 20);
	}
}

static struct kvc_ref some_ref(struct test_rng *rng)
{
	static const struct kvc_ref paths[] = {{1024, 4}, {1029, 4}, {1034, 6}, {1041, 6}, {1048, 1}};

	switch (test_rng_below(rng, 8)) {
	case 0:
		return (struct kvc_ref){(u32)some(rng), (u32)some(rng)};
	case 1:
		return paths[test_rng_below(rng, ARRAY_SIZE(paths))];
	case 2:
		return (struct kvc_ref){2048, (u32)test_rng_below(rng, 100) * 4};
	default:
		return (struct kvc_ref){4096, 16 * (u32)test_rng_below(rng, 64)};
	}
}

static void fill(struct test_rng *rng, struct kvc_cmd *cmd)
{
	switch (cmd->op) {
	case KVC_OP_OPEN:
		cmd->open.path = (struct kvc_ref){1024 + 5 * (u32)test_rng_below(rng, 2), 4};
		cmd->open.flags = test_rng_below(rng, 4) ? 3 : (u32)test_rng_below(rng, 8);
		break;
	case KVC_OP_MATCH:
		cmd->match.ids = (struct kvc_ref){2048, (u32)test_rng_below(rng, 100) * 4};
		cmd->match.flags = (u32)test_rng_below(rng, 2);
		break;
	case KVC_OP_MAP:
	case KVC_OP_UNMAP:
		cmd->map.first_block = test_rng_below(rng, 6);
		cmd->map.nr_blocks = test_rng_below(rng, 4) ? test_rng_below(rng, 8) : KVC_ALL;
		cmd->map.extents = (struct kvc_ref){4096, 1024};
		cmd->map.flags = (u32)test_rng_below(rng, 4);
		break;
	case KVC_OP_APPEND:
		cmd->append.tokens = (u32)test_rng_below(rng, 70);
		cmd->append.extents = (struct kvc_ref){4096, 1024};
		break;
	case KVC_OP_COMMIT:
		cmd->commit.tokens = (u32)test_rng_below(rng, 200);
		cmd->commit.ids = (struct kvc_ref){2048, (u32)test_rng_below(rng, 50) * 4};
		cmd->commit.durable = (u32)test_rng_below(rng, 2);
		break;
	case KVC_OP_FORK:
		cmd->fork.path = some_ref(rng);
		cmd->fork.tokens = test_rng_below(rng, 2) ? UINT32_MAX : (u32)some(rng);
		break;
	default:
		for (unsigned int i = 0; i < ARRAY_SIZE(cmd->room); i++)
			cmd->room[i] = some(rng);
	}
}

static void make_cmd(struct test_rng *rng, struct kvc_cmd *cmd)
{
	static const u16 often[] = {KVC_OP_OPEN,   KVC_OP_MATCH,  KVC_OP_MAP,
				    KVC_OP_APPEND, KVC_OP_COMMIT, KVC_OP_UNMAP};

	memset(cmd, 0, sizeof(*cmd));
	cmd->op = (u16)test_rng_below(rng, KVC_NR_OPS + 1);
	if (test_rng_below(rng, 4))
		cmd->op = often[test_rng_below(rng, ARRAY_SIZE(often))];
	cmd->handle = 1 + (u32)test_rng_below(rng, 3);
	fill(rng, cmd);
	if (test_rng_below(rng, 8) == 0)
		((u8 *)cmd)[test_rng_below(rng, sizeof(*cmd))] ^= (u8)(1u << test_rng_below(rng, 8));
	if (test_rng_below(rng, 16) == 0)
		cmd->map.extents = some_ref(rng);
}

static size_t make_input(struct test_rng *rng, u8 *data)
{
	size_t used = 0;

	while (used + 2 + 8 * sizeof(struct kvc_cmd) < MAX_INPUT) {
		u32 nr = (u32)test_rng_below(rng, 8), len = nr * (u32)sizeof(struct kvc_cmd);
		struct kvc_cmd cmd;

		if (test_rng_below(rng, 16) == 0)
			len = (u32)test_rng_below(rng, len + 1);
		data[used] = (u8)len;
		data[used + 1] = (u8)(len >> 8 | test_rng_below(rng, 16) << 4);
		for (u32 i = 0; i < nr; i++) {
			make_cmd(rng, &cmd);
			memcpy(data + used + 2 + i * sizeof(cmd), &cmd, sizeof(cmd));
		}
		used += 2 + len;
	}
	return used;
}

static void random_batches(void **state)
{
	u64 runs = test_count(2000);
	u8 *data = malloc(MAX_INPUT);
	struct test_rng rng;

	test_rng_init(&rng);
	for (u64 i = 0; i < runs; i++) {
		struct rpc_world *w = rpc_world_new();

		rpc_world_fuzz(w, data, make_input(&rng, data));
		rpc_world_free(w);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_batches)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
