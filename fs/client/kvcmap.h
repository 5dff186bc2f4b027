/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of libkvcmap: which file a descriptor is, and descriptors of its own. */
#ifndef KVC_CLIENT_KVCMAP_H
#define KVC_CLIENT_KVCMAP_H

#include <sys/stat.h>
#include "fs/client/client.h"

/** struct kvfile - a `kv` file on a mount of kvcachefs. */
struct kvfile {
	char root[PATH_MAX]; /* a mount point that shows all of the mount */
	char seq[PATH_MAX];  /* the sequence's directory, from the mount's root */
};

/** kvfile_find() - what @fd, whose stat is @st, is. Return: 0, -ENOENT (nothing of ours). */
int __must_check kvfile_find(int fd, const struct stat *st, struct kvfile *file);
/** kvfile_reopen() - open it again. Return: a descriptor; -ESTALE: another file is there now. */
int __must_check kvfile_reopen(const struct kvfile *file, const struct stat *st);

/* ---- kvcmap.c: one lock ---- */

/** kvcmap_enter() - take it; calls of this thread go past the library until kvcmap_leave(). */
void kvcmap_enter(void);
void kvcmap_leave(void);
/** kvcmap_inside() - whether this thread has it. */
bool kvcmap_inside(void);

/* ---- kvcmap_fd.c: descriptors that the program does not know. Caller has the lock ---- */

/**
 * own_add() - *@where becomes a high number, which the program cannot close through libc.
 * It changes when the program wants that number. Return: 0, -EMFILE (it is as it was).
 */
int __must_check own_add(int *where);
/** own_is() - whether *@where is still what own_add() saw. */
bool own_is(const int *where);
/** own_del() - no more; closes nothing. */
void own_del(const int *where);
/** own_forked() - this process is a child; it has the same. */
void own_forked(void);
/** own_room() - Return: 0; -EMFILE: there is no room for @nr descriptors (64 at most). */
int __must_check own_room(u32 nr);
/**
 * files_hold() - keep files open without a descriptor, here and in children.
 * Return: for files_let_go(), which closes them a moment later; NULL: the kernel does not let us.
 */
void *files_hold(const int *fds, u32 nr);
void files_let_go(void *held);

#endif
