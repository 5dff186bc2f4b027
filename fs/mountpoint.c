/* SPDX-License-Identifier: Apache-2.0 */
/* Where the mount is to be: what is there already, and where the store lies from there. */
#include <errno.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include "allocator/base/textbuf.h"
#include "fs/mountpoint.h"

#define OUR_TYPE "fuse.kvcachefs"

static int refuse(struct textbuf *why, const char *path, int err)
{
	if (err == -ENOTCONN)
		textbuf_printf(why, "mount point %s: the daemon that served it has died: "
			       "fusermount3 -uz %s, then mount again", path, path);
	else
		textbuf_printf(why, "mount point %s: %s", path, strerror(-err));
	return err;
}

/* Absolute, since a daemon leaves its directory. */
static int absolute(char **path, struct textbuf *why)
{
	char *real = realpath(*path, NULL);
	struct stat st;
	int err = 0;

	if (!real || stat(real, &st))
		err = -errno;
	else if (!S_ISDIR(st.st_mode))
		err = -ENOTDIR;
	if (err) {
		free(real);
		return refuse(why, *path, err);
	}
	free(*path);
	*path = real;
	return 0;
}

/*
 * Look through the mounts of ours, at @path or, where that is NULL, of @source. Return: whether the last
 * one that could be meant, which is on top, is one; -1: nobody can tell.
 */
static int find_ours(const char *path, const char *source)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	char text[8192];
	struct mntent ent;
	int found = 0;

	if (!f)
		return -1;
	while (getmntent_r(f, &ent, text, sizeof(text))) {
		bool ours = !strcmp(ent.mnt_type, OUR_TYPE);

		if (path && !strcmp(ent.mnt_dir, path))
			found = ours;
		else if (!path && ours && !strcmp(ent.mnt_fsname, source))
			found = 1;
	}
	endmntent(f);
	return found;
}

bool source_is_mounted(const char *source)
{
	return find_ours(NULL, source) != 0;
}

/*
 * One mount over another hides it, and what is hidden cannot be told from what was lost. The kernel
 * may know the attributes of a directory whose daemon is dead, but not how full it is.
 */
static int check_free(const char *path, struct textbuf *why)
{
	struct statfs sf;

	if (find_ours(path, NULL) != 1)
		return 0;
	if (statfs(path, &sf) && (errno == ENOTCONN || errno == ECONNABORTED))
		return refuse(why, path, -ENOTCONN);
	textbuf_printf(why, "mount point %s: there is a kvcachefs mount already: unmount it first", path);
	return -EBUSY;
}

/* ---- the store ---- */

static bool is_at_or_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) && (!path[len] || path[len] == '/' || dir[len - 1] == '/');
}

/* Where @path is or, as long as it is missing, will be. NULL: its folder is missing as well. */
static char *place_of(const char *path)
{
	char *real = realpath(path, NULL), *copy, *at, *dir;

	if (real)
		return real;
	copy = strdup(path);
	while (copy && (at = strrchr(copy, '/')) && !at[1] && at != copy)
		*at = '\0';
	at = copy ? strrchr(copy, '/') : NULL;
	if (at)
		*at = '\0';
	dir = copy ? realpath(!at ? "." : at == copy ? "/" : copy, NULL) : NULL;
	if (dir && asprintf(&real, "%s/%s", dir, at ? at + 1 : copy) < 0)
		real = NULL;
	free(dir);
	free(copy);
	return real;
}

/*
 * A store below its own mount would be hidden by it; a mount inside the store is in its way. Absolute from
 * here on, as the table of mounts shows it to others.
 */
static int check_apart(struct fs_opts *opts, struct textbuf *why)
{
	char *store = opts->source ? place_of(opts->source) : NULL;
	int err = 0;

	if (store && (is_at_or_below(store, opts->mountpoint) ||
		      is_at_or_below(opts->mountpoint, store))) {
		textbuf_printf(why, "store %s and mount point %s: neither may lie in the other", store,
			       opts->mountpoint);
		err = -EBUSY;
	}
	if (!store)
		return 0;
	free(opts->source);
	opts->source = store;
	return err;
}

int mountpoint_check(struct fs_opts *opts, struct textbuf *why)
{
	int err = absolute(&opts->mountpoint, why);

	if (!err && !opts->cuse)
		err = check_free(opts->mountpoint, why);
	return err ? err : check_apart(opts, why);
}
