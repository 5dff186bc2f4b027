/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's end of the session protocol, in a thread, for tests of the client: sequences in a table,
 * two pool files, everything in memory, no policy, nothing is ever given back but pins. It checks what
 * a client sends (asserts: a client that breaks the protocol is the failure) and can be told to
 * misbehave itself.
 */
#ifndef KVC_TEST_LIB_RPC_FAKE_H
#define KVC_TEST_LIB_RPC_FAKE_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include "allocator/base/compiler.h"
#include "fs/uapi/kvc_ioctl.h"

#define FAKE_SEQS	  80
#define FAKE_SEQ_BLOCKS	  1024
#define FAKE_POOLS	  2
#define FAKE_LEASES	  8 /* given to the first clients */
#define FAKE_BLOCK_TOKENS 16u
#define FAKE_BLOCK_BYTES  4608u
#define FAKE_STRIDE	  8192u
#define FAKE_POOL_BYTES	  (1024u * FAKE_STRIDE)
/* A prefetch with this deadline is answered after the message behind it. */
#define FAKE_HOLD 4711u

/** enum fake_fault - how the next reply is wrong; afterwards all is well again. */
enum fake_fault {
	FAKE_OK,
	FAKE_MUTE,	    /* none */
	FAKE_HANG_UP,
	FAKE_BAD_MAGIC,
	FAKE_BAD_SEQUENCE,
	FAKE_SHORT,
	FAKE_POSITIVE,	    /* results above 0 */
	FAKE_TOO_FAR,	    /* extents behind the pool file's end */
	FAKE_ODD_EXTENT,    /* offset inside a page */
	FAKE_TOO_MANY,	    /* more blocks than extents */
	FAKE_OLD_ABI,
	FAKE_NR_FAULTS
};

struct fake_seq {
	char path[128];
	u32 tokens, nr_ids, nr_blocks;
	u32 ids[FAKE_SEQ_BLOCKS * FAKE_BLOCK_TOKENS];
	u32 block[FAKE_SEQ_BLOCKS]; /* pool << 16 | number in it */
};

struct rpc_fake {
	char dir[PATH_MAX];	 /* a "mount": has .kvc/version and .kvc/config */
	int listen_fd, pool_fd[FAKE_POOLS];
	u8 *pool[FAKE_POOLS];
	pthread_t thread;
	atomic_bool stop;
	atomic_int fault;	 /* enum fake_fault */
	atomic_bool scatter;	 /* blocks come from both files in turn, backwards */
	atomic_bool read_only;	 /* descriptors */
	atomic_uint gone;	 /* bit i: pool file i, or not the client's any more */
	atomic_uint nr_pools;	 /* told by KVC_OP_POOL */
	atomic_bool cold;	 /* nothing is in memory for who does not wait */
	atomic_bool slow;	 /* prefetches end when rpc_fake_prefetched() says so */
	atomic_uint pins, handles, messages;
	struct fake_seq seq[FAKE_SEQS];
	u32 nr_seqs, next_block[FAKE_POOLS];
	u64 generation;
	int lease[FAKE_LEASES]; /* our ends */
	u32 nr_leases;
	/* the client being served; protected by @lock */
	pthread_mutex_t lock;
	_Atomic u64 *words;	 /* completion words; NULL: none */
	int event_fd;
	u32 ticket, slot;	 /* of the last prefetch */
};

/** rpc_fake_start() - serve one client after another. */
struct rpc_fake *rpc_fake_start(void);
/** rpc_fake_stop() - the daemon dies; what is in the pool files stays for the next. */
void rpc_fake_stop(struct rpc_fake *fake);
/** rpc_fake_restart() - the same sequences, another daemon. */
void rpc_fake_restart(struct rpc_fake *fake);
void rpc_fake_free(struct rpc_fake *fake);
/** rpc_fake_leased() - does the @nr-th client, from 0, still hold its lease? */
bool rpc_fake_leased(const struct rpc_fake *fake, u32 nr);
/** rpc_fake_grow() - @nr more committed blocks, by nobody's append. */
void rpc_fake_grow(struct rpc_fake *fake, const char *path, u32 nr);
/** rpc_fake_prefetched() - the last prefetch has ended with @err. */
void rpc_fake_prefetched(struct rpc_fake *fake, int err);
/** rpc_fake_block() - memory of a sequence's block. */
u8 *rpc_fake_block(struct rpc_fake *fake, const char *path, u32 nr);

#endif
