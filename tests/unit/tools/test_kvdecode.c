/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference decoder in plain memory: its logits against a separate computation in double
 * precision that keeps no KV at all, equal bits on every way to the same position, damaged files.
 * Tests of the trained model need $KVC_TEST_DATA/models and skip without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lib/test.h"
#include "lib/tiny_model.h"
#include "tools/common/mountroot.h"
#include "tools/kvdecode/kvdecode.h"

#define RANDOM ((struct tiny_shape){64, 192, 3, 8, 2, 300, 1024})
#define PROMPT "Once upon a time"
#define STEPS  60

static char model_path[PATH_MAX], scratch[PATH_MAX];
static char scratch_model[PATH_MAX + 16], scratch_tok[PATH_MAX + 16];
static int real_stderr;

/* Refusals are told on stderr: not of interest where they are wanted. */
static void quiet(bool on)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	fflush(stderr);
	dup2(on ? null : real_stderr, STDERR_FILENO);
	close(null);
}

static void need_model(void)
{
	if (!access(model_path, R_OK))
		return;
	print_message("SKIP: no %s (set KVC_TEST_DATA)\n", model_path);
	skip();
}

/* ---- the separate computation: all positions of a layer at once, straight from the formulas ---- */

static void project(double *out, const float *w, const double *x, u32 rows, u32 columns)
{
	for (u32 r = 0; r < rows; r++) {
		out[r] = 0;
		for (u32 c = 0; c < columns; c++)
			out[r] += (double)w[(size_t)r * columns + c] * x[c];
	}
}

static void normalize(double *out, const double *x, const float *weight, u32 n)
{
	double squares = 0;

	for (u32 i = 0; i < n; i++)
		squares += x[i] * x[i];
	for (u32 i = 0; i < n; i++)
		out[i] = weight[i] * x[i] / sqrt(squares / n + 1e-5);
}

static void rotate(double *x, u32 n, u32 head_dim, u32 pos)
{
	for (u32 i = 0; i < n; i += 2) {
		double angle = pos / pow(10000.0, (double)(i % head_dim) / head_dim);
		double re = x[i] * cos(angle) - x[i + 1] * sin(angle);

		x[i + 1] = x[i] * sin(angle) + x[i + 1] * cos(angle);
		x[i] = re;
	}
}

static void reference_attention(const struct model *m, u32 layer, double *x, u32 nr)
{
	u32 n = m->dim, nkv = m->kv_dim, hd = m->head_dim;
	double *norm = calloc(n, 8), *q = calloc((size_t)nr * n, 8), *k = calloc((size_t)nr * nkv, 8);
	double *v = calloc((size_t)nr * nkv, 8), *p = calloc(nr, 8), *out = calloc(n, 8);

	for (u32 t = 0; t < nr; t++) {
		normalize(norm, x + t * n, m->rms_att + layer * n, n);
		project(q + t * n, m->wq + layer * n * n, norm, n, n);
		project(k + t * nkv, m->wk + layer * n * nkv, norm, nkv, n);
		project(v + t * nkv, m->wv + layer * n * nkv, norm, nkv, n);
		rotate(q + t * n, n, hd, t);
		rotate(k + t * nkv, nkv, hd, t);
	}
	for (u32 t = 0; t < nr; t++) {
		memset(out, 0, n * 8);
		for (u32 h = 0; h < m->heads; h++) {
			u32 g = h * m->kv_heads / m->heads;
			double sum = 0;

			for (u32 s = 0; s <= t; s++) {
				double score = 0;

				for (u32 i = 0; i < hd; i++)
					score += q[t * n + h * hd + i] * k[s * nkv + g * hd + i];
				p[s] = exp(score / sqrt(hd));
				sum += p[s];
			}
			for (u32 s = 0; s <= t; s++)
				for (u32 i = 0; i < hd; i++)
					out[h * hd + i] += p[s] / sum * v[s * nkv + g * hd + i];
		}
		project(norm, m->wo + layer * n * n, out, n, n);
		for (u32 i = 0; i < n; i++)
			x[t * n + i] += norm[i];
	}
	free(norm), free(q), free(k), free(v), free(p), free(out);
}

