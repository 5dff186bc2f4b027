/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata store's way to the world. Each function asks fault_point(FAULT_META) once, so that a
 * test can fail the n-th step of any operation, and none is called with a lock held.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>
#include "allocator/base/fault.h"
#include "allocator/meta_types.h"

int meta_pread(int fd, void *buf, size_t bytes, u64 off, size_t *got)
{
	*got = 0;
	if (fault_point(FAULT_META))
		return -EIO;
	while (*got < bytes) {
		ssize_t n = pread(fd, (u8 *)buf + *got, bytes - *got, (off_t)(off + *got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		*got += (size_t)n;
	}
	return 0;
}

int meta_pwrite(int fd, const void *buf, size_t bytes, u64 off)
{
	lock_assert_none();
	if (fault_point(FAULT_META))
		return -EIO;
	while (bytes) {
		ssize_t n = pwrite(fd, buf, bytes, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		buf = (const u8 *)buf + n;
		bytes -= (size_t)n;
		off += (u64)n;
	}
	return 0;
}

/* A sync that failed is never repeated: the kernel may have dropped the dirty pages. */
int meta_sync(int fd)
{
	int ret;

	lock_assert_none();
	if (fault_point(FAULT_META))
		return -EIO;
	do {
		ret = fdatasync(fd);
	} while (ret && errno == EINTR);
	return ret ? -errno : 0;
}

int meta_sync_all(int fd)
{
	int ret;

	lock_assert_none();
	if (fault_point(FAULT_META))
		return -EIO;
	do {
		ret = fsync(fd);
	} while (ret && errno == EINTR);
	return ret ? -errno : 0;
}

/* Filesystems without fallocate() get the writes' own ENOSPC, which stops the store. */
int meta_allocate(int fd, u64 off, u64 bytes)
{
	int ret;

	lock_assert_none();
	if (fault_point(FAULT_META))
		return -ENOSPC;
	do {
		ret = fallocate(fd, 0, (off_t)off, (off_t)bytes);
	} while (ret && errno == EINTR);
	if (ret && errno == EOPNOTSUPP)
		return ftruncate(fd, (off_t)(off + bytes)) ? -errno : 0;
	return ret ? -errno : 0;
}

int meta_open_file(int dir_fd, const char *name, int flags, int *fd)
{
	lock_assert_none();
	*fd = -1;
	if (fault_point(FAULT_META))
		return -EIO;
	do {
		*fd = openat(dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	} while (*fd < 0 && errno == EINTR);
	return *fd < 0 ? -errno : 0;
}

int meta_rename(int dir_fd, const char *from, const char *to)
{
	lock_assert_none();
	if (fault_point(FAULT_META))
		return -EIO;
	return renameat(dir_fd, from, dir_fd, to) ? -errno : 0;
}

void *meta_realloc(void *old, size_t bytes)
{
	return fault_point(FAULT_META) ? NULL : realloc(old, bytes);
}

void meta_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void meta_name(char name[META_NAME_BYTES], enum meta_kind kind, u64 generation, bool tmp)
{
	snprintf(name, META_NAME_BYTES, "%s.%" PRIu64 "%s",
		 kind == META_JOURNAL ? "journal" : "checkpoint", generation, tmp ? ".tmp" : "");
}

void meta_head_seal(struct meta_head *head)
{
	head->magic = META_HEAD_MAGIC;
	head->format = META_FORMAT;
	head->sum = hash_bytes(head, offsetof(struct meta_head, sum));
}

const char *meta_head_wrong(const struct meta_head *head)
{
	if (head->magic != META_HEAD_MAGIC)
		return "magic number wrong";
	if (head->sum != hash_bytes(head, offsetof(struct meta_head, sum)))
		return "checksum wrong";
	if (head->format != META_FORMAT)
		return "written by another version of the format";
	return NULL;
}

void meta_frame_seal(u64 store, struct meta_frame *frame, size_t frame_bytes)
{
	frame->magic = META_FRAME_MAGIC;
	frame->payload_sum = hash_bytes_seed(frame + 1, frame_bytes - sizeof(*frame), store);
	frame->head_sum = hash_bytes_seed(frame, offsetof(struct meta_frame, head_sum), store);
}
