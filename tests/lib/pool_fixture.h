/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool on host memory for tests: the null tier plays DRAM, and NVMe where asked for, with a flaky
 * tier in front of it so that a test can fail, tear or hold a transfer.
 */
#ifndef KVC_TEST_POOL_FIXTURE_H
#define KVC_TEST_POOL_FIXTURE_H

#include "allocator/pool.h"
#include "tiers/tier.h"

struct pool_fixture {
	struct pool *pool;
	struct tier *dram;
	struct tier *disk;	/* the null tier below flaky, NULL when volatile */
	struct tier *flaky;	/* what the pool uses as NVMe */
};

/** pool_fixture_open() - sizes in bytes, multiples of 2 MiB; @nvme_bytes 0: volatile. */
void pool_fixture_open(struct pool_fixture *fx, u64 dram_bytes, u64 nvme_bytes);
/** pool_fixture_open_files() - the same with the dram tier, so that there are pool files. */
void pool_fixture_open_files(struct pool_fixture *fx, u64 dram_bytes, u64 nvme_bytes);
void pool_fixture_close(struct pool_fixture *fx);

/** pool_fixture_block() - a new open block of @bytes filled from @seed. Return: pool_alloc()'s. */
int pool_fixture_block(struct pool_fixture *fx, u32 bytes, u32 space, u64 seed,
		       struct block_id *id);
/** pool_fixture_holds() - does the block read as what @seed filled it with? -errno when unreadable. */
int pool_fixture_holds(struct pool_fixture *fx, struct block_id id, u64 seed);

#endif
