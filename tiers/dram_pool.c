/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the dram tier's slab files come from.
 *
 *	tmpfs	 a private tmpfs mounted with huge=always, never attached to any path. Huge pages
 *		 whatever the system-wide shmem setting says; needs CAP_SYS_ADMIN.
 *	hugetlb	 a memfd of reserved huge pages (vm.nr_hugepages); taken at once, never swapped.
 *	memfd	 a plain memfd; huge pages if the system-wide setting honours madvise.
 *
 * "auto" takes the first that works of tmpfs and memfd; hugetlb is only taken when asked for, since
 * its pages were set aside by somebody for something.
 *
 * Pages are committed at first touch. A shortage then would be a SIGBUS in the middle of a memcpy,
 * ours or a client's, so a pool that the machine cannot hold is refused here, in words. That is a
 * check at start, not a reservation: who needs one uses hugetlb.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "tiers/dram_pool.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

/* The number after @key at the start of a line of @path, times @unit; UINT64_MAX: none. */
static u64 file_number(const char *path, const char *key, u64 unit)
{
	u64 value = UINT64_MAX;
	size_t len = strlen(key);
	char line[512];
	FILE *file = fopen(path, "re");

	if (!file)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), file)) {
		unsigned long long n;

		if (strncmp(line, key, len) || sscanf(line + len, " %llu", &n) != 1)
			continue;
		value = n < UINT64_MAX / unit ? n * unit : UINT64_MAX;
		break;
	}
	fclose(file);
	return value;
}

/* The tightest memory.max from this process's cgroup (version 2) up to the root. */
static u64 cgroup_limit(void)
{
	char group[PATH_MAX], path[PATH_MAX + 64];
	u64 limit = UINT64_MAX;
	FILE *file = fopen("/proc/self/cgroup", "re");
	bool found = false;
	char *slash;

	if (!file)
		return UINT64_MAX;
	while (!found && fgets(group, sizeof(group), file))
		found = !strncmp(group, "0::/", 4);
	fclose(file);
	if (!found)
		return UINT64_MAX;
	group[strcspn(group, "\n")] = '\0';
	while ((slash = strrchr(group, '/'))) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group + 3);
		limit = min(limit, file_number(path, "", 1));
		*slash = '\0';
	}
	return min(limit, file_number("/sys/fs/cgroup/memory.max", "", 1));
}

u64 dram_memory_available(void)
{
	return min(file_number("/proc/meminfo", "MemAvailable:", 1024), cgroup_limit());
}

/*
 * No limit of its own: a client that still maps a file which was replaced can make pages of it come
 * back, and must not be able to use up what the others need.
 */
static int tmpfs_config(int fs)
{
	if (fsconfig(fs, FSCONFIG_SET_STRING, "huge", "always", 0) ||
	    fsconfig(fs, FSCONFIG_SET_STRING, "size", "0", 0) ||
	    fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0700", 0) ||
	    fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return -errno;
	return 0;
}

/* The mount is never attached: it lives as long as its directory or a file is open. */
static int tmpfs_mount(void)
{
	int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
	int err, mount;

	if (fs < 0)
		return -errno;
	err = tmpfs_config(fs);
	if (err)
		goto close_fs;
	mount = fsmount(fs, FSMOUNT_CLOEXEC,
			MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	err = mount < 0 ? -errno : mount;
close_fs:
	close(fs);
	return err;
}

static int tmpfs_file(int mount)
{
	int fd = openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : fd;
}

static int memfd_file(unsigned int flags)
{
	int fd = memfd_create("kvcachefs-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	return fd < 0 ? -errno : fd;
}

static int size_file(int fd, u64 bytes)
{
	/* A memfd is mode 0777: without this, any uid could reopen a descriptor it was given. */
	if (fchmod(fd, 0600) || ftruncate(fd, (off_t)bytes))
		return -errno;
	/* tmpfs has no seals: see dram_guard.c. */
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	return 0;
}

int dram_pool_file(struct dram_pool *pool, u64 bytes)
{
	int fd = pool->mount >= 0 ? tmpfs_file(pool->mount) : memfd_file(pool->memfd_flags);
	int err = fd < 0 ? fd : size_file(fd, bytes);

	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

void dram_pool_close(struct dram_pool *pool)
{
	if (pool->mount >= 0)
		close(pool->mount);
	pool->mount = -1;
}

/* A mount that works: the kernel may know tmpfs and still refuse files or huge pages there. */
static int try_tmpfs(struct dram_pool *pool)
{
	int mount = tmpfs_mount(), fd;

	if (mount < 0)
		return mount;
	fd = tmpfs_file(mount);
	if (fd < 0) {
		close(mount);
		return fd;
	}
	close(fd);
	*pool = (struct dram_pool){.mount = mount, .kind = "tmpfs"};
	return 0;
}

static int choose(struct dram_pool *pool, const char *mode, struct textbuf *why)
{
	bool automatic = !strcmp(mode, "auto");

	if (automatic || !strcmp(mode, "tmpfs")) {
		int err = try_tmpfs(pool);

		if (!err)
			return 0;
		if (!automatic)
			return tier_why(why, err,
					"hugepages=tmpfs: no private tmpfs with huge=always: %s "
					"(needs CAP_SYS_ADMIN and huge pages for tmpfs)",
					strerror(-err));
		log_info("no private tmpfs (%s), the pool is memfds", strerror(-err));
	}
	if (!strcmp(mode, "hugetlb"))
		*pool = (struct dram_pool){.mount = -1,
					   .kind = "hugetlb",
					   .memfd_flags = MFD_HUGETLB | MFD_HUGE_2MB};
	else if (automatic || !strcmp(mode, "off"))
		*pool = (struct dram_pool){.mount = -1, .kind = "memfd", .want_huge = automatic};
	else
		return tier_why(why, -EINVAL, "hugepages=%s: not one of auto, tmpfs, hugetlb, off",
				mode);
	return 0;
}

/* What the pool has already. */
static u64 bytes_there(const struct tier_opts *opts, u32 nr_slabs)
{
	struct stat st;
	u64 bytes = 0;

	for (u32 i = 0; opts->files && i < nr_slabs; i++)
		if (opts->files[i] >= 0 && !fstat(opts->files[i], &st))
			bytes += (u64)st.st_blocks * 512;
	return bytes;
}

int dram_pool_open(struct dram_pool *pool, const struct tier_opts *opts, u32 nr_slabs,
		   struct textbuf *why)
{
	const char *mode = opts->hugepages ? opts->hugepages : "auto";
	u64 available = strcmp(mode, "hugetlb") ? dram_memory_available() : UINT64_MAX;
	u64 there = bytes_there(opts, nr_slabs);

	if (opts->size_bytes > there && opts->size_bytes - there > available)
		return tier_why(why, kvc_err(-ENOMEM, dram_no_memory),
				"dram: a pool of %" PRIu64 " MiB does not fit: %" PRIu64
				" MiB of memory are available; choose a smaller dram=SIZE",
				opts->size_bytes >> 20, available >> 20);
	return choose(pool, mode, why);
}
