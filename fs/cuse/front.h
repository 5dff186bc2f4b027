/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the character device, for fs/cuse only. */
#ifndef KVC_FS_CUSE_FRONT_H
#define KVC_FS_CUSE_FRONT_H

#include "fs/fuse.h"
#include <cuse_lowlevel.h>
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "allocator/base/textbuf.h"

/** struct mounted - what the kernel knows about a mount. */
struct mounted {
	dev_t dev;
	uid_t owner;
	gid_t group;
	bool for_others; /* allow_other */
};

/** struct client - an open of the device. */
struct client {
	struct list_head link; /* front.clients; protected by front.lock, as all without a word */
	unsigned int refs;     /* the open file's, and the watcher's while it looks */
	int root;	       /* descriptor of the mount's root; owned, set once */
	struct mounted on;     /* set once */
	struct textbuf text;   /* state as of the first read; no text: none yet */
	size_t pos;	       /* of the next read: the kernel keeps none for a device */
	u64 seen_us;	       /* stall_us when it last looked */
	struct fuse_pollhandle *poll; /* to be told; owned, NULL: nobody waits */
	u64 pass;		      /* of the watcher */
};

/** struct front - everything that lives as long as the device. */
struct front {
	const char *mountpoint;
	struct lock lock; /* LOCK_LEAF */
	struct waitq wake;
	struct list_head clients;
	unsigned int nr_polls; /* clients with a poll handle */
	u64 pass;
	bool stopping;
	pthread_t watcher;
};

/* ---- caller.c ---- */
/**
 * caller_begin() - from here on the thread's accesses to files are those of the request's caller.
 * Return: 0, -errno: nothing was changed. May block.
 */
int __must_check caller_begin(fuse_req_t req);
/** caller_end() - be the process itself again. */
void caller_end(void);

/* ---- mount.c ---- */
/** mount_describe() - what @fd is the root of. Return: 0, -ENOTCONN: not of a kvcachefs mount. */
int __must_check mount_describe(int fd, struct mounted *m);
/** mount_lets_in() - as the kernel would judge a process of @uid and @gid. */
bool mount_lets_in(const struct mounted *m, uid_t uid, gid_t gid);
/** mount_gone() - is @err what a mount answers whose daemon has gone? */
bool mount_gone(int err);

/* ---- state.c ---- */
/** state_text() - for `cat`, with the rights of the thread. Return: 0, -ESTALE (daemon gone),
 * -errno. */
int __must_check state_text(int root, const char *mountpoint, struct textbuf *tb);
/** state_stall_us() - the counter of that name. Return: as state_text(). */
int __must_check state_stall_us(int root, u64 *us);

/* ---- client.c ---- */
void client_open(fuse_req_t req, struct fuse_file_info *fi);
void client_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi);
void client_release(fuse_req_t req, struct fuse_file_info *fi);
void client_ioctl(fuse_req_t req, int cmd, void *arg, struct fuse_file_info *fi, unsigned int flags,
		  const void *in, size_t in_bytes, size_t out_bytes);
void client_poll(fuse_req_t req, struct fuse_file_info *fi, struct fuse_pollhandle *ph);
/** client_put() - drop a reference. Lock not held. */
void client_put(struct front *front, struct client *c);
/** clients_end() - free those that are still open: no request comes any more. */
void clients_end(struct front *front);

/* ---- watch.c ---- */
int __must_check watch_start(struct front *front);
void watch_stop(struct front *front);
/** watch_set() - tell @ph when @c's pressure rises. NULL: nothing to tell. Lock held. */
struct fuse_pollhandle *__must_check watch_set(struct front *front, struct client *c,
					       struct fuse_pollhandle *ph);

#endif
