/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cJSON.h>
#include "allocator/base/clock.h"
#include "tools/common/cli.h"
#include "tools/kvreplay/report.h"

#define REPORT_FILE_NAME "requests.csv"

static FILE *open_in(const char *dir, const char *name)
{
	char path[4096 + 64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "we");
	if (!file)
		cli_error("%s: %s", path, strerror(errno));
	return file;
}

int report_start(struct report *r, const char *mode, const char *dir)
{
	int err;

	*r = (struct report){.mode = mode};
	lock_init(&r->lock, LOCK_LEAF);
	r->progress = isatty(STDERR_FILENO);
	if (dir) {
		if (strlen(dir) >= sizeof(r->dir)) {
			cli_error("--report: name too long");
			return -ENAMETOOLONG;
		}
		memcpy(r->dir, dir, strlen(dir) + 1);
		if (mkdir(dir, 0777) && errno != EEXIST) {
			err = -errno;
			cli_error("%s: can not be made: %s", dir, strerror(-err));
			return err;
		}
		r->csv = open_in(dir, REPORT_FILE_NAME);
		if (!r->csv)
			return -EIO;
		fprintf(r->csv, "index,timestamp_ms,session,input_tokens,stored_tokens,"
				"cached_tokens,output_tokens,restore_us,restore_bytes,write_us,"
				"write_bytes,bad_blocks,error\n");
	}
	r->start_ns = clock_mono_ns();
	return 0;
}

static void write_csv(struct report *r, const struct report_record *c)
{
	fprintf(r->csv, "%llu,%llu,%llu,%u,%u,%u,%u,%.1f,%llu,%.1f,%llu,%u,%s\n",
		(unsigned long long)c->index, (unsigned long long)c->timestamp_ms,
		(unsigned long long)c->session, c->input_tokens, c->stored_tokens,
		c->cached_tokens, c->output_tokens, (double)c->restore_ns / 1e3,
		(unsigned long long)c->restore_bytes, (double)c->write_ns / 1e3,
		(unsigned long long)c->write_bytes, c->bad_blocks,
		c->err ? strerrorname_np(-c->err) : "");
}

static void add_restore(struct report *r, u64 ns)
{
	if (r->nr_restores == r->restores_size) {
		size_t size = r->restores_size ? 2 * r->restores_size : 4096;
		u64 *more = reallocarray(r->restore_ns, size, sizeof(*more));

		if (!more) {
			r->err = -ENOMEM;
			return;
		}
		r->restore_ns = more;
		r->restores_size = size;
	}
	r->restore_ns[r->nr_restores++] = ns;
}

static double hit_percent(const struct report *r)
{
	return r->input_tokens ? 100.0 * (double)r->cached_tokens / (double)r->input_tokens : 0;
}

static void show_progress(struct report *r)
{
	u64 now = clock_mono_ns();
	char of[32] = "";

	if (!r->progress || now - r->start_ns < NSEC_PER_SEC ||
	    now - r->last_progress_ns < NSEC_PER_SEC / 4)
		return;
	r->last_progress_ns = now;
	if (r->expected)
		snprintf(of, sizeof(of), " of %llu", (unsigned long long)r->expected);
	fprintf(stderr, "\r%llu%s requests, %.2f %% of tokens cached, %llu s ",
		(unsigned long long)r->requests, of, hit_percent(r),
		(unsigned long long)((now - r->start_ns) / NSEC_PER_SEC));
}

void report_end_progress(struct report *r)
{
	if (r->last_progress_ns)
		fputc('\n', stderr);
	r->last_progress_ns = 0;
}

