/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings: which blocks a client has pinned, where they lie, and how much it may pin.
 *
 * A mapping depends on the place of its blocks and on nothing else: it takes pins, no names. When the
 * sequence changes or goes, its bytes stay what they were until the client lets go.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/grow.h"
#include "fs/rpc/endpoint.h"

#define MAPPED_MIN   MIB(4) /* blocks in lists of what one client has mapped, each as often as it is */
#define MAPPED_BYTES KIB(16) /* of DRAM for each, where that makes more */

/* ---- budgets ---- */

void ep_show_pins(struct endpoint *ep, int64_t pins, int64_t bytes)
{
	atomic_fetch_add(&ep->shown_pins, (uint_fast64_t)pins);
	atomic_fetch_add(&ep->shown_bytes, (uint_fast64_t)bytes);
}

/* Half of DRAM for one client; all of them together are the pool's to count. */
int ep_may_pin(struct endpoint *ep, u64 more)
{
	u64 have = atomic_load(&ep->shown_bytes);

	return have + more > pool_hold_limit(ep->fs->pool) / 80 * 50
		       ? kvc_err(-EAGAIN, rpc_pin_budget)
		       : 0;
}

/* Bytes that pinning @ids would add to what the client has. */
static u64 new_bytes(struct endpoint *ep, const struct mapping *m, u64 stride)
{
	u64 nr = 0;

	for (u32 i = 0; i < m->nr; i++)
		nr += !pins_count(&ep->pins, m->ids[i]);
	return nr * stride;
}

/* ---- places ---- */

/* Whether the client may see memory of @domain, and write it. */
static bool may_see(const struct endpoint *ep, u32 domain, bool *write)
{
	for (u32 i = 0; i < ep->nr_rights; i++) {
		if (ep->rights[i].domain != domain)
			continue;
		*write = ep->rights[i].write;
		return true;
	}
	return false;
}

/* The next number is for pool file @file. */
static int number_file(struct endpoint *ep, u32 file)
{
	u32 domain = pool_file_domain(ep->fs->pool, file);
	u32 room = max(ep->nr_numbers, 64u);
	bool write;
	int err;

	if (!may_see(ep, domain, &write))
		return kvc_err(-EACCES, rpc_foreign_memory);
	while (room <= file)
		room *= 2;
	err = grow_array(&ep->files, &ep->max_files, ep->nr_files + 1ull, sizeof(*ep->files));
	if (!err && room > ep->nr_numbers) {
		u32 *numbers = reallocarray(ep->numbers, room, sizeof(*numbers));

		if (!numbers)
			return -ENOMEM;
		memset(numbers + ep->nr_numbers, 0, (room - ep->nr_numbers) * sizeof(*numbers));
		ep->numbers = numbers;
		ep->nr_numbers = room;
	}
	if (err)
		return err;
	ep->files[ep->nr_files++] = (struct seen_file){.file = file, .domain = domain};
	ep->numbers[file] = ep->nr_files;
	return 0;
}

/* The number by which the client knows pool file @file. Return: 0, -EACCES, -ENOMEM. */
static int file_number(struct endpoint *ep, u32 file, u32 *nr)
{
	int err = file < ep->nr_numbers && ep->numbers[file] ? 0 : number_file(ep, file);

	if (!err)
		*nr = ep->numbers[file] - 1;
	return err;
}

static bool follows(const struct placed *p, u32 i)
{
	const struct pool_place *a = &p->places[i - 1], *b = &p->places[i];

	return a->file == b->file && a->off + p->stride == b->off;
}

int put_extents(struct endpoint *ep, const struct placed *p, struct kvc_ref *ref)
{
	u8 *to = ep_ref(ep, ref);
	struct kvc_extent ext;
	u32 room = ref->bytes, used = 0;
	int err;

	if (!to)
		return kvc_err(-EFAULT, rpc_extents_outside);
	for (u32 i = 0; i < p->nr; i += ext.nr_blocks) {
		ext = (struct kvc_extent){.nr_blocks = 1, .off = p->places[i].off};
		err = file_number(ep, p->places[i].file, &ext.pool);
		while (i + ext.nr_blocks < p->nr && follows(p, i + ext.nr_blocks))
			ext.nr_blocks++;
		if (err)
			return err;
		if (room - used < sizeof(ext))
			return kvc_err(-E2BIG, rpc_extents_many);
		memcpy(to + used, &ext, sizeof(ext));
		used += (u32)sizeof(ext);
	}
	ref->bytes = used;
	return 0;
}

