/* SPDX-License-Identifier: Apache-2.0 */
/* A directory for an nvme tier's data files: a temporary one, or a private mount without a path. */
#ifndef KVC_TEST_TIER_STORE_H
#define KVC_TEST_TIER_STORE_H

#include "allocator/base/compiler.h"

/** struct tier_store - removed by tier_store_close(). */
struct tier_store {
	int dirfd;
	char path[64];	/* "" for a private mount */
};

/** tier_store_dir() - a new directory below $TMPDIR or /tmp; exits on failure. */
void tier_store_dir(struct tier_store *store);
/**
 * tier_store_mount() - a private mount of @fstype ("ramfs", "tmpfs"), of @size bytes if not 0.
 * Return: false when this process may not mount.
 */
bool tier_store_mount(struct tier_store *store, const char *fstype, u64 size);
/** tier_store_close() - remove data.* and the directory. */
void tier_store_close(struct tier_store *store);

#endif
