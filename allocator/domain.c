/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trust domains: who may see which of DRAM's slabs.
 *
 * A client is given slabs whole, so a slab holds blocks of one domain only: the namespaces of one
 * owner that have the same permissions. Domain 0 has what no client is ever given (plain files), and at first every slab.
 *
 * Each domain has an extent allocator over all of DRAM in which the slabs of others are taken. A slab
 * changes hands when nothing is in it: its run is claimed in the one allocator and freed in the other.
 * One that never had bytes in it goes at once, and with it half of those that the other does not use.
 * One that had gets a fresh file first (tier_renew()): what was in it, and what will be, stays within
 * its domain, whatever descriptors clients still have. A pool file's number is of one slab in one
 * domain, and is never used again.
 *
 * When no slab is empty, one is emptied by moving its blocks within their domain, if that has so much
 * free room; reclaim sees to that, by evicting the coldest blocks of all. With one domain none of this
 * ever happens.
 *
 * Who had blocks once keeps one slab, so that the pins of others cannot leave him without any. Who comes
 * later, when clients have something mapped in every slab, finds none: his blocks are guests of domain
 * 0, whose slabs no client is given, until somebody wants to map them. For that, domain 0 keeps a slab
 * where there are many.
 */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/pool_types.h"

#define DOMAINS_MAX   1024
#define SLAB_MOVING   UINT16_MAX /* dram_slab.domain: between two */
#define WINDOW_TRIES  8		 /* places that are looked at for one to empty */
#define TAKEOVER_WAIT_MS 20
#define MANY_SLABS    16	 /* of so many domain 0 keeps one */

/* ---- slabs ---- */

static u64 slab_off(const struct pool *pool, u32 slab)
{
	return slab * pool->slab_bytes;
}

static u64 slab_len(const struct pool *pool, u32 slab)
{
	return min(pool->slab_bytes, pool->dram_bytes - slab_off(pool, slab));
}

static u32 slab_at(const struct pool *pool, u64 off)
{
	return (u32)(off / pool->slab_bytes);
}

static void slab_open(struct pool *pool, struct extents *room, u32 slab)
{
	u64 off = slab_off(pool, slab), end = off + slab_len(pool, slab);

	for (; off < end; off += EXTENT_MAX_BYTES)
		extents_free(room, off, (u32)min(end - off, EXTENT_MAX_BYTES));
}

/* Nothing is in it: only memory for bookkeeping can be lacking. */
static int slab_close(struct pool *pool, struct extents *room, u32 slab)
{
	u64 start = slab_off(pool, slab), end = start + slab_len(pool, slab), off;
	int err = 0;

	for (off = start; off < end && !err; off += EXTENT_MAX_BYTES)
		err = extents_claim(room, off, (u32)min(end - off, EXTENT_MAX_BYTES),
				    EXTENT_NO_OWNER);
	if (!err)
		return 0;
	for (off -= EXTENT_MAX_BYTES; off > start; off -= EXTENT_MAX_BYTES)
		extents_free(room, off - EXTENT_MAX_BYTES, EXTENT_MAX_BYTES);
	return err;
}

static void count_bytes(struct pool *pool, u64 off, u64 bytes, bool take)
{
	struct domain *d = &pool->domains[pool->slabs[slab_at(pool, off)].domain];

	d->used = take ? d->used + bytes : d->used - bytes;
	pool->nr_active += take && !d->active;
	d->active |= take;
	pool->dram_used_now = take ? pool->dram_used_now + bytes : pool->dram_used_now - bytes;
	while (bytes) {
		struct dram_slab *s = &pool->slabs[slab_at(pool, off)];
		u64 part = min(bytes, pool->slab_bytes - off % pool->slab_bytes);

		s->used = take ? s->used + part : s->used - part;
		if (take && !s->touched) {
			s->touched = true;
			warm_slab(pool, slab_at(pool, off));
		}
		off += part;
		bytes -= part;
	}
}

