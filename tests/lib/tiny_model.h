/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_TEST_LIB_TINY_MODEL_H
#define KVC_TEST_LIB_TINY_MODEL_H

#include "tools/kvdecode/kvdecode.h"

/** struct tiny_shape - as a checkpoint has it. */
struct tiny_shape {
	u32 dim, hidden_dim, layers, heads, kv_heads, vocab, seq_len;
};

/** tiny_model() - a random model; the same seed gives the same weights. */
void tiny_model(struct model *m, u64 seed, struct tiny_shape shape);

#endif
