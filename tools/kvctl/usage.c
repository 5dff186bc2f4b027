/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl stat, du: what the daemon knows about files and what they take. */
#include <errno.h>
#include <fts.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/kvctl/kvctl.h"

static int read_status(const struct mountroot *mr, const char *rel, struct textbuf *text)
{
	char name[PATH_MAX + 16];
	int n = snprintf(name, sizeof(name), "status/%s", rel);

	return n >= (int)sizeof(name) ? -ENAMETOOLONG : mountroot_read(mr, name, text);
}

/* `kv` and `tokens` are the sequence: what lies in one has its directory's status. */
static int read_own_status(const struct mountroot *mr, struct textbuf *text)
{
	const char *base = strrchr(mr->rel, '/');
	int err = read_status(mr, mr->rel, text);
	char *dir;

	if (err != -ENOTDIR || !base || (strcmp(base, "/kv") && strcmp(base, "/tokens")))
		return err;
	dir = strndup(mr->rel, (size_t)(base - mr->rel));
	err = dir ? read_status(mr, dir, text) : -ENOMEM;
	free(dir);
	return err;
}

static void no_status(const char *path, int err)
{
	struct stat st;

	if ((err == -ENOENT || err == -EISDIR) && !stat(path, &st) && S_ISDIR(st.st_mode))
		cli_error("%s: not a sequence yet: no kv or tokens in it (kvctl ls lists the "
			  "sequences below it)", path);
	else if (err == -ENOTDIR)
		cli_error("%s: no status of its own: it lies in a sequence; name that one's "
			  "directory", path);
	else
		cli_error("%s: no status: %s", path, strerror(-err));
}

static int stat_one(const char *path, cJSON *array, bool first)
{
	struct textbuf text = TEXTBUF_INIT;
	struct mountroot mr;
	cJSON *object;
	int status = kvctl_find(path, &mr);
	int err;

	if (status != CLI_OK)
		return status;
	err = read_own_status(&mr, &text);
	if (err) {
		no_status(path, err);
		textbuf_free(&text);
		return CLI_FAILED;
	}
	if (array) {
		object = kvctl_parse_status(text.text ? text.text : "", ':');
		if (object)
			cJSON_AddStringToObject(object, "path", path);
		cJSON_AddItemToArray(array, object);
	} else {
		printf("%s%s", first ? "" : "\n", text.text ? text.text : "");
	}
	textbuf_free(&text);
	return CLI_OK;
}

