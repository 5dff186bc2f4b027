/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/grow.h"
#include "allocator/written.h"

void written_free(struct written *w)
{
	free(w->ranges);
	*w = WRITTEN_INIT;
}

int written_reserve(struct written *w, u32 extra)
{
	return grow_array(&w->ranges, &w->max, (u64)w->nr + extra, sizeof(*w->ranges));
}

/* Index of the first range that ends behind @at (or, with @touching, at it). */
static u32 find(const struct written *w, u64 at, bool touching)
{
	u32 low = 0, high = w->nr;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (w->ranges[mid].to > at || (touching && w->ranges[mid].to == at))
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* Replace ranges [@first, @last) by the @nr ones in @with. */
static void splice(struct written *w, u32 first, u32 last, const struct written_range *with, u32 nr)
{
	KVC_BUG_ON(w->nr - (last - first) + nr > w->max);
	if (!w->max)
		return;
	memmove(w->ranges + first + nr, w->ranges + last, (w->nr - last) * sizeof(*w->ranges));
	if (nr)
		memcpy(w->ranges + first, with, nr * sizeof(*w->ranges));
	w->nr = w->nr - (last - first) + nr;
}

void written_add(struct written *w, u64 from, u64 to)
{
	u32 first = find(w, from, true), last = first;
	struct written_range r = {from, to};

	if (from >= to)
		return;
	for (; last < w->nr && w->ranges[last].from <= to; last++) {
		r.from = min(r.from, w->ranges[last].from);
		r.to = max(r.to, w->ranges[last].to);
	}
	splice(w, first, last, &r, 1);
}

void written_remove(struct written *w, u64 from, u64 to)
{
	u32 first = find(w, from, false), last = first, nr = 0;
	struct written_range rest[2];

	if (from >= to)
		return;
	for (; last < w->nr && w->ranges[last].from < to; last++) {
		if (w->ranges[last].from < from)
			rest[nr++] = (struct written_range){w->ranges[last].from, from};
		if (w->ranges[last].to > to)
			rest[nr++] = (struct written_range){to, w->ranges[last].to};
	}
	splice(w, first, last, rest, nr);
}

bool written_covers(const struct written *w, u64 from, u64 to)
{
	return from >= to || written_run(w, from) >= to;
}

u64 written_run(const struct written *w, u64 from)
{
	u32 i = find(w, from, false);

	return i < w->nr && w->ranges[i].from <= from ? w->ranges[i].to : from;
}

u32 written_count(const struct written *w, u64 from, u64 to)
{
	u32 first = find(w, from, false), i = first;

	while (i < w->nr && w->ranges[i].from < to)
		i++;
	return i - first;
}

void written_copy(struct written *w, const struct written *src, u64 from, u64 to)
{
	for (u32 i = find(src, from, false); i < src->nr && src->ranges[i].from < to; i++)
		written_add(w, max(from, src->ranges[i].from), min(to, src->ranges[i].to));
}
