/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dumbest model of sequences: every byte and every "was it written" in arrays, the prefix cache
 * a list that is searched in full. One struct per sequence, one call per call of sequence.h, same
 * errors. Nothing is shared but block pointers, whose identity tells who still names a cached
 * block.
 */
#ifndef KVC_TEST_SEQ_MODEL_H
#define KVC_TEST_SEQ_MODEL_H

#include "allocator/base/compiler.h"

#define M_TOKENS 16u /* per block */
#define M_CELL	 4u  /* bytes of a token in one plane */
#define M_PLANES 2u
#define M_TOKEN	 (M_CELL * M_PLANES)
#define M_BLOCK	 (M_TOKEN * M_TOKENS)
#define M_BLOCKS 6u
#define M_IDS	 (M_BLOCKS * M_TOKENS)
#define M_BYTES	 (M_BLOCKS * M_BLOCK)
#define M_NONE	 UINT32_MAX

struct m_entry;

struct m_block {
	u8 data[M_BLOCK], written[M_BLOCK];
	bool sealed;
	struct m_entry *entry; /* where the cache holds it, NULL: it does not */
	struct m_block *next;
};

struct m_seq {
	bool opaque;
	u32 root;
	struct m_block *blocks[M_BLOCKS];
	u32 nr_blocks, attached;
	u64 size;
	u32 ids[M_IDS], nr_ids;
	u32 cids[M_IDS], nr_cids;
	u32 T, pending, cached;
	bool loose, paired, estranged;
	u32 want[M_IDS]; /* ids that the bytes were made from; the test's own */
};

struct m_seq *m_new(bool opaque, u32 root);
u32 m_sealed(const struct m_seq *s);
/** m_token_of() - which token byte @off belongs to. */
u32 m_token_of(const struct m_seq *s, u64 off);
/** m_has_bytes() - is any byte of token @t written? */
bool m_has_bytes(const struct m_seq *s, u32 t);
u8 m_byte(const struct m_seq *s, u64 off);

int m_write(struct m_seq *s, const u8 *buf, u32 len, u64 off);
int m_truncate(struct m_seq *s, u64 size);
void m_restart(struct m_seq *s);
int m_write_ids(struct m_seq *s, const u32 *ids, u32 nr, u32 at);
int m_truncate_ids(struct m_seq *s, u32 nr);
void m_match(struct m_seq *s);
void m_commit(struct m_seq *s);
int m_set_tokens(struct m_seq *s, u32 nr);
long m_copy_range(struct m_seq *src, struct m_seq *dst, u64 off, u64 len);
int m_fork(struct m_seq *src, struct m_seq *dst, u32 nr);
struct m_seq *m_kv_gone(struct m_seq *s);
void m_kv_arrived(struct m_seq *from, struct m_seq *old);
void m_ids_gone(struct m_seq *s);
void m_ids_arrived(struct m_seq *s, const struct m_seq *from);
/** m_drop_cached() - what no sequence of @seqs names leaves the cache. @leaves_only: and no child.
 */
void m_drop_cached(struct m_seq *const *seqs, u32 nr, bool leaves_only);
/** m_free_all() - forget every block and cache entry. */
void m_free_all(void);

#endif