/* Give an empty slab of another domain to @to. Lock held, dropped meanwhile if it was used before. */
static bool slab_give(struct pool *pool, u32 slab, u16 to)
{
	struct dram_slab *s = &pool->slabs[slab];
	u16 from = s->domain;
	int err = 0;

	if (slab_close(pool, pool->domains[from].room, slab))
		return false;
	pool->domains[from].nr_slabs--;
	s->domain = SLAB_MOVING;
	warm_slab_drop(pool, slab);
	if (s->touched) {
		pool->domains[from].users++;
		lock_release(&pool->lock);
		err = tier_renew(pool->tier[IN_DRAM], slab, true);
		warm_file(pool, slab);
		lock_acquire(&pool->lock);
		domain_unuse(pool, from);
	}
	if (!err) {
		s->touched = false;
		s->file = pool->nr_files++;
	}
	s->domain = err ? from : to;
	pool->domains[s->domain].nr_slabs++;
	warm_slab(pool, slab);
	slab_open(pool, pool->domains[s->domain].room, slab);
	return !err;
}

/* ---- which slabs ---- */

enum taking {
	TAKE_UNTOUCHED, /* nothing was ever in them: no need to wait */
	TAKE_EMPTY,
	TAKE_USED, /* to be emptied */
};

/** struct taker - who wants room, for how much, and how. */
struct taker {
	u32 bytes;
	u16 to;
	enum taking how;
};

/** struct window - neighbouring slabs of which some belong to others and the rest is free. */
struct window {
	u32 first, nr;
	u64 used; /* bytes in them */
};

/*
 * May domain @to take @nr slabs that have one of domain @from among them? Who had blocks once keeps one,
 * unless there are not enough for each.
 */
static bool may_lose(const struct pool *pool, u16 from, u16 to, u32 nr)
{
	const struct domain *d = &pool->domains[from];
	bool keeps = d->active || (!from && pool->nr_slabs >= MANY_SLABS);

	if (!keeps || d->nr_slabs > nr)
		return true;
	return !pool->domains[to].nr_slabs && pool->nr_slabs <= pool->nr_active;
}

/* May slab @s be one of the @nr that @t takes? */
static bool can_take(const struct pool *pool, const struct dram_slab *s, struct taker t, u32 nr)
{
	const struct domain *d;
	u64 spare;

	if (s->domain == SLAB_MOVING || s->opening || !may_lose(pool, s->domain, t.to, nr))
		return false;
	if (!s->used)
		return t.how != TAKE_UNTOUCHED || !s->touched;
	d = &pool->domains[s->domain];
	spare = d->nr_slabs * pool->slab_bytes;
	return t.how == TAKE_USED && spare > d->used && spare - d->used >= pool->slab_bytes;
}

/* Can @w be had? Its cost is set. */
static bool window_ok(const struct pool *pool, struct window *w, struct taker t)
{
	bool more = false;

	w->used = 0;
	for (u32 i = w->first; i < w->first + w->nr; i++) {
		const struct dram_slab *s = &pool->slabs[i];
		bool own = s->domain == t.to;

		if (own ? s->used && t.how != TAKE_USED : !can_take(pool, s, t, w->nr))
			return false;
		more |= !own;
		w->used += s->used;
	}
	return more;
}

/** struct tried - windows that could not be had. */
struct tried {
	u32 first[WINDOW_TRIES];
	u32 nr;
};

static bool was_tried(const struct tried *tried, u32 first)
{
	for (u32 i = 0; i < tried->nr; i++)
		if (tried->first[i] == first)
			return true;
	return false;
}

/* The cheapest window in which @bytes have room, from the end on: allocators begin at the start. */
static bool window_find(const struct pool *pool, struct taker t, const struct tried *tried,
			struct window *best)
{
	u64 align, run = extents_shape(t.bytes, &align);
	u32 nr = (u32)div_round_up(run, pool->slab_bytes);
	u32 step = (u32)max(align / pool->slab_bytes, (u64)1);

