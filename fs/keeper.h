/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a small process that holds what is to outlive the daemon.
 *
 * It has the descriptors of DRAM's slab files, of the index of what lies in them, and one end of each
 * client's lease. It never looks at any of it. The next daemon of the store, which is the one that has
 * the store's lock, finds it by a socket in the store directory and is given copies of everything; the
 * keeper goes on with what it has, for that one. So a daemon may be killed at any point, in the middle
 * of taking over too.
 *
 *	daemon ──files, index, leases──► keeper ──the same──► next daemon
 *
 * It ends `linger` seconds after its daemon was killed; when its daemon left cleanly, at once, or then
 * as well if the option was named; and at once when its socket is removed, as by removing the store.
 *
 * A lease is a pipe: the client has the reading end, the keeper the writing one, which has an error
 * from the moment on in which the client, and whoever inherited its memory, has gone.
 */
#ifndef KVC_FS_KEEPER_H
#define KVC_FS_KEEPER_H

#include <stdatomic.h>
#include <sys/types.h>
#include "allocator/base/compiler.h"

#define KEEPER_SOCKET "keeper.socket" /* in the store directory */

/** struct keeper_config - what the memory was made for; of use to a daemon that wants the same. */
struct keeper_config {
	u8 store[16];
	u64 dram_bytes;
	char hugepages[8];
	int32_t numa_node;
	u32 nr_files;
};

/** struct keeper_want - how to open. */
struct keeper_want {
	int dirfd;		/* of the store, whose lock the caller has */
	const char *path;	/* the same, for messages */
	u32 linger_seconds;	/* 0: use what there is, then nothing is kept */
	bool linger_named;	/* also over a clean end */
	struct keeper_config config;
};

/** struct keeper - the daemon's side. Calls may come from any thread. */
struct keeper {
	int fd;			/* owned; connection */
	int dirfd;		/* the caller's */
	pid_t pid;		/* our child, to be waited for; 0: an earlier daemon's */
	u32 linger_seconds;
	bool linger_named;
	bool taken;		/* it had something for us */
	atomic_bool dead;	/* told already that it is gone */
	u32 most_leases;	/* that it can have; set once */
	atomic_uint kept_leases; /* that it has, those of an earlier daemon included */
	atomic_bool full;	/* told already that it has all that it can */
	/* what an earlier daemon left: until keeper_taken(), owned; -1: not there */
	int *files;		/* config.nr_files, or NULL: nothing was left */
	u32 nr_files, max_files;
	int index;
	/* of that daemon's clients, owned. For one thread */
	int *leases;
	u32 nr_leases, max_leases;
};

/**
 * keeper_open() - find the store's keeper, or start one. Before the first thread.
 * Return: 0 and *keeper, which is NULL when there is to be none or there can be none (told in the log).
 */
int __must_check keeper_open(struct keeper **keeper, const struct keeper_want *want);
/** keeper_taken() - the files and the index are in use: close our copies. */
void keeper_taken(struct keeper *keeper);
/** keeper_file() - a slab has a new file. As media_opts.file_made; @keeper NULL is fine. */
void keeper_file(void *keeper, u32 slab, int fd);
void keeper_index(struct keeper *keeper, int fd);
/** keeper_lease() - a client's lease. @fd: writing end. NULL is fine. Return: 0, -EMFILE (it can have no more). */
int __must_check keeper_lease(struct keeper *keeper, int fd);
/** keeper_lease_ended() - nobody has the other end of one any more. NULL is fine. */
void keeper_lease_ended(struct keeper *keeper);
/** keeper_clients() - do clients of an earlier daemon still have its memory? NULL is fine. */
bool keeper_clients(struct keeper *keeper);
/** keeper_alive() - says so in the log once when it is not. NULL is fine. */
bool keeper_alive(struct keeper *keeper);
/** keeper_close() - @served: the mount was up and ends cleanly. NULL is fine. */
void keeper_close(struct keeper *keeper, bool served);

#endif
