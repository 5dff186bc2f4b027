/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions are built as they go to disk: records one after the other, serials filled in later. */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/meta_types.h"

static struct meta_record *txn_add(struct meta_txn *txn, struct meta_key key, u32 bytes)
{
	size_t need = sizeof(struct meta_record) + round_up_pow2(bytes, 8);
	struct meta_record *rec;

	kvc_assert(key.type);
	if (!txn->err && (bytes > META_MAX_RECORD || txn->len + need > META_MAX_TXN))
		txn->err = -E2BIG;
	if (txn->err)
		return NULL;
	if (txn->len + need > txn->size) {
		size_t size = max(txn->len + need, 2 * txn->size + 256);
		u8 *buf = meta_realloc(txn->buf, size);

		if (!buf) {
			txn->err = -ENOMEM;
			return NULL;
		}
		txn->buf = buf;
		txn->size = size;
	}
	rec = (void *)(txn->buf + txn->len);
	*rec = (struct meta_record){.id = key.id, .sub = key.sub, .what = key.type | bytes << 8};
	txn->len += need;
	txn->nr_records++;
	return rec;
}

void meta_txn_putv(struct meta_txn *txn, struct meta_key key, const void *head, u32 head_bytes,
		   const void *body, u32 body_bytes)
{
	u32 bytes = head_bytes + body_bytes;
	struct meta_record *rec;

	if (bytes < head_bytes)
		bytes = UINT32_MAX;
	rec = txn_add(txn, key, bytes);
	if (!rec)
		return;
	if (head_bytes)
		memcpy(rec + 1, head, head_bytes);
	if (body_bytes)
		memcpy((u8 *)(rec + 1) + head_bytes, body, body_bytes);
	memset((u8 *)(rec + 1) + bytes, 0, round_up_pow2(bytes, 8) - bytes);
}

void meta_txn_put(struct meta_txn *txn, struct meta_key key, const void *value, u32 bytes)
{
	meta_txn_putv(txn, key, value, bytes, NULL, 0);
}

void meta_txn_del(struct meta_txn *txn, struct meta_key key)
{
	struct meta_record *rec = txn_add(txn, key, 0);

	if (rec)
		rec->what = key.type | META_DELETED << 8;
}

void meta_txn_free(struct meta_txn *txn)
{
	free(txn->buf);
	*txn = META_TXN_INIT;
}
