/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A namespace's geometry as kvctl sees it: made from options or from a model's config.json, checked
 * here so that the message can name the offending key (the daemon's EINVAL can not), written as
 * `.geometry`. The daemon has the last word.
 */
#ifndef KVCTL_GEOMETRY_H
#define KVCTL_GEOMETRY_H

#include "allocator/base/compiler.h"
#include "allocator/base/textbuf.h"

#define GEOMETRY_MAX_TEXT      4096 /* bytes of a .geometry file */
#define GEOMETRY_MAX_VALUE     256  /* bytes of a fingerprint or a group */
#define GEOMETRY_DEFAULT_BLOCK 64   /* tokens */

/* Counts are 0 and texts "" where not given. */
struct geometry {
	u64 layers, kv_heads, head_dim, latent_dim;
	u64 token_bytes; /* given for opaque, computed for the others */
	u64 block_tokens;
	char dtype[16];	 /* f32 f16 bf16 fp8_e4m3 fp8_e5m2 */
	char layout[16]; /* hnd nhd mla opaque */
	char fingerprint[GEOMETRY_MAX_VALUE + 1];
	char group[GEOMETRY_MAX_VALUE + 1];
};

/* What follows from a geometry, in bytes. */
struct geometry_sizes {
	u64 token_bytes, block_bytes, block_stride;
	u64 slice_bytes; /* 0 when opaque tokens do not divide into layers */
};

/**
 * geometry_set() - set one key from text.
 *
 * Return: 0, or -EINVAL with a line in @why that begins with the key. Computed keys and the scales
 * of fp8 are checked for form and otherwise left alone.
 */
int __must_check geometry_set(struct geometry *g, const char *key, const char *value,
			      struct textbuf *why);

/** geometry_parse() - geometry_set() for every pair of a `.geometry` text. */
int __must_check geometry_parse(struct geometry *g, const char *text, struct textbuf *why);

/**
 * geometry_complete() - fill what has a default (block_tokens, layout), then check the whole.
 *
 * Return: 0 with @sizes filled, or -EINVAL with @why as above; it may begin with several keys, "a, b:".
 */
int __must_check geometry_complete(struct geometry *g, struct geometry_sizes *sizes,
				   struct textbuf *why);

/** geometry_to_text() - the line that is written as `.geometry`. */
void geometry_to_text(const struct geometry *g, struct textbuf *text);

/** geometry_element_bytes() - of a dtype; 0 when there is no such dtype. */
u64 geometry_element_bytes(const char *dtype);

/**
 * geometry_from_hf() - what a Hugging Face config.json says about the KV cache.
 *
 * Takes num_hidden_layers, num_key_value_heads (default num_attention_heads), head_dim (default
 * hidden_size / num_attention_heads), torch_dtype or dtype; with kv_lora_rank the latent form. Looks
 * into text_config when the top level has no layers. Return: 0, or -EINVAL with @why.
 */
int __must_check geometry_from_hf(struct geometry *g, const char *json, struct textbuf *why);

#endif
