/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena is shared memory in which ids, paths and extents of calls in flight lie. A call takes one
 * span and gives it back when it is answered, so spans are few and short-lived: an ordered list and
 * the first gap that fits do. Low addresses first, so that the caches of both sides stay warm.
 */
#include <errno.h>
#include "fs/client/client.h"

#define ARENA_ALIGN 64u

u64 arena_room(const struct conn *conn)
{
	return conn->arena.bytes - conn->arena.first;
}

/* Where @bytes fit: the link behind which the span belongs, NULL when they fit nowhere now. */
static struct span **find_gap(struct arena *arena, u64 bytes, u32 *off)
{
	struct span **link = &arena->spans;
	u64 at = arena->first;

	for (; *link; link = &(*link)->next) {
		if ((*link)->off - at >= bytes)
			break;
		at = (u64)(*link)->off + (*link)->bytes;
	}
	*off = (u32)at;
	return at + bytes <= arena->bytes ? link : NULL;
}

int arena_get(struct conn *conn, struct span *span, u64 bytes)
{
	struct timespec deadline = client_deadline(conn);
	struct span **link;
	int err = 0;

	bytes = round_up_pow2(bytes ? bytes : 1, ARENA_ALIGN);
	if (bytes > arena_room(conn))
		return -E2BIG;
	pthread_mutex_lock(&conn->lock);
	while (!(link = find_gap(&conn->arena, bytes, &span->off)) && !err) {
		if (atomic_load(&conn->dead))
			err = -ESTALE;
		else if (pthread_cond_timedwait(&conn->arena.freed, &conn->lock, &deadline))
			err = -ETIMEDOUT;
	}
	if (link) {
		err = 0;
		span->bytes = (u32)bytes;
		span->next = *link;
		*link = span;
	}
	pthread_mutex_unlock(&conn->lock);
	return err;
}

void arena_put(struct conn *conn, struct span *span)
{
	struct span **link = &conn->arena.spans;

	pthread_mutex_lock(&conn->lock);
	while (*link != span)
		link = &(*link)->next;
	*link = span->next;
	pthread_cond_broadcast(&conn->arena.freed);
	pthread_mutex_unlock(&conn->lock);
}
