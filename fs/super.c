/* SPDX-License-Identifier: Apache-2.0 */
/* The superblock file: written aside, synced and renamed, so that there is always a whole one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/hash.h"
#include "allocator/base/textbuf.h"
#include "fs/store.h"

#define SUPER_TMP FS_SUPER_NAME ".new"

static u64 super_csum(const struct fs_super *super)
{
	return hash_bytes(super, offsetof(struct fs_super, csum));
}

static int damaged(struct textbuf *why, const char *what)
{
	textbuf_printf(why, "file %s in the store: %s; nothing was changed",
		       FS_SUPER_NAME, what);
	return -EUCLEAN;
}

static int super_check(const u8 *page, ssize_t got, struct fs_super *super, struct textbuf *why)
{
	if (got != FS_SUPER_BYTES)
		return damaged(why, "wrong size");
	memcpy(super, page, sizeof(*super));
	if (memcmp(super->magic, FS_SUPER_MAGIC, sizeof(super->magic)))
		return damaged(why, "not a kvcachefs superblock");
	if (super->csum != super_csum(super))
		return damaged(why, "checksum does not fit: it is damaged");
	for (size_t i = sizeof(*super); i < FS_SUPER_BYTES; i++)
		if (page[i])
			return damaged(why, "it is damaged");
	if (super->format != FS_FORMAT) {
		textbuf_printf(why, "the store has format %u, this version knows %u", super->format,
			       FS_FORMAT);
		return -EUCLEAN;
	}
	if (super->nvme_bytes % MIB(2) || (super->ready && !super->nvme_bytes))
		return damaged(why, "impossible size");
	return 0;
}

int super_read(int dirfd, struct fs_super *super, struct textbuf *why)
{
	u8 page[FS_SUPER_BYTES + 1];
	int fd = openat(dirfd, FS_SUPER_NAME, O_RDONLY | O_CLOEXEC);
	ssize_t got;
	int err = -errno;

	if (fd < 0) {
		if (err != -ENOENT)
			textbuf_printf(why, "cannot open the store's superblock: %s",
				       strerror(-err));
		return err;
	}
	got = pread(fd, page, sizeof(page), 0);
	err = got < 0 ? -errno : 0;
	close(fd);
	if (err) {
		textbuf_printf(why, "cannot read the store's superblock: %s", strerror(-err));
		return err;
	}
	return super_check(page, got, super, why);
}

int super_write(int dirfd, struct fs_super *super, struct textbuf *why)
{
	u8 page[FS_SUPER_BYTES] = {0};
	int fd, err = 0;

	super->csum = super_csum(super);
	memcpy(page, super, sizeof(*super));
	fd = openat(dirfd, SUPER_TMP, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		err = -errno;
	if (!err && pwrite(fd, page, sizeof(page), 0) != (ssize_t)sizeof(page))
		err = errno ? -errno : -EIO;
	if (!err && fsync(fd))
		err = -errno;
	if (fd >= 0)
		close(fd);
	if (!err && (renameat(dirfd, SUPER_TMP, dirfd, FS_SUPER_NAME) || fsync(dirfd)))
		err = -errno;
	if (err)
		textbuf_printf(why, "cannot write the store's superblock: %s", strerror(-err));
	return err;
}