	best->used = UINT64_MAX;
	if (nr > pool->nr_slabs)
		return false;
	for (u32 first = (pool->nr_slabs - nr) / step * step;; first -= step) {
		struct window w = {.first = first, .nr = nr};

		if (!was_tried(tried, first) && window_ok(pool, &w, t) &&
		    w.used < best->used)
			*best = w;
		if (first < step)
			return best->used != UINT64_MAX;
	}
}

static bool window_take(struct pool *pool, const struct window *w, struct taker t)
{
	bool got = false;

	for (u32 i = w->first; i < w->first + w->nr; i++) {
		struct dram_slab *s = &pool->slabs[i];

		if (s->domain != t.to && !s->used && can_take(pool, s, t, 1))
			got |= slab_give(pool, i, t.to);
	}
	return got;
}

/* Next to what was needed: half of what is lying idle, so that this is not done slab by slab. */
static void take_idle(struct pool *pool, struct taker t, u32 below)
{
	u32 idle = 0;

	for (u32 i = 0; i < pool->nr_slabs; i++)
		idle += pool->slabs[i].domain != t.to && can_take(pool, &pool->slabs[i], t, 1);
	for (u32 left = idle / 2, i = below; left && i--;) {
		struct dram_slab *s = &pool->slabs[i];

		if (s->domain != t.to && can_take(pool, s, t, 1) && slab_give(pool, i, t.to))
			left--;
	}
}

/* Lock held, never dropped. Return: whether @to has more slabs now. */
static bool take_untouched(struct pool *pool, u16 to, u32 bytes)
{
	struct taker t = {bytes, to, TAKE_UNTOUCHED};
	struct tried none = {.nr = 0};
	struct window w;

	if (pool->domains[to].nr_slabs == pool->nr_slabs || !window_find(pool, t, &none, &w) ||
	    !window_take(pool, &w, t))
		return false;
	take_idle(pool, t, w.first);
	return true;
}

/* ---- emptying ---- */

static bool slab_empty(struct pool *pool, u32 slab, const struct extent_run *run)
{
	struct extent_victims v = {
		.movable = dram_movable,
		.ctx = pool,
		.run = {slab_off(pool, slab), slab_len(pool, slab)},
		.max = (unsigned int)(slab_len(pool, slab) / EXTENT_UNIT),
	};
	int nr, gone = 0;

	v.refs = kvc_alloc_array(v.max, sizeof(*v.refs));
	if (!v.refs)
		return false;
	nr = extents_list(pool->domains[pool->slabs[slab].domain].room, &v);
	while (gone < nr && dram_vacate(pool, &v.refs[gone], run))
		gone++;
	free(v.refs);
	return gone == nr && !pool->slabs[slab].used;
}

static bool window_empty(struct pool *pool, const struct window *w)
{
	struct extent_run run = {slab_off(pool, w->first), w->nr * pool->slab_bytes};

	for (u32 i = w->first; i < w->first + w->nr; i++) {
		struct dram_slab *s = &pool->slabs[i];

		if (s->domain == SLAB_MOVING || (s->used && !slab_empty(pool, i, &run)))
			return false;
	}
	return true;
}

static bool take_used(struct pool *pool, u16 to, u32 bytes)
{
	struct taker t = {bytes, to, TAKE_USED};
	struct tried tried = {.nr = 0};
	struct window w;

	while (tried.nr < WINDOW_TRIES && window_find(pool, t, &tried, &w)) {
		if (window_empty(pool, &w) && window_take(pool, &w, t))
			return true;
		tried.first[tried.nr++] = w.first;
	}
	return false;
}

