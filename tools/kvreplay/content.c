/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "allocator/base/hash.h"
#include "tools/kvreplay/content.h"

#define CONTENT_ID_MASK	     0x1ffffu /* ids below 131,072, as of a real vocabulary */
#define CONTENT_ROOT_SEED    0x6b76726570ull
#define CONTENT_OUTPUT_FLAG  (1ull << 63) /* no trace block has such an id (TRACE_MAX_ID) */
#define CONTENT_STEP	     0x9e3779b97f4a7c15ull

u32 content_id(u64 id, u32 offset)
{
	return (u32)hash_u64(hash_u64(id + 1) + (offset + 1) * CONTENT_STEP) & CONTENT_ID_MASK;
}

static int grow(void **array, size_t *size, size_t need, size_t member)
{
	void *more;

	if (need <= *size)
		return 0;
	need += need / 2;
	more = reallocarray(*array, need, member);
	if (!more)
		return -ENOMEM;
	*array = more;
	*size = need;
	return 0;
}

static int grow_ids(struct content *c, size_t tokens)
{
	return grow((void **)&c->ids, &c->ids_size, tokens, sizeof(*c->ids)) ?:
	       grow((void **)&c->seeds, &c->seeds_size, tokens / c->block_tokens + 1,
		    sizeof(*c->seeds));
}

/* Ids of one trace block, cut at @end. */
static size_t put_unit(struct content *c, size_t at, size_t end, u64 id, u32 unit)
{
	u64 base = hash_u64(id + 1);

	for (u32 offset = 0; offset < unit && at < end; offset++)
		c->ids[at++] = (u32)hash_u64(base + (offset + 1) * CONTENT_STEP) & CONTENT_ID_MASK;
	return at;
}

static void chain_seeds(struct content *c, size_t from, size_t to)
{
	u64 seed = from ? c->seeds[from - 1] : CONTENT_ROOT_SEED;

	for (size_t b = from; b < to; b++) {
		seed = hash128_bytes(c->ids + b * c->block_tokens,
				     (size_t)c->block_tokens * sizeof(*c->ids), seed).lo;
		c->seeds[b] = seed;
	}
}

int content_build(struct content *c, const struct trace_request *rq)
{
	size_t end, at = 0;
	int err;

	c->nr_blocks = rq->known_tokens / c->block_tokens;
	end = c->nr_blocks * c->block_tokens;
	err = grow_ids(c, end);
	if (err)
		return err;
	for (size_t r = 0; r < rq->nr_runs && at < end; r++)
		for (u64 i = 0; i < rq->runs[r].nr && at < end; i++)
			at = put_unit(c, at, end, rq->runs[r].first + i, rq->unit_tokens);
	chain_seeds(c, 0, c->nr_blocks);
	return 0;
}

int content_add_output(struct content *c, u64 unique, u32 tokens)
{
	size_t from = c->nr_blocks * c->block_tokens;
	size_t padded = (from + tokens + c->block_tokens - 1) / c->block_tokens * c->block_tokens;
	int err = grow_ids(c, padded);

	if (err)
		return err;
	for (size_t i = 0; from + i < padded; i++)
		c->ids[from + i] = content_id(unique | CONTENT_OUTPUT_FLAG, (u32)i);
	chain_seeds(c, c->nr_blocks, padded / c->block_tokens);
	return 0;
}

static inline u64 content_word(u64 seed, u64 index)
{
	return seed + index * CONTENT_STEP;
}

void content_fill(void *buf, u64 seed, size_t offset, size_t bytes)
{
	u8 *at = buf;
	u64 index = offset / 8, word;
	size_t skip = offset % 8, n;

	if (skip && bytes) {
		word = content_word(seed, index++);
		n = min((size_t)8 - skip, bytes);
		memcpy(at, (u8 *)&word + skip, n);
		at += n;
		bytes -= n;
	}
	for (word = content_word(seed, index); bytes >= 8; bytes -= 8, at += 8) {
		memcpy(at, &word, 8);
		word += CONTENT_STEP;
	}
	memcpy(at, &word, bytes);
}

bool content_check(const void *buf, u64 seed, size_t offset, size_t bytes)
{
	const u8 *at = buf;
	u64 expect[512];

	while (bytes) {
		size_t n = min(bytes, sizeof(expect));

		content_fill(expect, seed, offset, n);
		if (memcmp(at, expect, n))
			return false;
		at += n;
		offset += n;
		bytes -= n;
	}
	return true;
}

void content_free(struct content *c)
{
	free(c->ids);
	free(c->seeds);
	c->ids = NULL;
	c->seeds = NULL;
	c->ids_size = c->seeds_size = c->nr_blocks = 0;
}
