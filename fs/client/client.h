/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvc from inside.
 *
 *	struct kvc		what kvc_open() gives: options, and the connection in force
 *	struct conn		one connection with a daemon: socket, arena, pool files. Replaced as a whole
 *				by kvc_reconnect(); whatever was made through it keeps it, so that bytes
 *				stay mapped after their daemon died
 *	struct kvc_seq		a handle of a connection
 *	struct mapping		blocks in the address space: a view or a room
 *
 * Calls on a sequence take turns (kvc_seq->busy); a batch takes all of its sequences at once, so there
 * is no order among them. A reference is held by whoever stores a pointer. Locks, outer ones first:
 *
 *	kvc->lock		kvc->conn, the list of sequences, their references
 *	kvc->busy_lock		which sequences have a call going on, their views; never held across one
 *	conn->send_lock		numbers messages in the order in which they go out
 *	conn->lock		calls in flight, arena, table of pool files
 *
 * Nothing here knows the daemon's code: fs/uapi is all that both sides share.
 */
#ifndef KVC_CLIENT_H
#define KVC_CLIENT_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "allocator/base/compiler.h"
#include "fs/uapi/kvc.h"
#include "fs/uapi/kvc_ioctl.h"

#define CLIENT_TIMEOUT_MS  30000u
#define CLIENT_ARENA_BYTES MIB(8)
#define CLIENT_MAX_CMDS	   ((KVC_MSG_MAX - sizeof(struct kvc_batch)) / sizeof(struct kvc_cmd))
#define CLIENT_MAX_FDS	   64 /* of one message */

/* ---- arena.c: shared memory for what does not fit a command ---- */

/** struct span - a part of the arena in use; lies with its user, linked in order of offset. */
struct span {
	struct span *next;
	u32 off, bytes;
};

/** struct arena - its books are kept here, never in the shared memory. */
struct arena {
	u8 *base;	    /* mapping, set once */
	u64 bytes;	    /* of the mapping */
	u32 first;	    /* behind the words */
	u32 nr_slots;	    /* generation words, and as many completion words behind them */
	struct span *spans; /* in use; protected by conn->lock, as all below */
	pthread_cond_t freed;
};

struct conn;

/**
 * arena_get() - @bytes of the arena, lowest address first. May wait for others' to be given back.
 * Return: 0, -E2BIG (more than there is at all), -ETIMEDOUT, -ESTALE.
 */
int __must_check arena_get(struct conn *conn, struct span *span, u64 bytes);
void arena_put(struct conn *conn, struct span *span);
/** arena_room() - the most that arena_get() can give. */
u64 arena_room(const struct conn *conn);

/* ---- conn.c: messages ---- */

/** struct pool_file - memory of the daemon. */
struct pool_file {
	int fd, ro_fd;	     /* ro_fd: the same, opened again for reading; -1: not yet */
	u64 bytes;
	bool writable;
	u8 *window[2];	     /* all of it mapped for reading, and for writing; NULL: not yet */
};

struct call;

struct conn {
	atomic_uint ref;
	atomic_bool dead;    /* socket closed or not to be used any more */
	bool awake;	     /* replies are worth waiting for awake; set once */
	int fd;
	int lease;	     /* keeps our memory after the daemon's death; -1: none. Protected by lock */
	u32 nr_users;	     /* views and rooms that need it; protected by lock */
	int event_fd;	     /* readable when a prefetch has ended; set once */
	u64 timeout_ns;
	u64 generation;	     /* the daemon's */
	struct arena arena;

	pthread_mutex_t send_lock;
	void *tx;	     /* KVC_MSG_MAX bytes; protected by send_lock */
	u64 sequence;	     /* of the last message sent; protected by send_lock */
	pthread_mutex_t lock;
	pthread_cond_t replied; /* protected by lock, as all below */
	struct call *calls;  /* sent, not answered */
	bool reading;	     /* a thread is in recvmsg() and will tell the others */
	void *rx;	     /* KVC_MSG_MAX bytes, of the reading thread */
	struct pool_file **pools; /* by number; NULL: not seen */
	u32 nr_pools;
};

