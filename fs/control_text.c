/* SPDX-License-Identifier: Apache-2.0 */
/* version, stat, metrics, tiers, config: texts about the daemon as a whole. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/media.h"
#include "fs/control.h"
#include "fs/store.h"

void text_version(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	textbuf_printf(tb, "kvcachefs %s uapi %d\n", KVC_VERSION, KVC_UAPI);
}

/* Counters of the pool by name; those that end in _now go up and down. */
#define POOL_COUNTERS(X)                                                                           \
	X(hit_tokens, hit_tokens, "tokens of lookups that were found in the prefix index")         \
	X(lookup_tokens, lookup_tokens, "tokens that lookups asked for")                           \
	X(stall_us, stall_us, "microseconds that readers and writers waited for tiers")            \
	X(first_reads_resident, first_reads_resident, "blocks asked for that were in DRAM")        \
	X(first_reads_cold, first_reads_cold, "blocks asked for that had to be loaded")            \
	X(restored_dram, restored, "blocks found in DRAM where an earlier daemon left them")        \
	X(evicted_dram, evicted_dram, "blocks evicted from DRAM")                                  \
	X(evicted_nvme, evicted_nvme, "blocks evicted from NVMe")                                  \
	X(demoted, demoted, "blocks moved down")                                                   \
	X(promoted, promoted, "blocks moved up")                                                   \
	X(moved, moved, "blocks moved within a tier")                                              \
	X(checksum_errors, checksum_errors, "blocks that failed their checksum")                   \
	X(blocks_now, blocks, "blocks")                                                            \
	X(cached_blocks_now, cached_blocks, "blocks that nothing names")                           \
	X(indexed_blocks_now, indexed_blocks, "blocks in the prefix index")                        \
	X(capacity_bytes_now, capacity, "bytes that names may take")                               \
	X(named_bytes_now, named_bytes, "bytes that names take")                                   \
	X(free_bytes_now, free_bytes, "bytes free, cached blocks included")

/** struct counter_out - where counters go: plain lines or Prometheus text. */
struct counter_out {
	struct textbuf *tb;
	bool prometheus;
};

static void put(struct counter_out *out, const char *name, u64 value, const char *help)
{
	size_t len = strlen(name);
	bool gauge = len > 4 && !strcmp(name + len - 4, "_now");

	if (!out->prometheus) {
		textbuf_printf(out->tb, "%s %llu\n", name, (unsigned long long)value);
		return;
	}
	if (gauge)
		textbuf_printf(out->tb,
			       "# HELP kvcachefs_%.*s %s\n# TYPE kvcachefs_%.*s gauge\n"
			       "kvcachefs_%.*s %llu\n",
			       (int)len - 4, name, help, (int)len - 4, name, (int)len - 4, name,
			       (unsigned long long)value);
	else
		textbuf_printf(out->tb,
			       "# HELP kvcachefs_%s_total %s\n# TYPE kvcachefs_%s_total counter\n"
			       "kvcachefs_%s_total %llu\n",
			       name, help, name, name, (unsigned long long)value);
}

/*
 * @more_read, @more_written: what readers and writers of the mount moved in and out of the tier's
 * memory without a transfer.
 */
static void put_tier(struct counter_out *out, const struct media_counters *c, u64 more_read,
		     u64 more_written)
{
	const struct {
		const char *what;
		u64 value;
	} counters[] = {
		{"reads", c->reads},   {"read_bytes", c->read_bytes + more_read},
		{"writes", c->writes}, {"write_bytes", c->write_bytes + more_written},
		{"errors", c->errors},
	};
	char name[64];

	for (unsigned int i = 0; i < ARRAY_SIZE(counters); i++) {
		snprintf(name, sizeof(name), "%s_%s", c->name, counters[i].what);
		put(out, name, counters[i].value, "transfers of a tier");
	}
}

static void put_errors(struct counter_out *out)
{
	char name[128];

	for (unsigned int i = 0; i < KVC_NR_ERR_REASONS; i++) {
		snprintf(name, sizeof(name), "error_%s", kvc_err_name(i));
		put(out, name, kvc_err_value(i), kvc_err_text(i));
	}
}

static void put_all(struct fs *fs, struct counter_out *out)
{
	struct media_counters c;
	struct pool_stats stats;
	u32 nr_inodes;

	pool_get_stats(fs->pool, &stats);
	fs_lock(fs);
	nr_inodes = fs->inodes.nr;
	fs_unlock(fs);
#define PUT_COUNTER(name, field, help) put(out, #name, stats.field, help);
	POOL_COUNTERS(PUT_COUNTER)
#undef PUT_COUNTER
	put(out, "first_reads_woken", 0, "blocks asked for that were being loaded ahead");
	if (media_count(fs->store->media, IN_DRAM, &c))
		put_tier(out, &c, atomic_load(&fs->read_bytes), atomic_load(&fs->write_bytes));
	if (media_count(fs->store->media, IN_NVME, &c))
		put_tier(out, &c, 0, 0);
	put(out, "fs_read_bytes", atomic_load(&fs->read_bytes), "bytes read through the mount");
	put(out, "fs_write_bytes", atomic_load(&fs->write_bytes),
	    "bytes written through the mount");
	put(out, "inodes_now", nr_inodes, "files, directories and symlinks");
	put_errors(out);
}

