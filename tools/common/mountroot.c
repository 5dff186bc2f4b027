/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/common/mountroot.h"

#define MOUNTROOT_FILE_MAX GIB(1)

/* Copy @path without trailing slashes; -ENAMETOOLONG when it does not fit. */
static int copy_path(const char *path, char *out)
{
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	if (!len)
		return -ENOENT;
	if (len >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(out, path, len);
	out[len] = '\0';
	return 0;
}

/* Resolve a path whose last component does not exist: the parent must. */
static int resolve_missing(const char *path, char *out)
{
	char copy[PATH_MAX];
	const char *base;
	char *slash;
	size_t len;
	int err = copy_path(path, copy);

	if (err)
		return err;
	slash = strrchr(copy, '/');
	base = slash ? slash + 1 : copy;
	if (!strcmp(base, ".") || !strcmp(base, ".."))
		return -ENOENT;
	if (slash)
		*slash = '\0';
	if (!realpath(!slash ? "." : slash == copy ? "/" : copy, out))
		return -errno;
	len = strlen(out);
	if (len > 1)
		out[len++] = '/';
	if (len + strlen(base) >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(out + len, base, strlen(base) + 1);
	return 0;
}

/* The topmost directory above @path that is on the same device. @path itself may be missing. */
static int climb(const char *path, char *root)
{
	char at[PATH_MAX];
	struct stat st;
	bool known;
	dev_t dev = 0;

	memcpy(at, path, strlen(path) + 1);
	memcpy(root, path, strlen(path) + 1);
	known = !stat(at, &st);
	if (known)
		dev = st.st_dev;
	while (strcmp(at, "/")) {
		char *slash = strrchr(at, '/');

		slash[slash == at ? 1 : 0] = '\0';
		if (stat(at, &st))
			return -errno;
		if (known && st.st_dev != dev)
			break;
		known = true;
		dev = st.st_dev;
		memcpy(root, at, strlen(at) + 1);
	}
	return 0;
}

static const char *below(const char *root, const char *path)
{
	size_t len = strcmp(root, "/") ? strlen(root) : 0;

	path += len;
	while (*path == '/')
		path++;
	return *path ? path : ".";
}

int mountroot_find(const char *path, struct mountroot *mr)
{
	char full[PATH_MAX], version[PATH_MAX + 16];
	int err = 0;

	if (!realpath(path, full)) {
		if (errno != ENOENT)
			return -errno;
		err = resolve_missing(path, full);
	}
	if (!err)
		err = climb(full, mr->root);
	if (err)
		return err;
	snprintf(mr->rel, sizeof(mr->rel), "%s", below(mr->root, full));
	snprintf(version, sizeof(version), "%s/.kvc/version", mr->root);
	return access(version, R_OK) ? -ENODEV : 0;
}

int mountroot_read_file(const char *path, struct textbuf *text)
{
	char chunk[16384];
	ssize_t n = 0;
	int err = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	while (!err && (n = read(fd, chunk, sizeof(chunk))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			err = -errno;
		else if (text->len + (size_t)n > MOUNTROOT_FILE_MAX)
			err = -EFBIG;
		else
			textbuf_add(text, chunk, (size_t)n);
	}
	close(fd);
	return err ? err : text->err;
}

int mountroot_read(const struct mountroot *mr, const char *name, struct textbuf *text)
{
	char path[2 * PATH_MAX];
	int len = snprintf(path, sizeof(path), "%s/.kvc/%s", mr->root, name);

	if (len >= (int)sizeof(path))
		return -ENAMETOOLONG;
	return mountroot_read_file(path, text);
}
