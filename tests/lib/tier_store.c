/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "lib/tier_store.h"

#define MAX_FILES 64

void tier_store_dir(struct tier_store *store)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(store->path, sizeof(store->path), "%s/kvc-tier-XXXXXX", tmp ? tmp : "/tmp");
	KVC_BUG_ON(!mkdtemp(store->path));
	store->dirfd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	KVC_BUG_ON(store->dirfd < 0);
}

bool tier_store_mount(struct tier_store *store, const char *fstype, u64 size)
{
	int fs = fsopen(fstype, FSOPEN_CLOEXEC), mount = -1;
	char text[32];
	int err;

	*store = (struct tier_store){.dirfd = -1};
	if (fs < 0)
		return false;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)size);
	err = size ? fsconfig(fs, FSCONFIG_SET_STRING, "size", text, 0) : 0;
	if (!err)
		err = fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	if (!err)
		mount = fsmount(fs, FSMOUNT_CLOEXEC, 0);
	close(fs);
	if (mount < 0)
		return false;
	/* The mount's own descriptor is an O_PATH one, which cannot be synced. */
	store->dirfd = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(mount);
	return store->dirfd >= 0;
}

void tier_store_close(struct tier_store *store)
{
	char name[32];

	for (int i = 0; i < MAX_FILES; i++) {
		snprintf(name, sizeof(name), "data.%d", i);
		unlinkat(store->dirfd, name, 0);
	}
	close(store->dirfd);
	if (store->path[0])
		rmdir(store->path);
}
