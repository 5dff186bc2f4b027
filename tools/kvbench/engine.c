/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/cli.h"
#include "tools/kvbench/engine.h"

int engine_open(struct engine *e, const struct bench *bench, u64 dram_bytes, u32 token_bytes)
{
	int err;

	e->kvc = NULL;
	err = mounts_make(&e->m, bench, dram_bytes, 0, token_bytes);
	if (err)
		return err;
	err = kvc_open(&e->kvc, e->m.mnt, NULL);
	if (err)
		cli_error("%s: no session: %s", e->m.mnt, strerror(-err));
	return err;
}

void engine_close(struct engine *e)
{
	kvc_close(e->kvc);
	e->kvc = NULL;
}

void engine_ids(u32 seed, u32 first, u32 nr, u32 *ids)
{
	for (u32 i = 0; i < nr; i++) {
		u64 x = ((u64)seed << 32 | (first + i)) * 0x9e3779b97f4a7c15ull;

		ids[i] = (u32)(x >> 40) % 128000;
	}
}

static int append(struct kvc_seq *seq, u32 seed, u32 at, u32 nr)
{
	struct kvc_room room = {.size = sizeof(room)};
	u32 *ids = kvc_alloc_array(nr, sizeof(*ids));
	int err = ids ? kvc_seq_append(seq, nr, &room) : -ENOMEM;

	if (!err) {
		engine_ids(seed, at, nr, ids);
		fill_random(room.addr, room.bytes, seed * 1000003ull + at);
		err = kvc_seq_commit(seq, at + nr, ids, nr);
	}
	free(ids);
	return err;
}

int engine_grow(struct kvc_seq *seq, u32 seed, u32 tokens, u32 step)
{
	int64_t at = kvc_seq_tokens(seq);
	int err = at < 0 ? (int)at : 0;

	while (!err && tokens) {
		u32 nr = min(step, tokens);

		err = append(seq, seed, (u32)at, nr);
		at += nr;
		tokens -= nr;
	}
	if (err)
		cli_error("append: %s", strerror(-err));
	return err;
}

int engine_seq(struct engine *e, const char *name, u32 nr, struct kvc_seq **seq)
{
	char path[64];
	int err;

	snprintf(path, sizeof(path), "ns/%s%u", name, nr);
	err = kvc_seq_open(e->kvc, seq, path, KVC_SEQ_CREATE | KVC_SEQ_WRITE);
	if (err)
		cli_error("%s: %s", path, strerror(-err));
	return err;
}

int engine_remove(struct engine *e, const char *name, u32 nr)
{
	static const char *const files[] = {"/kv", "/tokens", ""};
	char path[PATH_MAX + 64];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s%u%s", e->m.ns, name, nr, files[i]);
		if (remove(path)) {
			cli_error("%s: %s", path, strerror(errno));
			return -errno;
		}
	}
	return 0;
}