/** struct conn_want - what to connect to. */
struct conn_want {
	const char *socket;
	u64 arena_bytes, timeout_ms;
};

/** conn_open() - connect, say hello, map the arena. Return: 0, -EPROTO, -EACCES, -ENOMEM, errno of connect. */
int __must_check conn_open(const struct conn_want *want, struct conn **out);
/** conn_on_fd() - the same on a connected socket, which becomes the connection's. */
int __must_check conn_on_fd(int fd, const struct conn_want *want, struct conn **out);
struct conn *conn_get(struct conn *conn);
void conn_put(struct conn *conn);
/** conn_end() - give the lease back now, whoever still holds the connection. */
void conn_end(struct conn *conn);
/** conn_use() - bytes in the daemon's memory are looked at. */
void conn_use(struct conn *conn);
/** conn_unuse() - not any more. The last one of a dead daemon's gives its memory back. */
void conn_unuse(struct conn *conn);
/** conn_settle() - the same for a connection that died, if nobody uses it. */
void conn_settle(struct conn *conn);
/** conn_alive() - whether the daemon is there; one system call. */
bool conn_alive(struct conn *conn);
/**
 * conn_call() - send @nr commands, wait, fill them with the results.
 * @fds: room for @max_fds descriptors that come with the reply, or NULL
 * Return: number of descriptors; -ESTALE, -ETIMEDOUT, -EPROTO end the connection. Results of
 * commands are theirs alone.
 */
int __must_check conn_call(struct conn *conn, struct kvc_cmd *cmds, u32 nr, int *fds, u32 max_fds);

/** client_deadline() - when a call that begins now has waited too long (CLOCK_MONOTONIC). */
struct timespec client_deadline(const struct conn *conn);

/* ---- memory.c: pool files in the address space ---- */

/** struct mapping - blocks one after the other. */
struct mapping {
	struct conn *conn; /* reference */
	u8 *addr;
	u64 bytes;
	u32 nr_runs;
	bool stitched;	   /* its own address range; else a part of a window */
	bool used;	   /* the mapping itself has conn_use() */
};

/** struct run - adjacent bytes of one pool file. */
struct run {
	u32 pool;
	u64 off, bytes;
};

/** struct runs - as many as there are; free() @run. */
struct runs {
	struct run *run;
	u32 nr, max;
	u64 bytes;
};

/** runs_add() - append extents of blocks that take @stride bytes each; adjacent ones become one run. */
int __must_check runs_add(struct runs *runs, const struct kvc_extent *ext, u32 nr, u64 stride);
bool runs_equal(const struct runs *a, const struct runs *b);

/**
 * pools_fetch() - have descriptors of all pool files that @runs lie in, writable ones when @write.
 * Return: 0, -EPROTO (a run lies outside), -EACCES (not writable), -EMFILE, errors of conn_call().
 */
int __must_check pools_fetch(struct conn *conn, const struct runs *runs, bool write);
/** runs_same_memory() - are these the same files, known to two connections, at the same places? */
bool runs_same_memory(struct conn *a_conn, const struct runs *a, struct conn *b_conn,
		      const struct runs *b);
/** pool_ro_fd() - a descriptor of @pool that cannot become a writable mapping, when there is one. */
int pool_ro_fd(struct conn *conn, u32 pool);
void pools_free(struct conn *conn);
/** memory_reserve() - an address range for @bytes, congruent to @off modulo a huge page. NULL: none. */
u8 *memory_reserve(u64 bytes, u64 off);
/** mapping_make() - @runs one after the other. Return: 0, -ENOMEM, errors of pools_fetch(). */
int __must_check mapping_make(struct conn *conn, const struct runs *runs, bool write,
			      struct mapping *map);
void mapping_drop(struct mapping *map);

/* ---- open.c ---- */

struct kvc {
	atomic_uint ref;
	u64 arena_bytes, timeout_ms;
	char root[PATH_MAX]; /* of the mount */
	pthread_mutex_t lock;
	struct conn *conn;   /* reference */
	struct kvc_seq *seqs;
	pthread_mutex_t busy_lock;
	pthread_cond_t idle; /* a sequence or a view is not busy any more */
	u32 nr_waiting;	     /* for that; protected by busy_lock */
};

