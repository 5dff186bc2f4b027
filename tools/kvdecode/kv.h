/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the decoder keeps keys and values: blocks of 16 tokens as in a mount's `nhd` layout (for each
 * layer the K plane [token][kv head][element], then the V plane), read and written in place. Whose
 * memory that is the decoder does not know: kv_mem.c's own, or a mount's through libkvc (kv_mount.c).
 *
 *	0 ........ tokens ........ reserved		one thread uses a store and all its sequences
 *	committed  room to fill    no memory
 */
#ifndef KVC_TOOLS_KVDECODE_KV_H
#define KVC_TOOLS_KVDECODE_KV_H

#include "allocator/base/compiler.h"

#define KV_BLOCK_TOKENS 16u

struct kv { /* one sequence; each implementation has more behind it */
	struct kv_store *store;
	u32 tokens, reserved;
	u8 **block; /* where each block is; below @tokens to be read only */
};

struct kv_ops { /* 0 or a negative errno, after a line on stderr */
	/* The sequence @name for these ids; its tokens say how many leading ones are cached. */
	int (*open)(struct kv_store *store, const char *name, const u32 *ids, u32 nr, struct kv **kv);
	int (*reserve)(struct kv *kv, u32 reserved);		    /* room up to so many tokens */
	int (*commit)(struct kv *kv, u32 tokens, const u32 *ids); /* final; ids of all of them */
	int (*fork)(struct kv *kv, const char *name, struct kv **child); /* of what is committed */
	void (*close)(struct kv *kv);
	void (*destroy)(struct kv_store *store);
};

struct kv_store { /* shape of the model and of its sequences; set by the user */
	u32 layers, kv_heads, head_dim, max_tokens;
	u64 fingerprint;
	const struct kv_ops *ops; /* set by the implementation, as is what it has behind it */
};

/* First of the kv_heads * head_dim keys of a token that is committed or reserved. */
static inline float *kv_key(const struct kv *kv, u32 layer, u32 token)
{
	size_t row = (size_t)layer * 2 * KV_BLOCK_TOKENS + token % KV_BLOCK_TOKENS;

	return (float *)kv->block[token / KV_BLOCK_TOKENS] +
	       row * kv->store->kv_heads * kv->store->head_dim;
}

static inline float *kv_value(const struct kv *kv, u32 layer, u32 token)
{
	return kv_key(kv, layer, token) + KV_BLOCK_TOKENS * kv->store->kv_heads * kv->store->head_dim;
}

/** kv_mem_store() - plain memory: nothing is cached, nothing stays. @shape: what the user sets. */
int __must_check kv_mem_store(const struct kv_store *shape, struct kv_store **store);
/**
 * kv_mount_store() - the namespace @ns, made when missing, in the root @mount of a mount.
 * @temporary: names are removed at close; what was sealed stays cached. A sequence that exists is
 * replaced when opened; what agrees with the new ids is attached from the cache.
 */
int __must_check kv_mount_store(const struct kv_store *shape, const char *mount, const char *ns,
				bool temporary, struct kv_store **store);

#endif