static void reference_mlp(const struct model *m, u32 layer, double *x)
{
	u32 n = m->dim, h = m->hidden_dim, at = layer * n * h;
	double *norm = calloc(n, 8), *a = calloc(h, 8), *b = calloc(h, 8);

	normalize(norm, x, m->rms_ffn + layer * n, n);
	project(a, m->w1 + at, norm, h, n);
	project(b, m->w3 + at, norm, h, n);
	for (u32 i = 0; i < h; i++)
		a[i] *= b[i] / (1 + exp(-a[i]));
	project(norm, m->w2 + at, a, n, h);
	for (u32 i = 0; i < n; i++)
		x[i] += norm[i];
	free(norm), free(a), free(b);
}

/* Logits of all positions, [nr][vocab]; to be freed. */
static double *reference(const struct model *m, const u32 *ids, u32 nr)
{
	u32 n = m->dim;
	double *x = calloc((size_t)nr * n, 8), *norm = calloc(n, 8);
	double *logits = calloc((size_t)nr * m->vocab, 8);

	for (u32 i = 0; i < nr * n; i++)
		x[i] = m->embedding[ids[i / n] * n + i % n];
	for (u32 layer = 0; layer < m->layers; layer++) {
		reference_attention(m, layer, x, nr);
		for (u32 t = 0; t < nr; t++)
			reference_mlp(m, layer, x + t * n);
	}
	for (u32 t = 0; t < nr; t++) {
		normalize(norm, x + t * n, m->rms_final, n);
		project(logits + (size_t)t * m->vocab, m->classifier, norm, m->vocab, n);
	}
	free(x), free(norm);
	return logits;
}

/* ---- a decoder with everything it needs ---- */

struct fixture {
	struct model m;
	struct decoder d;
	struct kv_store store;
	struct stream s;
	char *logits; /* what the stream wrote: f32 [generated][vocab] */
	size_t logit_bytes;
};

static void open_kv(struct fixture *f, const char *name)
{
	f->s.kv = kv_open(&f->store, name, NULL, NULL, 0);
	assert_non_null(f->s.kv);
}

static void begin(struct fixture *f)
{
	assert_int_equal(decoder_init(&f->d, &f->m), 0);
	f->store = (struct kv_store){.m = &f->m, .ns = "ns"};
	f->s = (struct stream){.d = &f->d, .steps = STEPS, .seed = 1};
	f->s.ids = calloc(f->m.seq_len, sizeof(u32));
	f->s.logits = open_memstream(&f->logits, &f->logit_bytes);
	open_kv(f, "a");
}

static void begin_random(struct fixture *f)
{
	tiny_model(&f->m, 7, RANDOM);
	begin(f);
	for (u32 i = 0; i < 20; i++)
		f->s.ids[f->s.nr_ids++] = (i * 37 + 5) % f->m.vocab;
}

static void end(struct fixture *f)
{
	kv_close(f->s.kv);
	if (f->s.logits)
		fclose(f->s.logits);
	free(f->logits);
	free(f->s.ids);
	free(f->d.x);
	model_free(&f->m);
}

/* Everything written so far; the stream writes no more. */
static const float *written(struct fixture *f)
{
	assert_int_equal(fclose(f->s.logits), 0);
	f->s.logits = NULL;
	return (const float *)f->logits;
}

static void check_against_reference(struct fixture *f, u32 nr_prompt)
{
	const float *got = written(f);
	u32 nr = f->s.nr_ids - nr_prompt, vocab = f->m.vocab;
	double *want = reference(&f->m, f->s.ids, f->s.nr_ids), worst = 0;

	assert_int_equal(f->logit_bytes, nr * vocab * sizeof(float));
	for (size_t i = 0; i < (size_t)nr * vocab; i++)
		worst = fmax(worst, fabs(got[i] - want[(size_t)(nr_prompt - 1) * vocab + i]));
	print_message("logits differ by at most %.2g\n", worst);
	assert_true(worst < 1e-3);
	free(want);
}