bool domain_takeover(struct pool *pool, u16 to, u32 bytes)
{
	struct taker t = {bytes, to, TAKE_EMPTY};
	struct tried none = {.nr = 0};
	struct window w;
	bool got;

	if (pool->domains[to].nr_slabs == pool->nr_slabs)
		return false;
	if (pool->taking_over) { /* what he gets may do for us */
		waitq_wait_ms(&pool->room_freed, &pool->lock, TAKEOVER_WAIT_MS);
		return true;
	}
	pool->taking_over = true;
	got = window_find(pool, t, &none, &w) && window_take(pool, &w, t);
	if (!got)
		got = take_used(pool, to, bytes);
	pool->taking_over = false;
	waitq_wake_all(&pool->room_freed);
	return got;
}

/* ---- room ---- */

u16 domain_of_space(const struct pool *pool, u32 space)
{
	u32 lo = 0, hi = pool->nr_spaces;

	while (lo < hi) {
		u32 mid = lo + (hi - lo) / 2;

		if (pool->spaces[mid].space == space)
			return pool->spaces[mid].domain;
		if (pool->spaces[mid].space < space)
			lo = mid + 1;
		else
			hi = mid;
	}
	return 0;
}

u16 domain_use(struct pool *pool, u32 space)
{
	u16 domain = domain_of_space(pool, space);

	pool->domains[domain].users++;
	return domain;
}

void domain_unuse(struct pool *pool, u16 domain)
{
	pool->domains[domain].users--;
}

u16 domain_at(const struct pool *pool, u64 off)
{
	return pool->slabs[slab_at(pool, off)].domain;
}

int dram_alloc(struct pool *pool, u32 id, u64 near, u64 *off)
{
	struct block *b = pool_block(pool, id);
	u16 domain = domain_of_space(pool, b->space);
	u32 stride = block_stride(b);
	int err;

	do
		err = extents_alloc(pool->domains[domain].room, stride, near, id, off);
	while (err == -ENOSPC && take_untouched(pool, domain, stride));
	if (!err)
		count_bytes(pool, *off, stride, true);
	return err;
}

int dram_alloc_guest(struct pool *pool, u32 id, u64 *off)
{
	u32 stride = block_stride(pool_block(pool, id));
	int err = extents_alloc(pool->domains[0].room, stride, EXTENT_NONE, id, off);

	if (!err)
		count_bytes(pool, *off, stride, true);
	return err;
}

int dram_alloc_outside(struct pool *pool, u32 id, const struct extent_run *run, u64 *off)
{
	struct block *b = pool_block(pool, id);
	struct domain *d = &pool->domains[domain_at(pool, b->ext[IN_DRAM])];
	int err = extents_alloc_outside(d->room, block_stride(b), id, run, off);

	if (!err)
		count_bytes(pool, *off, block_stride(b), true);
	return err;
}

void dram_free(struct pool *pool, u64 off, u32 bytes)
{
	struct extents *room = pool->domains[domain_at(pool, off)].room;

	count_bytes(pool, off, bytes, false);
	extents_free(room, off, bytes);
}

int dram_claim(struct pool *pool, u32 id, u64 off, u32 bytes)
{
	u32 slab = off < pool->dram_bytes ? slab_at(pool, off) : pool->nr_slabs;
	int err;

	if (slab == pool->nr_slabs || pool->slabs[slab].domain == SLAB_MOVING)
		return -EINVAL;
	err = extents_claim(pool->domains[domain_at(pool, off)].room, off, bytes, id);
	if (!err)
		count_bytes(pool, off, bytes, true);
	return err;
}

u64 domain_free_bytes(const struct pool *pool, u16 domain)
{
	const struct domain *d = &pool->domains[domain];
	u64 bytes = min(d->nr_slabs * pool->slab_bytes, pool->dram_bytes);

	return bytes - min(bytes, d->used);
}

u32 domain_reclaim_bytes(const struct pool *pool, u16 domain, u32 bytes)
{
	if (pool->domains[domain].nr_slabs == pool->nr_slabs)
		return bytes;
	return (u32)min(max((u64)bytes, pool->slab_bytes), EXTENT_MAX_BYTES);
}

/* ---- domains ---- */

