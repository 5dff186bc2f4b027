/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dram tier: slab files mapped side by side into one range of addresses, so that the tier is
 * linear for everybody here while clients get the files one by one. A GPU driver may pin parts of it.
 * Transfers are memcpy, done at once, on the submitter's thread: code that moves blocks need not know
 * which side is memory.
 *
 * A descriptor that a client has cannot be taken back. So a slab that is to hold bytes which its
 * clients may not see gets a fresh file at the same addresses (tier_renew()); the old one loses its
 * pages and lives on, empty, for those who still map it.
 *
 * The mapping is aligned to a huge page, for a file offset and its address must agree modulo 2 MiB
 * before the kernel maps a huge page by one entry.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "tiers/dram_pool.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

#define MAX_NODES   1024
#define OTHER_FILES 1024 /* what may be open besides the slabs */

/* All members are set once, at open, but for the descriptors: see dram_renew(). */
struct dram {
	struct dram_pool pool;
	char *base;	/* reserved addresses, the slabs are mapped over them */
	u64 size_bytes, slab_bytes;
	u32 nr_slabs;
	int numa_node;	/* -1: none */
	int *fd;	/* a slab's file, owned; -1: none. Written atomically */
	void (*file_made)(void *ctx, u32 slab, int fd); /* may be NULL */
	void *file_ctx;
	struct dram_guard guard;
};

static u64 slab_len(const struct dram *dram, u32 slab)
{
	return min(dram->slab_bytes, dram->size_bytes - slab * dram->slab_bytes);
}

/* Reserve addresses at a huge-page boundary: more than needed, then cut to the aligned middle. */
static void *reserve(u64 bytes)
{
	u64 reserved = bytes + KVC_HUGE_SIZE;
	char *area = mmap(NULL, reserved, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base, *end;

	if (area == MAP_FAILED)
		return NULL;
	base = (char *)round_up_pow2((uintptr_t)area, KVC_HUGE_SIZE);
	end = base + bytes;
	if (base > area)
		munmap(area, base - area);
	if (area + reserved > end)
		munmap(end, area + reserved - end);
	return base;
}

/*
 * Prefer the node, not insist on it: with MPOL_BIND a full node would kill us at a page fault while
 * the next node has memory.
 */
static int bind_node(void *addr, u64 bytes, int node)
{
	unsigned long mask[MAX_NODES / (8 * sizeof(long))] = {0};

	mask[node / (8 * sizeof(long))] = 1ul << (node % (8 * sizeof(long)));
	return syscall(SYS_mbind, addr, bytes, MPOL_PREFERRED, mask, (unsigned long)MAX_NODES, 0)
		       ? -errno
		       : 0;
}

static int check_node(int node, struct textbuf *why)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
	if (node < 0 || node >= MAX_NODES || access(path, F_OK))
		return tier_why(why, -EINVAL, "numa=%d: there is no such memory node", node);
	return 0;
}

/*
 * Map @fd, ready in every respect, elsewhere first: what lies at the slab's addresses stays there
 * until it can be replaced in one step. @what: the step that failed.
 */
static int slab_map(struct dram *dram, u32 slab, int fd, const char **what)
{
	u64 bytes = slab_len(dram, slab);
	void *at = dram->base + slab * dram->slab_bytes;
	void *tmp = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int err = 0;

	*what = "mmap";
	if (tmp == MAP_FAILED)
		return -errno;
	/* Neither is needed for correctness. */
	madvise(tmp, bytes, MADV_DONTDUMP);
	if (dram->pool.want_huge)
		madvise(tmp, bytes, MADV_HUGEPAGE);
	*what = "mbind";
	if (dram->numa_node != -1)
		err = bind_node(tmp, bytes, dram->numa_node);
	if (!err) {
		*what = "mremap";
		if (mremap(tmp, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
			return 0;
		err = -errno;
	}
	munmap(tmp, bytes);
	return err;
}

/* @fd becomes the slab's. */
static int slab_set(struct dram *dram, u32 slab, int fd, const char **what)
{
	int err = slab_map(dram, slab, fd, what);

	if (err)
		close(fd);
	else
		__atomic_store_n(&dram->fd[slab], fd, __ATOMIC_RELAXED);
	return err;
}

static int slab_make(struct dram *dram, u32 slab, const char **what)
{
	int fd = dram_pool_file(&dram->pool, dram->slab_bytes);
	int err;

	*what = "create";
	if (fd < 0)
		return fd;
	err = slab_set(dram, slab, fd, what);
	if (!err && dram->file_made)
		dram->file_made(dram->file_ctx, slab, fd);
	return err;
}

/* A copy of a file that there is already; a client may have made it shorter. -1: not to be used. */
static int whole_file(const struct dram *dram, int fd)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || (u64)st.st_size < dram->slab_bytes)
		return -1;
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int slab_begin(struct dram *dram, u32 slab, const int *files, const char **what)
{
	int fd = files ? whole_file(dram, files[slab]) : -1;

	return fd < 0 ? slab_make(dram, slab, what) : slab_set(dram, slab, fd, what);
}

static void unmake(struct dram *dram)
{
	dram_guard_end(&dram->guard);
	for (u32 i = 0; dram->fd && i < dram->nr_slabs; i++)
		if (dram->fd[i] >= 0)
			close(dram->fd[i]);
	if (dram->base)
		munmap(dram->base, dram->size_bytes);
	dram_pool_close(&dram->pool);
	free(dram->fd);
	free(dram);
}

/* The slabs' descriptors, next to those that everything else needs. */
static int allow_files(u32 nr_slabs, struct textbuf *why)
{
	struct rlimit limit;
	u64 need = nr_slabs + OTHER_FILES;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return -errno;
	if (limit.rlim_cur >= need)
		return 0;
	if (limit.rlim_max < need)
		return tier_why(why, -EMFILE,
				"dram: the pool needs %" PRIu64
				" open files, %llu are allowed: raise the limit (ulimit -n)",
				need, (unsigned long long)limit.rlim_max);
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) ? -errno : 0;
}

