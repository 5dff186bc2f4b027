/* SPDX-License-Identifier: Apache-2.0 */
/* The same operations in the same order for every token, wherever its past lies. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "allocator/base/hash.h"
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

int decoder_init(struct decoder *d, const struct model *m)
{
	u32 n = m->dim, h = m->hidden_dim, half = m->head_dim / 2;

	*d = (struct decoder){.m = m, .x = calloc(4ull * n + 2ull * h + m->seq_len + half + 2ull * m->vocab,
						  sizeof(float))};
	if (!d->x) {
		cli_error("out of memory");
		return -ENOMEM;
	}
	d->norm = d->x + n, d->out = d->norm + n, d->q = d->out + n, d->hidden = d->q + n;
	d->gate = d->hidden + h, d->att = d->gate + h, d->freq = d->att + m->seq_len;
	d->logits = d->freq + half, d->weight = d->logits + m->vocab;
	for (u32 i = 0; i < half; i++)
		d->freq[i] = (float)pow(10000.0, -2.0 * i / m->head_dim);
	return 0;
}

/* Eight sums, each in order, then a fixed tree: a vector unit may do that without changing a bit. */
static float dot(const float *a, const float *b, u32 n)
{
	float s[8] = {0};
	u32 i = 0;

	for (; i + 8 <= n; i += 8)
		for (u32 j = 0; j < 8; j++)
			s[j] += a[i + j] * b[i + j];
	for (u32 j = 0; i < n; i++, j++)
		s[j] += a[i] * b[i];
	return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

static void matmul(float *out, const float *w, const float *x, u32 rows, u32 columns)
{
	for (u32 i = 0; i < rows; i++)
		out[i] = dot(w + (size_t)i * columns, x, columns);
}

static void rms_norm(float *out, const float *x, const float *weight, u32 n)
{
	float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + 1e-5f);

	for (u32 i = 0; i < n; i++)
		out[i] = weight[i] * (scale * x[i]);
}

/* Turn the pairs (2i, 2i+1) of each head by pos * freq[i]. */
static void rope(const struct decoder *d, float *x, u32 n, u32 pos)
{
	for (u32 i = 0; i < n; i += 2) {
		float angle = (float)pos * d->freq[i % d->m->head_dim / 2];
		float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];

		x[i] = a * c - b * s;
		x[i + 1] = a * s + b * c;
	}
}

/* One query head over the tokens [0, pos]. */
static void attend(const struct decoder *d, const struct kv *kv, u32 layer, u32 head, u32 pos)
{
	u32 n = d->m->head_dim, at = head / (d->m->heads / d->m->kv_heads) * n;
	float *out = d->out + head * n, most = -INFINITY, sum = 0;
	u32 value_at = KV_BLOCK_TOKENS * d->m->kv_dim;

	for (u32 t = 0; t <= pos; t++) {
		d->att[t] = dot(d->q + head * n, kv_key(kv, layer, t) + at, n) / sqrtf((float)n);
		most = fmaxf(most, d->att[t]);
	}
	memset(out, 0, n * sizeof(float));
	for (u32 t = 0; t <= pos; t++) {
		float weight = expf(d->att[t] - most);
		const float *value = kv_key(kv, layer, t) + value_at + at;

		sum += weight;
		for (u32 i = 0; i < n; i++)
			out[i] += weight * value[i];
	}
	for (u32 i = 0; i < n; i++)
		out[i] /= sum;
}

static void attention(struct decoder *d, struct kv *kv, u32 layer, u32 pos)
{
	const struct model *m = d->m;
	u32 n = m->dim, nkv = m->kv_dim;
	size_t square = (size_t)layer * n * n, part = (size_t)layer * n * nkv;

	rms_norm(d->norm, d->x, m->rms_att + (size_t)layer * n, n);
	matmul(d->q, m->wq + square, d->norm, n, n);
	rope(d, d->q, n, pos);
	if (pos >= kv->tokens) {
		float *key = kv_key(kv, layer, pos);

		matmul(key, m->wk + part, d->norm, nkv, n);
		rope(d, key, nkv, pos);
		matmul(key + KV_BLOCK_TOKENS * nkv, m->wv + part, d->norm, nkv, n);
	}
	for (u32 head = 0; head < m->heads; head++)
		attend(d, kv, layer, head, pos);
	matmul(d->norm, m->wo + square, d->out, n, n);
}

