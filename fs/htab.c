/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "allocator/base/bug.h"
#include "fs/htab.h"

#define HTAB_MIN 64u
#define HTAB_MAX (1u << 30)

int htab_init(struct htab *tab)
{
	tab->buckets = calloc(HTAB_MIN, sizeof(*tab->buckets));
	tab->nr = 0;
	tab->mask = HTAB_MIN - 1;
	return tab->buckets ? 0 : -ENOMEM;
}

void htab_destroy(struct htab *tab)
{
	free(tab->buckets);
	tab->buckets = NULL;
}

static void htab_grow(struct htab *tab)
{
	u32 mask = tab->mask * 2 + 1;
	struct hnode **buckets;

	if (mask >= HTAB_MAX)
		return;
	buckets = calloc((size_t)mask + 1, sizeof(*buckets));
	if (!buckets)
		return;
	for (u32 i = 0; i <= tab->mask; i++) {
		struct hnode *node = tab->buckets[i];

		while (node) {
			struct hnode *next = node->next;

			node->next = buckets[node->hash & mask];
			buckets[node->hash & mask] = node;
			node = next;
		}
	}
	free(tab->buckets);
	tab->buckets = buckets;
	tab->mask = mask;
}

void htab_add(struct htab *tab, struct hnode *node, u64 hash)
{
	if (tab->nr > tab->mask)
		htab_grow(tab);
	node->hash = hash;
	node->next = tab->buckets[hash & tab->mask];
	tab->buckets[hash & tab->mask] = node;
	tab->nr++;
}

void htab_del(struct htab *tab, struct hnode *node)
{
	struct hnode **at = &tab->buckets[node->hash & tab->mask];

	while (*at && *at != node)
		at = &(*at)->next;
	KVC_BUG_ON(!*at);
	*at = node->next;
	tab->nr--;
}

static struct hnode *same_hash(struct hnode *node, u64 hash)
{
	while (node && node->hash != hash)
		node = node->next;
	return node;
}

struct hnode *htab_first(const struct htab *tab, u64 hash)
{
	return same_hash(tab->buckets[hash & tab->mask], hash);
}

struct hnode *htab_next(const struct hnode *node)
{
	return same_hash(node->next, node->hash);
}
