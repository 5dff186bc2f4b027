/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "tools/kvbench/shawalk.h"

#ifdef KVC_HAVE_OPENSSL

#include <openssl/evp.h>

#define BLOCK 16

struct digest {
	u8 b[32];
};

/* Open addressing; an entry without a value is empty. */
struct entry {
	struct digest digest;
	u32 value;
};

struct shawalk {
	EVP_MD_CTX *ctx;
	struct digest *tail; /* of each chain */
	struct entry *entries;
	u64 mask;
	u32 nr;
};

int shawalk_open(struct shawalk **out, u32 nr_chains, u64 nr_tokens)
{
	struct shawalk *sw = calloc(1, sizeof(*sw));
	u64 nr = 1024;

	if (!sw)
		return -ENOMEM;
	while (nr < 2 * nr_tokens / BLOCK)
		nr *= 2;
	sw->mask = nr - 1;
	sw->ctx = EVP_MD_CTX_new();
	sw->tail = calloc(nr_chains, sizeof(*sw->tail));
	sw->entries = calloc(nr, sizeof(*sw->entries));
	if (!sw->ctx || !sw->tail || !sw->entries ||
	    !EVP_DigestInit_ex(sw->ctx, EVP_sha256(), NULL)) {
		shawalk_close(sw);
		return -ENOMEM;
	}
	*out = sw;
	return 0;
}

void shawalk_close(struct shawalk *sw)
{
	if (!sw)
		return;
	EVP_MD_CTX_free(sw->ctx);
	free(sw->tail);
	free(sw->entries);
	free(sw);
}

static bool hash(struct shawalk *sw, const struct digest *parent, const u32 *ids,
		 struct digest *out)
{
	return EVP_DigestInit_ex(sw->ctx, NULL, NULL) &&
	       EVP_DigestUpdate(sw->ctx, parent, sizeof(*parent)) &&
	       EVP_DigestUpdate(sw->ctx, ids, BLOCK * sizeof(*ids)) &&
	       EVP_DigestFinal_ex(sw->ctx, out->b, NULL);
}

static struct entry *find(struct shawalk *sw, const struct digest *digest)
{
	struct entry *e;
	u64 pos;

	memcpy(&pos, digest, sizeof(pos));
	for (;; pos++) {
		e = &sw->entries[pos & sw->mask];
		if (!e->value || !memcmp(&e->digest, digest, sizeof(*digest)))
			return e;
	}
}

int shawalk_grow(struct shawalk *sw, u32 chain, const u32 *ids, u32 nr)
{
	for (u32 i = 0; i < nr; i += BLOCK) {
		struct digest *tail = &sw->tail[chain], digest;
		struct entry *e;

		if (!hash(sw, tail, ids + i, &digest))
			return -EIO;
		e = find(sw, &digest);
		*e = (struct entry){digest, ++sw->nr};
		*tail = digest;
	}
	return 0;
}

u32 shawalk_match(struct shawalk *sw, const u32 *ids, u32 nr)
{
	struct digest parent = {{0}}, digest;
	u32 i;

	for (i = 0; i + BLOCK <= nr; i += BLOCK) {
		if (!hash(sw, &parent, ids + i, &digest) || !find(sw, &digest)->value)
			break;
		parent = digest;
	}
	return i;
}

#else

int shawalk_open(struct shawalk **out, u32 nr_chains, u64 nr_tokens)
{
	*out = NULL;
	return -EOPNOTSUPP;
}

void shawalk_close(struct shawalk *sw)
{
}

int shawalk_grow(struct shawalk *sw, u32 chain, const u32 *ids, u32 nr)
{
	return -EOPNOTSUPP;
}

u32 shawalk_match(struct shawalk *sw, const u32 *ids, u32 nr)
{
	return 0;
}

#endif
