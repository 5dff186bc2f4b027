/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_FS_RPC_IOCTL_H
#define KVC_FS_RPC_IOCTL_H

#include "fs/fuse.h"

struct file_rpc;

/** struct ioctl_data - what the kernel copied of the caller's memory, and may copy back. */
struct ioctl_data {
	const void *in;
	size_t in_bytes, out_bytes;
};

/** ioctl_run() - execute the batch at @buf, private memory, in place. Return: 0, -errno. */
typedef int ioctl_run(fuse_req_t req, void *ctx, void *buf, size_t bytes);
/**
 * ioctl_batch() - an ioctl of the interface, on a file or the device: check its number and size, @serve it
 * from a copy, reply. -ENOTTY: another request; -E2BIG: beyond KVC_IOCTL_MAX.
 */
void ioctl_batch(fuse_req_t req, unsigned int cmd, const struct ioctl_data *data, ioctl_run *serve,
		 void *ctx);

/** file_rpc_free() - an open file's endpoint goes with it. NULL is fine. May block, no lock held. */
void file_rpc_free(struct file_rpc *rpc);

#endif