/* Add what there is of the client's file @first + @nr to the reply. One that is gone hides no other. */
static int add_file(struct endpoint *ep, struct kvc_op_pool *p)
{
	const struct seen_file *file = &ep->files[p->first + p->nr];
	struct rpc_msg *msg = ep->msg;
	bool write = false;
	int fd = -ENOENT;

	if (may_see(ep, file->domain, &write))
		fd = pool_file_fd(ep->fs->pool, file->file, write);
	if (fd < 0 && fd != -ENOENT)
		return fd;
	if (fd >= 0) {
		msg->fds[msg->nr_fds++] = fd;
		p->present |= 1u << p->nr;
		p->writable |= (u32)write << p->nr;
	}
	p->nr++;
	return 0;
}

int op_rpc_pool(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_pool p = {.first = cmd->pool.first, .total = ep->nr_files};
	int err = 0;

	if (!ep->nr_slots) /* only a session can be sent descriptors */
		return -EOPNOTSUPP;
	if (p.first > ep->nr_files || cmd->pool.reserved)
		return -EINVAL;
	while (p.first + p.nr < ep->nr_files && p.nr < 32 && ep->msg->nr_fds < RPC_MAX_FDS && !err)
		err = add_file(ep, &p);
	if (err && !p.nr)
		return err;
	p.bytes = pool_file_bytes(ep->fs->pool);
	cmd->pool = p;
	return 0;
}

/* ---- mapping ---- */

/* Of a list of @nr blocks, in entries. */
static u64 mapping_cost(u32 nr)
{
	return nr + sizeof(struct mapping) / sizeof(struct block_id);
}

/* Blocks that are pinned already cost no DRAM, but a list of them is made for each mapping. */
static int may_list(const struct endpoint *ep, u32 nr)
{
	u64 most = max((u64)MAPPED_MIN, pool_hold_limit(ep->fs->pool) / MAPPED_BYTES);

	return ep->nr_mapped + mapping_cost(nr) > most ? kvc_err(-EAGAIN, rpc_map_many) : 0;
}

static void mapping_release(struct endpoint *ep, struct mapping *m, u64 stride)
{
	int64_t gone = 0;

	ep->nr_mapped -= mapping_cost(m->nr);
	for (u32 i = 0; i < m->nr; i++)
		gone += pins_del(&ep->pins, m->ids[i]);
	ep_show_pins(ep, -gone, -gone * (int64_t)stride);
	pool_unhold(ep->fs->pool, m->ids, m->nr);
}

void handle_unmap_all(struct handle *h)
{
	while (h->maps) {
		struct mapping *m = h->maps;

		h->maps = m->next;
		mapping_release(h->ep, m, h->stride);
		free(m);
	}
}

/*
 * The blocks of [@first, @first + nr) as this handle sees them, each named: the sequence's, but the
 * one that it appends to itself from its room, so that the view sees what will be committed.
 */
static int name_blocks(struct handle *h, struct mapping *m)
{
	struct pool *pool = h->ep->fs->pool;
	u32 first = (u32)m->first, tail;

	blktab_snapshot(&h->fseq->seq->tab, first, m->nr, m->ids);
	if (h->room && h->room->nr) {
		tail = h->room->first - first;
		if (h->room->first >= first && tail < m->nr) {
			pool_get(pool, &h->room->ids[0], 1);
			pool_put(pool, &m->ids[tail], 1);
			m->ids[tail] = h->room->ids[0];
		}
	}
	for (u32 i = 0; i < m->nr; i++) {
		if (!BLOCK_IS_NONE(m->ids[i]))
			continue;
		pool_put(pool, m->ids, m->nr);
		return kvc_err(-EAGAIN, rpc_map_changed);
	}
	return 0;
}

