/* SPDX-License-Identifier: Apache-2.0 */
#undef NDEBUG /* what is asserted here is the test, in every build */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>
#include "allocator/base/hash.h"
#include "lib/test.h"
#include "lib/tiny_model.h"

static u64 nr_weights(const struct tiny_shape *s)
{
	u64 d = s->dim, l = s->layers, head = d / s->heads, kv = head * s->kv_heads;

	return s->vocab * d + 2 * l * d + 2 * l * d * d + 2 * l * d * kv + 3 * l * d * s->hidden_dim + d +
	       s->seq_len * head;
}

/* Uniform, with variance 1 / dim: activations keep their size. */
static float weight(u64 seed, u64 i, u32 dim)
{
	return ((float)(hash_u64(hash_u64(seed + 1) + i) >> 40) / 8388608.0f - 1.0f) *
	       sqrtf(3.0f / (float)dim);
}

void tiny_model(struct model *m, u64 seed, struct tiny_shape shape)
{
	char path[PATH_MAX];
	FILE *file;
	int fd, err;

	test_tmp(path, "kvc-tiny.XXXXXX");
	fd = mkstemp(path);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	assert(file);
	fwrite(&shape, sizeof(shape), 1, file);
	for (u64 i = 0; i < nr_weights(&shape); i++)
		fwrite(&(float){weight(seed, i, shape.dim)}, sizeof(float), 1, file);
	err = fclose(file);
	assert(!err);
	err = model_load(m, path);
	unlink(path);
	assert(!err);
	for (u32 i = 0; i < m->layers * m->dim; i++)
		m->rms_att[i] = m->rms_ffn[i] = m->rms_final[i % m->dim] = 1.0f;
}