static void feed_forward(struct decoder *d, u32 layer)
{
	const struct model *m = d->m;
	u32 n = m->dim, h = m->hidden_dim;
	size_t part = (size_t)layer * n * h;

	rms_norm(d->norm, d->x, m->rms_ffn + (size_t)layer * n, n);
	matmul(d->hidden, m->w1 + part, d->norm, h, n);
	matmul(d->gate, m->w3 + part, d->norm, h, n);
	for (u32 i = 0; i < h; i++)
		d->hidden[i] = d->hidden[i] / (1.0f + expf(-d->hidden[i])) * d->gate[i];
	matmul(d->norm, m->w2 + part, d->hidden, n, h);
}

void decoder_step(struct decoder *d, struct kv *kv, u32 token, u32 pos)
{
	u32 n = d->m->dim;

	memcpy(d->x, d->m->embedding + (size_t)token * n, n * sizeof(float));
	for (u32 half = 0; half < 2 * d->m->layers; half++) {
		if (half % 2)
			feed_forward(d, half / 2);
		else
			attention(d, kv, half / 2, pos);
		for (u32 i = 0; i < n; i++)
			d->x[i] += d->norm[i];
	}
	rms_norm(d->norm, d->x, d->m->rms_final, n);
	matmul(d->logits, d->m->classifier, d->norm, d->m->vocab, n);
	d->nr_steps++;
}

/* The next token, a function of logits, seed and position. */
static int pick(const struct stream *s)
{
	const float *logits = s->d->logits;
	u32 nr = s->d->m->vocab, best = 0, id = 0;
	float sum = 0, at = (float)(hash_u64(hash_u64(s->seed + 1) + s->nr_ids) >> 40) / 16777216.0f;

	for (u32 i = 0; i < nr; i++) {
		if (!isfinite(logits[i])) {
			cli_error("a logit is not a finite number: the model's weights are too large");
			return -EDOM;
		}
		best = logits[i] > logits[best] ? i : best;
	}
	if (s->temperature == 0)
		return (int)best;
	for (u32 i = 0; i < nr; i++)
		sum += s->d->weight[i] = expf((logits[i] - logits[best]) / s->temperature);
	for (at *= sum; id + 1 < nr && at >= s->d->weight[id]; id++)
		at -= s->d->weight[id];
	return (int)id;
}

int stream_prompt(struct stream *s)
{
	u32 have = s->kv->tokens;
	int err = have < s->nr_ids ? kv_reserve(s->kv, s->nr_ids) : 0;

	/* Where all is cached the last token is computed for its logits, from its own KV. */
	for (u32 pos = min(have, s->nr_ids - 1); !err && pos < s->nr_ids; pos++)
		decoder_step(s->d, s->kv, s->ids[pos], pos);
	return err || have == s->nr_ids ? err : kv_commit(s->kv, s->nr_ids, s->ids);
}

/* KV and logits of the last id. Room is reserved a block at a time. */
static int compute_last(struct stream *s)
{
	u32 pos = s->nr_ids - 1, end = (pos / KV_BLOCK_TOKENS + 1) * KV_BLOCK_TOKENS;
	int err = pos == s->kv->reserved ? kv_reserve(s->kv, min(end, s->d->m->seq_len)) : 0;

	if (!err)
		decoder_step(s->d, s->kv, s->ids[pos], pos);
	return err ? err : kv_commit(s->kv, pos + 1, s->ids);
}

int stream_generate(struct stream *s)
{
	u32 vocab = s->d->m->vocab;
	int id, err = 0;

	for (u32 step = 0; step < s->steps && s->nr_ids < s->d->m->seq_len; step++) {
		if (step)
			err = compute_last(s);
		if (err)
			return err;
		if (s->logits && fwrite(s->d->logits, sizeof(float), vocab, s->logits) != vocab)
			return -EIO; /* told when it is closed */
		id = pick(s);
		if (id < 0 || (s->t && ((u32)id == TOKEN_BOS || (u32)id == TOKEN_EOS)))
			return min(id, 0);
		s->ids[s->nr_ids++] = (u32)id;
		if (s->text)
			tokenizer_print(s->t, s->ids[s->nr_ids - 2], (u32)id, s->text);
	}
	return 0;
}
