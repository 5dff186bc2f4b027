/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small reference decoder: Llama (RMSNorm, RoPE, grouped-query attention, SwiGLU) from llama2.c's
 * files. Its point is exactness: the logits of a position are a function of the ids up to there and of
 * nothing else, so KV that came from a cache, a disk, a fork or from before a restart shows as equal
 * bytes. Therefore prompt and answer take the same path one token at a time, at the price of reading
 * all weights for each token of the prompt; every sum has one fixed order; and the compiler may
 * neither reorder nor contract (CMakeLists.txt).
 *
 * What fails is told on stderr and returns a negative errno, or NULL.
 */
#ifndef KVC_TOOLS_KVDECODE_H
#define KVC_TOOLS_KVDECODE_H

#include <limits.h>
#include <stdio.h>
#include "allocator/base/textbuf.h"
#include "fs/uapi/kvc.h"

#define TOKEN_BOS 1u
#define TOKEN_EOS 2u

struct model {
	u32 dim, hidden_dim, layers, heads, kv_heads, vocab, seq_len, head_dim, kv_dim;
	bool own_classifier; /* else the embedding serves as one */
	u64 nr_weights, fingerprint;
	float *weights;	     /* owned; these point into it, each with all layers: */
	float *embedding, *rms_att, *wq, *wk, *wv, *wo, *rms_ffn, *w1, *w2, *w3, *rms_final, *classifier;
};

/** model_load() - a version 0 checkpoint; all of it is checked. To be freed in any case. */
int __must_check model_load(struct model *m, const char *path);
void model_free(struct model *m);

struct tokenizer {
	struct textbuf file;
	u32 nr;
	struct piece {
		const char *text; /* in file */
		u32 len;
	} *piece; /* by id */
};

/** tokenizer_load() - tok512.bin beside @model; exactly @vocab pieces. To be freed in any case. */
int __must_check tokenizer_load(struct tokenizer *t, const char *model, u32 vocab);
/** tokenizer_encode() - BOS and the pieces of @text: at most @max ids. Return: how many. */
int __must_check tokenizer_encode(const struct tokenizer *t, const char *text, u32 *ids, u32 max);
void tokenizer_print(const struct tokenizer *t, u32 before, u32 id, FILE *to);
void tokenizer_free(struct tokenizer *t);

#define KV_BLOCK_TOKENS 16u

struct kv_store {
	const struct model *m;
	const char *mount, *ns; /* a namespace in the root of a mount */
	struct kvc *kvc;	/* NULL: plain memory */
};

struct kv { /* one sequence: blocks as in a mount's `nhd` layout, read and written in place */
	struct kv_store *store;
	u32 tokens, reserved; /* committed; with the room to fill behind them */
	u8 *memory;	      /* without a mount: of all blocks */
	struct kvc_seq *seq;  /* with one */
	struct kvc_view view; /* of sealed blocks */
	u32 known;	      /* leading tokens whose ids the mount has */
	char path[PATH_MAX];  /* from the mount's root */
	u8 *block[];	      /* where each is; below @tokens to be read only */
};

/** kv_store_open() - on a mount. kvc_close() is to follow, whatever came of it. */
int __must_check kv_store_open(struct kv_store *store);
/**
 * kv_open() - the sequence @name for these ids, anew; its tokens say how many leading ones are cached.
 * @parent: it is a fork of its @nr committed tokens; NULL: of nothing
 */
struct kv *kv_open(struct kv_store *store, const char *name, const struct kv *parent, const u32 *ids, u32 nr);
/** kv_reserve() - room up to so many tokens. */
int __must_check kv_reserve(struct kv *kv, u32 reserved);
/** kv_commit() - so many tokens are final; @ids: of all of them. */
int __must_check kv_commit(struct kv *kv, u32 tokens, const u32 *ids);
void kv_close(struct kv *kv);

/* First of the keys of a token that is committed or reserved; for each layer the K plane, then V's. */
static inline float *kv_key(const struct kv *kv, u32 layer, u32 token)
{
	size_t row = (size_t)layer * 2 * KV_BLOCK_TOKENS + token % KV_BLOCK_TOKENS;

	return (float *)kv->block[token / KV_BLOCK_TOKENS] + row * kv->store->m->kv_dim;
}

struct decoder {
	const struct model *m;
	float *x, *norm, *out, *q, *hidden, *gate, *att, *freq, *weight; /* x owns all: free() it */
	float *logits; /* after the last token, [vocab] */
	u64 nr_steps;  /* tokens computed so far */
};

int __must_check decoder_init(struct decoder *d, const struct model *m);
/**
 * decoder_step() - logits after @token at @pos, from the KV of the positions before. Its own K and V
 * are written when @pos is not committed yet (it must then be reserved), else they are there.
 */
void decoder_step(struct decoder *d, struct kv *kv, u32 token, u32 pos);

struct stream {
	struct decoder *d;
	struct kv *kv;
	const struct tokenizer *t; /* NULL: stop at no token, print none */
	FILE *text, *logits;	   /* NULL: none */
	u32 *ids, nr_ids;	   /* room for seq_len */
	u32 steps;		   /* tokens to generate */
	float temperature;	   /* 0: the likeliest token */
	u64 seed;
};

/** stream_prompt() - KV of all ids, computed where the store has none, and the last one's logits. */
int __must_check stream_prompt(struct stream *s);
/** stream_generate() - up to steps tokens behind the ids, the first from d->logits. */
int __must_check stream_generate(struct stream *s);

#endif
