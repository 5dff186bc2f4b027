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

/* Is what one sees at @path a mount of ours? */
static bool is_ours(const char *path)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	char text[8192];
	struct mntent ent;
	bool ours = false;

	while (f && getmntent_r(f, &ent, text, sizeof(text)))
		if (!strcmp(ent.mnt_dir, path)) /* the last one is on top */
			ours = !strcmp(ent.mnt_type, OUR_TYPE);
	if (f)
		endmntent(f);
	return ours;
}

/*
 * One mount over another hides it, and what is hidden cannot be told from what was lost. The kernel
 * may know the attributes of a directory whose daemon is dead, but not how full it is.
 */
static int check_free(const char *path, struct textbuf *why)
{
	struct statfs sf;

	if (!is_ours(path))
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

/* A store below its own mount would be hidden by it; a mount inside the store is in its way. */
static int check_apart(const struct fs_opts *opts, struct textbuf *why)
{
	char *store = opts->source ? place_of(opts->source) : NULL;
	int err = 0;

	if (store && (is_at_or_below(store, opts->mountpoint) ||
		      is_at_or_below(opts->mountpoint, store))) {
		textbuf_printf(why, "store %s and mount point %s: neither may lie in the other", store,
			       opts->mountpoint);
		err = -EBUSY;
	}
	free(store);
	return err;
}

int mountpoint_check(struct fs_opts *opts, struct textbuf *why)
{
	int err = absolute(&opts->mountpoint, why);

	if (!err && !opts->cuse)
		err = check_free(opts->mountpoint, why);
	return err ? err : check_apart(opts, why);
}
