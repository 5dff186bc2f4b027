/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of endpoints, for fs/rpc only. */
#ifndef KVC_FS_RPC_ENDPOINT_H
#define KVC_FS_RPC_ENDPOINT_H

#include <stdatomic.h>
#include "allocator/seq_room.h"
#include "fs/control.h"
#include "fs/fseq.h"
#include "fs/rpc/rpc.h"

/** struct pinset - distinct blocks that an endpoint has pinned, each with a count. */
struct pinset {
	struct pinned {
		u32 id, count; /* count 0: free entry */
	} *v;
	u32 nr, size; /* size: power of two, or 0 */
};

/** struct mapping - blocks of a handle that were pinned by one KVC_OP_MAP. */
struct mapping {
	struct mapping *next;
	u64 first;
	u32 nr;
	struct block_id ids[];
};

/** struct handle - a sequence that an endpoint has open. Changed by who runs its endpoint. */
struct handle {
	struct endpoint *ep;
	struct fseq *fseq; /* one reference; NULL: handle_leave() */
	struct fseq_watch watch;
	atomic_bool stale; /* the sequence is gone */
	bool writable;
	bool state_set;	      /* decoding or queued by our word: idle when the handle goes */
	u32 nr;		      /* its number */
	u64 generation;	      /* value of its slot while it is good */
	u64 stride;	      /* of its blocks */
	struct mapping *maps; /* owned */
	struct prefetch *prefetch; /* the last one; owned, or NULL */
	struct seq_room *room; /* owned, or NULL */
	u64 room_bytes;
	/* changed in this batch: told once, at its end */
	bool changed;
	u64 from, to; /* bytes of kv that readers may have cached */
	struct handle *next_changed;
};

/** struct seen_file - a pool file by the number that the client knows it by. */
struct seen_file {
	u32 file;
	u32 domain;
};

/** struct right - what a client may do with the memory of a trust domain. */
struct right {
	u32 domain;
	bool write;
};

struct endpoint {
	struct fs *fs; /* set once */
	struct list_head link; /* fs->endpoints; protected by the filesystem's lock */
	struct cred cred;
	pid_t pid;
	u64 since_ns;
	u8 *arena;
	u64 arena_bytes;
	u64 *slots;
	u32 nr_slots;
	u64 *words; /* completion words, nr_slots; NULL: no events */
	int event_fd;
	u32 ticket; /* of the last prefetch that asked for an event */
	struct handle **handles; /* by number - 1 */
	u32 nr_handles;
	struct handle *own; /* commands without a handle; owned */
	struct pinset pins;
	u64 nr_mapped; /* entries of all mappings */
	bool left;     /* endpoint_leave(); protected by the filesystem's lock */
	u64 room_bytes; /* of all rooms */
	struct seen_file *files; /* by the client's number; those that are gone stay */
	u32 nr_files, max_files;
	u32 *numbers; /* the client's number + 1 of each pool file, 0: none */
	u32 nr_numbers;
	struct right *rights;
	u32 nr_rights;
	void *scratch; /* copies of what came in the arena */
	size_t scratch_bytes;
	struct handle *changed; /* through next_changed */
	struct rpc_msg *msg;	/* being executed */
	atomic_uint_fast64_t shown_pins, shown_bytes; /* for others to look at */
};

/* ---- endpoint.c ---- */
/** ep_copy_in() - a private copy of @ref, NUL-terminated; until the next call. -EFAULT, -ENOMEM. */
int __must_check ep_copy_in(struct endpoint *ep, const struct kvc_ref *ref, const void **out);
/** ep_trim() - give back memory that one large request took. */
void ep_trim(struct endpoint *ep);
/** ep_ref() - address of @ref in the arena, for writing. NULL: not within it. */
void *ep_ref(struct endpoint *ep, const struct kvc_ref *ref);
/** ep_changed() - bytes [@from, @to) of the handle's kv, or just ids and T, changed. */
void ep_changed(struct handle *h, u64 from, u64 to);
/** ep_settle() - tell what changed. Lock not held. */
void ep_settle(struct endpoint *ep);

/* ---- handle.c ---- */
/** handle_add() - a new handle of @fseq, whose reference it takes over. Lock held. NULL: no room. */
struct handle *handle_add(struct endpoint *ep, struct fseq *fseq, bool writable);
/** handle_free() - and all that it holds. Lock not held, may block. */
void handle_free(struct handle *h);
/** handle_end_room() - end it: its memory is the client's no more. May block. */
void handle_end_room(struct handle *h);
/**
 * handle_leave() - let go of the sequence, but not of memory that the client may look at or write to. Only
 * handle_free() may follow. Return: whether there is such memory. Lock not held, may block.
 */
bool handle_leave(struct handle *h);
/**
 * ep_grant() - memory of @fseq's namespace, as far as the client may read and, where it has opened a
 * sequence for @write, write that. Lock.
 */
int __must_check ep_grant(struct endpoint *ep, struct fseq *fseq, bool write);
/**
 * ep_may_see() - may the client see (@write: and write to) memory of @fseq's namespace, as its owner and
 * permissions are now? Lock not held. Return: 0, -EACCES, -ENOMEM.
 */
int __must_check ep_may_see(struct endpoint *ep, struct fseq *fseq, bool write);

/* ---- prefetch.c ---- */
/** handle_end_prefetch() - cancel it where it is under way; afterwards nobody hears of it. May block. */
void handle_end_prefetch(struct handle *h);

/* ---- pins.c ---- */
/** pins_reserve() - room for @nr more entries. */
int __must_check pins_reserve(struct pinset *pins, u32 nr);
/** pins_add() - Return: whether the block was not there before. Room was reserved. */
bool pins_add(struct pinset *pins, struct block_id id);
/** pins_del() - Return: whether that was its last count. */
bool pins_del(struct pinset *pins, struct block_id id);
u32 pins_count(const struct pinset *pins, struct block_id id);
void pins_free(struct pinset *pins);

/* ---- map.c ---- */
void handle_unmap_all(struct handle *h);
/** struct placed - blocks and where they lie. */
struct placed {
	const struct pool_place *places;
	u32 nr;
	u64 stride;
};
/** put_extents() - as runs to @ref, whose bytes are set to those used. -EFAULT, -E2BIG, -ENOMEM. */
int __must_check put_extents(struct endpoint *ep, const struct placed *p, struct kvc_ref *ref);
/** ep_may_pin() - @more bytes of DRAM for this client? 0 or -EAGAIN. */
int __must_check ep_may_pin(struct endpoint *ep, u64 more);
/** ep_show_pins() - for .kvc/sessions. */
void ep_show_pins(struct endpoint *ep, int64_t pins, int64_t bytes);

/* ---- ops: one per command; @h is NULL where the table in rpc.c says so ---- */
int op_rpc_open(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_close(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_match(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_map(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_unmap(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_append(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_commit(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_fork(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_truncate(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_prefetch(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_state(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_query(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_admit(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
int op_rpc_pool(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);

#endif
