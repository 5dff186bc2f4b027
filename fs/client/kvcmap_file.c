/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a descriptor to a sequence. /proc says which path was opened, mountinfo which mounts show that
 * device; the longest mount point above the path gives the path inside the mount. What the daemon then
 * opens by that path is compared with the descriptor, as names move.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "fs/client/kvcmap.h"

/** struct mount - what is used of a line of mountinfo. */
struct mount {
	dev_t dev;
	char *root, *point, *type;
};

/* Blanks and backslashes are \ooo there. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++, to++) {
		*to = *s;
		if (s[0] == '\\' && s[1] && s[2] && s[3]) {
			*to = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		}
	}
	*to = '\0';
}

/* ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS */
static bool parse(char *line, struct mount *m)
{
	unsigned int major_nr, minor_nr;
	char *field[5], *dash = strstr(line, " - ");

	if (!dash)
		return false;
	*dash = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(field); i++) {
		field[i] = strsep(&line, " ");
		if (!field[i])
			return false;
	}
	m->type = dash + 3;
	m->type[strcspn(m->type, " ")] = '\0';
	if (sscanf(field[2], "%u:%u", &major_nr, &minor_nr) != 2)
		return false;
	m->dev = makedev(major_nr, minor_nr);
	m->root = field[3];
	m->point = field[4];
	unescape(m->root);
	unescape(m->point);
	return true;
}

/* @path behind @prefix; NULL when it does not lie below. */
static const char *behind(const char *path, const char *prefix)
{
	size_t len = strcmp(prefix, "/") ? strlen(prefix) : 0;

	return !strncmp(path, prefix, len) && path[len] == '/' ? path + len + 1 : NULL;
}

/* Use a mount of the file's device: for its root, for the way to @path, or both. */
static void consider(struct kvfile *file, const struct mount *m, const char *path, size_t *best)
{
	const char *below = behind(path, m->point);
	size_t len = strlen(m->point);

	if (!strcmp(m->root, "/"))
		snprintf(file->root, sizeof(file->root), "%s", m->point);
	if (!below || len < *best)
		return;
	*best = len;
	if (snprintf(file->seq, sizeof(file->seq), "%s%s%s", m->root + 1, m->root[1] ? "/" : "",
		     below) >= (int)sizeof(file->seq))
		file->seq[0] = '\0';
}

static int find_mount(struct kvfile *file, dev_t dev, const char *path)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t size = 0, best = 0;
	struct mount m;

	if (!f)
		return -ENOENT;
	file->root[0] = file->seq[0] = '\0';
	while (getline(&line, &size, f) > 0)
		if (parse(line, &m) && m.dev == dev && !strcmp(m.type, "fuse.kvcachefs"))
			consider(file, &m, path, &best);
	free(line);
	fclose(f);
	return file->root[0] && file->seq[0] ? 0 : -ENOENT;
}

int kvfile_find(int fd, const struct stat *st, struct kvfile *file)
{
	char link[40], path[PATH_MAX];
	char *slash;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return -ENOENT;
	path[n] = '\0';
	slash = strrchr(path, '/');
	if (!slash || strcmp(slash, "/kv") || find_mount(file, st->st_dev, path))
		return -ENOENT;
	slash = strrchr(file->seq, '/');
	if (!slash)
		return -ENOENT;
	*slash = '\0';
	return 0;
}

int kvfile_reopen(const struct kvfile *file, const struct stat *st)
{
	char path[2 * PATH_MAX + 8];
	struct stat now;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/kv", file->root, file->seq);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (!fstat(fd, &now) && now.st_dev == st->st_dev && now.st_ino == st->st_ino)
		return fd;
	close(fd);
	return -ESTALE;
}
