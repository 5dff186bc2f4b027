/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl ls. One read of `.kvc/sequences` lists everything that the caller may see; where the daemon
 * has no such file the directories are walked and each sequence is asked for its extended
 * attributes.
 */
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/kvctl/kvctl.h"

struct ls_list {
	struct kvctl_sequence *seq;
	size_t nr, size;
};

static int list_add_sequence(struct ls_list *list, const struct kvctl_sequence *seq)
{
	struct kvctl_sequence *more;

	if (list->nr == list->size) {
		size_t size = list->size ? 2 * list->size : 64;

		more = reallocarray(list->seq, size, sizeof(*more));
		if (!more)
			return -ENOMEM;
		list->seq = more;
		list->size = size;
	}
	list->seq[list->nr++] = *seq;
	return 0;
}

static void list_free(struct ls_list *list)
{
	for (size_t i = 0; i < list->nr; i++)
		free(list->seq[i].path);
	free(list->seq);
}

static int next_word(char **at, char *out, size_t size)
{
	size_t len = strcspn(*at, " ");

	if (!len || len >= size)
		return -EINVAL;
	memcpy(out, *at, len);
	out[len] = '\0';
	*at += len + ((*at)[len] == ' ');
	return 0;
}

int kvctl_parse_sequence(const char *line, struct kvctl_sequence *seq)
{
	char *copy = strdup(line);
	char *at = copy;
	char *path;
	int err = -ENOMEM;

	*seq = (struct kvctl_sequence){0};
	path = kvc_alloc_array(strlen(line) + 1, 1);
	if (copy && path)
		err = next_word(&at, path, strlen(line) + 1) ?: kvctl_unescape(path) ?:
		      next_word(&at, seq->tokens, sizeof(seq->tokens)) ?:
		      next_word(&at, seq->blocks, sizeof(seq->blocks)) ?:
		      next_word(&at, seq->state, sizeof(seq->state)) ?:
		      next_word(&at, seq->dram, sizeof(seq->dram)) ?:
		      next_word(&at, seq->nvme, sizeof(seq->nvme)) ?:
		      next_word(&at, seq->hbm, sizeof(seq->hbm)) ?:
		      next_word(&at, seq->remote, sizeof(seq->remote)) ?:
		      next_word(&at, seq->last_use, sizeof(seq->last_use));
	free(copy);
	if (err)
		free(path);
	else
		seq->path = path;
	return err;
}

void kvctl_parse_residency(const char *text, struct kvctl_sequence *seq)
{
	const struct {
		const char *key;
		char *value;
	} tiers[] = {{"dram=", seq->dram}, {"nvme=", seq->nvme}, {"hbm=", seq->hbm},
		     {"remote=", seq->remote}};

	for (size_t i = 0; i < ARRAY_SIZE(tiers); i++) {
		const char *at = strstr(text, tiers[i].key);
		size_t len;

		if (!at || (at != text && at[-1] != ' '))
			continue;
		at += strlen(tiers[i].key);
		len = strspn(at, "0123456789");
		if (len && len < sizeof(seq->dram))
			snprintf(tiers[i].value, sizeof(seq->dram), "%.*s", (int)len, at);
	}
}

/* Is @path inside directory @dir (both relative to the root)? */
static bool path_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (!strcmp(dir, "."))
		return true;
	return !strncmp(path, dir, len) && (path[len] == '/' || !path[len]);
}

static int list_from_daemon(const struct mountroot *mr, struct ls_list *list)
{
	struct textbuf text = TEXTBUF_INIT;
	struct kvctl_sequence seq;
	char *save = NULL;
	int err = mountroot_read(mr, "sequences", &text);

	if (!err && text.text && strtok_r(text.text, "\n", &save)) {
		char *line;

		while (!err && (line = strtok_r(NULL, "\n", &save))) {
			err = kvctl_parse_sequence(line, &seq);
			if (err || !path_below(seq.path, mr->rel)) {
				free(seq.path);
				continue;
			}
			err = list_add_sequence(list, &seq);
			if (err)
				free(seq.path);
		}
	}
	textbuf_free(&text);
	return err;
}

static bool is_sequence(const char *dir)
{
	char path[PATH_MAX];

	return (!kvctl_join(path, sizeof(path), dir, "kv") && !access(path, F_OK)) ||
	       (!kvctl_join(path, sizeof(path), dir, "tokens") && !access(path, F_OK));
}

/* false when @dir only looks like a sequence: outside a namespace nothing has user.kvc.tokens. */
static bool ask_sequence(const char *dir, struct kvctl_sequence *seq)
{
	char residency[256];

	*seq = (struct kvctl_sequence){.blocks = "-", .state = "-", .last_use = "-", .dram = "-",
				       .nvme = "-", .hbm = "-", .remote = "-"};
	if (!kvctl_get_xattr(dir, "user.kvc.tokens", seq->tokens, sizeof(seq->tokens)))
		return false;
	kvctl_get_xattr(dir, "user.kvc.state", seq->state, sizeof(seq->state));
	if (kvctl_get_xattr(dir, "user.kvc.residency", residency, sizeof(residency)))
		kvctl_parse_residency(residency, seq);
	return true;
}

