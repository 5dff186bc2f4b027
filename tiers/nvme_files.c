/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data files of the nvme tier: data.0, data.1, ... in the store's directory, all of the same
 * size but the last. They are allocated in full when made, so that a write never meets a full disk.
 *
 * Opening never changes a file. One that is shorter than the store says has lost data and is an
 * error. One that is longer is what a grow leaves behind that was interrupted before its caller
 * recorded the new size: it is used up to the recorded size, and the next grow takes it over.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "tiers/nvme_impl.h"
#include "tiers/tier_impl.h"

#define NAME_BYTES 32

static void file_name(char name[NAME_BYTES], unsigned int i)
{
	snprintf(name, NAME_BYTES, "data.%u", i);
}

static unsigned int files_for(const struct nvme *nvme, u64 size_bytes)
{
	return div_round_up(size_bytes, nvme->file_bytes);
}

/* The size of file @i in a tier of @size_bytes. */
static u64 file_size(const struct nvme *nvme, unsigned int i, u64 size_bytes)
{
	return min(nvme->file_bytes, size_bytes - i * nvme->file_bytes);
}

/* Open file @i past the page cache; some filesystems accept the flag and refuse the first read. */
static int open_direct(struct nvme *nvme, const char *name)
{
	void *probe = aligned_alloc(KVC_PAGE_SIZE, KVC_PAGE_SIZE);
	int fd, err = 0;

	if (!probe)
		return -ENOMEM;
	fd = openat(nvme->dirfd, name, O_RDWR | O_CLOEXEC | O_DIRECT);
	if (fd < 0 || pread(fd, probe, KVC_PAGE_SIZE, 0) < 0)
		err = -errno;
	free(probe);
	if (fd >= 0 && err == -EINVAL)
		close(fd);
	else if (fd >= 0)
		err = fd; /* any other error of the probe is for who reads there */
	return err;
}

