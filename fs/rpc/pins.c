/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of block ids with counts: open addressing, deletion by shifting back. */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "fs/rpc/endpoint.h"

static u32 home(const struct pinset *pins, u32 id)
{
	return (u32)hash_u64(id) & (pins->size - 1);
}

/* Entry of @id, or the free one where it would go. There is always a free one. */
static u32 find(const struct pinset *pins, u32 id)
{
	u32 i = home(pins, id);

	while (pins->v[i].count && pins->v[i].id != id)
		i = (i + 1) & (pins->size - 1);
	return i;
}

int pins_reserve(struct pinset *pins, u32 nr)
{
	struct pinset grown = {.size = pins->size ? pins->size : 64};

	while ((u64)grown.size < ((u64)pins->nr + nr) * 2)
		grown.size *= 2;
	if (grown.size == pins->size)
		return 0;
	grown.v = calloc(grown.size, sizeof(*grown.v));
	if (!grown.v)
		return -ENOMEM;
	for (u32 i = 0; i < pins->size; i++)
		if (pins->v[i].count)
			grown.v[find(&grown, pins->v[i].id)] = pins->v[i];
	grown.nr = pins->nr;
	free(pins->v);
	*pins = grown;
	return 0;
}

bool pins_add(struct pinset *pins, struct block_id id)
{
	struct pinned *p = &pins->v[find(pins, id.v)];

	p->id = id.v;
	if (p->count++)
		return false;
	pins->nr++;
	return true;
}

bool pins_del(struct pinset *pins, struct block_id id)
{
	u32 i = find(pins, id.v), next;

	KVC_BUG_ON(!pins->v[i].count);
	if (--pins->v[i].count)
		return false;
	pins->nr--;
	for (next = (i + 1) & (pins->size - 1); pins->v[next].count;
	     next = (next + 1) & (pins->size - 1)) {
		u32 from_home = (next - home(pins, pins->v[next].id)) & (pins->size - 1);

		/* It may move to the gap unless it would come to lie before its home. */
		if (from_home < ((next - i) & (pins->size - 1)))
			continue;
		pins->v[i] = pins->v[next];
		pins->v[next].count = 0;
		i = next;
	}
	return true;
}

u32 pins_count(const struct pinset *pins, struct block_id id)
{
	return pins->size ? pins->v[find(pins, id.v)].count : 0;
}

void pins_free(struct pinset *pins)
{
	KVC_BUG_ON(pins->nr);
	free(pins->v);
	*pins = (struct pinset){0};
}
