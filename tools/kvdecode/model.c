/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "allocator/base/hash.h"
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

#define MAX_DIM	       65536u
#define MAX_LAYERS     1024u
#define MAX_ENTRIES    (1u << 20) /* vocabulary, context, hidden layer */
#define RANDOM_SEQ_LEN 1024

static int refuse(const char *what, const char *problem)
{
	cli_error("%s: %s", what, problem);
	return -EINVAL;
}

/* Where each tensor begins. Return: weights in all; no product overflows within allocate()'s bounds. */
static u64 place(struct model *m)
{
	u64 l = m->layers, d = m->dim, h = m->hidden_dim, kv = m->kv_dim, nr = 0;
	float *unused;
	const struct {
		float **at;
		u64 nr;
	} tensors[] = {
		{&m->embedding, m->vocab * d}, {&m->rms_att, l * d}, {&m->wq, l * d * d},
		{&m->wk, l * d * kv}, {&m->wv, l * d * kv}, {&m->wo, l * d * d}, {&m->rms_ffn, l * d},
		{&m->w1, l * d * h}, {&m->w2, l * d * h}, {&m->w3, l * d * h}, {&m->rms_final, d},
		{&unused, (u64)m->seq_len * m->head_dim}, /* sines, computed here instead */
		{&m->classifier, m->own_classifier ? m->vocab * d : 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(tensors); nr += tensors[i++].nr)
		*tensors[i].at = m->weights ? m->weights + nr : NULL;
	if (!m->own_classifier)
		m->classifier = m->embedding;
	return nr;
}

/* Check the shape; memory for the weights where the file (if there is one) has as many. */
static int allocate(struct model *m, const char *what, const u64 *file_bytes)
{
	const u32 shape[] = {m->dim, m->hidden_dim, m->layers, m->heads, m->kv_heads, m->vocab, m->seq_len};
	const u32 most[] = {MAX_DIM, MAX_ENTRIES, MAX_LAYERS, MAX_DIM, MAX_DIM, MAX_ENTRIES, MAX_ENTRIES};

	for (size_t i = 0; i < ARRAY_SIZE(shape); i++)
		if (!shape[i] || shape[i] > most[i])
			return refuse(what, "no model: a number of its shape is out of range");
	if (m->dim % m->heads || m->dim / m->heads % 2 || m->heads % m->kv_heads)
		return refuse(what, "no model: dim, heads and kv heads do not divide evenly");
	m->head_dim = m->dim / m->heads;
	m->kv_dim = m->head_dim * m->kv_heads;
	m->nr_weights = place(m);
	if (file_bytes && *file_bytes != 7 * sizeof(u32) + m->nr_weights * sizeof(float))
		return refuse(what, "length does not fit the header: cut short, or not version 0");
	m->weights = kvc_alloc_array(m->nr_weights, sizeof(float));
	if (!m->weights)
		return refuse(what, "out of memory");
	m->fingerprint = hash_bytes(shape, sizeof(shape));
	place(m);
	return 0;
}

static int read_model(struct model *m, FILE *file, const char *path)
{
	int32_t head[7];
	struct stat st;
	u64 bytes;

	if (fread(head, sizeof(head), 1, file) != 1 || fstat(fileno(file), &st))
		return refuse(path, "too short for a model");
	/* A negative number is out of range as u32; a negative vocabulary is a flag. */
	m->dim = (u32)head[0], m->hidden_dim = (u32)head[1], m->layers = (u32)head[2];
	m->heads = (u32)head[3], m->kv_heads = (u32)head[4], m->seq_len = (u32)head[6];
	m->vocab = head[5] < 0 ? 0u - (u32)head[5] : (u32)head[5];
	m->own_classifier = head[5] < 0;
	bytes = (u64)st.st_size;
	if (allocate(m, path, &bytes))
		return -EINVAL;
	if (fread(m->weights, sizeof(float), m->nr_weights, file) != m->nr_weights)
		return refuse(path, "can not be read");
	for (u64 i = 0; i < m->nr_weights; i++)
		if (!isfinite(m->weights[i]))
			return refuse(path, "a weight is not a finite number");
	m->fingerprint = hash_bytes_seed(m->weights, m->nr_weights * sizeof(float), m->fingerprint);
	return 0;
}

int model_load(struct model *m, const char *path)
{
	FILE *file = fopen(path, "rbe");
	int err;

	*m = (struct model){0};
	if (!file)
		return refuse(path, strerror(errno));
	err = read_model(m, file, path);
	fclose(file);
	if (err)
		model_free(m);
	return err;
}

int model_random(struct model *m, const char *spec)
{
	unsigned long long seed;
	char more;

	*m = (struct model){.seq_len = RANDOM_SEQ_LEN};
	if (sscanf(spec, "%llu:%u,%u,%u,%u,%u%c", &seed, &m->layers, &m->heads, &m->kv_heads, &m->dim,
		   &m->vocab, &more) != 6)
		return refuse(spec, "not SEED:LAYERS,HEADS,KVHEADS,DIM,VOCAB");
	m->hidden_dim = m->dim <= MAX_DIM ? 3 * m->dim : 0;
	if (allocate(m, spec, NULL))
		return -EINVAL;
	/* Uniform, with variance 1 / dim: activations keep their size. Norms are 1. */
	for (u64 i = 0; i < m->nr_weights; i++)
		m->weights[i] = ((float)(hash_u64(hash_u64(seed + 1) + i) >> 40) / 8388608.0f - 1.0f) *
				sqrtf(3.0f / (float)m->dim);
	for (u64 i = 0; i < (u64)m->layers * m->dim; i++)
		m->rms_att[i] = m->rms_ffn[i] = m->rms_final[i % m->dim] = 1.0f;
	m->fingerprint = hash_bytes_seed(m->weights, m->nr_weights * sizeof(float), m->fingerprint);
	return 0;
}

void model_free(struct model *m)
{
	free(m->weights);
	*m = (struct model){0};
}