bool domain_has_spaces(const struct pool *pool, u16 domain)
{
	for (u32 i = 0; i < pool->nr_spaces; i++)
		if (pool->spaces[i].domain == domain)
			return true;
	return false;
}

/* Domains that have neither namespaces nor slabs any more cost nobody anything. */
static void retire_unused(struct pool *pool)
{
	for (u32 i = 1; i < pool->nr_domains; i++) {
		struct domain *d = &pool->domains[i];

		if (!d->room || d->nr_slabs || d->users || domain_has_spaces(pool, (u16)i))
			continue;
		extents_destroy(d->room);
		*d = (struct domain){.room = NULL};
	}
}

/* An unused place in the table, or -errno. */
static int domain_place(struct pool *pool)
{
	struct domain *domains;

	retire_unused(pool);
	for (u32 i = 1; i < pool->nr_domains; i++)
		if (!pool->domains[i].room)
			return (int)i;
	if (pool->nr_domains == DOMAINS_MAX)
		return kvc_err(-ENOSPC, domains_many);
	domains = reallocarray(pool->domains, pool->nr_domains + 1, sizeof(*domains));
	if (!domains)
		return -ENOMEM;
	pool->domains = domains;
	domains[pool->nr_domains] = (struct domain){.room = NULL};
	return (int)pool->nr_domains++;
}

static int domain_new(struct pool *pool, const struct pool_owner *owner)
{
	struct domain d = {.owner = *owner};
	int place = domain_place(pool);
	int err = place < 0 ? place : extents_create(&d.room, pool->dram_bytes);

	if (err)
		return err;
	extents_set_wall(d.room, pool->slab_bytes);
	for (u32 i = 0; i < pool->nr_slabs && !err; i++)
		err = slab_close(pool, d.room, i);
	if (err) {
		extents_destroy(d.room);
		return err;
	}
	d.id = ++pool->nr_domain_ids;
	pool->domains[place] = d;
	return place;
}

/* Domain 0 has everything, as if there were no slabs. */
int domains_create(struct pool *pool)
{
	int err;

	pool->dram_bytes = tier_size(pool->tier[IN_DRAM]);
	pool->slab_bytes = tier_slab_bytes(pool->tier[IN_DRAM]);
	pool->nr_slabs = pool->nr_files = (u32)div_round_up(pool->dram_bytes, pool->slab_bytes);
	pool->slabs = calloc(pool->nr_slabs, sizeof(*pool->slabs));
	pool->domains = calloc(1, sizeof(*pool->domains));
	if (!pool->slabs || !pool->domains)
		return -ENOMEM;
	for (u32 i = 0; i < pool->nr_slabs; i++)
		pool->slabs[i].file = i;
	err = extents_create(&pool->domains[0].room, pool->dram_bytes);
	if (err)
		return err;
	pool->domains[0].nr_slabs = pool->nr_slabs;
	pool->nr_domains = 1;
	return 0;
}

void domains_free(struct pool *pool)
{
	for (u32 i = 0; i < pool->nr_domains; i++)
		extents_destroy(pool->domains[i].room); /* NULL is ignored */
	free(pool->domains);
	free(pool->slabs);
	free(pool->spaces);
}

static int find_domain(const struct pool *pool, const struct pool_owner *owner)
{
	for (u32 i = 1; i < pool->nr_domains; i++) {
		const struct pool_owner *o = &pool->domains[i].owner;

		if (pool->domains[i].room && o->uid == owner->uid && o->gid == owner->gid &&
		    o->mode == owner->mode)
			return (int)i;
	}
	return -ENOENT;
}

static int domain_of_owner(struct pool *pool, const struct pool_owner *owner)
{
	int domain = find_domain(pool, owner);

	return domain < 0 ? domain_new(pool, owner) : domain;
}

/* Where @space is in the list, or belongs. */
static u32 space_index(const struct pool *pool, u32 space)
{
	u32 i = pool->nr_spaces;

	while (i && pool->spaces[i - 1].space >= space)
		i--;
	return i;
}

