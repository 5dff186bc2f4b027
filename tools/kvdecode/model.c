/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama2.c's files. A checkpoint of version 0: seven numbers, then f32 weights. A tokenizer: a number,
 * then for each id a score (f32, not used: the longest piece is taken), a length and the text; ids 0 to
 * 2 are unknown, BOS and EOS, the next 256 single bytes.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "allocator/base/hash.h"
#include "tools/common/cli.h"
#include "tools/common/mountroot.h"
#include "tools/kvdecode/kvdecode.h"

#define MAX_DIM	    65536u
#define MAX_LAYERS  1024u
#define MAX_ENTRIES (1u << 20) /* vocabulary, context, hidden layer */
#define FIRST_BYTE  3u

static int refuse(const char *what, const char *problem)
{
	cli_error("%s: %s", what, problem);
	return -EINVAL;
}

/* Where each tensor begins. Return: weights in all; no product overflows within read_shape()'s bounds. */
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

/* A negative number is out of range as u32; a negative vocabulary is a flag. */
static bool read_shape(struct model *m, FILE *file)
{
	const u32 most[] = {MAX_DIM, MAX_ENTRIES, MAX_LAYERS, MAX_DIM, MAX_DIM, MAX_ENTRIES, MAX_ENTRIES};
	u32 *const shape[] = {&m->dim, &m->hidden_dim, &m->layers, &m->heads, &m->kv_heads, &m->vocab,
			      &m->seq_len};

	for (size_t i = 0; i < ARRAY_SIZE(shape); i++) {
		if (fread(shape[i], sizeof(u32), 1, file) != 1)
			return false;
		m->fingerprint = hash_bytes_seed(shape[i], sizeof(u32), m->fingerprint);
		if (shape[i] == &m->vocab && m->vocab > INT32_MAX) {
			m->own_classifier = true;
			m->vocab = 0u - m->vocab;
		}
		if (!*shape[i] || *shape[i] > most[i])
			return false;
	}
	m->head_dim = m->dim / m->heads;
	m->kv_dim = m->head_dim * m->kv_heads;
	return m->dim % m->heads == 0 && m->head_dim % 2 == 0 && m->heads % m->kv_heads == 0;
}

static int load(struct model *m, FILE *file, const char *path)
{
	struct stat st;

	if (!read_shape(m, file))
		return refuse(path, "no model: its shape is cut short, out of range, or does not divide evenly");
	m->nr_weights = place(m);
	if (fstat(fileno(file), &st) ||
	    (u64)st.st_size != 7 * sizeof(u32) + m->nr_weights * sizeof(float))
		return refuse(path, "length does not fit the header: cut short, or not version 0");
	m->weights = kvc_alloc_array(m->nr_weights, sizeof(float));
	if (!m->weights || fread(m->weights, sizeof(float), m->nr_weights, file) != m->nr_weights)
		return refuse(path, "can not be read");
	place(m);
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

	*m = (struct model){.dim = 0};
	if (!file)
		return refuse(path, strerror(errno));
	err = load(m, file, path);
	fclose(file);
	return err;
}

void model_free(struct model *m)
{
	free(m->weights);
}

static bool parse(struct tokenizer *t)
{
	size_t at = sizeof(u32);

	for (struct piece *p = t->piece; p < t->piece + t->nr; at += 8 + p++->len) {
		if (at + 8 > t->file.len)
			return false;
		memcpy(&p->len, t->file.text + at + 4, 4);
		if (p->len > t->file.len - at - 8)
			return false;
		p->text = t->file.text + at + 8;
	}
	return at == t->file.len;
}

int tokenizer_load(struct tokenizer *t, const char *model, u32 vocab)
{
	const char *slash = strrchr(model, '/');
	char path[PATH_MAX];
	int err;

	snprintf(path, sizeof(path), "%.*stok512.bin", slash ? (int)(slash + 1 - model) : 0, model);
	*t = (struct tokenizer){.nr = vocab, .piece = calloc(vocab, sizeof(struct piece))};
	err = t->piece ? mountroot_read_file(path, &t->file) : -ENOMEM;
	if (err)
		refuse(path, strerror(-err));
	else if (vocab < FIRST_BYTE + 256 || !parse(t))
		err = refuse(path, "not a tokenizer of exactly the model's vocabulary, bytes included");
	return err;
}

void tokenizer_free(struct tokenizer *t)
{
	textbuf_free(&t->file);
	free(t->piece);
}

/* The id of the longest piece that @text begins with, else of its first byte. Return: bytes taken. */
static u32 take(const struct tokenizer *t, const char *text, u32 *id)
{
	size_t left = strlen(text);
	u32 len = 0;

	*id = FIRST_BYTE + (u8)*text;
	for (const struct piece *p = t->piece; p < t->piece + t->nr; p++) {
		if (p->len <= len || p->len > left || memcmp(p->text, text, p->len))
			continue;
		len = p->len;
		*id = (u32)(p - t->piece);
	}
	return max(len, 1u);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, u32 *ids, u32 max)
{
	struct textbuf words = TEXTBUF_INIT; /* a word begins with a blank, the first one too */
	size_t at = 0;
	u32 nr = 1;

	textbuf_printf(&words, "%s%s", *text ? " " : "", text);
	ids[0] = TOKEN_BOS;
	while (at < words.len && nr < max)
		at += take(t, words.text + at, &ids[nr++]);
	if (words.err || at < words.len) {
		cli_error("the prompt is too long: the model has room for %u tokens", max);
		nr = 0;
	}
	textbuf_free(&words);
	return nr ? (int)nr : -E2BIG;
}

void tokenizer_print(const struct tokenizer *t, u32 before, u32 id, FILE *to)
{
	const struct piece *p = &t->piece[id];
	u32 blank = before == TOKEN_BOS && p->len && *p->text == ' ';

	if (id >= FIRST_BYTE && id < FIRST_BYTE + 256)
		fputc((int)(id - FIRST_BYTE), to);
	else
		fwrite(p->text + blank, 1, p->len - blank, to);
}
