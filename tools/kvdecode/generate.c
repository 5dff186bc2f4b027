/* SPDX-License-Identifier: Apache-2.0 */
/* From a prompt to the tokens behind it. */
#include <errno.h>
#include <math.h>
#include "allocator/base/hash.h"
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

struct candidate {
	float weight;
	u32 id;
};

static int by_weight(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight < y->weight ? 1 : -1;
	return x->id < y->id ? -1 : 1;
}

/* Draw among the likeliest that have top_p of the probability together. */
static u32 draw(const struct stream *s, struct candidate *c, u32 nr, float sum)
{
	u64 bits = hash_u64(hash_u64(s->seed + 1) + s->nr_ids) >> 40;
	float kept = 0, at;
	u32 i = 0;

	qsort(c, nr, sizeof(*c), by_weight);
	for (; i < nr && kept < s->top_p * sum; i++)
		kept += c[i].weight;
	at = (float)bits / 16777216.0f * kept;
	nr = max(i, 1u);
	for (i = 0; i + 1 < nr && at >= c[i].weight; i++)
		at -= c[i].weight;
	return c[i].id;
}

/* The next token, a function of logits, seed and position. */
static int pick(const struct stream *s)
{
	const float *logits = s->d->logits;
	u32 nr = s->d->m->vocab, best = 0;
	struct candidate *c;
	float sum = 0;

	for (u32 i = 0; i < nr; i++) {
		if (!isfinite(logits[i])) {
			cli_error("a logit is not a finite number: the model's weights are too large");
			return -EDOM;
		}
		if (logits[i] > logits[best])
			best = i;
	}
	if (s->temperature == 0)
		return (int)best;
	c = kvc_alloc_array(nr, sizeof(*c));
	if (!c) {
		cli_error("out of memory");
		return -ENOMEM;
	}
	for (u32 i = 0; i < nr; i++) {
		c[i] = (struct candidate){expf((logits[i] - logits[best]) / s->temperature), i};
		sum += c[i].weight;
	}
	best = draw(s, c, nr, sum);
	free(c);
	return (int)best;
}

int stream_prompt(struct stream *s)
{
	struct kv *kv = s->kv;
	u32 have = kv->tokens;
	int err = have < s->nr_ids ? kv->store->ops->reserve(kv, s->nr_ids) : 0;

	/* Where all is cached the last token is computed for its logits, from its own KV. */
	for (u32 pos = min(have, s->nr_ids - 1); !err && pos < s->nr_ids; pos++)
		decoder_step(s->d, kv, s->ids[pos], pos);
	return err || have == s->nr_ids ? err : kv->store->ops->commit(kv, s->nr_ids, s->ids);
}

/* KV and logits of the last id. Room is reserved a block at a time. */
static int compute_last(struct stream *s)
{
	struct kv *kv = s->kv;
	u32 pos = s->nr_ids - 1;
	u32 end = min((pos / KV_BLOCK_TOKENS + 1) * KV_BLOCK_TOKENS, s->d->m->seq_len);
	int err = pos == kv->reserved ? kv->store->ops->reserve(kv, end) : 0;

	if (err)
		return err;
	decoder_step(s->d, kv, s->ids[pos], pos);
	return kv->store->ops->commit(kv, pos + 1, s->ids);
}

int stream_generate(struct stream *s)
{
	u32 vocab = s->d->m->vocab;
	int id, err = 0;

	for (u32 step = 0; !err && step < s->steps && s->nr_ids < s->d->m->seq_len; step++) {
		if (step)
			err = compute_last(s);
		if (err)
			return err;
		if (s->logits && fwrite(s->d->logits, sizeof(float), vocab, s->logits) != vocab) {
			cli_error("the logits can not be written");
			return -EIO;
		}
		id = pick(s);
		if (id < 0 || (s->t && ((u32)id == TOKEN_BOS || (u32)id == TOKEN_EOS)))
			return min(id, 0);
		s->ids[s->nr_ids++] = (u32)id;
		if (s->text && s->t)
			tokenizer_print(s->t, s->ids[s->nr_ids - 2], (u32)id, s->text);
		else if (s->text)
			fprintf(s->text, " %d", id);
		if (s->text)
			fflush(s->text);
	}
	return err;
}
