/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk gives without us: one thread of large O_DIRECT transfers, and fio. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

int disk_file_open(struct disk_file *file, const char *dir, u64 bytes)
{
	int err;

	file->fd = -1;
	file->bytes = max(round_up_pow2(bytes, DISK_UNIT), DISK_UNIT);
	if (snprintf(file->path, PATH_MAX, "%s/direct", dir) >= PATH_MAX)
		return -ENAMETOOLONG;
	file->buf = aligned_alloc(KVC_HUGE_SIZE, DISK_UNIT);
	if (!file->buf)
		return -ENOMEM;
	/* As large pages as the DRAM tier has: they alone are worth a third of the rate. */
	madvise(file->buf, DISK_UNIT, MADV_HUGEPAGE);
	fill_random(file->buf, DISK_UNIT, 1);
	file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
	err = file->fd < 0 ? -errno : -posix_fallocate(file->fd, 0, (off_t)file->bytes);
	if (err)
		cli_error("%s: %s", file->path, strerror(-err));
	return err;
}

void disk_file_close(struct disk_file *file)
{
	if (file->fd >= 0) {
		close(file->fd);
		unlink(file->path);
	}
	free(file->buf);
}

static double transfer(struct disk_file *file, bool out)
{
	u64 start = clock_mono_ns();

	for (u64 off = 0; off < file->bytes; off += DISK_UNIT) {
		ssize_t n = out ? pwrite(file->fd, file->buf, DISK_UNIT, (off_t)off)
				: pread(file->fd, file->buf, DISK_UNIT, (off_t)off);

		if (n != (ssize_t)DISK_UNIT)
			return n < 0 ? -errno : -EIO;
	}
	return (double)file->bytes / seconds_since(start);
}

double disk_file_write(struct disk_file *file)
{
	return transfer(file, true);
}

double disk_file_read(struct disk_file *file)
{
	return transfer(file, false);
}

/* ---- fio ---- */

/* bw_bytes of the only job. */
static double fio_parse(const char *json, bool write)
{
	cJSON *root = cJSON_Parse(json);
	cJSON *job = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "jobs"), 0);
	cJSON *side = cJSON_GetObjectItem(job, write ? "write" : "read");
	cJSON *rate = cJSON_GetObjectItem(side, "bw_bytes");
	double value = cJSON_IsNumber(rate) ? rate->valuedouble : 0;

	cJSON_Delete(root);
	return value > 0 ? value : -EIO;
}

static void read_all(int fd, struct textbuf *tb)
{
	char chunk[4096];
	ssize_t n;

	while ((n = read(fd, chunk, sizeof(chunk))) > 0)
		textbuf_add(tb, chunk, (size_t)n);
}

static int run_fio(const char *dir, u64 bytes, bool write, struct textbuf *out)
{
	char file[PATH_MAX + 32], size[48], rw[24];
	char *argv[] = {"fio",	 "--name=peer",	 file,	    size,		rw,
			"--bs=1M", "--iodepth=16", "--direct=1", "--ioengine=libaio", "--thread",
			"--fallocate=native", "--output-format=json", NULL};
	int fds[2], err;
	pid_t pid;

	snprintf(file, sizeof(file), "--filename=%s/fio", dir);
	snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)bytes);
	snprintf(rw, sizeof(rw), "--rw=%s", write ? "write" : "read");
	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	pid = spawn(argv, fds[1]);
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return pid;
	}
	read_all(fds[0], out);
	close(fds[0]);
	err = spawn_wait(pid);
	return err ? err : out->err;
}

static bool fio_there(void)
{
	char *argv[] = {"fio", "--version", NULL};
	pid_t pid = spawn(argv, -1);

	return pid > 0 && !spawn_wait(pid);
}

double fio_rate(const char *dir, u64 bytes, bool write)
{
	struct textbuf out = TEXTBUF_INIT;
	double rate;
	int err;

	if (!fio_there())
		return -ENOENT;
	err = run_fio(dir, bytes, write, &out);
	rate = err ? err : fio_parse(out.text ? out.text : "", write);
	textbuf_free(&out);
	return rate;
}
