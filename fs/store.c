/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store. A new one is made in an empty directory only: first a superblock that says "not
 * ready", then data files and metadata, then "ready". A store that never got ready holds nothing
 * and is made again. Everything else that does not look right is refused and left as it is.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "allocator/media.h"
#include "fs/fseq.h"
#include "fs/keeper.h"
#include "fs/mountpoint.h"
#include "fs/persist.h"
#include "fs/store.h"

#define NVME_FILE_BYTES GIB(64)
#define LEAVE_WAIT_S	60	/* for the daemon of an earlier mount to finish */

/* umount returns before the daemon has written everything: wait for one that serves no mount. */
static int lock_store(int dirfd, const char *path)
{
	u64 give_up = clock_mono_ns() + LEAVE_WAIT_S * NSEC_PER_SEC;
	u64 tell = clock_mono_ns() + NSEC_PER_SEC;
	bool told = false;

	while (flock(dirfd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK)
			return -errno;
		if (source_is_mounted(path) || clock_mono_ns() > give_up)
			return -EBUSY;
		if (!told && clock_mono_ns() > tell)
			log_warn("%s: in use; waiting up to %d s for an earlier mount's daemon to finish",
				 path, LEAVE_WAIT_S);
		told = told || clock_mono_ns() > tell;
		poll(NULL, 0, 20);
	}
	return 0;
}

static int open_dir(struct store *s, const char *path, struct textbuf *why)
{
	int err;

	if (mkdir(path, 0700) && errno != EEXIST) {
		err = -errno;
		textbuf_printf(why, "%s: cannot create the store: %s", path, strerror(-err));
		return err;
	}
	s->dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dirfd < 0) {
		err = -errno;
		textbuf_printf(why, "%s: cannot open the store: %s", path, strerror(-err));
		return err;
	}
	if (faccessat(s->dirfd, ".", W_OK, AT_EACCESS)) {
		err = -errno;
		textbuf_printf(why, "%s: the store is not writable: %s", path, strerror(-err));
		return err;
	}
	err = lock_store(s->dirfd, path);
	if (err)
		textbuf_printf(why, "%s: %s", path,
			       err == -EBUSY ? "the store is in use by another daemon"
					     : strerror(-err));
	return err;
}

/* Every entry but the superblock; @remove: delete them. Return: how many, or -errno. */
static int scan_dir(int dirfd, bool remove)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), nr = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!dir)
		return -errno;
	while ((e = readdir(dir))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    !strcmp(e->d_name, FS_SUPER_NAME) || !strcmp(e->d_name, "lost+found"))
			continue;
		nr++;
		if (remove && unlinkat(dirfd, e->d_name, 0))
			nr = -errno;
		if (nr < 0)
			break;
	}
	closedir(dir);
	return nr;
}

/* 80 % of what is free, whole pages. */
static u64 default_nvme(int dirfd)
{
	struct statvfs st;

	if (fstatvfs(dirfd, &st))
		return 0;
	return (u64)st.f_bavail * st.f_frsize / 10 * 8 & ~(MIB(2) - 1);
}

static int begin_fresh(struct store *s, const struct fs_opts *opts, struct textbuf *why)
{
	s->fresh = true;
	s->super = (struct fs_super){
		.format = FS_FORMAT,
		.nvme_bytes = opts->nvme_bytes ? opts->nvme_bytes : default_nvme(s->dirfd),
		.nvme_file_bytes = NVME_FILE_BYTES,
		.created_ns = clock_real_ns(),
	};
	memcpy(s->super.magic, FS_SUPER_MAGIC, sizeof(s->super.magic));
	if (getrandom(s->super.uuid, sizeof(s->super.uuid), 0) != sizeof(s->super.uuid))
		return -EIO;
	if (s->super.nvme_bytes < MIB(16)) {
		textbuf_printf(why, "%s: not enough free space for a store", opts->source);
		return -ENOSPC;
	}
	return super_write(s->dirfd, &s->super, why);
}