static void test_random_against_reference(void **state)
{
	struct fixture f = {0};

	begin_random(&f);
	assert_int_equal(stream_prompt(&f.s), 0);
	assert_int_equal(stream_generate(&f.s), 0);
	assert_int_equal(f.s.nr_ids, 20 + STEPS);
	check_against_reference(&f, 20);
	end(&f);
}

static void test_story(void **state)
{
	struct fixture f = {0};
	struct tokenizer t;
	char *text = NULL;
	size_t len;
	int nr;

	need_model();
	assert_int_equal(model_load(&f.m, model_path), 0);
	assert_int_equal(tokenizer_load(&t, model_path, f.m.vocab), 0);
	begin(&f);
	nr = tokenizer_encode(&t, PROMPT, f.s.ids, f.m.seq_len);
	assert_true(nr > 1 && nr < 16);
	f.s.nr_ids = (u32)nr;
	f.s.t = &t;
	f.s.text = open_memstream(&text, &len);
	assert_int_equal(stream_prompt(&f.s), 0);
	assert_int_equal(stream_generate(&f.s), 0);
	fclose(f.s.text);
	print_message("%s%s\n", PROMPT, text);
	assert_non_null(strstr(text, "there was a little girl named Lily. She loved to play outside"));
	check_against_reference(&f, (u32)nr);
	free(text);
	tokenizer_free(&t);
	end(&f);
}

/* ---- equal bits ---- */

/* Generate on a fork of what is committed; the logits go behind those written before. */
static void generate_on_fork(struct fixture *f, u32 nr_prompt)
{
	struct stream s = f->s;

	s.nr_ids = nr_prompt;
	s.kv = kv_open(&f->store, "b", f->s.kv, NULL, nr_prompt);
	assert_non_null(s.kv);
	assert_int_equal(s.kv->tokens, nr_prompt);
	decoder_step(&f->d, s.kv, s.ids[nr_prompt - 1], nr_prompt - 1);
	assert_int_equal(stream_generate(&s), 0);
	kv_close(s.kv);
}

static void test_fork_and_recompute_equal_bits(void **state)
{
	struct fixture f = {0};
	size_t bytes;
	const float *got;

	begin_random(&f);
	bytes = STEPS * f.m.vocab * sizeof(float);
	assert_int_equal(stream_prompt(&f.s), 0);
	generate_on_fork(&f, 20);
	generate_on_fork(&f, 20);
	decoder_step(&f.d, f.s.kv, f.s.ids[19], 19);
	assert_int_equal(stream_generate(&f.s), 0);
	got = written(&f);
	assert_int_equal(f.logit_bytes, 3 * bytes);
	assert_memory_equal(got, f.logits + bytes, bytes);
	assert_memory_equal(got, f.logits + 2 * bytes, bytes);
	/* Each position again, the answer as part of a prompt, on KV that is there and on none. */
	f.s.nr_ids -= 1;
	for (int again = 0; again < 2; again++) {
		assert_int_equal(stream_prompt(&f.s), 0);
		assert_memory_equal(f.d.logits, got + (STEPS - 1) * f.m.vocab, f.m.vocab * sizeof(float));
		kv_close(f.s.kv);
		open_kv(&f, "c");
	}
	end(&f);
}

static void test_sampling(void **state)
{
	u32 first[STEPS], runs[4] = {1, 1, 2, 1};
	struct fixture f = {0};

	begin_random(&f);
	f.s.temperature = 1.5f;
	for (u32 i = 0; i < ARRAY_SIZE(runs); i++) {
		f.s.seed = runs[i];
		f.s.nr_ids = 20;
		if (i == 3)
			f.s.temperature = 1e-4f; /* leaves the likeliest */
		assert_int_equal(stream_prompt(&f.s), 0);
		assert_int_equal(stream_generate(&f.s), 0);
		if (!i)
			memcpy(first, f.s.ids + 20, sizeof(first));
		assert_int_equal(!memcmp(first, f.s.ids + 20, sizeof(first)), i < 2);
		kv_close(f.s.kv);
		open_kv(&f, "a");
	}
	memcpy(first, f.s.ids + 20, sizeof(first));
	f.s.temperature = 0;
	f.s.nr_ids = 20;
	assert_int_equal(stream_prompt(&f.s), 0);
	assert_int_equal(stream_generate(&f.s), 0);
	assert_memory_equal(first, f.s.ids + 20, sizeof(first));
	end(&f);
}

