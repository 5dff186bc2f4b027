/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the rest of this folder where libfuse has no CUSE. */
#include <errno.h>
#include "allocator/base/textbuf.h"
#include "fs/cuse/cuse.h"

int cuse_serve(const struct cuse_args *args, struct textbuf *why)
{
	textbuf_printf(why, "--cuse: built with a libfuse that has no CUSE");
	return -EOPNOTSUPP;
}