static int open_file(struct nvme *nvme, unsigned int i)
{
	char name[NAME_BYTES];
	int fd = -EINVAL;

	file_name(name, i);
	if (nvme->direct)
		fd = open_direct(nvme, name);
	if (fd != -EINVAL)
		return fd;
	if (nvme->direct)
		log_warn("tier %s: no O_DIRECT on this filesystem, using the page cache",
			 nvme->tier->name);
	nvme->direct = false;
	fd = openat(nvme->dirfd, name, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* For filesystems without fallocate: space is reserved by writing it. */
static int write_zeros(int fd, u64 from, u64 to)
{
	const u64 chunk = MIB(1);
	char *zeros = calloc(1, chunk);
	int err = zeros ? 0 : -ENOMEM;

	while (!err && from < to) {
		ssize_t n = pwrite(fd, zeros, min(chunk, to - from), from);

		if (n > 0)
			from += n;
		else if (n == 0 || errno != EINTR)
			err = n ? -errno : -EIO;
	}
	free(zeros);
	return err;
}

static int reserve(int fd, u64 bytes)
{
	struct stat st;
	int err;

	if (fault_point(FAULT_SPACE))
		return -ENOSPC;
	if (fstat(fd, &st))
		return -errno;
	do {
		err = fallocate(fd, 0, 0, bytes) ? -errno : 0;
	} while (err == -EINTR);
	if (err == -EOPNOTSUPP)
		err = (u64)st.st_size < bytes ? write_zeros(fd, st.st_size, bytes) : 0;
	return err;
}

/* Make file @i with its space, durably; @flags: O_EXCL or 0. Its descriptor is closed again. */
static int make_file(struct nvme *nvme, unsigned int i, u64 bytes, int flags)
{
	char name[NAME_BYTES];
	int fd, err;

	file_name(name, i);
	fd = openat(nvme->dirfd, name, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600);
	if (fd < 0)
		return -errno;
	err = reserve(fd, bytes);
	if (!err && fsync(fd))
		err = -errno;
	close(fd);
	return err;
}

static void remove_files(struct nvme *nvme, unsigned int from, unsigned int to)
{
	char name[NAME_BYTES];

	for (unsigned int i = from; i < to; i++) {
		file_name(name, i);
		unlinkat(nvme->dirfd, name, 0);
	}
}

static int explain_make(struct nvme *nvme, unsigned int i, int err, const struct tier_opts *opts,
			struct textbuf *why)
{
	struct statvfs vfs;
	u64 free_bytes = 0;

	if (err == -EEXIST)
		return tier_why(why, err,
				"data.%u exists already: a new store is not made over it", i);
	if (err != -ENOSPC)
		return tier_why(why, err, "cannot make data.%u: %s", i, strerror(-err));
	/* What was reserved so far has been given back by now. */
	if (!fstatvfs(nvme->dirfd, &vfs))
		free_bytes = (u64)vfs.f_bavail * vfs.f_frsize;
	return tier_why(why, kvc_err(err, nvme_no_space),
			"no space for a store of %" PRIu64 " MiB: the filesystem has %" PRIu64
			" MiB free; choose a smaller nvme=SIZE",
			opts->size_bytes >> 20, free_bytes >> 20);
}

static int create_files(struct nvme *nvme, const struct tier_opts *opts, struct textbuf *why)
{
	unsigned int nr = files_for(nvme, opts->size_bytes), i;
	int err = 0;

	for (i = 0; !err && i < nr; i++)
		err = make_file(nvme, i, file_size(nvme, i, opts->size_bytes), O_EXCL);
	if (!err && fsync(nvme->dirfd))
		err = -errno;
	if (!err)
		return 0;
	/* The file that was there before us is not ours to remove. */
	remove_files(nvme, 0, err == -EEXIST ? i - 1 : i);
	return explain_make(nvme, i - 1, err, opts, why);
}

static int check_size(struct nvme *nvme, unsigned int i, u64 bytes, struct textbuf *why)
{
	struct stat st;

	if (fstat(nvme->fds[i], &st))
		return tier_why(why, -errno, "cannot stat data.%u", i);
	if (!S_ISREG(st.st_mode))
		return tier_why(why, -EINVAL, "data.%u is not a regular file", i);
	if ((u64)st.st_size < bytes)
		return tier_why(why, kvc_err(-EIO, nvme_truncated),
				"data.%u is truncated: %" PRIu64 " bytes instead of %" PRIu64, i,
				(u64)st.st_size, bytes);
	if ((u64)st.st_size > bytes)
		log_warn("data.%u is longer than the store (%" PRIu64 " bytes, not %" PRIu64
			 "): an interrupted grow; its end is not used", i, (u64)st.st_size, bytes);
	return 0;
}

static int open_files(struct nvme *nvme, const struct tier_opts *opts, struct textbuf *why)
{
	unsigned int nr = files_for(nvme, opts->size_bytes);

	for (unsigned int i = 0; i < nr; i++) {
		int fd = open_file(nvme, i);
		int err;

		if (fd < 0)
			return tier_why(why, fd, "cannot open data.%u: %s", i, strerror(-fd));
		nvme->fds[nvme->nr_files++] = fd;
		err = check_size(nvme, i, file_size(nvme, i, opts->size_bytes), why);
		if (err)
			return err;
	}
	return 0;
}

int nvme_files_open(struct nvme *nvme, const struct tier_opts *opts, struct textbuf *why)
{
	int err;

	if (nvme->file_bytes % KVC_HUGE_SIZE ||
	    opts->size_bytes > NVME_MAX_FILES * nvme->file_bytes)
		return tier_why(why, -EINVAL, "%" PRIu64 " MiB in data files of %" PRIu64
				" MiB: more than %u files, or not whole 2 MiB pages",
				opts->size_bytes >> 20, nvme->file_bytes >> 20, NVME_MAX_FILES);
	nvme->direct = true;
	nvme->dirfd = fcntl(opts->dirfd, F_DUPFD_CLOEXEC, 0);
	if (nvme->dirfd < 0)
		return tier_why(why, -errno, "no store directory: %s", strerror(errno));
	err = opts->create ? create_files(nvme, opts, why) : 0;
	if (err) {
		close(nvme->dirfd);
		return err;
	}
	err = open_files(nvme, opts, why);
	if (!err)
		return 0;
	nvme_files_close(nvme);
	return err;
}

void nvme_files_close(struct nvme *nvme)
{
	for (unsigned int i = 0; i < nvme->nr_files; i++)
		close(nvme->fds[i]);
	nvme->nr_files = 0;
	close(nvme->dirfd);
}

/* Files from @from on, opened; on failure they are gone again. */
static int grow_files(struct nvme *nvme, unsigned int from, unsigned int to, u64 size_bytes)
{
	unsigned int i;
	int fd = 0;

	for (i = from; fd >= 0 && i < to; i++) {
		int err = make_file(nvme, i, file_size(nvme, i, size_bytes), 0);

		fd = err ? err : open_file(nvme, i);
		if (fd >= 0)
			nvme->fds[i] = fd;
	}
	if (fd >= 0 && fsync(nvme->dirfd)) {
		fd = -errno;
		i++;
	}
	if (fd >= 0)
		return 0;
	for (unsigned int j = from; j + 1 < i; j++)
		close(nvme->fds[j]);
	remove_files(nvme, from, min(i, to));
	return fd;
}

int nvme_files_grow(struct nvme *nvme, u64 size_bytes)
{
	unsigned int last = nvme->nr_files - 1;
	u64 old_bytes = file_size(nvme, last, tier_size(nvme->tier));
	u64 new_bytes = file_size(nvme, last, size_bytes);
	int err;

	if (size_bytes > NVME_MAX_FILES * nvme->file_bytes)
		return -EFBIG;
	err = reserve(nvme->fds[last], new_bytes);
	if (!err && fsync(nvme->fds[last]))
		err = -errno;
	if (!err)
		err = grow_files(nvme, last + 1, files_for(nvme, size_bytes), size_bytes);
	if (err) {
		/* Nobody has used what lies behind the old end. */
		if (ftruncate(nvme->fds[last], old_bytes))
			log_warn("tier %s: cannot give back the space of a failed grow: %s",
				 nvme->tier->name, strerror(errno));
		return kvc_err(err, nvme_grow_failed);
	}
	lock_acquire(&nvme->lock);
	nvme->nr_files = files_for(nvme, size_bytes);
	lock_release(&nvme->lock);
	return 0;
}