void report_add(struct report *r, const struct report_record *c)
{
	lock_acquire(&r->lock);
	r->requests++;
	r->failed += c->err != 0;
	r->bad_blocks += c->bad_blocks;
	r->input_tokens += c->input_tokens;
	r->cached_tokens += c->cached_tokens;
	r->output_tokens += c->output_tokens;
	r->blocks += c->blocks;
	r->longest_blocks = max(r->longest_blocks, (u64)c->blocks);
	r->restore_bytes += c->restore_bytes;
	r->write_bytes += c->write_bytes;
	if (c->restore_bytes)
		add_restore(r, c->restore_ns);
	if (r->csv)
		write_csv(r, c);
	show_progress(r);
	lock_release(&r->lock);
}

static bool has_suffix(const char *name, size_t len, const char *suffix)
{
	size_t n = strlen(suffix);

	return len > n && !memcmp(name + len - n, suffix, n);
}

static void take_counter(struct report *r, const char *name, size_t len, u64 value, bool after)
{
	size_t i;

	for (i = 0; i < r->nr_counters; i++)
		if (strlen(r->counter[i].name) == len && !memcmp(r->counter[i].name, name, len))
			break;
	if (i == r->nr_counters) {
		if (i == REPORT_MAX_COUNTERS || len >= sizeof(r->counter[i].name))
			return;
		memcpy(r->counter[i].name, name, len);
		r->counter[i].name[len] = '\0';
		r->nr_counters++;
	}
	if (after)
		r->counter[i].after = value;
	else
		r->counter[i].before = r->counter[i].after = value;
}

void report_counters(struct report *r, const char *stat, bool after)
{
	while (*stat) {
		size_t len = strcspn(stat, "\n");
		size_t name = strcspn(stat, " \n");
		char digits[24];
		u64 value;

		if (name < len && len - name - 1 < sizeof(digits) &&
		    (has_suffix(stat, name, "_read_bytes") ||
		     has_suffix(stat, name, "_write_bytes"))) {
			memcpy(digits, stat + name + 1, len - name - 1);
			digits[len - name - 1] = '\0';
			if (!cli_parse_u64(digits, &value))
				take_counter(r, stat, name, value, after);
		}
		stat += len + (stat[len] == '\n');
	}
}