static int make_slabs(struct dram *dram, const int *files, struct textbuf *why)
{
	dram->fd = kvc_alloc_array(dram->nr_slabs, sizeof(*dram->fd));
	if (!dram->fd)
		return -ENOMEM;
	for (u32 i = 0; i < dram->nr_slabs; i++)
		dram->fd[i] = -1;
	dram->base = reserve(dram->size_bytes);
	if (!dram->base)
		return tier_why(why, -ENOMEM, "no %" PRIu64 " MiB of addresses for the pool",
				dram->size_bytes >> 20);
	for (u32 i = 0; i < dram->nr_slabs; i++) {
		const char *what;
		int err = slab_begin(dram, i, files, &what);

		if (err)
			return tier_why(why, err,
					"cannot make the %s pool of %" PRIu64 " MiB: %s: %s%s",
					dram->pool.kind, dram->size_bytes >> 20, what, strerror(-err),
					strcmp(dram->pool.kind, "hugetlb")
						? ""
						: " (are enough huge pages reserved, vm.nr_hugepages?)");
	}
	return 0;
}

static int dram_open(struct tier *tier, const struct tier_opts *opts, struct textbuf *why)
{
	struct dram *dram;
	int err = opts->numa_node == -1 ? 0 : check_node(opts->numa_node, why);

	if (err)
		return err;
	dram = calloc(1, sizeof(*dram));
	if (!dram)
		return -ENOMEM;
	dram->size_bytes = opts->size_bytes;
	dram->slab_bytes = tier_slab_bytes(tier);
	dram->nr_slabs = (u32)div_round_up(dram->size_bytes, dram->slab_bytes);
	dram->numa_node = opts->numa_node;
	dram->file_made = opts->file_made;
	dram->file_ctx = opts->file_ctx;
	err = allow_files(dram->nr_slabs, why);
	if (err)
		goto free_dram;
	err = dram_pool_open(&dram->pool, opts, dram->nr_slabs, why);
	if (err)
		goto free_dram;
	err = make_slabs(dram, opts->files, why);
	if (err) {
		unmake(dram);
		return err;
	}
	dram->guard = (struct dram_guard){dram->base, dram->size_bytes, dram->slab_bytes, dram->fd};
	if (dram->pool.mount >= 0 || opts->files) /* memfds of ours are sealed */
		dram_guard_begin(&dram->guard);
	tier->priv = dram;
	log_info("tier %s: %" PRIu64 " MiB on %s, %u files", tier->name, dram->size_bytes >> 20,
		 dram->pool.kind, dram->nr_slabs);
	return 0;
free_dram:
	free(dram);
	return err;
}

static void dram_close(struct tier *tier)
{
	unmake(tier->priv);
}

static int dram_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	struct dram *dram = tier->priv;

	return tier_mem_submit(dram->base, ios, nr);
}

static void dram_poll(struct tier *tier)
{
}

static void *dram_map(struct tier *tier, u64 off, u64 bytes)
{
	struct dram *dram = tier->priv;

	return dram->base + off;
}

static void punch(struct dram *dram, u64 off, u64 bytes)
{
	u32 slab = (u32)(off / dram->slab_bytes);

	fallocate(dram->fd[slab], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		  (off_t)(off % dram->slab_bytes), (off_t)bytes);
}

/* Whole huge pages only: punching a part would split the page and free nothing. */
static void dram_discard(struct tier *tier, u64 off, u64 bytes)
{
	struct dram *dram = tier->priv;
	u64 start = round_up_pow2(off, KVC_HUGE_SIZE);
	u64 end = (off + bytes) & ~(u64)(KVC_HUGE_SIZE - 1);

	while (start < end) {
		u64 part = min(end - start, dram->slab_bytes - start % dram->slab_bytes);

		punch(dram, start, part);
		start += part;
	}
}

/* Pages first: where they are counted, as with hugetlb, the new file could not have its own. */
static int dram_renew(struct tier *tier, u32 slab, bool empty)
{
	struct dram *dram = tier->priv;
	int old = dram->fd[slab], err;
	const char *what;

	if (empty)
		punch(dram, slab * dram->slab_bytes, slab_len(dram, slab));
	err = slab_make(dram, slab, &what);
	if (err) {
		log_error("pool file %u cannot be replaced: %s: %s", slab, what, strerror(-err));
		return err;
	}
	close(old);
	return 0;
}

static void dram_to_text(struct tier *tier, struct textbuf *tb)
{
	struct dram *dram = tier->priv;

	textbuf_printf(tb, "pool=%s", dram->pool.kind);
}

const struct tier_ops tier_dram_ops = {
	.name = "dram",
	.align = 1,
	.open = dram_open,
	.close = dram_close,
	.submit = dram_submit,
	.poll = dram_poll,
	.map = dram_map,
	.discard = dram_discard,
	.renew = dram_renew,
	.to_text = dram_to_text,
};

int tier_dram_file(struct tier *tier, u32 slab)
{
	struct dram *dram = tier->priv;

	if (tier->ops != &tier_dram_ops || slab >= dram->nr_slabs)
		return -1;
	return dram->fd[slab];
}
