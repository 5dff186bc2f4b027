/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint's life, its arena, and what a batch leaves to be told at its end. */
#include <errno.h>
#include <string.h>
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "fs/kvdir.h"
#include "fs/rpc/endpoint.h"

#define SCRATCH_KEPT MIB(1) /* what an idle client costs at most */

struct endpoint *endpoint_new(struct fs *fs, const struct cred *cred, pid_t pid)
{
	struct endpoint *ep = calloc(1, sizeof(*ep));

	if (!ep)
		return NULL;
	ep->fs = fs;
	ep->cred = *cred;
	ep->pid = pid;
	ep->event_fd = -1;
	ep->since_ns = clock_real_ns();
	fs_lock(fs);
	list_add_tail(&ep->link, &fs->endpoints);
	fs_unlock(fs);
	return ep;
}

void endpoint_free(struct endpoint *ep)
{
	if (!ep)
		return;
	for (u32 i = 0; i < ep->nr_handles; i++)
		handle_free(ep->handles[i]);
	handle_free(ep->own);
	fs_lock(ep->fs);
	list_del(&ep->link);
	fs_unlock(ep->fs);
	pins_free(&ep->pins);
	free(ep->handles);
	free(ep->files);
	free(ep->numbers);
	free(ep->rights);
	free(ep->scratch);
	free(ep);
}

bool endpoint_leave(struct endpoint *ep)
{
	bool held = false;

	for (u32 i = 0; i < ep->nr_handles; i++) {
		struct handle *h = ep->handles[i];

		if (h && handle_leave(h))
			held = true;
		else
			handle_free(h);
	}
	endpoint_set_arena(ep, NULL, 0);
	endpoint_set_slots(ep, NULL, 0);
	endpoint_set_events(ep, NULL, -1);
	fs_lock(ep->fs);
	ep->left = true;
	fs_unlock(ep->fs);
	return held;
}

void endpoint_set_cred(struct endpoint *ep, const struct cred *cred)
{
	ep->cred = *cred;
}

void endpoint_set_arena(struct endpoint *ep, void *arena, u64 bytes)
{
	ep->arena = arena;
	ep->arena_bytes = bytes;
}

void endpoint_set_slots(struct endpoint *ep, u64 *slots, u32 nr)
{
	ep->slots = slots;
	ep->nr_slots = nr;
}

void endpoint_set_events(struct endpoint *ep, u64 *words, int fd)
{
	ep->words = words;
	ep->event_fd = fd;
}

int endpoint_set_own(struct endpoint *ep, struct fseq *fseq, bool writable)
{
	int err;

	if (ep->own && (ep->own->fseq != fseq || ep->own->stale)) {
		handle_free(ep->own);
		ep->own = NULL;
	}
	if (!fseq)
		return 0;
	if (ep->own)
		return 0;
	fs_lock(ep->fs);
	err = ep_grant(ep, fseq, writable);
	if (!err) {
		ep->own = handle_add(ep, fseq_get(fseq), writable);
		if (!ep->own)
			fseq_put(ep->fs, fseq);
	}
	fs_unlock(ep->fs);
	return err || ep->own ? err : -ENOMEM;
}

void ep_trim(struct endpoint *ep)
{
	if (ep->scratch_bytes <= SCRATCH_KEPT)
		return;
	free(ep->scratch);
	ep->scratch = NULL;
	ep->scratch_bytes = 0;
}

void *ep_ref(struct endpoint *ep, const struct kvc_ref *ref)
{
	if (ref->off > ep->arena_bytes || ref->bytes > ep->arena_bytes - ref->off)
		return NULL;
	return ep->arena + ref->off;
}

int ep_copy_in(struct endpoint *ep, const struct kvc_ref *ref, const void **out)
{
	const void *from = ep_ref(ep, ref);
	void *to = ep->scratch;

	if (!from)
		return kvc_err(-EFAULT, rpc_ref_outside);
	if (ep->scratch_bytes <= ref->bytes) {
		to = realloc(ep->scratch, (size_t)ref->bytes + 1);
		if (!to)
			return -ENOMEM;
		ep->scratch = to;
		ep->scratch_bytes = (size_t)ref->bytes + 1;
	}
	memcpy(to, from, ref->bytes);
	((char *)to)[ref->bytes] = '\0';
	*out = to;
	return 0;
}

void ep_changed(struct handle *h, u64 from, u64 to)
{
	struct endpoint *ep = h->ep;

	if (!h->changed) {
		h->changed = true;
		h->from = from;
		h->to = to;
		h->next_changed = ep->changed;
		ep->changed = h;
		return;
	}
	h->from = min(h->from, from);
	h->to = max(h->to, to);
}

static void settle(struct fs *fs, struct handle *h)
{
	struct inode *kv = h->fseq->kv, *ids = h->fseq->ids;

	h->changed = false;
	fseq_mark_dirty(fs, h->fseq);
	if (kv && h->to > h->from) {
		inode_touch_mtime(kv);
		kvdir_changed_range(fs, kv, h->from, h->to - h->from);
	}
	if (ids) {
		inode_touch_mtime(ids);
		kvdir_changed_range(fs, ids, 0, 0);
	}
}

void ep_settle(struct endpoint *ep)
{
	struct handle *h = ep->changed;

	ep->changed = NULL;
	if (!h)
		return;
	fs_lock(ep->fs);
	for (; h; h = h->next_changed)
		settle(ep->fs, h);
	fs_unlock(ep->fs);
}

static void text_session(struct endpoint *ep, struct textbuf *tb)
{
	textbuf_printf(tb, "%d %u %llu %llu %llu\n", (int)ep->pid, ep->cred.uid,
		       (unsigned long long)atomic_load(&ep->shown_pins),
		       (unsigned long long)atomic_load(&ep->shown_bytes),
		       (unsigned long long)(ep->since_ns / NSEC_PER_SEC));
}

void text_sessions(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	struct endpoint *ep;

	textbuf_printf(tb, "pid uid pins mapped_bytes since\n");
	fs_lock(fs);
	list_for_each_entry (ep, &fs->endpoints, link)
		if (!ep->left || atomic_load(&ep->shown_pins))
			text_session(ep, tb);
	fs_unlock(fs);
}