void text_stat(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	struct counter_out out = {.tb = tb};

	put_all(fs, &out);
}

void text_metrics(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	struct counter_out out = {.tb = tb, .prometheus = true};

	put_all(fs, &out);
}

static void tier_line(struct textbuf *tb, const struct media_counters *c,
		      const struct pool_tier_stats *st)
{
	textbuf_printf(tb, "%s %llu %llu %llu %llu %llu raw %llu %llu %llu %llu %llu\n", c->name,
		       (unsigned long long)st->size, (unsigned long long)st->used,
		       (unsigned long long)(st->size - min(st->used, st->size)),
		       (unsigned long long)st->blocks, (unsigned long long)st->pinned,
		       (unsigned long long)c->reads, (unsigned long long)c->read_bytes,
		       (unsigned long long)c->writes, (unsigned long long)c->write_bytes,
		       (unsigned long long)c->errors);
}

void text_tiers(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	struct media_counters c;
	struct pool_stats stats;

	pool_get_stats(fs->pool, &stats);
	textbuf_printf(tb, "name size used free blocks pinned codec reads read_bytes writes "
			   "write_bytes errors\n");
	for (unsigned int t = 0; t < NR_BLOCK_TIERS; t++)
		if (media_count(fs->store->media, t, &c))
			tier_line(tb, &c, &stats.tier[t]);
}

static void text_policy(const struct fs_opts *o, struct textbuf *tb)
{
	textbuf_printf(tb, "write.nvme=%s\n", o->write_through ? "through" : "back");
}

void text_config(struct fs *fs, const struct cred *cred, struct textbuf *tb)
{
	const struct fs_opts *o = fs->opts;
	struct media_counters c;

	textbuf_printf(tb, "source=");
	textbuf_escape(tb, o->source ? o->source : "none");
	textbuf_printf(tb, "\nmountpoint=");
	textbuf_escape(tb, o->mountpoint);
	textbuf_printf(tb, "\n");
	for (unsigned int t = 0; t < NR_BLOCK_TIERS; t++)
		if (media_count(fs->store->media, t, &c))
			textbuf_printf(tb, "%s=%llu\n", c.name, (unsigned long long)c.size_bytes);
	textbuf_printf(tb, "pinned=0\n");
	textbuf_printf(tb, "hbm=off\ncodec.nvme=raw\n");
	text_policy(o, tb);
	fs_lock(fs);
	textbuf_printf(tb, "high=%u\nlow=%u\nevict=lru\ncommit=%u\n", o->high_pct, o->low_pct,
		       o->commit_seconds);
	fs_unlock(fs);
	/* clients take the rest of the line as it is */
	textbuf_printf(tb, "socket=%s\n", o->socket ? o->socket : "none");
	textbuf_printf(tb, "linger=%u\nhugepages=%s\n", o->linger_seconds, o->hugepages);
	if (o->numa_node < 0)
		textbuf_printf(tb, "numa=none\n");
	else
		textbuf_printf(tb, "numa=%d\n", o->numa_node);
}

static int set_watermark(struct fs *fs, unsigned int high, unsigned int low)
{
	if (low >= high)
		return -EINVAL;
	fs->opts->high_pct = high;
	fs->opts->low_pct = low;
	pool_set_watermarks(fs->pool, high, low);
	return 0;
}

/* Settings of a mount that can not be changed while it lives. */
static bool fixed_key(const char *key)
{
	static const char *const keys[] = {"source", "mountpoint", "dram",	 "pinned",
					   "nvme",   "hbm",	   "codec.nvme", "write.nvme",
					   "evict",  "hugepages",  "numa",	 "socket",
					   "linger"};

	for (unsigned int i = 0; i < ARRAY_SIZE(keys); i++)
		if (!strcmp(key, keys[i]))
			return true;
	return false;
}

int config_write(struct fs *fs, const char *line, size_t len)
{
	const struct fs_opts *o = fs->opts;
	char text[128] = "", *value;
	int err = -EPERM;
	u64 nr;

	while (len && line[len - 1] == '\n')
		len--;
	if (len >= sizeof(text))
		return -EINVAL;
	memcpy(text, line, len);
	value = strchr(text, '=');
	if (!value)
		return -EINVAL;
	*value++ = '\0';
	if (strcmp(text, "high") && strcmp(text, "low") && strcmp(text, "commit"))
		return fixed_key(text) ? -EPERM : -EINVAL;
	if (opts_number(value, 1, *text == 'c' ? 3600 : 99, &nr))
		return -EINVAL;
	fs_lock(fs);
	if (*text == 'h') {
		err = set_watermark(fs, (unsigned int)nr, o->low_pct);
	} else if (*text == 'l') {
		err = set_watermark(fs, o->high_pct, (unsigned int)nr);
	} else {
		fs->opts->commit_seconds = (unsigned int)nr;
		err = 0;
	}
	fs_unlock(fs);
	return err;
}
