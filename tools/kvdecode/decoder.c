/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass: the same operations in the same order for every token, wherever its past lies. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

#define LANES 8

int decoder_init(struct decoder *d, const struct model *m)
{
	const u32 nr[] = {m->dim, m->dim, m->dim, m->dim, m->hidden_dim, m->hidden_dim, m->seq_len,
			  m->head_dim / 2, m->vocab};
	float **at[] = {&d->x, &d->norm, &d->out, &d->q, &d->hidden, &d->gate, &d->att, &d->freq,
			&d->logits};
	size_t sum = 0;

	for (size_t i = 0; i < ARRAY_SIZE(nr); i++)
		sum += nr[i];
	*d = (struct decoder){.m = m, .x = calloc(sum, sizeof(float))};
	if (!d->x) {
		cli_error("out of memory");
		return -ENOMEM;
	}
	for (size_t i = 1; i < ARRAY_SIZE(nr); i++)
		*at[i] = *at[i - 1] + nr[i - 1];
	for (u32 i = 0; i < m->head_dim / 2; i++)
		d->freq[i] = (float)pow(10000.0, -2.0 * i / m->head_dim);
	return 0;
}

void decoder_free(struct decoder *d)
{
	free(d->x);
	d->x = NULL;
}

/* Eight sums, each in order, then a fixed tree: a vector unit may do that without changing a bit. */
static float dot(const float *a, const float *b, u32 n)
{
	float s[LANES] = {0};
	u32 i = 0;

	for (; i + LANES <= n; i += LANES)
		for (u32 j = 0; j < LANES; j++)
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
	const struct model *m = d->m;
	u32 n = m->head_dim, at = head / (m->heads / m->kv_heads) * n;
	float *out = d->out + head * n, most = -INFINITY, sum = 0;

	for (u32 t = 0; t <= pos; t++) {
		d->att[t] = dot(d->q + head * n, kv_key(kv, layer, t) + at, n) / sqrtf((float)n);
		most = fmaxf(most, d->att[t]);
	}
	memset(out, 0, n * sizeof(float));
	for (u32 t = 0; t <= pos; t++) {
		float weight = expf(d->att[t] - most);
		const float *value = kv_value(kv, layer, t) + at;

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
		matmul(kv_key(kv, layer, pos), m->wk + part, d->norm, nkv, n);
		rope(d, kv_key(kv, layer, pos), nkv, pos);
		matmul(kv_value(kv, layer, pos), m->wv + part, d->norm, nkv, n);
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
	const struct model *m = d->m;
	u32 n = m->dim;

	memcpy(d->x, m->embedding + (size_t)token * n, n * sizeof(float));
	for (u32 layer = 0; layer < m->layers; layer++) {
		attention(d, kv, layer, pos);
		for (u32 i = 0; i < n; i++)
			d->x[i] += d->norm[i];
		feed_forward(d, layer);
		for (u32 i = 0; i < n; i++)
			d->x[i] += d->norm[i];
	}
	rms_norm(d->norm, d->x, m->rms_final, n);
	matmul(d->logits, m->classifier, d->norm, m->vocab, n);
	d->nr_steps++;
}
