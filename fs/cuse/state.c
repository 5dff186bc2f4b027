/* SPDX-License-Identifier: Apache-2.0 */
/* What `cat /dev/kvcache` shows: the control files that an operator looks at first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "fs/cuse/front.h"

static int fail(int err)
{
	return mount_gone(err) ? -ESTALE : err;
}

static int read_all(int fd, struct textbuf *tb)
{
	char buf[8192];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(-errno);
		textbuf_add(tb, buf, (size_t)n);
	}
	return tb->err;
}

/* Add a control file's text. */
static int add_file(int root, const char *path, struct textbuf *tb)
{
	int fd = openat(root, path, O_RDONLY | O_CLOEXEC), err;

	if (fd < 0)
		return fail(-errno);
	err = read_all(fd, tb);
	close(fd);
	return err;
}

/* Errors that never happened would bury those that did. */
static bool says_nothing(const char *line, size_t len)
{
	return len > 8 && !strncmp(line, "error_", 6) && !strncmp(line + len - 2, " 0", 2);
}

static int add_counters(int root, struct textbuf *tb)
{
	struct textbuf all = TEXTBUF_INIT;
	int err = add_file(root, ".kvc/stat", &all);
	const char *end;

	for (const char *at = all.text; !err && at && *at; at = end + 1) {
		end = strchrnul(at, '\n');
		if (!says_nothing(at, (size_t)(end - at)))
			textbuf_printf(tb, "%.*s\n", (int)(end - at), at);
		if (!*end)
			break;
	}
	textbuf_free(&all);
	return err;
}

int state_text(int root, const char *mountpoint, struct textbuf *tb)
{
	int err = add_file(root, ".kvc/version", tb);

	textbuf_printf(tb, "mount ");
	textbuf_escape(tb, mountpoint);
	textbuf_printf(tb, "\n\n");
	if (!err)
		err = add_file(root, ".kvc/tiers", tb);
	textbuf_printf(tb, "\n");
	if (!err)
		err = add_file(root, ".kvc/sessions", tb);
	textbuf_printf(tb, "\n");
	if (!err)
		err = add_counters(root, tb);
	return err ? err : tb->err;
}

int state_stall_us(int root, u64 *us)
{
	struct textbuf all = TEXTBUF_INIT;
	unsigned long long value;
	const char *at;
	int err = add_file(root, ".kvc/stat", &all);

	if (!err) {
		at = all.text ? strstr(all.text, "\nstall_us ") : NULL;
		if (at && sscanf(at, " stall_us %llu", &value) == 1)
			*us = value;
		else
			err = -EPROTO;
	}
	textbuf_free(&all);
	return err;
}