/* Paths come out relative to @dir; "." is @dir itself. */
static int list_from_walk(const char *dir, struct ls_list *list)
{
	char *roots[] = {(char *)dir, NULL};
	FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, NULL);
	struct kvctl_sequence seq;
	FTSENT *e;
	int err = 0;

	if (!walk)
		return -errno;
	while (!err && (e = fts_read(walk))) {
		const char *rest;

		if (e->fts_info != FTS_D || !is_sequence(e->fts_path) ||
		    !ask_sequence(e->fts_path, &seq))
			continue;
		rest = e->fts_path + strlen(dir);
		rest += strspn(rest, "/");
		seq.path = strdup(*rest ? rest : ".");
		err = seq.path ? list_add_sequence(list, &seq) : -ENOMEM;
	}
	fts_close(walk);
	return err;
}

static void tier_names(const struct kvctl_sequence *seq, char *out, size_t size)
{
	const struct {
		const char *name, *blocks;
	} tiers[] = {{"hbm", seq->hbm}, {"dram", seq->dram}, {"nvme", seq->nvme},
		     {"remote", seq->remote}};
	size_t len = 0;

	*out = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(tiers); i++) {
		if (!strcmp(tiers[i].blocks, "0") || !strcmp(tiers[i].blocks, "-"))
			continue;
		len += (size_t)snprintf(out + len, size - len, "%s%s", len ? "," : "",
					tiers[i].name);
	}
	if (!len)
		snprintf(out, size, "-");
}

static int compare_paths(const void *a, const void *b)
{
	const struct kvctl_sequence *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static void print_table(const struct ls_list *list, bool all)
{
	char tiers[40];

	if (all)
		printf("%10s %8s %-10s %8s %8s %8s %8s  %-24s %s\n", "TOKENS", "BLOCKS", "STATE",
		       "HBM", "DRAM", "NVME", "REMOTE", "LAST_USE", "NAME");
	else
		printf("%10s %-10s %-14s %s\n", "TOKENS", "STATE", "TIERS", "NAME");
	for (size_t i = 0; i < list->nr; i++) {
		const struct kvctl_sequence *s = &list->seq[i];
		struct textbuf name = TEXTBUF_INIT;

		textbuf_escape(&name, s->path);
		tier_names(s, tiers, sizeof(tiers));
		if (all)
			printf("%10s %8s %-10s %8s %8s %8s %8s  %-24s %s\n", s->tokens, s->blocks,
			       s->state, s->hbm, s->dram, s->nvme, s->remote, s->last_use,
			       name.text ? name.text : "");
		else
			printf("%10s %-10s %-14s %s\n", s->tokens, s->state, tiers,
			       name.text ? name.text : "");
		textbuf_free(&name);
	}
}

static void print_list_json(const struct ls_list *list)
{
	cJSON *array = cJSON_CreateArray();

	for (size_t i = 0; i < list->nr; i++) {
		const struct kvctl_sequence *s = &list->seq[i];
		cJSON *object = cJSON_CreateObject();

		cJSON_AddStringToObject(object, "path", s->path);
		kvctl_add(object, "tokens", s->tokens);
		kvctl_add(object, "blocks", s->blocks);
		kvctl_add(object, "state", s->state);
		kvctl_add(object, "hbm", s->hbm);
		kvctl_add(object, "dram", s->dram);
		kvctl_add(object, "nvme", s->nvme);
		kvctl_add(object, "remote", s->remote);
		kvctl_add(object, "last_use", s->last_use);
		cJSON_AddItemToArray(array, object);
	}
	kvctl_print_json(array);
}

static int collect(const struct mountroot *mr, const char *dir, struct ls_list *list)
{
	struct stat st;
	int err;

	if (stat(dir, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	err = list_from_daemon(mr, list);
	if (err == -ENOENT)
		err = list_from_walk(dir, list);
	else if (!err && strcmp(mr->rel, "."))
		for (size_t i = 0; i < list->nr; i++) {
			char *path = list->seq[i].path;
			char *rest = path + strlen(mr->rel);

			rest += strspn(rest, "/");
			memmove(path, *rest ? rest : ".", strlen(*rest ? rest : ".") + 1);
		}
	if (list->nr)
		qsort(list->seq, list->nr, sizeof(*list->seq), compare_paths);
	return err;
}

int kvctl_ls(int argc, char **argv)
{
	bool json = false, all = false;
	const struct cli_option options[] = {
		{"long", 'l', CLI_FLAG, &all, NULL, "blocks in each tier and time of last use too"},
		{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl ls", "[-l] [--json] DIR",
		"Lists the sequences in and below DIR: tokens, state, tiers that hold blocks.", options,
		ARRAY_SIZE(options), 1, 1};
	struct ls_list list = {0};
	struct mountroot mr;
	char **args;
	int err;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (kvctl_find(args[0], &mr) != CLI_OK)
		return CLI_FAILED;
	err = collect(&mr, args[0], &list);
	if (err)
		cli_error("%s: %s", args[0],
			  err == -EINVAL ? "a line of .kvc/sequences is malformed; versions may differ"
					 : strerror(-err));
	else if (json)
		print_list_json(&list);
	else
		print_table(&list, all);
	list_free(&list);
	return err ? CLI_FAILED : CLI_OK;
}