int kvctl_stat(int argc, char **argv)
{
	bool json = false;
	const struct cli_option options[] = {{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"}};
	const struct cli_command command = {
		"kvctl stat", "[--json] PATH...",
		"Prints what the daemon knows about each file or sequence: tokens, blocks, tiers,\n"
		"sharing, pins, last use (the text of .kvc/status/PATH).",
		options, ARRAY_SIZE(options), 1, -1};
	cJSON *array = NULL;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (json)
		array = cJSON_CreateArray();
	for (int i = 0; i < cli_nr_args(); i++)
		if (stat_one(args[i], array, !i) != CLI_OK)
			status = CLI_FAILED;
	if (json)
		kvctl_print_json(array);
	return status;
}

/* Sums below one argument. Hard links count once per argument. */
struct du_sum {
	u64 apparent_bytes, allocated_bytes, exclusive_bytes;
	bool exclusive_known; /* false when no file could be asked */
	u64 nr_asked, nr_answered;
	void *seen;	      /* tsearch() tree of u64 inode numbers with more than one link */
};

static int compare_inodes(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static bool seen_before(struct du_sum *sum, const struct stat *st)
{
	u64 *ino, **found;

	if (st->st_nlink < 2)
		return false;
	ino = malloc(sizeof(*ino));
	if (!ino)
		return false;
	*ino = st->st_ino;
	found = tsearch(ino, &sum->seen, compare_inodes);
	if (found && *found == ino)
		return false;
	free(ino);
	return found != NULL;
}

static bool status_exclusive(const struct mountroot *mr, const char *rel, u64 *bytes)
{
	static const char key[] = "exclusive_bytes: ";
	struct textbuf text = TEXTBUF_INIT;
	bool known = false;
	char *at;

	if (!read_status(mr, rel, &text) && text.text) {
		at = strstr(text.text, key);
		if (at && (at == text.text || at[-1] == '\n')) {
			at += strlen(key);
			at[strcspn(at, "\n")] = '\0';
			known = !cli_parse_u64(at, bytes);
		}
	}
	textbuf_free(&text);
	return known;
}

/*
 * `kv` and `tokens` are one object, the sequence: its directory is asked, once. Outside a namespace
 * files of these names are ordinary and the directory has no such line.
 */
static bool file_exclusive(const struct mountroot *mr, const FTSENT *e, const char *rel, u64 *bytes)
{
	bool tokens = !strcmp(e->fts_name, "tokens");
	char kv[2 * PATH_MAX + 8];
	char *dir, *slash;
	bool known;

	if (!tokens && strcmp(e->fts_name, "kv"))
		return status_exclusive(mr, rel, bytes);
	dir = strdup(rel);
	slash = dir ? strrchr(dir, '/') : NULL;
	if (slash)
		*slash = '\0';
	known = slash && status_exclusive(mr, dir, bytes);
	if (known && tokens && e->fts_level) {
		snprintf(kv, sizeof(kv), "%s/%s/kv", mr->root, dir);
		if (!access(kv, F_OK))
			*bytes = 0;
	}
	free(dir);
	if (known)
		return true;
	return status_exclusive(mr, rel, bytes);
}

static void du_file(struct du_sum *sum, const struct mountroot *mr, const FTSENT *e,
		    const char *rel)
{
	u64 bytes = 0;

	if (seen_before(sum, e->fts_statp))
		return;
	sum->apparent_bytes += (u64)e->fts_statp->st_size;
	sum->allocated_bytes += (u64)e->fts_statp->st_blocks * 512;
	if (e->fts_info != FTS_F || !sum->exclusive_known)
		return;
	sum->nr_asked++;
	if (!file_exclusive(mr, e, rel, &bytes))
		return;
	sum->nr_answered++;
	sum->exclusive_bytes += bytes;
}

static int du_walk(const char *path, struct du_sum *sum)
{
	char *roots[] = {(char *)path, NULL};
	struct mountroot mr;
	FTSENT *e;
	FTS *walk;
	int err = mountroot_find(path, &mr);

	sum->exclusive_known = !err;
	walk = fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, NULL);
	if (!walk)
		return -errno;
	for (err = 0; (e = fts_read(walk));) {
		char rel[2 * PATH_MAX];
		const char *rest = e->fts_path + strlen(path);

		if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			err = e->fts_errno ? -e->fts_errno : -EIO;
		if (e->fts_info != FTS_F && e->fts_info != FTS_SL && e->fts_info != FTS_DEFAULT)
			continue;
		rest += strspn(rest, "/");
		snprintf(rel, sizeof(rel), "%s%s%s", strcmp(mr.rel, ".") ? mr.rel : "",
			 *rest && strcmp(mr.rel, ".") ? "/" : "", rest);
		du_file(sum, &mr, e, rel);
	}
	fts_close(walk);
	if (sum->nr_asked && !sum->nr_answered)
		sum->exclusive_known = false;
	return err;
}

static int du_one(const char *path, cJSON *array)
{
	struct du_sum sum = {0};
	char exclusive[24] = "-";
	cJSON *object;
	int err = du_walk(path, &sum);

	tdestroy(sum.seen, free);
	if (err) {
		cli_error("%s: %s", path, strerror(-err));
		return CLI_FAILED;
	}
	if (sum.exclusive_known)
		snprintf(exclusive, sizeof(exclusive), "%llu",
			 (unsigned long long)sum.exclusive_bytes);
	if (!array) {
		printf("%14llu %14llu %14s  %s\n", (unsigned long long)sum.apparent_bytes,
		       (unsigned long long)sum.allocated_bytes, exclusive, path);
		return CLI_OK;
	}
	object = cJSON_CreateObject();
	cJSON_AddStringToObject(object, "path", path);
	kvctl_add_u64(object, "apparent_bytes", sum.apparent_bytes);
	kvctl_add_u64(object, "allocated_bytes", sum.allocated_bytes);
	if (sum.exclusive_known)
		kvctl_add_u64(object, "exclusive_bytes", sum.exclusive_bytes);
	else
		cJSON_AddNullToObject(object, "exclusive_bytes");
	cJSON_AddItemToArray(array, object);
	return CLI_OK;
}

int kvctl_du(int argc, char **argv)
{
	bool json = false;
	const struct cli_option options[] = {{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"}};
	const struct cli_command command = {
		"kvctl du", "[--json] PATH...",
		"Prints per PATH, in bytes: apparent (sizes of the files), allocated (blocks that they\n"
		"refer to, shared ones included) and exclusive (what removing them one by one would\n"
		"free). Of a directory with several files exclusive is a lower bound: blocks that two\n"
		"of them share, and files that have no status of their own, are not in it.",
		options, ARRAY_SIZE(options), 1, -1};
	cJSON *array = NULL;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (json)
		array = cJSON_CreateArray();
	else
		printf("%14s %14s %14s  %s\n", "APPARENT", "ALLOCATED", "EXCLUSIVE", "PATH");
	for (int i = 0; i < cli_nr_args(); i++)
		if (du_one(args[i], array) != CLI_OK)
			status = CLI_FAILED;
	if (json)
		kvctl_print_json(array);
	return status;
}
