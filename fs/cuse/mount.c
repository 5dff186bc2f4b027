/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which mount a descriptor lies in. A mount without allow_other is for one user alone; the kernel
 * compares that user with the ids of the process that asks, which for us are root's whoever the
 * caller is, so the same is compared here with the caller's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include "fs/cuse/front.h"

#define ROOT_INO 1 /* FUSE's number for a mount's root */

static unsigned int option_number(const char *options, const char *key)
{
	const char *at = strstr(options, key);
	unsigned int v = 0;

	if (at && sscanf(at + strlen(key), "%u", &v) != 1)
		v = 0;
	return v;
}

/* A line of mountinfo: "ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [FIELD...] - TYPE SOURCE OPTIONS".
 */
static bool describes(const char *line, struct mounted *m)
{
	const char *behind = strstr(line, " - ");
	unsigned int maj, min_;
	char type[32], options[512];

	if (!behind || sscanf(line, "%*s %*s %u:%u", &maj, &min_) != 2 ||
	    makedev(maj, min_) != m->dev ||
	    sscanf(behind, " - %31s %*s %511s", type, options) != 2 ||
	    strcmp(type, "fuse.kvcachefs"))
		return false;
	m->owner = option_number(options, "user_id=");
	m->group = option_number(options, "group_id=");
	m->for_others = strstr(options, "allow_other");
	return true;
}

int mount_describe(int fd, struct mounted *m)
{
	char *line = NULL;
	bool found = false;
	size_t room = 0;
	struct stat st;
	FILE *f;

	if (fstat(fd, &st))
		return mount_gone(-errno) ? -ENOTCONN : -errno;
	if (st.st_ino != ROOT_INO)
		return -ENOTCONN;
	*m = (struct mounted){.dev = st.st_dev};
	f = fopen("/proc/self/mountinfo", "re");
	if (!f)
		return -errno;
	while (!found && getline(&line, &room, f) > 0)
		found = describes(line, m);
	free(line);
	fclose(f);
	return found ? 0 : -ENOTCONN;
}

bool mount_lets_in(const struct mounted *m, uid_t uid, gid_t gid)
{
	return m->for_others || (uid == m->owner && gid == m->group);
}

bool mount_gone(int err)
{
	return err == -ENOTCONN || err == -ECONNABORTED;
}
