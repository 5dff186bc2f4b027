/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier that misbehaves on demand, stacked on a real one: it fails, tears, corrupts or holds back
 * the n-th request, or is unplugged. Nothing in it sleeps: a delay is a request that is held until
 * the test lets it go, so a test decides every order itself.
 *
 *	tier_flaky_open(&tier, below);		below stays the caller's, and outlives tier
 *	tier_flaky_fail(tier, TIER_WRITE, 3, -EIO);
 */
#ifndef KVC_TEST_TIER_FLAKY_H
#define KVC_TEST_TIER_FLAKY_H

#include "tiers/tier.h"

/** tier_flaky_open() - a tier with the name, size and alignment of @below; tier_close() it. */
int tier_flaky_open(struct tier **tier, struct tier *below);

/** tier_flaky_fail() - the @nth (from 1) @op from now completes with @err, untouched; 0 disarms. */
void tier_flaky_fail(struct tier *tier, enum tier_op op, u64 nth, int err);

/**
 * tier_flaky_tear() - of the @nth write from now only the first @bytes (a multiple of the
 * alignment) are written. @err: what it completes with; 0 plays a disk that lies.
 */
void tier_flaky_tear(struct tier *tier, u64 nth, u64 bytes, int err);

/** tier_flaky_flip() - one bit, of byte @at, of the @nth read from now is wrong. */
void tier_flaky_flip(struct tier *tier, u64 nth, u64 at);

/** tier_flaky_refuse() - the @nth submit call from now returns @err, taking nothing. */
void tier_flaky_refuse(struct tier *tier, u64 nth, int err);

/** tier_flaky_unplug() - from now on everything completes with -EIO and reaches nothing. */
void tier_flaky_unplug(struct tier *tier, bool unplugged);

/** tier_flaky_hold() - hold back each @op that comes; false: let new ones through again. */
void tier_flaky_hold(struct tier *tier, enum tier_op op, bool hold);
/** tier_flaky_wait_held() - wait until at least @nr requests are held. */
void tier_flaky_wait_held(struct tier *tier, unsigned int nr);
/** tier_flaky_release() - let up to @nr held requests go on, oldest first. Returns how many did. */
unsigned int tier_flaky_release(struct tier *tier, unsigned int nr);

/** tier_flaky_seen() - requests of kind @op that have arrived since open. */
u64 tier_flaky_seen(struct tier *tier, enum tier_op op);

#endif
