/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that says which libfuse interface is meant. */
#ifndef KVC_FS_FUSE_H
#define KVC_FS_FUSE_H

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>

#endif