static void test_context_ends(void **state)
{
	struct fixture f = {0};

	tiny_model(&f.m, 1, (struct tiny_shape){8, 24, 1, 2, 1, 4, 128});
	begin(&f);
	f.s.nr_ids = f.m.seq_len - 3;
	assert_int_equal(stream_prompt(&f.s), 0);
	assert_int_equal(stream_generate(&f.s), 0);
	assert_int_equal(f.s.nr_ids, f.m.seq_len);
	end(&f);
}

/* ---- files ---- */

static void put(const char *path, const void *data, size_t bytes)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

static int load(const void *data, size_t bytes)
{
	struct model m;
	int err;

	put(scratch_model, data, bytes);
	err = model_load(&m, scratch_model);
	model_free(&m);
	return err;
}

/* A checkpoint of 2 layers, 2 heads of 4 elements, 1 kv head, 10 pieces, 16 positions. */
static size_t small_checkpoint(u32 *words, bool own_classifier)
{
	u32 d = 8, h = 12, l = 2, kv = 4, v = 10, s = 16;
	size_t nr = 7 + v * d + l * d + 2 * l * d * d + 2 * l * d * kv + l * d + 3 * l * d * h + d +
		    s * (d / 2) + (own_classifier ? v * d : 0);

	for (size_t i = 0; i < nr; i++)
		words[i] = 0x3d800000u + (u32)i; /* 1/16 and a little */
	memcpy(words, (u32[]){d, h, l, 2, 1, own_classifier ? 0u - v : v, s}, 28);
	return nr * 4;
}

static void test_damaged_models(void **state)
{
	static const u32 bad[] = {0, 3, 7, 1u << 20, 1u << 30, INT32_MAX, 0x80000000u, UINT32_MAX};
	u32 good[2048], words[2048];
	size_t bytes = small_checkpoint(good, true);

	assert_int_equal(load(good, bytes), 0);
	bytes = small_checkpoint(good, false);
	assert_int_equal(load(good, bytes), 0);
	quiet(true);
	for (size_t cut = 0; cut < bytes; cut += cut < 64 ? 1 : 97)
		assert_int_equal(load(good, cut), -EINVAL);
	assert_int_equal(load(good, bytes - 1), -EINVAL);
	assert_int_equal(load(good, bytes + 1), -EINVAL);
	for (u32 field = 0; field < 7; field++) {
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			memcpy(words, good, bytes);
			words[field] = bad[i];
			assert_int_equal(load(words, bytes), -EINVAL);
		}
	}
	memcpy(words, good, bytes);
	words[100] = 0x7fc00000u; /* not a number */
	assert_int_equal(load(words, bytes), -EINVAL);
	words[100] = 0xff800000u; /* infinite */
	assert_int_equal(load(words, bytes), -EINVAL);
	unlink(scratch_model);
	assert_int_equal(model_load(&(struct model){0}, scratch_model), -EINVAL);
	assert_int_equal(model_load(&(struct model){0}, "/tmp"), -EINVAL);
	quiet(false);
}

/* 259 pieces as every tokenizer has, then the ones given. */
static size_t small_tokenizer(char *file, const char *const *more)
{
	size_t at = 4;
	u32 id = 0;

	memset(file, 0, 4);
	for (; id < 259 || more[id - 259]; id++) {
		const char *text = id < 259 ? "<0xXX>" : more[id - 259];
		float score = -(float)id;
		u32 len = (u32)strlen(text);

		memcpy(file + at, &score, 4);
		memcpy(file + at + 4, &len, 4);
		memcpy(file + at + 8, text, len);
		at += 8 + len;
	}
	return at;
}

