/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl match, fork. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "fs/uapi/kvc_control.h"
#include "tools/kvctl/kvctl.h"

#define COPY_CHUNK_BYTES (1u << 30)

static int read_ids(const char *path, struct textbuf *ids)
{
	int err = mountroot_read_file(strcmp(path, "-") ? path : "/dev/stdin", ids);

	if (err) {
		cli_error("%s: %s", path, strerror(-err));
	} else if (ids->len % 4) {
		cli_error("%s: %zu bytes are no whole number of 4-byte token ids", path, ids->len);
		err = -EINVAL;
	} else if (ids->len / 4 > KVC_CONTROL_TOKENS_MAX) {
		cli_error("%s: more than %u token ids", path, KVC_CONTROL_TOKENS_MAX);
		err = -E2BIG;
	}
	return err;
}

static int match_ids(const char *dir, const struct textbuf *ids, const char *salt, bool json)
{
	struct control_reply reply;
	struct control_request rq;
	struct mountroot mr;
	cJSON *object;

	if (kvctl_find(dir, &mr) != CLI_OK)
		return CLI_FAILED;
	control_begin(&rq, KVC_CONTROL_MATCH);
	control_arg(&rq, mr.rel);
	control_key(&rq, "salt", salt);
	control_key_u64(&rq, "tokens", ids->len / 4);
	rq.payload = ids->text;
	rq.payload_bytes = ids->len;
	if (kvctl_call(&mr, &rq, dir, &reply) != CLI_OK)
		return CLI_FAILED;
	object = kvctl_reply_object(&reply);
	kvctl_add_u64(object, "tokens", ids->len / 4);
	kvctl_print(object, '=', json);
	control_reply_free(&reply);
	return CLI_OK;
}

int kvctl_match(int argc, char **argv)
{
	const char *salt = NULL;
	bool json = false;
	const struct cli_option options[] = {
		{"salt", 's', CLI_TEXT, &salt, "S", "look under this salt"},
		{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl match", "[--salt S] [--json] DIR TOKENS_FILE",
		"Prints how many leading tokens of TOKENS_FILE (unsigned 32-bit little-endian ids; - is\n"
		"standard input) are cached in the namespace that DIR lies in, and in which tiers.\n"
		"Pins nothing and renews nothing.",
		options, ARRAY_SIZE(options), 2, 2};
	struct textbuf ids = TEXTBUF_INIT;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	status = CLI_FAILED;
	if (!read_ids(args[1], &ids))
		status = match_ids(args[0], &ids, salt, json);
	textbuf_free(&ids);
	return status;
}

/* Copy to the end of the file; blocks are shared where both ends are on one mount. */
static int copy_content(int in, int out)
{
	char chunk[65536];
	ssize_t n;

	do {
		n = copy_file_range(in, NULL, out, NULL, COPY_CHUNK_BYTES, 0);
	} while (n > 0);
	if (!n || (errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS))
		return n ? -errno : 0;
	while ((n = read(in, chunk, sizeof(chunk))) > 0) {
		for (ssize_t at = 0, m; at < n; at += m) {
			m = write(out, chunk + at, (size_t)(n - at));
			if (m < 0)
				return -errno;
		}
	}
	return n ? -errno : 0;
}

static int copy_named(const char *src, const char *dst, const char *name)
{
	char from[PATH_MAX], to[PATH_MAX];
	int in, out, err = 0;

	if (kvctl_join(from, sizeof(from), src, name) || kvctl_join(to, sizeof(to), dst, name))
		return -ENAMETOOLONG;
	in = open(from, O_RDONLY | O_CLOEXEC);
	if (in < 0)
		return -errno;
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (out < 0)
		err = -errno;
	if (!err)
		err = copy_content(in, out);
	if (out >= 0 && close(out) && !err)
		err = -errno;
	close(in);
	return err;
}

static int set_tokens(const char *dir, u64 tokens)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)tokens);
	return setxattr(dir, "user.kvc.tokens", text, strlen(text), 0) ? -errno : 0;
}

static void remove_copy(const char *dst)
{
	static const char *const names[] = {"kv", "tokens"};
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!kvctl_join(path, sizeof(path), dst, names[i]))
			unlink(path);
	rmdir(dst);
}

/*
 * What `cp -r` does, kv before tokens, and then T, which a plain copy would round to blocks. Either
 * file may be missing.
 */