/** kvc_conn() - Return: the connection in force, with a reference. */
struct conn *kvc_conn(struct kvc *kvc);
void kvc_put(struct kvc *kvc);
/** kvc_new() - an object without a mount, on a connection (whose reference it takes). */
struct kvc *kvc_new(struct conn *conn);

/* ---- seq.c ---- */

struct kvc_seq {
	struct kvc_seq *prev, *next; /* of kvc->seqs; protected by kvc->lock */
	struct kvc *kvc;	     /* reference; set once */
	bool busy;		     /* a call is going on; protected by kvc->busy_lock */
	atomic_uint ref;	     /* the user's and one per view; becomes 0 under kvc->lock only */
	unsigned int flags;	     /* KVC_SEQ_*, set once */
	struct conn *conn;	     /* reference; NULL: lost at a reconnect. Who made it busy owns all below */
	u32 handle, slot;
	u64 generation;		     /* value of the slot's word */
	u32 tokens;		     /* committed, as last heard */
	u32 ticket;		     /* of the last prefetch; 0: none */
	struct kvc_layout layout;
	struct mapping room;	     /* of the last append */
	struct runs room_runs;	     /* what it shows; nr 0: no room */
	struct view *views;	     /* protected by kvc->busy_lock */
	char path[];		     /* below the mount's root */
};

/** seqs_take() - wait until none of @nr sequences of @kvc is busy, and make them so. May repeat some. */
void seqs_take(struct kvc *kvc, struct kvc_seq *const *seqs, u32 nr);
void seqs_give(struct kvc *kvc, struct kvc_seq *const *seqs, u32 nr);
void seq_get(struct kvc_seq *seq);
void seq_put(struct kvc_seq *seq);
/** seq_reopen() - open it again on @conn; afterwards it is good there, or seq->conn is NULL. */
void seq_reopen(struct kvc_seq *seq, struct conn *conn);
/** seq_cmd() - a command on it. Caller made it busy. */
struct kvc_cmd seq_cmd(const struct kvc_seq *seq, enum kvc_op op);

/* ---- view.c ---- */

/** struct pin - blocks that the daemon keeps in place for a view. */
struct pin {
	u64 first, nr;
};

/** struct view - pinned blocks, and where they lie. */
struct view {
	struct view *next;   /* of seq->views; protected by kvc->busy_lock, as the next one */
	bool busy;	     /* it is being attached to another daemon */
	struct view *_Atomic again; /* the same blocks at the same places with the next daemon; owned */
	struct kvc_seq *seq; /* reference; of an `again`: its first's */
	bool used;	     /* has conn_use() */
	struct conn *conn;   /* reference; the pins are gone when it ends */
	u32 handle, slot;
	u64 generation;
	struct runs runs;
	struct mapping map;
	struct pin *pins;
	u32 nr_pins;
	u64 first, nr;
	u32 flags; /* of its MAPs */
};

/**
 * view_pin() - pin blocks (KVC_ALL: to the end) and learn where they lie; maps nothing yet.
 * @flags: KVC_MAP_NOWAIT or 0
 */
int __must_check view_pin(struct kvc_seq *seq, const struct pin *range, u32 flags,
			  struct view **out);
/** view_room() - bytes of extents that a map of @nr blocks (KVC_ALL: to the end) should have room for. */
u64 view_room(const struct kvc_seq *seq, u64 nr);
/** view_of_map() - what reply @cmd to a KVC_OP_MAP from block @first on pinned. Caller made @seq busy. */
int __must_check view_of_map(struct kvc_seq *seq, u64 first, const struct kvc_cmd *cmd,
			     const u8 *arena, struct view **out);
/** view_show() - map it for the user. @view is freed when that fails. */
int __must_check view_show(struct view *view, struct kvc_view *out);
void view_free(struct view *view);
/** views_attach() - @seq was opened anew: pin for its views what they show, if it is where it was. Caller
 * made @seq busy. */
void views_attach(struct kvc_seq *seq);

#endif