static void check_ids(const struct tokenizer *t, const char *text, const u32 *want, u32 nr)
{
	char *out = NULL;
	size_t len;
	u32 ids[16];
	FILE *file = open_memstream(&out, &len);

	assert_int_equal(tokenizer_encode(t, text, ids, 16), nr);
	assert_memory_equal(ids, want, nr * sizeof(u32));
	for (u32 i = 1; i < nr; i++)
		tokenizer_print(t, ids[i - 1], ids[i], file);
	fclose(file);
	assert_string_equal(out, text);
	free(out);
}

static void check_refused(u32 vocab, int err)
{
	struct tokenizer t;

	assert_int_equal(tokenizer_load(&t, scratch_model, vocab), err);
	tokenizer_free(&t);
}

static void test_tokenizer(void **state)
{
	static const char *const more[] = {"ab", "bc", " ", "a", "b", "c", "abc", " abc", "\xc3\xa4", NULL};
	struct tokenizer t;
	char file[8192];
	size_t bytes = small_tokenizer(file, more);
	u32 ids[16], nr = 259 + 9;

	put(scratch_tok, file, bytes);
	assert_int_equal(tokenizer_load(&t, scratch_model, nr), 0);
	check_ids(&t, "", (u32[]){1}, 1);
	check_ids(&t, "abc", (u32[]){1, 266}, 2);	       /* " abc" is the longest */
	check_ids(&t, "cab", (u32[]){1, 261, 264, 259}, 4);
	check_ids(&t, "bcz", (u32[]){1, 261, 260, 3 + 'z'}, 4); /* a byte that is no piece */
	check_ids(&t, "\xc3\xa4\xc3\xb6", (u32[]){1, 261, 267, 3 + 0xc3, 3 + 0xb6}, 5);
	check_ids(&t, "\xbf", (u32[]){1, 261, 3 + 0xbf}, 3);
	quiet(true);
	assert_int_equal(tokenizer_encode(&t, "czczczczczczczczcz", ids, 16), -E2BIG);
	tokenizer_free(&t);
	check_refused(nr - 1, -EINVAL);
	check_refused(nr + 1, -EINVAL);
	check_refused(100, -EINVAL);
	for (size_t cut = 0; cut < bytes; cut++) {
		put(scratch_tok, file, cut);
		check_refused(nr, -EINVAL);
	}
	memset(file + 8, 0xff, 4); /* a length of 4 GiB */
	put(scratch_tok, file, bytes);
	check_refused(nr, -EINVAL);
	unlink(scratch_tok);
	check_refused(nr, -ENOENT);
	quiet(false);
}

static int setup(void **state)
{
	const char *data = getenv("KVC_TEST_DATA"), *source = getenv("KVC_SOURCE_DIR");
	char at[PATH_MAX / 2];
	if (data)
		snprintf(at, sizeof(at), "%s", data);
	else /* the default of KVC_TEST_DATA */
		snprintf(at, sizeof(at), "%s/../%s", source ? source : ".", "shared");
	snprintf(model_path, sizeof(model_path), "%s/models/stories260K.bin", at);
	real_stderr = dup(STDERR_FILENO);
	test_tmp(scratch, "kvdecode-test.XXXXXX");
	if (real_stderr < 0 || !mkdtemp(scratch))
		return -1;
	snprintf(scratch_model, sizeof(scratch_model), "%s/model.bin", scratch);
	snprintf(scratch_tok, sizeof(scratch_tok), "%s/tok512.bin", scratch);
	return 0;
}

static int teardown(void **state)
{
	unlink(scratch_model);
	unlink(scratch_tok);
	rmdir(scratch);
	return close(real_stderr);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_against_reference),
		cmocka_unit_test(test_story),
		cmocka_unit_test(test_fork_and_recompute_equal_bits),
		cmocka_unit_test(test_sampling),
		cmocka_unit_test(test_context_ends),
		cmocka_unit_test(test_damaged_models),
		cmocka_unit_test(test_tokenizer),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