/* A namespace left @domain: one without any needs no slab kept. */
static void domain_left(struct pool *pool, u16 domain)
{
	struct domain *d = &pool->domains[domain];

	if (domain_has_spaces(pool, domain))
		return;
	pool->nr_active -= d->active;
	d->active = false;
}

static int space_set(struct pool *pool, u32 space, u16 domain)
{
	u32 i = space_index(pool, space);
	struct space_domain *spaces;

	if (i < pool->nr_spaces && pool->spaces[i].space == space) {
		u16 was = pool->spaces[i].domain;

		pool->spaces[i].domain = domain;
		domain_left(pool, was);
		return 0;
	}
	if (pool->nr_spaces == pool->max_spaces) {
		u32 max_nr = max(pool->max_spaces * 2, 16u);

		spaces = fault_point(FAULT_MEMORY)
				 ? NULL
				 : reallocarray(pool->spaces, max_nr, sizeof(*spaces));
		if (!spaces)
			return -ENOMEM;
		pool->spaces = spaces;
		pool->max_spaces = max_nr;
	}
	spaces = pool->spaces;
	memmove(&spaces[i + 1], &spaces[i], (pool->nr_spaces - i) * sizeof(*spaces));
	spaces[i] = (struct space_domain){space, domain};
	pool->nr_spaces++;
	return 0;
}

int pool_set_space_owner(struct pool *pool, u32 space, const struct pool_owner *owner)
{
	int domain;

	if (!space)
		return 0;
	lock_acquire(&pool->lock);
	domain = domain_of_owner(pool, owner);
	if (domain >= 0)
		domain = space_set(pool, space, (u16)domain);
	if (domain < 0)
		domain_forget_space(pool, space);
	lock_release(&pool->lock);
	return domain;
}

void domain_forget_space(struct pool *pool, u32 space)
{
	u32 i = space_index(pool, space);
	u16 domain;

	if (i == pool->nr_spaces || pool->spaces[i].space != space)
		return;
	domain = pool->spaces[i].domain;
	pool->nr_spaces--;
	memmove(&pool->spaces[i], &pool->spaces[i + 1],
		(pool->nr_spaces - i) * sizeof(*pool->spaces));
	domain_left(pool, domain);
}

int domain_adopt(struct pool *pool, u32 slab, const struct pool_owner *owner)
{
	struct dram_slab *s = &pool->slabs[slab];
	int domain = find_domain(pool, owner);

	if (domain < 0)
		return -ENOENT;
	KVC_BUG_ON(s->domain || s->used);
	if (slab_close(pool, pool->domains[0].room, slab))
		return -ENOMEM;
	pool->domains[0].nr_slabs--;
	s->domain = (u16)domain;
	pool->domains[domain].nr_slabs++;
	slab_open(pool, pool->domains[domain].room, slab);
	return 0;
}

/* ---- checks ---- */

void domains_check(struct pool *pool)
{
	u64 used = 0, in_slabs = 0;
	u32 nr = 0;

	for (u32 i = 0; i < pool->nr_domains; i++) {
		const struct domain *d = &pool->domains[i];
		u64 others = 0;
		u32 have = 0;

		for (u32 s = 0; s < pool->nr_slabs; s++) {
			if (pool->slabs[s].domain == i)
				have++;
			else
				others += slab_len(pool, s);
		}
		KVC_BUG_ON(have != d->nr_slabs || (have && !d->room));
		KVC_BUG_ON(d->room && extents_used(d->room) != d->used + others);
		used += d->used;
		nr += have;
	}
	for (u32 s = 0; s < pool->nr_slabs; s++) {
		in_slabs += pool->slabs[s].used;
		nr += pool->slabs[s].domain == SLAB_MOVING;
	}
	KVC_BUG_ON(used != pool->dram_used_now || used != in_slabs || nr != pool->nr_slabs);
}
