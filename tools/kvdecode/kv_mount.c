/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV in a mount, through libkvc. Sealed blocks are read in views; what follows lies in the room of the
 * last append, which goes with the next append and when its last token is committed. So what was
 * sealed meanwhile is mapped at those two moments.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/uapi/kvc.h"
#include "tools/common/cli.h"
#include "tools/kvdecode/kv.h"

struct mount_store {
	struct kv_store store;
	struct kvc *kvc;
	const char *mount, *ns; /* the user's */
	bool temporary;
};

struct mount_kv {
	struct kv kv;
	struct kvc_seq *seq;
	char path[PATH_MAX];   /* from the mount's root */
	u32 known;	       /* leading tokens whose ids the mount has */
	u32 mapped, nr_views;  /* leading blocks in views */
	struct kvc_view *view; /* each behind the one before */
};

#define to_store(s) container_of(s, struct mount_store, store)
#define to_kv(k)    container_of(k, struct mount_kv, kv)

static int told(int err, const char *what, const char *object)
{
	if (err < 0)
		cli_error("%s: %s: %s", object, what, strerror(-err));
	return min(err, 0);
}

/* Sealed blocks stay cached, other files in the sequence's directory stay there. */
static void remove_names(const struct mount_store *m, const char *path)
{
	static const char *const names[] = {"/kv", "/tokens", ""};
	char at[2 * PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(at, sizeof(at), "%s/%s%s", m->mount, path, names[i]);
		remove(at);
	}
}

static int map_blocks(struct mount_kv *k, u32 blocks)
{
	struct kvc_view *view = &k->view[k->nr_views];

	if (blocks <= k->mapped)
		return 0;
	*view = (struct kvc_view){.size = sizeof(*view)};
	if (told(kvc_seq_map_range(k->seq, k->mapped, blocks - k->mapped, view), "map", k->path))
		return -EIO;
	k->nr_views++;
	for (; k->mapped < blocks; k->mapped++)
		k->kv.block[k->mapped] =
			(u8 *)view->addr + (k->mapped - view->first_block) * view->block_stride;
	return 0;
}

static void mount_close(struct kv *kv)
{
	struct mount_kv *k = to_kv(kv);

	for (u32 i = 0; i < k->nr_views; i++)
		kvc_view_unmap(&k->view[i]);
	if (k->seq)
		kvc_seq_close(k->seq);
	if (k->seq && to_store(kv->store)->temporary)
		remove_names(to_store(kv->store), k->path);
	free(k->view);
	free(kv->block);
	free(k);
}

/* A new sequence at @name: a fork of @parent, or an empty one. */
static int make(struct kv_store *store, const char *name, struct mount_kv *parent, struct kv **out)
{
	struct mount_store *m = to_store(store);
	struct mount_kv *k = calloc(1, sizeof(*k));
	size_t blocks = div_round_up(store->max_tokens, KV_BLOCK_TOKENS);
	int err = -ENOMEM;

	if (!k)
		return told(err, "open", name);
	k->kv.store = store;
	k->kv.block = calloc(blocks, sizeof(*k->kv.block));
	k->view = calloc(blocks, sizeof(*k->view));
	snprintf(k->path, sizeof(k->path), "%s/%s", m->ns, name);
	remove_names(m, k->path);
	if (k->kv.block && k->view)
		err = parent ? kvc_seq_fork(parent->seq, k->path, parent->kv.tokens) : 0;
	if (err >= 0)
		err = kvc_seq_open(m->kvc, &k->seq, k->path, KVC_SEQ_WRITE | (parent ? 0 : KVC_SEQ_CREATE));
	err = told(err, parent ? "fork" : "open", k->path);
	if (err)
		mount_close(&k->kv);
	*out = err ? NULL : &k->kv;
	return err;
}

/* @tokens are there and the ids of @known; a partial block comes with the room of the first append. */
static int attach(struct kv *kv, u32 tokens, u32 known)
{
	kv->tokens = kv->reserved = tokens;
	to_kv(kv)->known = known;
	return map_blocks(to_kv(kv), tokens / KV_BLOCK_TOKENS);
}