static int hold(struct handle *h, struct mapping *m, bool wait, struct pool_place *places)
{
	struct endpoint *ep = h->ep;
	u64 stride = h->fseq->ns->geo.block_stride;
	int err = ep_may_pin(ep, new_bytes(ep, m, stride));
	int64_t fresh = 0;

	if (!err)
		err = pins_reserve(&ep->pins, m->nr);
	if (!err && wait)
		err = pool_hold(ep->fs->pool, m->ids, m->nr, places);
	else if (!err)
		err = pool_try_hold(ep->fs->pool, m->ids, m->nr, places);
	if (!wait && err == -EAGAIN)
		pool_prefetch(ep->fs->pool, m->ids, m->nr);
	if (err)
		return err;
	ep->nr_mapped += mapping_cost(m->nr);
	for (u32 i = 0; i < m->nr; i++)
		fresh += pins_add(&ep->pins, m->ids[i]);
	ep_show_pins(ep, fresh, fresh * (int64_t)stride);
	return 0;
}

static int map_blocks(struct handle *h, struct mapping *m, struct kvc_op_map *op)
{
	struct endpoint *ep = h->ep;
	struct placed placed = {.nr = m->nr, .stride = h->fseq->ns->geo.block_stride};
	struct pool_place *places = kvc_alloc_array(m->nr, sizeof(*places));
	int err = places ? name_blocks(h, m) : -ENOMEM;

	if (err) {
		free(places);
		return err;
	}
	placed.places = places;
	err = hold(h, m, !(op->flags & KVC_MAP_NOWAIT), places);
	pool_put(ep->fs->pool, m->ids, m->nr);
	if (!err) {
		err = put_extents(ep, &placed, &op->extents);
		if (err)
			mapping_release(ep, m, placed.stride);
	}
	free(places);
	return err;
}

/* The range that @op asks for, within @end blocks. Return: its blocks, 0: none. */
static u32 range_of(const struct kvc_op_map *op, u64 end)
{
	if (op->first_block >= end)
		return 0;
	return (u32)min(op->nr_blocks, end - op->first_block);
}

/* Where a room's blocks lie, again; they are pinned by the room. */
static int map_room(struct handle *h, struct kvc_op_map *op)
{
	struct placed placed = {.stride = h->fseq->ns->geo.block_stride};
	int err;

	if (!h->room || op->first_block < h->room->first)
		return -EINVAL;
	placed.nr = range_of(op, h->room->first + (u64)h->room->nr);
	placed.places = h->room->places + (op->first_block - h->room->first);
	if (!placed.nr)
		return -EINVAL;
	err = put_extents(h->ep, &placed, &op->extents);
	if (!err)
		op->nr_blocks = placed.nr;
	return err;
}

int op_rpc_map(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_map *op = &cmd->map;
	struct mapping *m;
	u64 end;
	u32 nr;
	int err;

	if (op->flags & ~(u32)(KVC_MAP_NOWAIT | KVC_MAP_WRITE) || op->reserved)
		return -EINVAL;
	err = ep_may_see(ep, h->fseq, false);
	if (err)
		return err;
	if (op->flags & KVC_MAP_WRITE)
		return map_room(h, op);
	end = div_round_up(fseq_T(h->fseq), h->fseq->ns->geo.block_tokens);
	nr = range_of(op, end);
	if (!nr) {
		op->nr_blocks = op->extents.bytes = 0;
		return op->first_block > end ? -EINVAL : 0;
	}
	err = may_list(ep, nr);
	if (err)
		return err;
	m = kvc_alloc_array(nr + div_round_up(sizeof(*m), sizeof(m->ids[0])), sizeof(m->ids[0]));
	if (!m)
		return -ENOMEM;
	m->first = op->first_block;
	m->nr = nr;
	err = map_blocks(h, m, op);
	if (err) {
		free(m);
		return err;
	}
	m->next = h->maps;
	h->maps = m;
	op->nr_blocks = nr;
	return 0;
}

int op_rpc_unmap(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	const struct kvc_op_map *op = &cmd->map;
	struct mapping **at, *m;

	if (op->flags || op->reserved)
		return -EINVAL;
	if (op->nr_blocks == KVC_ALL && !op->first_block) {
		handle_unmap_all(h);
		return 0;
	}
	for (at = &h->maps; (m = *at); at = &m->next)
		if (m->first == op->first_block && m->nr == op->nr_blocks)
			break;
	if (!m)
		return op->nr_blocks ? kvc_err(-EINVAL, rpc_not_mapped) : 0;
	*at = m->next;
	mapping_release(ep, m, h->stride);
	free(m);
	return 0;
}
