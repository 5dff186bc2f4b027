/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvdecode/kv.h"

static size_t block_bytes(const struct kv_store *s)
{
	return sizeof(float) * KV_BLOCK_TOKENS * 2 * s->layers * s->kv_heads * s->head_dim;
}

/* One piece of memory has all blocks; what is not reserved is never touched and costs nothing. */
static int mem_open(struct kv_store *store, const char *name, const u32 *ids, u32 nr, struct kv **out)
{
	size_t blocks = div_round_up(store->max_tokens, KV_BLOCK_TOKENS);
	struct kv *kv = calloc(1, sizeof(*kv) + blocks * sizeof(*kv->block));
	u8 *memory = calloc(blocks, block_bytes(store));

	if (!kv || !memory) {
		cli_error("out of memory");
		free(kv);
		free(memory);
		return -ENOMEM;
	}
	kv->store = store;
	kv->block = (u8 **)(kv + 1);
	for (size_t i = 0; i < blocks; i++)
		kv->block[i] = memory + i * block_bytes(store);
	*out = kv;
	return 0;
}

static int mem_reserve(struct kv *kv, u32 reserved)
{
	kv->reserved = reserved;
	return 0;
}

static int mem_commit(struct kv *kv, u32 tokens, const u32 *ids)
{
	kv->tokens = tokens;
	return 0;
}

static int mem_fork(struct kv *kv, const char *name, struct kv **child)
{
	int err = mem_open(kv->store, name, NULL, 0, child);

	if (err)
		return err;
	(*child)->tokens = (*child)->reserved = kv->tokens;
	memcpy((*child)->block[0], kv->block[0],
	       div_round_up(kv->tokens, KV_BLOCK_TOKENS) * block_bytes(kv->store));
	return 0;
}

static void mem_close(struct kv *kv)
{
	free(kv->block[0]);
	free(kv);
}

static void mem_destroy(struct kv_store *store)
{
	free(store);
}

int kv_mem_store(const struct kv_store *shape, struct kv_store **out)
{
	static const struct kv_ops ops = {mem_open, mem_reserve, mem_commit, mem_fork, mem_close, mem_destroy};
	struct kv_store *store = calloc(1, sizeof(*store));

	if (!store)
		return -ENOMEM;
	*store = *shape;
	store->ops = &ops;
	*out = store;
	return 0;
}
