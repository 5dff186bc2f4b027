/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry of a namespace: how many bytes a token has and how a block is laid out (UAPI section 3).
 */
#ifndef KVC_GEOMETRY_H
#define KVC_GEOMETRY_H

#include "allocator/base/compiler.h"

#define GEOMETRY_MAX_TEXT    4096	/* bytes of a .geometry file as written */
#define GEOMETRY_FINGERPRINT 256

enum kv_layout { LAYOUT_HND, LAYOUT_NHD, LAYOUT_MLA, LAYOUT_OPAQUE };
enum kv_dtype { DTYPE_NONE, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E5M2 };

struct geometry {
	u32 layers, kv_heads, head_dim, latent_dim, block_tokens;
	enum kv_layout layout;
	enum kv_dtype dtype;
	u64 token_bytes;	/* KV bytes of one token, all layers */
	u64 block_bytes;	/* token_bytes * block_tokens */
	u64 block_stride;	/* rounded up to 4096 */
	u64 slice_bytes;	/* one layer of one block; opaque: block_bytes / layers when exact, else 0 */
	char fingerprint[GEOMETRY_FINGERPRINT + 1];
	char group[GEOMETRY_FINGERPRINT + 1];
	char k_scale[32], v_scale[32];	/* fp8 scales, kept as text */
};

struct textbuf;

/**
 * geometry_parse() - judge the text of a .geometry file.
 * @complete: whether every needed key is there
 * @why: gets the offending key and what is wrong with it on -EINVAL
 * Return: 0, -EINVAL. A text with no error that lacks keys is 0 with *complete false. Computed lines
 * (token_bytes unless opaque, block_bytes, block_stride, slice_bytes) must agree with the others.
 */
int __must_check geometry_parse(const char *text, size_t len, struct geometry *geo, bool *complete,
				struct textbuf *why);
/** geometry_equal() - same meaning: every key, fingerprint and group included. */
bool geometry_equal(const struct geometry *a, const struct geometry *b);
/** geometry_to_text() - canonical text: the written keys, then the computed lines, one per line. */
void geometry_to_text(const struct geometry *geo, struct textbuf *tb);

/**
 * geometry_unit() - granularity in which tokens interleave inside a block: byte i of a block belongs
 * to token (i / unit) % block_tokens, except opaque (token i / token_bytes).
 */
u64 geometry_unit(const struct geometry *geo);

#endif
