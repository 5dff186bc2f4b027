/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_FS_RPC_IOCTL_H
#define KVC_FS_RPC_IOCTL_H

struct file_rpc;

/** file_rpc_free() - an open file's endpoint goes with it. NULL is fine. May block, no lock held. */
void file_rpc_free(struct file_rpc *rpc);

#endif
