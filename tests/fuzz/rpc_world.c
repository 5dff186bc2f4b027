/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/textbuf.h"
#include "fs/fseq.h"
#include "fs/make.h"
#include "fuzz/rpc_world.h"
#include "lib/test.h"
#include "lib/pool_fixture.h"

struct rpc_world {
	struct fs fs;
	struct fs_opts opts;
	struct pool_fixture fx;
	u64 pinned; /* by nobody's request */
};

static struct inode *make(struct rpc_world *w, struct inode *dir, const char *name, u32 mode)
{
	struct make m = {.uid = WORLD_UID, .gid = WORLD_UID, .name = name, .mode = mode};
	struct inode *inode;
	int err;

	inode = make_inode(&w->fs, dir, &m, &err);
	KVC_BUG_ON(!inode);
	return inode;
}

static u64 pinned(struct rpc_world *w)
{
	struct pool_stats stats;

	pool_get_stats(w->fx.pool, &stats);
	return stats.tier[IN_DRAM].pinned;
}

static void make_namespace(struct rpc_world *w, struct inode *ns)
{
	static const char text[] =
		"layers=2 kv_heads=2 head_dim=16 dtype=f16 block_tokens=16 layout=hnd";
	struct pool_owner owner = {.uid = WORLD_UID, .gid = WORLD_UID, .mode = 0755};
	struct textbuf why = TEXTBUF_INIT;
	struct geometry geo;
	bool complete;

	KVC_BUG_ON(geometry_parse(text, strlen(text), &geo, &complete, &why) || !complete);
	ns->dir->ns = nspace_new(&w->fs, &geo, 1);
	ns->dir->ns_root = true;
	KVC_BUG_ON(!ns->dir->ns || pool_set_space_owner(w->fx.pool, 1, &owner));
}

static void make_sequence(struct rpc_world *w, struct sequence *seq)
{
	u64 bytes = 4 * seq->geo->block_bytes;
	u8 *buf = calloc(1, bytes);
	u32 ids[4 * WORLD_BT];

	for (u32 i = 0; i < ARRAY_SIZE(ids); i++)
		ids[i] = i;
	KVC_BUG_ON(!buf || seq_write(seq, buf, bytes, 0) || seq_write_ids(seq, ids, sizeof(ids), 0) ||
		   seq_commit(seq) || seq_close_ids(seq));
	free(buf);
}

struct rpc_world *rpc_world_new(void)
{
	struct rpc_world *w = calloc(1, sizeof(*w));
	struct inode *ns, *dir;

	KVC_BUG_ON(!w);
	pool_fixture_open_files(&w->fx, MIB(64), 0);
	KVC_BUG_ON(fs_init(&w->fs, &w->opts, w->fx.pool));
	fs_lock(&w->fs);
	ns = make(w, w->fs.root, "ns", S_IFDIR | 0755);
	make_namespace(w, ns);
	dir = make(w, ns, "a", S_IFDIR | 0755);
	make(w, dir, "kv", S_IFREG | 0644);
	make(w, dir, "tokens", S_IFREG | 0644);
	fs_unlock(&w->fs);
	make_sequence(w, dir->dir->fseq->seq);
	w->pinned = pinned(w);
	return w;
}

void rpc_world_free(struct rpc_world *w)
{
	KVC_BUG_ON(!list_empty(&w->fs.endpoints));
	KVC_BUG_ON(pinned(w) != w->pinned);
	pool_check(w->fx.pool);
	fs_destroy(&w->fs);
	pool_fixture_close(&w->fx);
	free(w);
}

struct pool *rpc_world_pool(struct rpc_world *w)
{
	return w->fx.pool;
}

struct fs *rpc_world_fs(struct rpc_world *w)
{
	return &w->fs;
}

struct endpoint *rpc_world_endpoint(struct rpc_world *w, uid_t uid, void *arena)
{
	struct cred cred = {.uid = uid, .gid = uid};
	struct endpoint *ep = endpoint_new(&w->fs, &cred, 1);

	KVC_BUG_ON(!ep);
	endpoint_set_arena(ep, arena, WORLD_ARENA);
	endpoint_set_slots(ep, arena, WORLD_SLOTS);
	return ep;
}

int rpc_world_send(struct endpoint *ep, void *buf, size_t bytes)
{
	struct rpc_msg msg = {.head = buf};
	int err = rpc_check(buf, bytes);

	if (err)
		return err;
	rpc_run(ep, &msg);
	while (msg.nr_fds)
		close(msg.fds[--msg.nr_fds]);
	return 0;
}

/* Half a message is sent as it is; most are given the head that lets their commands through. */
static void send_one(struct endpoint *ep, const u8 *data, size_t bytes, bool raw)
{
	size_t room = bytes + sizeof(struct kvc_batch) + sizeof(struct kvc_cmd);
	struct kvc_batch *head = calloc(1, room);

	KVC_BUG_ON(!head);
	if (raw) {
		memcpy(head, data, bytes);
		(void)!rpc_world_send(ep, head, bytes);
	} else {
		memcpy(head + 1, data, bytes);
		head->magic = KVC_BATCH_MAGIC;
		head->abi = KVC_ABI_VERSION;
		head->nr_cmds = (u32)(bytes / sizeof(struct kvc_cmd)) + 1;
		head->bytes = (u32)room;
		(void)!rpc_world_send(ep, head, room);
	}
	free(head);
}

void rpc_world_fuzz(struct rpc_world *w, const u8 *data, size_t bytes)
{
	static const char paths[] = "ns/a\0ns/b\0ns/c/d\0.kvc/x\0\xff";
	u8 *arenas = calloc(2, WORLD_ARENA);
	struct endpoint *eps[2];
	int event[2];

	KVC_BUG_ON(!arenas || pipe2(event, O_NONBLOCK | O_CLOEXEC));
	for (unsigned int i = 0; i < 2; i++) {
		memcpy(arenas + i * WORLD_ARENA + 1024, paths, sizeof(paths));
		eps[i] = rpc_world_endpoint(w, WORLD_UID + i, arenas + i * WORLD_ARENA);
	}
	endpoint_set_events(eps[0], (u64 *)(void *)arenas + WORLD_SLOTS, event[1]);
	while (bytes >= 2) {
		size_t len = min((size_t)(data[0] | (data[1] & 15) << 8), bytes - 2);

		send_one(eps[data[1] >> 7], data + 2, len, data[1] >> 5 == 3);
		data += 2 + len;
		bytes -= 2 + len;
	}
	(void)endpoint_leave(eps[0]);
	endpoint_free(eps[1]);
	endpoint_free(eps[0]);
	close(event[0]);
	close(event[1]);
	free(arenas);
}
