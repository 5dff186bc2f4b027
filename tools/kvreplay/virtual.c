/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "allocator/base/hash.h"
#include "tools/kvreplay/replay.h"

#define VIRTUAL_FIRST_SIZE (1u << 16)

/* Where @seed is, or the empty slot where it would go. */
static u64 *slot_of(u64 *set, size_t size, u64 seed)
{
	size_t i = hash_u64(seed) & (size - 1);

	while (set[i] && set[i] != seed)
		i = (i + 1) & (size - 1);
	return &set[i];
}

static int double_set(struct virtual_target *v)
{
	size_t size = v->size ? 2 * v->size : VIRTUAL_FIRST_SIZE;
	u64 *set = calloc(size, sizeof(*set));

	if (!set)
		return -ENOMEM;
	for (size_t i = 0; i < v->size; i++)
		if (v->set[i])
			*slot_of(set, size, v->set[i]) = v->set[i];
	free(v->set);
	v->set = set;
	v->size = size;
	return 0;
}

static int set_add(struct virtual_target *v, u64 seed)
{
	u64 *slot;
	int err = 0;

	if (v->nr * 2 >= v->size)
		err = double_set(v);
	if (err)
		return err;
	slot = slot_of(v->set, v->size, seed);
	v->nr += !*slot;
	*slot = seed;
	return 0;
}

/* A block's seed chains over all ids before it: a set of seeds is a prefix index. */
static int virtual_run(struct replay_target *target, struct replay_worker *w,
		       struct report_record *record)
{
	struct virtual_target *v = container_of(target, struct virtual_target, target);
	const struct content *c = &w->content;
	size_t hit = 0;
	int err = 0;

	lock_acquire(&v->lock);
	while (hit < c->nr_blocks && *slot_of(v->set, v->size, c->seeds[hit]))
		hit++;
	for (size_t b = hit; b < c->nr_blocks && !err; b++)
		err = set_add(v, c->seeds[b]);
	lock_release(&v->lock);
	record->cached_tokens = (u32)hit * c->block_tokens;
	record->stored_tokens = (u32)c->nr_blocks * c->block_tokens;
	return err;
}

int virtual_open(struct virtual_target *v)
{
	*v = (struct virtual_target){.target.run = virtual_run};
	lock_init(&v->lock, LOCK_POOL);
	return double_set(v);
}

void virtual_close(struct virtual_target *v)
{
	free(v->set);
	lock_destroy(&v->lock);
}