static int compare_u64(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

u64 report_percentile(const u64 *sorted, size_t nr, double percent)
{
	size_t rank = (size_t)(percent / 100.0 * (double)nr);

	if (!nr)
		return 0;
	if ((double)rank < percent / 100.0 * (double)nr)
		rank++;
	return sorted[rank ? min(rank, nr) - 1 : 0];
}

static void add_number(cJSON *object, const char *key, double value)
{
	cJSON_AddNumberToObject(object, key, value);
}

static cJSON *summary_json(const struct report *r)
{
	cJSON *o = cJSON_CreateObject();
	cJSON *restore, *tiers;

	cJSON_AddStringToObject(o, "mode", r->mode);
	add_number(o, "requests", (double)r->requests);
	add_number(o, "failed", (double)r->failed);
	add_number(o, "input_tokens", (double)r->input_tokens);
	add_number(o, "cached_tokens", (double)r->cached_tokens);
	add_number(o, "token_hit_percent", hit_percent(r));
	add_number(o, "output_tokens", (double)r->output_tokens);
	add_number(o, "blocks", (double)r->blocks);
	add_number(o, "longest_blocks", (double)r->longest_blocks);
	if (r->unique_blocks)
		add_number(o, "unique_blocks", (double)r->unique_blocks);
	add_number(o, "bad_blocks", (double)r->bad_blocks);
	add_number(o, "restored_bytes", (double)r->restore_bytes);
	add_number(o, "written_bytes", (double)r->write_bytes);
	restore = cJSON_AddObjectToObject(o, "restore_us");
	add_number(restore, "count", (double)r->nr_restores);
	add_number(restore, "p50",
		   (double)report_percentile(r->restore_ns, r->nr_restores, 50) / 1e3);
	add_number(restore, "p90",
		   (double)report_percentile(r->restore_ns, r->nr_restores, 90) / 1e3);
	add_number(restore, "p99",
		   (double)report_percentile(r->restore_ns, r->nr_restores, 99) / 1e3);
	add_number(restore, "max",
		   (double)report_percentile(r->restore_ns, r->nr_restores, 100) / 1e3);
	tiers = cJSON_AddObjectToObject(o, "tier_bytes");
	for (size_t i = 0; i < r->nr_counters; i++)
		add_number(tiers, r->counter[i].name,
			   (double)(r->counter[i].after - r->counter[i].before));
	add_number(o, "wall_seconds", (double)r->wall_ns / 1e9);
	return o;
}

static void print_line(const char *name, u64 value)
{
	printf("%-22s %llu\n", name, (unsigned long long)value);
}

static void print_bytes(const char *name, u64 bytes)
{
	printf("%-22s %llu (%.1f MiB)\n", name, (unsigned long long)bytes,
	       (double)bytes / (double)MIB(1));
}

static void print_mount_lines(const struct report *r)
{
	const u64 *ns = r->restore_ns;
	size_t nr = r->nr_restores;

	print_bytes("restored bytes", r->restore_bytes);
	print_bytes("written bytes", r->write_bytes);
	for (size_t i = 0; i < r->nr_counters; i++)
		print_bytes(r->counter[i].name, r->counter[i].after - r->counter[i].before);
	if (!r->nr_counters)
		printf("%-22s not told (no .kvc/stat on the mount)\n", "bytes per tier");
	printf("%-22s p50 %.2f  p90 %.2f  p99 %.2f  max %.2f ms over %zu\n", "restore latency",
	       (double)report_percentile(ns, nr, 50) / 1e6,
	       (double)report_percentile(ns, nr, 90) / 1e6,
	       (double)report_percentile(ns, nr, 99) / 1e6,
	       (double)report_percentile(ns, nr, 100) / 1e6, nr);
	print_line("wrong blocks", r->bad_blocks);
}

static void print_table(const struct report *r)
{
	print_line("requests", r->requests);
	if (r->failed)
		print_line("failed", r->failed);
	print_line("input tokens", r->input_tokens);
	print_line("cached tokens", r->cached_tokens);
	printf("%-22s %.2f %%\n", "token hit rate", hit_percent(r));
	print_line("blocks", r->blocks);
	print_line("longest request", r->longest_blocks);
	if (r->unique_blocks)
		print_line("distinct blocks", r->unique_blocks);
	if (!strcmp(r->mode, "mount"))
		print_mount_lines(r);
	printf("%-22s %.2f s\n", "wall time", (double)r->wall_ns / 1e9);
}

static int write_summary(struct report *r, const char *text)
{
	FILE *file = open_in(r->dir, "summary.json");
	bool bad;

	if (!file)
		return -EIO;
	bad = fprintf(file, "%s\n", text) < 0;
	bad |= fclose(file) != 0;
	bad |= fflush(r->csv) != 0;
	bad |= ferror(r->csv) != 0;
	if (bad)
		cli_error("%s: the report could not be written whole", r->dir);
	return bad ? -EIO : 0;
}

int report_finish(struct report *r, bool json)
{
	cJSON *object;
	char *text;
	int err = r->err;

	r->wall_ns = clock_mono_ns() - r->start_ns;
	report_end_progress(r);
	if (r->nr_restores)
		qsort(r->restore_ns, r->nr_restores, sizeof(*r->restore_ns), compare_u64);
	object = summary_json(r);
	text = cJSON_Print(object);
	cJSON_Delete(object);
	if (!text)
		err = -ENOMEM;
	if (json && text)
		puts(text);
	else if (!json)
		print_table(r);
	if (text && *r->dir)
		err = write_summary(r, text) ?: err;
	if (err == -ENOMEM)
		cli_error("out of memory: percentiles are of a part of the requests");
	cJSON_free(text);
	return err;
}

void report_free(struct report *r)
{
	if (r->csv)
		fclose(r->csv);
	free(r->restore_ns);
	lock_destroy(&r->lock);
}
