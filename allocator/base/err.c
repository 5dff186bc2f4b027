/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include "allocator/base/err.h"

static atomic_uint_fast64_t counts[KVC_NR_ERR_REASONS + 1];

static const struct {
	const char *name, *text;
} reasons[] = {
#define KVC_ERR_REASON(name, text) {#name, text},
#include "allocator/base/err_reasons.def"
#undef KVC_ERR_REASON
	{"none", "no reason"},
};

int kvc_err_count(int err, enum kvc_err_reason reason)
{
	atomic_fetch_add_explicit(&counts[reason], 1, memory_order_relaxed);
	return err;
}

u64 kvc_err_value(enum kvc_err_reason reason)
{
	return atomic_load_explicit(&counts[reason], memory_order_relaxed);
}

const char *kvc_err_name(enum kvc_err_reason reason)
{
	return reasons[reason].name;
}

const char *kvc_err_text(enum kvc_err_reason reason)
{
	return reasons[reason].text;
}
