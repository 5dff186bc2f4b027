/* SPDX-License-Identifier: Apache-2.0 */
/* A mount with a session, as an engine has it; for the groups that measure libkvc. */
#ifndef KVC_TOOLS_KVBENCH_ENGINE_H
#define KVC_TOOLS_KVBENCH_ENGINE_H

#include "fs/uapi/kvc.h"
#include "tools/kvbench/kvbench.h"

struct engine {
	struct mounts m;
	struct kvc *kvc;
};

/** engine_open() - a volatile mount with @dram_bytes, a namespace "ns", a session. Errors are said. */
int __must_check engine_open(struct engine *e, const struct bench *bench, u64 dram_bytes,
			     u32 token_bytes);
/** engine_close() - the session only; the mount goes with the cleanup stack. */
void engine_close(struct engine *e);
/**
 * engine_grow() - append @tokens of the ids that belong to @seed, @step at a time, filled with bytes.
 * Return: 0, or -errno, said on stderr.
 */
int __must_check engine_grow(struct kvc_seq *seq, u32 seed, u32 tokens, u32 step);
/** engine_ids() - ids [@first, @first + @nr) of @seed. */
void engine_ids(u32 seed, u32 first, u32 nr, u32 *ids);
/** engine_seq() - open or make "ns/NAME<nr>". */
int __must_check engine_seq(struct engine *e, const char *name, u32 nr, struct kvc_seq **seq);
/** engine_remove() - unlink it; its blocks stay cached. */
int __must_check engine_remove(struct engine *e, const char *name, u32 nr);

#endif
