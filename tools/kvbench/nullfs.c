/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The null server: the least that a FUSE server can do for a read. One file, `data`, whose bytes lie
 * in memory and are answered from where they are, so that a reader walks as much memory here as in
 * a mount with the file in its DRAM tier. libfuse and its loop are set up as kvcachefs sets them up.
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse_lowlevel.h>
#include <string.h>
#include <sys/mman.h>
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define DATA_INO      2
#define MAX_THREADS   64
#define IDLE_THREADS  16
#define MAX_REQUEST   MIB(1)
#define TIMEOUT_S     3600.0

struct nullfs {
	u8 *data;
	u64 bytes;
};

static struct nullfs nullfs; /* set before the loop starts */

static bool fill_stat(fuse_ino_t ino, struct stat *st)
{
	*st = (struct stat){.st_ino = ino, .st_nlink = 1, .st_blksize = KVC_PAGE_SIZE};
	if (ino == DATA_INO) {
		st->st_mode = S_IFREG | 0444;
		st->st_size = (off_t)nullfs.bytes;
	} else {
		st->st_mode = S_IFDIR | 0555;
	}
	return ino == DATA_INO || ino == FUSE_ROOT_ID;
}

static void null_init(void *ctx, struct fuse_conn_info *conn)
{
	conn->want |= conn->capable & (FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ASYNC_READ |
				       FUSE_CAP_ASYNC_DIO);
	conn->want &= ~(unsigned int)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ |
				      FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
	conn->max_write = MAX_REQUEST;
	conn->max_readahead = MAX_REQUEST;
	conn->max_background = MAX_THREADS;
	conn->congestion_threshold = MAX_THREADS * 3 / 4;
}

static void null_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {
		.ino = DATA_INO, .attr_timeout = TIMEOUT_S, .entry_timeout = TIMEOUT_S};

	if (parent != FUSE_ROOT_ID || strcmp(name, "data")) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	fill_stat(DATA_INO, &e.attr);
	fuse_reply_entry(req, &e);
}

static void null_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	if (fill_stat(ino, &st))
		fuse_reply_attr(req, &st, TIMEOUT_S);
	else
		fuse_reply_err(req, ENOENT);
}

static void null_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		      struct fuse_file_info *fi)
{
	u64 from = min((u64)off, nullfs.bytes);
	struct iovec iov = {nullfs.data + from, min(size, (size_t)(nullfs.bytes - from))};

	fuse_reply_iov(req, &iov, 1);
}

static const struct fuse_lowlevel_ops ops = {
	.init = null_init,
	.lookup = null_lookup,
	.getattr = null_getattr,
	.read = null_read,
};

static int run_loop(struct fuse_session *se)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int err;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
	fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
	err = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	return err;
}

static int serve(const char *mountpoint)
{
	char *argv[] = {"kvbench-null", "-o", "fsname=kvbench-null", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	struct fuse_session *se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	int err = -ENOMEM;

	if (!se)
		return err;
	if (!fuse_set_signal_handlers(se)) {
		err = fuse_session_mount(se, mountpoint);
		if (!err) {
			err = run_loop(se);
			fuse_session_unmount(se);
		}
		fuse_remove_signal_handlers(se);
	}
	fuse_session_destroy(se);
	fuse_opt_free_args(&args);
	return err;
}

int nullfs_main(const char *mountpoint, const char *bytes)
{
	if (cli_parse_u64(bytes, &nullfs.bytes) || !nullfs.bytes)
		return CLI_USAGE;
	nullfs.data = mmap(NULL, nullfs.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	if (nullfs.data == MAP_FAILED)
		return CLI_FAILED;
	madvise(nullfs.data, nullfs.bytes, MADV_HUGEPAGE);
	fill_random(nullfs.data, nullfs.bytes, 3);
	for (u64 off = 0; off + sizeof(off) <= nullfs.bytes; off += FILE_CHUNK)
		memcpy(nullfs.data + off, &off, sizeof(off)); /* as file_write() does */
	return serve(mountpoint) < 0 ? CLI_FAILED : CLI_OK;
}
