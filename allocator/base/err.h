/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors that say where they came from.
 *
 * Functions return 0 or a negative errno. A failure on a data path is returned through kvc_err(),
 * which counts it under a reason that is used at one site only, so that `.kvc/stat` can tell the
 * two dozen ways to get an ENOSPC apart. The reasons are one described table: err_reasons.def.
 */
#ifndef KVC_BASE_ERR_H
#define KVC_BASE_ERR_H

#include <errno.h>
#include "allocator/base/compiler.h"

enum kvc_err_reason {
#define KVC_ERR_REASON(name, text) KVC_ERR_##name,
#include "allocator/base/err_reasons.def"
#undef KVC_ERR_REASON
	KVC_NR_ERR_REASONS
};

/** kvc_err() - count reason @name and return @err (a negative errno). */
#define kvc_err(err, name) kvc_err_count((err), KVC_ERR_##name)

int kvc_err_count(int err, enum kvc_err_reason reason);
u64 kvc_err_value(enum kvc_err_reason reason);
const char *kvc_err_name(enum kvc_err_reason reason);
const char *kvc_err_text(enum kvc_err_reason reason);

#endif
