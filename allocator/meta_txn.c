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

void meta_txn_putv(struct meta_txn *txn, struct meta_key key, const struct iovec *parts,
		   unsigned int nr)
{
	struct meta_record *rec;
	size_t bytes = 0;
	u8 *to;

	for (unsigned int i = 0; i < nr; i++)
		bytes += parts[i].iov_len;
	rec = txn_add(txn, key, (u32)min(bytes, (size_t)UINT32_MAX));
	if (!rec)
		return;
	to = (u8 *)(rec + 1);
	for (unsigned int i = 0; i < nr; i++) {
		if (parts[i].iov_len)
			memcpy(to, parts[i].iov_base, parts[i].iov_len);
		to += parts[i].iov_len;
	}
	memset(to, 0, round_up_pow2(bytes, 8) - bytes);
}

void meta_txn_put(struct meta_txn *txn, struct meta_key key, const void *value, u32 bytes)
{
	struct iovec part = {(void *)value, bytes};

	meta_txn_putv(txn, key, &part, 1);
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
