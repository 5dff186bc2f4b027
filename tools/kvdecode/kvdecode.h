/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small reference decoder: Llama (RMSNorm, RoPE, grouped-query attention, SwiGLU) from llama2.c's
 * files. Its point is exactness: the logits of a position are a function of the ids up to there and of
 * nothing else, so KV that came from a cache, a disk, a fork or from before a restart shows as equal
 * bytes. Therefore prompt and answer take the same path one token at a time, at the price of reading
 * all weights for each token of the prompt; every sum has one fixed order; and the compiler may
 * neither reorder nor contract (CMakeLists.txt).
 *
 * Functions that return int: 0 or a negative errno, after a line on stderr.
 */
#ifndef KVC_TOOLS_KVDECODE_H
#define KVC_TOOLS_KVDECODE_H

#include <stdio.h>
#include "allocator/base/textbuf.h"
#include "tools/kvdecode/kv.h"

#define TOKEN_BOS 1u
#define TOKEN_EOS 2u

struct model {
	u32 dim, hidden_dim, layers, heads, kv_heads, vocab, seq_len, head_dim, kv_dim;
	bool own_classifier; /* else the embedding serves as one */
	u64 fingerprint;     /* of shape and weights */
	u64 nr_weights;
	float *weights;	     /* owned; these point into it, each with all layers: */
	float *embedding, *rms_att, *wq, *wk, *wv, *wo, *rms_ffn, *w1, *w2, *w3, *rms_final, *classifier;
};

/** model_load() - a version 0 checkpoint; its header, length and every weight are checked. */
int __must_check model_load(struct model *m, const char *path);
/** model_random() - the model that @spec, SEED:LAYERS,HEADS,KVHEADS,DIM,VOCAB, stands for. */
int __must_check model_random(struct model *m, const char *spec);
void model_free(struct model *m);

struct piece {
	const char *text;
	u32 len;
	float score;
};

struct tokenizer {
	struct textbuf file;
	u32 nr;
	struct piece *piece; /* by id; the texts lie in file */
};

/** tokenizer_load() - exactly @vocab pieces. */
int __must_check tokenizer_load(struct tokenizer *t, const char *path, u32 vocab);
/** tokenizer_encode() - BOS and the pieces of @text. Return: the number of ids, at most @max. */
int __must_check tokenizer_encode(const struct tokenizer *t, const char *text, u32 *ids, u32 max);
/** tokenizer_print() - the text of @id behind @before. */
void tokenizer_print(const struct tokenizer *t, u32 before, u32 id, FILE *to);
void tokenizer_free(struct tokenizer *t);

struct decoder {
	const struct model *m;
	float *x, *norm, *out, *q, *hidden, *gate, *att, *freq; /* x owns all */
	float *logits; /* after the last token, [vocab] */
	u64 nr_steps;  /* tokens computed so far */
};

int __must_check decoder_init(struct decoder *d, const struct model *m);
void decoder_free(struct decoder *d);
/**
 * decoder_step() - logits after @token at @pos, from the KV of the positions before. Its own K and V
 * are written when @pos is not committed yet (it must then be reserved), else they are there.
 */
void decoder_step(struct decoder *d, struct kv *kv, u32 token, u32 pos);

struct stream {
	struct decoder *d;
	struct kv *kv;
	const struct tokenizer *t; /* NULL: print ids, stop at none */
	FILE *text, *logits;	   /* NULL: none */
	u32 *ids, nr_ids;	   /* room for seq_len */
	u32 steps;		   /* tokens to generate */
	float temperature, top_p;  /* temperature 0: the likeliest token */
	u64 seed;
};

/** stream_prompt() - KV of all ids, computed where the store has none, and the last one's logits. */
int __must_check stream_prompt(struct stream *s);
/** stream_generate() - up to steps tokens behind the ids, the first from d->logits. */
int __must_check stream_generate(struct stream *s);

#endif
