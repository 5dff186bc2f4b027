/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P1 and what an engine does at each step, through libkvc: read a resident sequence, find the prompts of
 * a batch, append a token to every sequence of a batch.
 *
 * Reading copies the view into a buffer that stays in the caches; the peer copies as much from anonymous
 * memory in huge pages. Both have been read once before: what mapping costs is P2.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "tools/common/cli.h"
#include "tools/kvbench/engine.h"

#define DEFAULT_BYTES	 GIB(1)
#define READ_TOKEN_BYTES 32768u
#define CHUNK		 KIB(256)
#define BATCH		 64u
#define PROMPT		 8192u
#define STEP_TOKEN_BYTES 2048u
#define STEPS		 200u /* of a run */

/* ---- P1 ---- */

static double copy_all(u8 *to, const u8 *from, u64 bytes)
{
	u64 start = clock_mono_ns();

	for (u64 at = 0; at < bytes; at += CHUNK)
		memcpy(to, from + at, min(CHUNK, bytes - at));
	return (double)bytes / seconds_since(start) / 1e9;
}

static int measure_read(const struct bench *bench, const struct kvc_view *view, struct figure *fig)
{
	void *peer = mmap(NULL, view->bytes + MIB(2), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	u8 *huge = (u8 *)round_up_pow2((uintptr_t)peer, MIB(2)), *to = malloc(CHUNK);
	int err = peer == MAP_FAILED || !to ? -ENOMEM : 0;

	if (!err) {
		madvise(huge, view->bytes, MADV_HUGEPAGE);
		memcpy(huge, view->addr, view->bytes);
		memset(to, 1, CHUNK);
		copy_all(to, view->addr, view->bytes);
	}
	for (u32 i = 0; i < bench->runs * 3 && !err; i++) {
		double a, b;

		b = i % 2 ? copy_all(to, huge, view->bytes) : 0;
		a = copy_all(to, view->addr, view->bytes);
		b = i % 2 ? b : copy_all(to, huge, view->bytes);
		figure_add(fig, a, b);
	}
	free(to);
	if (peer != MAP_FAILED)
		munmap(peer, view->bytes + MIB(2));
	return err;
}

static int run_read(const struct bench *bench, struct figure *fig)
{
	u64 bytes = round_up_pow2(bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES, MIB(2));
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_seq *seq = NULL;
	struct engine e;
	int err = engine_open(&e, bench, 3 * bytes + MIB(256), READ_TOKEN_BYTES);

	if (!err)
		err = engine_seq(&e, "r", 0, &seq);
	if (!err)
		err = engine_grow(seq, 1, (u32)(bytes / READ_TOKEN_BYTES), 1024);
	if (!err)
		err = kvc_seq_map(seq, &view);
	if (!err) {
		err = measure_read(bench, &view, fig);
		kvc_view_unmap(&view);
	}
	kvc_seq_close(seq);
	engine_close(&e);
	return err;
}

/* ---- a batch of prompts ---- */

/** struct prompts - of a batch, all cached. */
struct prompts {
	struct engine e;
	u32 *ids; /* BATCH * PROMPT */
	struct kvc_match_entry entry[BATCH];
};

static int fill_prompts(struct prompts *p)
{
	int err = 0;

	for (u32 i = 0; i < BATCH && !err; i++) {
		struct kvc_seq *seq = NULL;

		engine_ids(i + 1, 0, PROMPT, p->ids + i * PROMPT);
		err = engine_seq(&p->e, "cached", i, &seq);
		if (!err)
			err = engine_grow(seq, i + 1, PROMPT, PROMPT);
		kvc_seq_close(seq);
	}
	return err;
}

/* Open the batch: sequences that have the prompts, for asking; or new ones, to attach to. */
static int open_batch(struct prompts *p, bool attach)
{
	char path[64];
	int err = 0;

	for (u32 i = 0; i < BATCH && !err; i++) {
		p->entry[i] = (struct kvc_match_entry){.ids = p->ids + i * PROMPT, .nr_ids = PROMPT};
		snprintf(path, sizeof(path), "ns/cached%u", i);
		err = attach ? engine_seq(&p->e, "new", i, &p->entry[i].seq)
			     : kvc_seq_open(p->e.kvc, &p->entry[i].seq, path, 0);
	}
	return err;
}

static int close_batch(struct prompts *p, bool attach)
{
	int err = 0;

	for (u32 i = 0; i < BATCH && p->entry[i].seq; i++) {
		kvc_seq_close(p->entry[i].seq);
		if (attach && !err)
			err = engine_remove(&p->e, "new", i);
	}
	return err;
}

/* Match the batch's prompts. Return: ms, or negative errno. */
static double match_once(struct prompts *p, bool attach)
{
	int err = open_batch(p, attach), err2;
	u64 start = clock_mono_ns();
	double ms;

	if (!err)
		err = kvc_match_many(p->e.kvc, p->entry, BATCH);
	ms = seconds_since(start) * 1e3;
	for (u32 i = 0; i < BATCH && !err; i++)
		if (p->entry[i].result || p->entry[i].cached != PROMPT)
			err = p->entry[i].result ? p->entry[i].result : -EIO;
	err2 = close_batch(p, attach);
	return err ? err : err2 ? err2 : ms;
}

static int match_batches(const struct bench *bench, struct figure *fig, bool attach)
{
	struct prompts p = {.ids = kvc_alloc_array(BATCH * PROMPT, sizeof(u32))};
	double ms = 0;
	int err = p.ids ? engine_open(&p.e, bench, MIB(512), 64) : -ENOMEM;

	if (!err)
		err = fill_prompts(&p);
	for (u32 i = 0; i < 3 * bench->runs + 1 && !err && ms >= 0; i++) {
		ms = match_once(&p, attach);
		if (i && ms >= 0)
			figure_add(fig, ms, NAN); /* the first touched the arena */
	}
	engine_close(&p.e);
	free(p.ids);
	return err ? err : ms < 0 ? (int)ms : 0;
}

static int run_match(const struct bench *bench, struct figure *fig)
{
	return match_batches(bench, fig, false);
}

static int run_attach(const struct bench *bench, struct figure *fig)
{
	return match_batches(bench, fig, true);
}

/* ---- a step of decoding ---- */

/** struct decode - a batch of sequences that grow by a token at a time. */
struct decode {
	struct engine e;
	u32 id;
	struct kvc_append_entry append[BATCH];
	struct kvc_commit_entry commit[BATCH];
};

static int decode_step(struct decode *d)
{
	int err = kvc_append_many(d->e.kvc, d->append, BATCH);

	for (u32 i = 0; i < BATCH && !err; i++) {
		err = d->append[i].result;
		d->commit[i].tokens++;
	}
	if (!err)
		err = kvc_commit_many(d->e.kvc, d->commit, BATCH);
	for (u32 i = 0; i < BATCH && !err; i++)
		err = d->commit[i].result;
	return err;
}

/* Return: median us of a step over STEPS of them, or negative errno. */
static double decode_steps(struct decode *d)
{
	double us[STEPS];
	int err = 0;

	for (u32 i = 0; i < STEPS && !err; i++) {
		u64 start = clock_mono_ns();

		err = decode_step(d);
		us[i] = seconds_since(start) * 1e6;
	}
	return err ? err : median(us, STEPS);
}

static int decode_open(struct decode *d)
{
	int err = 0;

	for (u32 i = 0; i < BATCH && !err; i++) {
		struct kvc_seq *seq = NULL;

		err = engine_seq(&d->e, "d", i, &seq);
		d->append[i] = (struct kvc_append_entry){.seq = seq, .nr_tokens = 1};
		d->commit[i] = (struct kvc_commit_entry){.seq = seq, .ids = &d->id, .nr_ids = 1};
	}
	return err;
}

static int run_decode(const struct bench *bench, struct figure *fig)
{
	struct decode d = {.id = 7};
	double us = 0;
	int err = engine_open(&d.e, bench, GIB(1), STEP_TOKEN_BYTES);

	if (!err)
		err = decode_open(&d);
	if (!err)
		us = decode_steps(&d);
	for (u32 i = 0; i < bench->runs && !err && us >= 0; i++) {
		us = decode_steps(&d);
		if (us >= 0)
			figure_add(fig, us, NAN);
	}
	for (u32 i = 0; i < BATCH; i++)
		kvc_seq_close(d.append[i].seq);
	engine_close(&d.e);
	return err ? err : us < 0 ? (int)us : 0;
}

int bench_session(const struct bench *bench)
{
	static const struct {
		struct figure_spec spec;
		int (*run)(const struct bench *bench, struct figure *fig);
	} parts[] = {
		{{"P1", "read_session", "GB/s", "memcpy", BETTER_HIGH, 0, 0.95}, run_read},
		{{"-", "match_64x8k", "ms", NULL, BETTER_LOW, 1, 0}, run_match},
		{{"-", "match_attach_64x8k", "ms", NULL, BETTER_LOW, 1, 0}, run_attach},
		{{"-", "append_commit_64", "us", NULL, BETTER_LOW, 50, 0}, run_decode},
	};
	int err = 0;

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		unsigned int mark = cleanup_mark();
		struct figure fig;
		int err2;

		figure_init(&fig, &parts[i].spec);
		err2 = parts[i].run(bench, &fig);
		cleanup_to(mark);
		if (err2)
			figure_why(&fig, "%s", strerror(-err2));
		report_figure(bench->report, &fig);
		err = err ? err : err2;
	}
	return err;
}