static int check_super(struct store *s, const struct fs_opts *opts, struct textbuf *why)
{
	int err = super_read(s->dirfd, &s->super, why), nr;

	if (err == -ENOENT) {
		nr = scan_dir(s->dirfd, false);
		if (nr > 0) {
			textbuf_printf(why,
				       "%s: not empty, and has no kvcachefs superblock: "
				       "nothing was changed",
				       opts->source);
			return -ENOTEMPTY;
		}
		return nr < 0 ? nr : begin_fresh(s, opts, why);
	}
	if (err)
		return err;
	if (!s->super.ready) {
		log_warn("%s: the store was never finished: making it again", opts->source);
		nr = scan_dir(s->dirfd, true);
		return nr < 0 ? nr : begin_fresh(s, opts, why);
	}
	if (opts->nvme_bytes && opts->nvme_bytes < s->super.nvme_bytes) {
		textbuf_printf(why, "option nvme=: the store has %llu MiB and cannot shrink",
			       (unsigned long long)(s->super.nvme_bytes >> 20));
		return -EINVAL;
	}
	return 0;
}

/* A bigger nvme= than the store has: grow it. */
static int grow_nvme(struct store *s, u64 bytes, struct textbuf *why)
{
	int err;

	if (bytes <= s->super.nvme_bytes)
		return 0;
	err = media_grow_nvme(s->media, bytes);
	if (err) {
		textbuf_printf(why, "cannot grow the nvme tier: %s", strerror(-err));
		return err;
	}
	s->super.nvme_bytes = bytes;
	return super_write(s->dirfd, &s->super, why);
}

/* Whoever holds what outlives us; perhaps that has something from the daemon before. */
static int open_keeper(struct store *s, const struct fs_opts *opts)
{
	struct keeper_want want = {
		.dirfd = s->dirfd,
		.path = opts->source,
		.linger_seconds = opts->linger_seconds,
		.linger_named = opts->linger_named,
		.config = {.dram_bytes = opts->dram_bytes,
			   .numa_node = opts->numa_node,
			   .nr_files = media_dram_slabs(opts->dram_bytes)},
	};

	if (s->dirfd < 0)
		return 0;
	memcpy(want.config.store, s->super.uuid, sizeof(want.config.store));
	snprintf(want.config.hugepages, sizeof(want.config.hugepages), "%s", opts->hugepages);
	return keeper_open(&s->keeper, &want);
}

static bool have_taken(const struct store *s)
{
	return s->keeper && s->keeper->taken;
}

static int open_tiers(struct store *s, const struct fs_opts *opts, struct textbuf *why)
{
	struct media_opts mo = {
		.dram_bytes = opts->dram_bytes,
		.hugepages = opts->hugepages,
		.numa_node = opts->numa_node,
		.dirfd = s->dirfd,
		.fresh = s->fresh,
		.nvme_bytes = s->super.nvme_bytes,
		.nvme_file_bytes = s->super.nvme_file_bytes,
		.dram_files = have_taken(s) ? s->keeper->files : NULL,
		.file_made = keeper_file,
		.file_ctx = s->keeper,
	};
	int err = media_open(&s->media, &mo, why);

	return err || s->dirfd < 0 ? err : grow_nvme(s, opts->nvme_bytes, why);
}

static int open_pool(struct store *s, const struct fs_opts *opts, struct textbuf *why)
{
	struct pool_opts po = {
		.dram = media_tier(s->media, IN_DRAM),
		.nvme = media_tier(s->media, IN_NVME),
		.high_pct = opts->high_pct,
		.low_pct = opts->low_pct,
		.write_through = opts->write_through,
	};
	int err = pool_create(&s->pool, &po);

	if (err)
		textbuf_printf(why, "cannot set up the block pool: %s", strerror(-err));
	return err;
}

/* An index in the keeper's hands; without one nothing can be found again. */
static int begin_warm(struct store *s, struct textbuf *why)
{
	bool taken = have_taken(s);
	int fd;

	if (!s->keeper)
		return 0;
	fd = pool_warm_begin(s->pool, taken ? s->keeper->index : -1);
	if (taken)
		keeper_taken(s->keeper);
	if (fd >= 0)
		keeper_index(s->keeper, fd);
	else if (!taken)
		log_warn("no index of DRAM: it will not outlive this daemon: %s", strerror(-fd));
	if (fd >= 0 || !taken)
		return 0;
	textbuf_printf(why, "cannot take over an earlier mount's memory: %s", strerror(-fd));
	return fd;
}