static int mount_open(struct kv_store *store, const char *name, const u32 *ids, u32 nr, struct kv **out)
{
	u32 cached = 0;
	int err = make(store, name, NULL, out);

	if (err)
		return err;
	err = told(kvc_seq_match(to_kv(*out)->seq, ids, nr, &cached), "match", to_kv(*out)->path);
	if (!err)
		err = attach(*out, min(cached, nr), nr);
	if (err)
		mount_close(*out);
	return err;
}

static int mount_fork(struct kv *kv, const char *name, struct kv **out)
{
	int err = make(kv->store, name, to_kv(kv), out);

	if (err)
		return err;
	err = attach(*out, kv->tokens, kv->tokens);
	if (err)
		mount_close(*out);
	return err;
}

static int mount_reserve(struct kv *kv, u32 reserved)
{
	struct mount_kv *k = to_kv(kv);
	struct kvc_room room = {.size = sizeof(room)};
	u32 first = kv->tokens / KV_BLOCK_TOKENS;
	u32 end = (u32)div_round_up(reserved, KV_BLOCK_TOKENS);
	int err = map_blocks(k, first);

	if (!err)
		err = told(kvc_seq_append(k->seq, reserved - kv->tokens, &room), "append", k->path);
	if (!err && (room.first_block != first || room.first_block + room.nr_blocks < end))
		err = told(-EPROTO, "append", k->path);
	for (u32 i = first; !err && i < end; i++)
		kv->block[i] = room.addr + (i - first) * room.block_stride;
	kv->reserved = err ? kv->tokens : reserved;
	return err;
}

static int mount_commit(struct kv *kv, u32 tokens, const u32 *ids)
{
	struct mount_kv *k = to_kv(kv);
	u32 nr = tokens > k->known ? tokens - k->known : 0;
	int err = told(kvc_seq_commit(k->seq, tokens, nr ? ids + k->known : NULL, nr), "commit", k->path);

	if (err)
		return err;
	kv->tokens = tokens;
	k->known += nr;
	return tokens == kv->reserved ? map_blocks(k, tokens / KV_BLOCK_TOKENS) : 0;
}

static void mount_destroy(struct kv_store *store)
{
	if (to_store(store)->kvc)
		kvc_close(to_store(store)->kvc);
	free(to_store(store));
}

/* Writing the geometry that a namespace has changes nothing; another model's is refused: EPERM. */
static int make_namespace(const struct mount_store *m)
{
	const struct kv_store *s = &m->store;
	char path[PATH_MAX];
	FILE *file;
	int nr;

	snprintf(path, sizeof(path), "%s/%s", m->mount, m->ns);
	if (mkdir(path, 0777) && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/%s/.geometry", m->mount, m->ns);
	file = fopen(path, "we");
	if (!file)
		return -errno;
	nr = fprintf(file, "layers=%u kv_heads=%u head_dim=%u dtype=f32 block_tokens=%u layout=nhd "
		     "fingerprint=kvdecode-%016llx\n", s->layers, s->kv_heads, s->head_dim,
		     KV_BLOCK_TOKENS, (unsigned long long)s->fingerprint);
	return fclose(file) ? -errno : nr < 0 ? -EIO : 0;
}

int kv_mount_store(const struct kv_store *shape, const char *mount, const char *ns, bool temporary,
		   struct kv_store **out)
{
	static const struct kv_ops ops = {mount_open, mount_reserve, mount_commit, mount_fork,
					  mount_close, mount_destroy};
	struct mount_store *m = calloc(1, sizeof(*m));
	int err;

	if (!m)
		return told(-ENOMEM, "open", mount);
	*m = (struct mount_store){*shape, NULL, mount, ns, temporary};
	m->store.ops = &ops;
	err = told(kvc_open(&m->kvc, mount, NULL), "open", mount);
	if (!err) {
		err = make_namespace(m);
		told(err, err == -EPERM ? "holds another model's KV" : "make the namespace", ns);
	}
	*out = &m->store;
	if (err)
		mount_destroy(*out);
	return err;
}
