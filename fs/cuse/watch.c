/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for pressure is told by a thread that looks at the counter ten times a second, and only
 * while somebody waits. The kernel never says that a poll was given up, so a descriptor is looked
 * after until it has been told or closed.
 */
#include <pthread.h>
#include "fs/cuse/front.h"

#define WATCH_MS 100

/** struct reading - the counter of one mount, read once in a pass. */
struct reading {
	dev_t dev;
	bool good;
	int err;
	u64 stall_us;
};

struct fuse_pollhandle *watch_set(struct front *front, struct client *c, struct fuse_pollhandle *ph)
{
	struct fuse_pollhandle *old = c->poll;

	lock_assert_held(&front->lock);
	front->nr_polls += !!ph - !!old;
	c->poll = ph;
	if (ph && !old && front->nr_polls == 1)
		waitq_wake_all(&front->wake);
	return old;
}

/* One that waits and was not looked at in this pass, with a reference. Lock held. */
static struct client *next_client(struct front *front)
{
	struct client *c;

	list_for_each_entry (c, &front->clients, link) {
		if (!c->poll || c->pass == front->pass)
			continue;
		c->pass = front->pass;
		c->refs++;
		return c;
	}
	return NULL;
}

static void look(struct reading *r, const struct client *c)
{
	if (r->good && r->dev == c->on.dev)
		return;
	*r = (struct reading){.dev = c->on.dev, .good = true};
	r->err = state_stall_us(c->root, &r->stall_us);
}

/* A mount that has gone is told, too: the next poll says how. Lock not held. */
static void tell(struct front *front, struct client *c, const struct reading *r)
{
	struct fuse_pollhandle *ph = NULL;

	lock_acquire(&front->lock);
	if (r->err || r->stall_us > c->seen_us)
		ph = watch_set(front, c, NULL);
	lock_release(&front->lock);
	if (!ph)
		return;
	fuse_lowlevel_notify_poll(ph);
	fuse_pollhandle_destroy(ph);
}

/* Lock held, dropped meanwhile. */
static void look_at_all(struct front *front)
{
	struct reading reading = {.good = false};
	struct client *c;

	front->pass++;
	while (!front->stopping && (c = next_client(front))) {
		lock_release(&front->lock);
		look(&reading, c);
		tell(front, c, &reading);
		client_put(front, c);
		lock_acquire(&front->lock);
	}
}

static void *watch_main(void *arg)
{
	struct front *front = arg;

	lock_acquire(&front->lock);
	while (!front->stopping) {
		if (!front->nr_polls) {
			waitq_wait(&front->wake, &front->lock);
			continue;
		}
		waitq_wait_ms(&front->wake, &front->lock, WATCH_MS);
		look_at_all(front);
	}
	lock_release(&front->lock);
	return NULL;
}

int watch_start(struct front *front)
{
	return -pthread_create(&front->watcher, NULL, watch_main, front);
}

void watch_stop(struct front *front)
{
	lock_acquire(&front->lock);
	front->stopping = true;
	waitq_wake_all(&front->wake);
	lock_release(&front->lock);
	pthread_join(front->watcher, NULL);
}
