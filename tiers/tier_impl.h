/* SPDX-License-Identifier: Apache-2.0 */
/* What back ends of a tier share with the checked wrappers; for back ends only. */
#ifndef KVC_TIER_IMPL_H
#define KVC_TIER_IMPL_H

#include "tiers/tier.h"

/* Values that stale memory is unlikely to hold: a caller need not clear a tier_io. */
enum tier_io_state { TIER_IO_SUBMITTED = 0x71e40001, TIER_IO_DONE = 0x71e40002 };

/**
 * tier_io_done() - complete @io: count it, then call its done(). The only way to complete one.
 * @err: 0 or negative errno
 * Context: no lock held. @io belongs to its submitter afterwards and may be gone.
 */
void tier_io_done(struct tier_io *io, int err);

/** tier_mem_submit() - carry requests out by memcpy, at once, on host memory at @base. */
int tier_mem_submit(char *base, struct tier_io **ios, unsigned int nr);

/** tier_why() - one line for @why (may be NULL); returns @err. */
#define tier_why(why, err, ...)                                                                    \
	({                                                                                         \
		if (why)                                                                           \
			textbuf_printf((why), __VA_ARGS__);                                        \
		(err);                                                                             \
	})

#endif