static int fork_by_copy(const char *src, const char *dst, u64 tokens)
{
	static const char *const names[] = {"kv", "tokens"};
	int err = mkdir(dst, 0777) ? -errno : 0;

	if (err)
		return err;
	for (size_t i = 0; i < ARRAY_SIZE(names) && !err; i++) {
		err = copy_named(src, dst, names[i]);
		if (err == -ENOENT)
			err = 0;
	}
	if (!err)
		err = set_tokens(dst, tokens);
	if (err)
		remove_copy(dst);
	return err;
}

/* The engine's own files beside kv and tokens go along, as with cp -r. */
static int copy_others(const char *src, const char *dst)
{
	DIR *dir = opendir(src);
	struct dirent *e;
	int err = 0;

	if (!dir)
		return -errno;
	while (!err && (e = readdir(dir))) {
		struct stat st;

		if (!strcmp(e->d_name, "kv") || !strcmp(e->d_name, "tokens"))
			continue;
		if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		err = copy_named(src, dst, e->d_name);
		if (err)
			cli_error("%s/%s: not copied: %s", src, e->d_name, strerror(-err));
	}
	closedir(dir);
	return err;
}

static int fork_by_daemon(const struct mountroot *src, const struct mountroot *dst, u64 tokens,
			  struct control_reply *reply)
{
	struct control_request rq;
	int err;

	control_begin(&rq, KVC_CONTROL_FORK);
	control_arg(&rq, src->rel);
	control_arg(&rq, dst->rel);
	if (tokens)
		control_key_u64(&rq, "tokens", tokens);
	err = control_call(src, &rq, reply);
	control_end(&rq);
	return err;
}

/* T of the source, which must be a sequence; what is asked for must be there. */
static int check_source(const char *src, u64 *tokens)
{
	char text[24];
	u64 have;

	if (access(src, F_OK)) {
		cli_error("%s: %s", src, strerror(errno));
		return CLI_FAILED;
	}
	if (!kvctl_get_xattr(src, "user.kvc.tokens", text, sizeof(text)) ||
	    cli_parse_u64(text, &have)) {
		cli_error("%s: not a sequence (no user.kvc.tokens); name its directory", src);
		return CLI_FAILED;
	}
	if (*tokens > have) {
		cli_error("%s: has %llu tokens, fewer than the %llu asked for", src,
			  (unsigned long long)have, (unsigned long long)*tokens);
		return CLI_FAILED;
	}
	if (!*tokens)
		*tokens = have;
	return CLI_OK;
}

/* Both ends on one mount? -ENODEV: yes, but its daemon has no .kvc. */
static int find_both(const char *src, const char *dst, struct mountroot *from, struct mountroot *to)
{
	int err = mountroot_find(src, from);
	int err_to = mountroot_find(dst, to);

	if ((!err || err == -ENODEV) && (!err_to || err_to == -ENODEV) &&
	    strcmp(from->root, to->root))
		return -EXDEV;
	return err ? err : err_to;
}

static int fork_sequence(const char *src, const char *dst, u64 tokens, cJSON *result)
{
	struct control_reply reply = {0};
	struct mountroot from, to;
	const char *why = NULL;
	int err = find_both(src, dst, &from, &to);

	if (!err)
		err = fork_by_daemon(&from, &to, tokens, &reply);
	if (err == -ENODEV || err == -ENOENT) {
		err = fork_by_copy(src, dst, tokens);
		kvctl_add_u64(result, "tokens", tokens);
	} else if (!err) {
		err = reply.err;
		why = err ? reply.message : NULL;
		for (size_t i = 0; i < reply.nr_pairs; i++)
			kvctl_add(result, reply.pair[i].key, reply.pair[i].value);
	}
	if (err)
		cli_error("%s: not forked to %s: %s%s", src, dst, why ? why : strerror(-err),
			  err == -EXDEV ? "; use cp -r" : "");
	control_reply_free(&reply);
	return err;
}

int kvctl_fork(int argc, char **argv)
{
	bool json = false;
	u64 tokens = 0;
	const struct cli_option options[] = {
		{"tokens", 'n', CLI_COUNT, &tokens, "N", "only the first N tokens, from 1"},
		{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl fork", "[--tokens N] [--json] SRC DST",
		"Makes DST a second sequence with the tokens of SRC (both name sequence directories of\n"
		"one namespace). Sealed blocks are shared, the open tail is copied; the engine's own\n"
		"files in SRC are copied along.",
		options, ARRAY_SIZE(options), 2, 2};
	cJSON *result;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	status = check_source(args[0], &tokens);
	if (status != CLI_OK)
		return status;
	result = cJSON_CreateObject();
	if (fork_sequence(args[0], args[1], tokens, result) || copy_others(args[0], args[1])) {
		cJSON_Delete(result);
		return CLI_FAILED;
	}
	kvctl_print(result, '=', json);
	return CLI_OK;
}