int store_open(struct store **store, const struct fs_opts *opts, struct textbuf *why)
{
	struct store *s = calloc(1, sizeof(*s));
	int err = 0;

	if (!s)
		return -ENOMEM;
	s->dirfd = -1;
	if (opts->source) {
		err = open_dir(s, opts->source, why);
		if (!err)
			err = check_super(s, opts, why);
	}
	if (!err)
		err = open_keeper(s, opts);
	if (!err)
		err = open_tiers(s, opts, why);
	if (!err)
		err = open_pool(s, opts, why);
	if (!err)
		err = begin_warm(s, why);
	if (err)
		store_close(s);
	else
		*store = s;
	return err;
}

static int load_meta(struct store *s, struct fs *fs, struct textbuf *why)
{
	struct meta_opts mo = {.create = s->fresh, .durable = pool_meta_durable, .ctx = s->pool};
	struct loader *loader = loader_new(fs);
	int err;

	if (!loader)
		return -ENOMEM;
	err = meta_open(&s->meta, s->dirfd, &mo, &(struct meta_loader){loader_record, loader}, why);
	if (err && loader_why(loader)->len && !why->len)
		textbuf_add(why, loader_why(loader)->text, loader_why(loader)->len);
	if (!err)
		err = loader_finish(loader, why);
	loader_free(loader);
	return err;
}

/* Named pins survive a mount: bring their blocks back up. Nobody else is there yet. */
static void load_pinned(struct fs *fs)
{
	struct fseq *fseq;

	list_for_each_entry (fseq, &fs->seqs, live) {
		if (!fseq->seq->pinned)
			continue;
		seq_touch(fseq->seq);
		seq_prefetch(fseq->seq);
	}
}

/* Return: 0, or DRAM must not be used. */
static int load_warm(struct store *s, struct textbuf *why)
{
	struct pool_warm_stats st;
	int err = pool_warm_load(s->pool, &st);

	if (err) {
		textbuf_printf(why, "cannot take over an earlier mount's memory: %s; remove "
				    KEEPER_SOCKET " in the store to let it go", strerror(-err));
		return err;
	}
	if (!have_taken(s))
		return 0;
	log_info("DRAM of the earlier mount: %llu blocks, %llu MiB are there again, %llu were not as "
		 "recorded; its clients hold %llu blocks and %llu KiB besides",
		 (unsigned long long)st.blocks, (unsigned long long)(st.bytes >> 20),
		 (unsigned long long)st.refused, (unsigned long long)st.held_blocks,
		 (unsigned long long)(st.held_bytes >> 10));
	s->lessees = true;
	store_tick(s);
	return 0;
}

void store_tick(struct store *s)
{
	if (!s)
		return;
	keeper_alive(s->keeper);
	if (!s->lessees || keeper_clients(s->keeper))
		return;
	s->lessees = false;
	pool_warm_release(s->pool);
}

int store_load(struct store *s, struct fs *fs, struct textbuf *why)
{
	int err = s->dirfd < 0 ? 0 : load_meta(s, fs, why);

	if (!err)
		err = pool_load_finish(s->pool, why);
	if (!err)
		err = load_warm(s, why);
	if (err)
		return err;
	fs->store = s;
	fs->meta = s->meta;
	pool_set_meta(s->pool, s->meta);
	err = pool_start(s->pool);
	if (err)
		textbuf_printf(why, "cannot start the pool: %s", strerror(-err));
	else
		load_pinned(fs);
	if (err || !s->fresh)
		return err;
	s->super.ready = 1;
	return super_write(s->dirfd, &s->super, why);
}

int store_close(struct store *s)
{
	int err = 0;

	if (!s)
		return 0;
	if (s->meta)
		err = meta_close(s->meta);
	if (s->pool)
		pool_destroy(s->pool);
	media_close(s->media);
	keeper_close(s->keeper, s->served);
	if (s->dirfd >= 0)
		close(s->dirfd);
	free(s);
	return err;
}
