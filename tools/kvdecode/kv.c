/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where keys and values lie: in plain memory, or in a mount through libkvc. There, sealed blocks are
 * read in a view; what follows lies in the room of the last append, which goes with the next append and
 * when its last token is committed. So the view is made anew at those two moments.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

static int told(int err, const char *what, const char *object)
{
	if (err < 0)
		cli_error("%s: %s: %s", object, what, strerror(-err));
	return min(err, 0);
}

/* Writing the geometry that a namespace has changes nothing; another model's is refused: EPERM. */
static int make_namespace(const struct kv_store *s)
{
	char path[PATH_MAX];
	FILE *file;
	int nr;

	snprintf(path, sizeof(path), "%s/%s", s->mount, s->ns);
	if (mkdir(path, 0777) && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/%s/.geometry", s->mount, s->ns);
	file = fopen(path, "we");
	if (!file)
		return -errno;
	nr = fprintf(file, "layers=%u kv_heads=%u head_dim=%u dtype=f32 block_tokens=%u layout=nhd "
		     "fingerprint=kvdecode-%016llx\n", s->m->layers, s->m->kv_heads, s->m->head_dim,
		     KV_BLOCK_TOKENS, (unsigned long long)s->m->fingerprint);
	return fclose(file) ? -errno : nr < 0 ? -EIO : 0;
}

int kv_store_open(struct kv_store *s)
{
	int err = kvc_open(&s->kvc, s->mount, NULL);

	if (err == -ENOENT) {
		cli_error("no kvcachefs mount at %s", s->mount);
		return err;
	}
	err = told(err, "open", s->mount);
	if (err)
		return err;
	err = make_namespace(s);
	if (err != -EPERM)
		return told(err, "make it a namespace for this model", s->ns);
	cli_error("%s: the namespace is another model's: name another one in --sequence", s->ns);
	return err;
}

void kv_close(struct kv *kv)
{
	if (kv->seq) {
		kvc_view_unmap(&kv->view);
		kvc_seq_close(kv->seq);
	}
	free(kv->memory);
	free(kv);
}

/* Show what is sealed, all of it anew. */
static int map_sealed(struct kv *kv)
{
	u32 blocks = kv->tokens / KV_BLOCK_TOKENS;
	struct kvc_view view = {.size = sizeof(view)};

	if (!kv->seq || blocks == kv->view.nr_blocks)
		return 0;
	if (told(kvc_seq_map_range(kv->seq, 0, blocks, &view), "map", kv->path))
		return -EIO;
	kvc_view_unmap(&kv->view);
	kv->view = view;
	for (u32 i = 0; i < blocks; i++)
		kv->block[i] = (u8 *)view.addr + i * view.block_stride;
	return 0;
}

/* Make or find it. Its blocks stay cached when what it had is cut off. */
static int open_mounted(struct kv *kv, const struct kv *parent, const u32 *ids, u32 nr)
{
	struct kvc *kvc = kv->store->kvc;
	int err = parent ? kvc_seq_fork(parent->seq, kv->path, nr) : 0;

	if (!err)
		err = kvc_seq_open(kvc, &kv->seq, kv->path, KVC_SEQ_WRITE | (parent ? 0 : KVC_SEQ_CREATE));
	if (err || parent)
		return err;
	err = kvc_seq_truncate(kv->seq, 0);
	return err ? err : kvc_seq_match(kv->seq, ids, nr, &kv->tokens);
}

struct kv *kv_open(struct kv_store *store, const char *name, const struct kv *parent, const u32 *ids, u32 nr)
{
	size_t blocks = div_round_up(store->m->seq_len, KV_BLOCK_TOKENS);
	size_t bytes = sizeof(float) * KV_BLOCK_TOKENS * 2 * store->m->layers * store->m->kv_dim;
	struct kv *kv = calloc(1, sizeof(*kv) + blocks * sizeof(*kv->block));
	int err = 0;

	if (!kv)
		return NULL;
	kv->store = store;
	kv->tokens = parent ? parent->tokens : 0;
	snprintf(kv->path, sizeof(kv->path), "%s/%s", store->ns, name);
	if (store->kvc)
		err = open_mounted(kv, parent, ids, nr);
	else /* what is not used of it is never touched and costs nothing */
		kv->memory = calloc(blocks, bytes);
	for (size_t i = 0; kv->memory && i < blocks; i++)
		kv->block[i] = kv->memory + i * bytes;
	if (!store->kvc && !kv->memory)
		err = -ENOMEM;
	else if (!store->kvc && parent)
		memcpy(kv->memory, parent->memory, div_round_up(nr, KV_BLOCK_TOKENS) * bytes);
	kv->tokens = kv->reserved = min(kv->tokens, nr);
	kv->known = nr;
	if (!told(err, parent ? "fork" : "open", kv->path) && !map_sealed(kv))
		return kv; /* a partial block comes with the first room */
	kv_close(kv);
	return NULL;
}

int kv_reserve(struct kv *kv, u32 reserved)
{
	struct kvc_room room = {.size = sizeof(room)};
	u32 first = kv->tokens / KV_BLOCK_TOKENS, end = (u32)div_round_up(reserved, KV_BLOCK_TOKENS);
	int err = map_sealed(kv);

	if (!err && kv->seq)
		err = kvc_seq_append(kv->seq, reserved - kv->tokens, &room);
	if (!err && kv->seq && (room.first_block != first || room.first_block + room.nr_blocks < end))
		err = -EPROTO;
	if (told(err, "append", kv->path))
		return err;
	for (u32 i = first; kv->seq && i < end; i++)
		kv->block[i] = room.addr + (i - first) * room.block_stride;
	kv->reserved = reserved;
	return 0;
}

int kv_commit(struct kv *kv, u32 tokens, const u32 *ids)
{
	u32 nr = tokens > kv->known ? tokens - kv->known : 0;
	int err = kv->seq ? kvc_seq_commit(kv->seq, tokens, nr ? ids + kv->known : NULL, nr) : 0;

	if (told(err, "commit", kv->path))
		return err;
	kv->tokens = tokens;
	kv->known += nr;
	return tokens == kv->reserved ? map_sealed(kv) : 0;
}
