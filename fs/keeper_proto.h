/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between daemon and keeper; a descriptor travels with those that carry one. The daemon that
 * connects asks for everything (TAKE) and gets one ITEM for each thing, then END. From then on it only
 * tells, but for RESET, which is answered by END when all is closed.
 */
#ifndef KVC_FS_KEEPER_PROTO_H
#define KVC_FS_KEEPER_PROTO_H

#include <sys/types.h>
#include "fs/keeper.h"

#define KEEPER_MAGIC   0x4b76434bu
#define KEEPER_VERSION 2u

enum keeper_op {
	KEEPER_TAKE = 1, /* to the keeper */
	KEEPER_RESET,	 /* to the keeper: close everything */
	KEEPER_CONFIG,	 /* to the keeper: config, seconds to linger */
	KEEPER_BYE,	 /* to the keeper: a clean end; seconds to linger */
	KEEPER_ITEM,	 /* both ways: kind, number */
	KEEPER_END,	 /* to the daemon: that was all; config, number: leases it can have */
};

enum keeper_kind { KEEPER_FILE, KEEPER_INDEX, KEEPER_LEASE };

struct keeper_msg {
	u32 magic;
	u16 version;
	u16 op;
	u32 kind;
	u32 number;
	u32 seconds;
	u32 reserved;
	struct keeper_config config;
};

/** keeper_send() - @fd -1: none. Return: 0, -errno. Never a signal. */
int __must_check keeper_send(int sock, const struct keeper_msg *msg, int fd);
/** keeper_receive() - *@fd: what came along, or -1. Return: 0, -ENOTCONN, -EPROTO, -EAGAIN (time), -errno. */
int __must_check keeper_receive(int sock, struct keeper_msg *msg, int *fd);
/** keeper_spawn() - start the process on @listener, which is bound to @path. Return: 0, -errno. */
int __must_check keeper_spawn(int listener, const char *path, pid_t *pid);

#endif
