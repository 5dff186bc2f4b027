/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

/* One random chunk, tagged with its number: enough to see that it is the right one. */
static u8 *chunk_buffer(void)
{
	u8 *buf = aligned_alloc(KVC_PAGE_SIZE, FILE_CHUNK);

	if (buf)
		fill_random(buf, FILE_CHUNK, 4);
	return buf;
}

static int write_chunks(int fd, u64 bytes, u8 *buf)
{
	for (u64 off = 0; off < bytes; off += FILE_CHUNK) {
		ssize_t n;

		memcpy(buf, &off, sizeof(off));
		n = write(fd, buf, FILE_CHUNK);
		if (n != (ssize_t)FILE_CHUNK)
			return n < 0 ? -errno : -EIO;
	}
	return 0;
}

static int read_chunks(int fd, u64 bytes, u8 *buf)
{
	for (u64 off = 0; off < bytes; off += FILE_CHUNK) {
		ssize_t n = read(fd, buf, FILE_CHUNK);

		if (n != (ssize_t)FILE_CHUNK)
			return n < 0 ? -errno : -EIO;
	}
	return 0;
}

static int said(const char *path, int err)
{
	if (err)
		cli_error("%s: %s", path, strerror(-err));
	return err;
}

double file_write(const char *path, u64 bytes)
{
	u64 start = clock_mono_ns();
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int err = fd < 0 ? -errno : 0;
	u8 *buf = chunk_buffer();
	double rate;

	if (!err)
		err = buf ? write_chunks(fd, bytes, buf) : -ENOMEM;
	if (!err && fsync(fd))
		err = -errno;
	rate = (double)bytes / seconds_since(start);
	if (fd >= 0 && close(fd) && !err)
		err = -errno;
	free(buf);
	return err ? said(path, err) : rate;
}

double file_read(const char *path, u64 bytes, bool direct)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
	int err = fd < 0 ? -errno : 0;
	u8 *buf = chunk_buffer();
	double rate;
	u64 start;

	if (!err && !direct)
		err = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	start = clock_mono_ns();
	if (!err)
		err = buf ? read_chunks(fd, bytes, buf) : -ENOMEM;
	rate = (double)bytes / seconds_since(start);
	if (!err && memcmp(buf, &(u64){bytes - FILE_CHUNK}, sizeof(u64)))
		err = -EIO; /* the last chunk is not the one that was written */
	if (fd >= 0)
		close(fd);
	free(buf);
	return err ? said(path, err) : rate;
}

int file_put(const char *path, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int err = fd < 0 ? -errno : 0;
	ssize_t n = err ? 0 : write(fd, bytes, len);

	if (!err && n != (ssize_t)len)
		err = n < 0 ? -errno : -EIO;
	if (fd >= 0 && close(fd) && !err)
		err = -errno;
	return said(path, err);
}
