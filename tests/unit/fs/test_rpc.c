/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher, without a socket: what each command does, and what it refuses. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "fs/fseq.h"
#include "fs/rpc/endpoint.h"
#include "fuzz/rpc_world.h"
#include "lib/test.h"

static struct rpc_world *world;
static struct endpoint *ep;
static u8 *arena;

static int setup(void **state)
{
	world = rpc_world_new();
	arena = aligned_alloc(8, WORLD_ARENA);
	memset(arena, 0, WORLD_ARENA);
	ep = rpc_world_endpoint(world, WORLD_UID, arena);
	return 0;
}

static int teardown(void **state)
{
	endpoint_free(ep);
	rpc_world_free(world);
	free(arena);
	return 0;
}

/** struct one - a message of one command. */
struct one {
	struct kvc_batch head;
	struct kvc_cmd cmd;
};

static int call(struct endpoint *to, struct kvc_cmd *cmd)
{
	struct one msg = {.head = {.magic = KVC_BATCH_MAGIC,
				   .abi = KVC_ABI_VERSION,
				   .nr_cmds = 1,
				   .bytes = sizeof(msg)},
			  .cmd = *cmd};

	assert_int_equal(rpc_world_send(to, &msg, sizeof(msg)), 0);
	*cmd = msg.cmd;
	return cmd->result;
}

static struct kvc_ref put(const void *data, size_t bytes)
{
	memcpy(arena + 1024, data, bytes);
	return (struct kvc_ref){1024, (u32)bytes};
}

static int open_as(struct endpoint *to, const char *path, u32 flags, struct kvc_cmd *cmd)
{
	*cmd = (struct kvc_cmd){.op = KVC_OP_OPEN};
	cmd->open.path = put(path, strlen(path));
	cmd->open.flags = flags;
	return call(to, cmd);
}

static u32 must_open(const char *path, u32 flags)
{
	struct kvc_cmd cmd;

	assert_int_equal(open_as(ep, path, flags, &cmd), 0);
	return cmd.handle;
}

static const struct kvc_ref ext_room = {32768, 16384};

static int map(u32 h, u64 first, u64 nr, struct kvc_op_map *out)
{
	struct kvc_cmd cmd = {.op = KVC_OP_MAP, .handle = h};
	int err;

	cmd.map = (struct kvc_op_map){.first_block = first, .nr_blocks = nr, .extents = ext_room};
	err = call(ep, &cmd);
	if (out)
		*out = cmd.map;
	return err;
}

static int append(u32 h, u32 tokens, struct kvc_op_append *out)
{
	struct kvc_cmd cmd = {.op = KVC_OP_APPEND, .handle = h};
	int err;

	cmd.append = (struct kvc_op_append){.tokens = tokens, .extents = ext_room};
	err = call(ep, &cmd);
	if (out)
		*out = cmd.append;
	return err;
}

static int commit(u32 h, u32 tokens, const u32 *ids, u32 nr_ids)
{
	struct kvc_cmd cmd = {.op = KVC_OP_COMMIT, .handle = h};

	cmd.commit.tokens = tokens;
	if (nr_ids)
		cmd.commit.ids = put(ids, nr_ids * sizeof(*ids));
	return call(ep, &cmd);
}

static int match(u32 h, u32 nr_ids, u32 flags, u32 *matched)
{
	struct kvc_cmd cmd = {.op = KVC_OP_MATCH, .handle = h};
	u32 ids[256];
	int err;

	for (u32 i = 0; i < nr_ids; i++)
		ids[i] = i;
	cmd.match.ids = put(ids, nr_ids * sizeof(*ids));
	cmd.match.flags = flags;
	err = call(ep, &cmd);
	*matched = cmd.match.matched;
	return err;
}

static int simple(u16 op, u32 h)
{
	struct kvc_cmd cmd = {.op = op, .handle = h};

	return call(ep, &cmd);
}

/* ---- messages ---- */

static void heads(void **state)
{
	struct one good = {.head = {.magic = KVC_BATCH_MAGIC,
				    .abi = KVC_ABI_VERSION,
				    .nr_cmds = 1,
				    .bytes = sizeof(good)}},
		   bad;

	assert_int_equal(rpc_check(&good, sizeof(good)), 0);
	assert_int_equal(rpc_check(&good, sizeof(good) - 1), -EPROTO);
	assert_int_equal(rpc_check(&good, sizeof(good.head) - 1), -EPROTO);
	bad = good, bad.head.magic++;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
	bad = good, bad.head.abi++;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
	bad = good, bad.head.flags = 2;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
	bad = good, bad.head.nr_cmds = 2;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
	bad = good, bad.head.nr_cmds = UINT32_MAX / 96 + 2;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
	bad = good, bad.head.nr_cmds = 0;
	assert_int_equal(rpc_check(&bad, sizeof(bad)), -EPROTO);
}

static void commands(void **state)
{
	struct kvc_cmd cmd = {.op = KVC_NR_OPS};

	assert_int_equal(call(ep, &cmd), -EOPNOTSUPP);
	assert_int_equal(simple(0, 0), -EOPNOTSUPP);
	assert_int_equal(simple(KVC_OP_HELLO, 0), -EINVAL);
	assert_int_equal(simple(KVC_OP_QUERY, 0), -EBADF);
	assert_int_equal(simple(KVC_OP_QUERY, 1), -EBADF);
	assert_int_equal(simple(KVC_OP_QUERY, UINT32_MAX), -EBADF);
	cmd = (struct kvc_cmd){.op = KVC_OP_POOL, .flags = 1};
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd = (struct kvc_cmd){.op = KVC_OP_POOL, .reserved = 1};
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd = (struct kvc_cmd){.op = KVC_OP_OPEN, .open.path = {WORLD_ARENA - 3, 4}};
	assert_int_equal(call(ep, &cmd), -EFAULT);
	cmd = (struct kvc_cmd){.op = KVC_OP_OPEN, .open.path = {UINT32_MAX, 4}};
	assert_int_equal(call(ep, &cmd), -EFAULT);
}

static void stop_on_error(void **state)
{
	struct {
		struct kvc_batch head;
		struct kvc_cmd cmd[3];
	} msg = {.head = {.magic = KVC_BATCH_MAGIC,
			  .abi = KVC_ABI_VERSION,
			  .flags = KVC_BATCH_STOP,
			  .nr_cmds = 3,
			  .bytes = sizeof(msg)}};

	msg.cmd[0].op = msg.cmd[2].op = KVC_OP_POOL;
	msg.cmd[1].op = KVC_OP_QUERY;
	assert_int_equal(rpc_world_send(ep, &msg, sizeof(msg)), 0);
	assert_int_equal(msg.cmd[0].result, 0);
	assert_int_equal(msg.cmd[1].result, -EBADF);
	assert_int_equal(msg.cmd[2].result, -ECANCELED);
}

/* ---- sequences ---- */

static void opening(void **state)
{
	struct kvc_cmd cmd;
	u64 word;

	assert_int_equal(open_as(ep, "ns/new", 0, &cmd), -ENOENT);
	assert_int_equal(open_as(ep, "ns/new", 8, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, "", 0, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, "ns/a/kv", 0, &cmd), -ENOTDIR);
	assert_int_equal(open_as(ep, "ns/a/kv/x", 0, &cmd), -ENOTDIR);
	assert_int_equal(open_as(ep, "elsewhere", KVC_OPEN_CREATE, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, ".kvc", KVC_OPEN_CREATE, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, "ns/..", KVC_OPEN_CREATE, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, "ns/a", KVC_OPEN_EXCL, &cmd), -EEXIST);
	assert_int_equal(open_as(ep, "ns/new", KVC_OPEN_CREATE | KVC_OPEN_WRITE, &cmd), 0);
	assert_int_equal(cmd.open.tokens, 0);
	assert_int_equal(open_as(ep, "ns/a", KVC_OPEN_WRITE, &cmd), 0);
	assert_int_equal(cmd.open.tokens, 64);
	assert_int_equal(cmd.open.block_tokens, WORLD_BT);
	memcpy(&word, arena + cmd.open.slot * sizeof(word), sizeof(word));
	assert_int_equal(word, cmd.open.generation);
	assert_int_equal(simple(KVC_OP_CLOSE, cmd.handle), 0);
	memcpy(&word, arena + cmd.open.slot * sizeof(word), sizeof(word));
	assert_int_equal(word, 0);
	assert_int_equal(simple(KVC_OP_CLOSE, cmd.handle), -EBADF);
}

static void strangers(void **state)
{
	struct endpoint *other = rpc_world_endpoint(world, WORLD_UID + 1, arena);
	struct kvc_cmd cmd = {.op = KVC_OP_POOL};

	assert_int_equal(open_as(other, "ns/a", KVC_OPEN_WRITE, &cmd), -EACCES);
	assert_int_equal(open_as(other, "ns/x", KVC_OPEN_CREATE, &cmd), -EACCES);
	assert_int_equal(open_as(other, "ns/a", 0, &cmd), 0);
	cmd = (struct kvc_cmd){.op = KVC_OP_APPEND, .handle = cmd.handle};
	cmd.append.tokens = 1;
	assert_int_equal(call(other, &cmd), -EACCES);
	cmd = (struct kvc_cmd){.op = KVC_OP_MATCH, .handle = cmd.handle};
	cmd.match.flags = KVC_MATCH_ATTACH;
	assert_int_equal(call(other, &cmd), -EACCES);
	cmd = (struct kvc_cmd){.op = KVC_OP_STATE, .handle = cmd.handle};
	assert_int_equal(call(other, &cmd), -EACCES);
	endpoint_free(other);
}

static void set_mode(u32 mode)
{
	struct fs *fs = rpc_world_fs(world);
	struct inode *ns;

	fs_lock(fs);
	ns = tree_find(fs, fs->root, "ns")->inode;
	ns->mode = S_IFDIR | mode;
	nspace_set_owner(fs, ns);
	fs_unlock(fs);
}

static int map_as(struct endpoint *to, u32 h)
{
	struct kvc_cmd cmd = {.op = KVC_OP_MAP, .handle = h};

	cmd.map = (struct kvc_op_map){.nr_blocks = KVC_ALL, .extents = ext_room};
	return call(to, &cmd);
}

/* Handles stay when a namespace is closed to others, its memory does not. */
static void lost_rights(void **state)
{
	struct endpoint *other = rpc_world_endpoint(world, WORLD_UID + 1, arena);
	u32 own = must_open("ns/a", KVC_OPEN_WRITE), pins;
	struct kvc_cmd cmd;

	assert_int_equal(open_as(other, "ns/a", 0, &cmd), 0);
	assert_int_equal(map_as(other, cmd.handle), 0);
	pins = other->pins.nr;
	set_mode(0700);
	assert_int_equal(map_as(other, cmd.handle), -EACCES);
	assert_int_equal(other->pins.nr, pins); /* what it has it keeps */
	assert_int_equal(map_as(ep, own), -EAGAIN); /* and so they cannot move to where the owner may see them */
	endpoint_free(other);
	assert_int_equal(map_as(ep, own), 0);
	assert_int_equal(append(own, 1, NULL), 0);
	set_mode(0500);
	assert_int_equal(append(own, 1, NULL), -EACCES);
	set_mode(0755);
	assert_int_equal(append(own, 1, NULL), 0);
}

/* A handle from before the namespace was opened to others serves afterwards. */
static void won_rights(void **state)
{
	struct endpoint *other;
	struct kvc_cmd cmd;

	set_mode(0711);
	other = rpc_world_endpoint(world, WORLD_UID + 1, arena);
	assert_int_equal(open_as(other, "ns/a", 0, &cmd), 0);
	assert_int_equal(map_as(other, cmd.handle), -EACCES);
	set_mode(0755);
	assert_int_equal(map_as(other, cmd.handle), 0);
	endpoint_free(other);
}

static void a_prompt(void **state)
{
	u32 h = must_open("ns/b", KVC_OPEN_CREATE | KVC_OPEN_WRITE), ids[16], matched;
	struct kvc_op_append room;
	struct kvc_op_map view;
	struct kvc_cmd cmd;

	assert_int_equal(match(h, 70, 0, &matched), 0);
	assert_int_equal(matched, 64);
	assert_int_equal(match(h, 70, KVC_MATCH_ATTACH, &matched), 0);
	assert_int_equal(matched, 64);
	assert_int_equal(commit(h, 65, NULL, 0), -EINVAL);
	assert_int_equal(append(h, 20, &room), 0);
	assert_int_equal(room.first_block, 4);
	assert_int_equal(room.nr_blocks, 2);
	assert_int_equal(commit(h, 85, NULL, 0), -EINVAL);
	assert_int_equal(commit(h, 70, NULL, 0), 0);
	for (u32 i = 0; i < 14; i++)
		ids[i] = 70 + i;
	assert_int_equal(commit(h, 84, ids, 14), 0);
	assert_int_equal(commit(h, 97, ids, 0), -EINVAL);
	assert_int_equal(match(h, 84, KVC_MATCH_ATTACH, &matched), 0);
	assert_int_equal(matched, 84);
	assert_int_equal(map(h, 0, KVC_ALL, &view), 0);
	assert_int_equal(view.nr_blocks, 6);
	assert_true(view.extents.bytes >= sizeof(struct kvc_extent));
	cmd = (struct kvc_cmd){.op = KVC_OP_QUERY, .handle = h};
	assert_int_equal(call(ep, &cmd), 0);
	assert_int_equal(cmd.query.tokens, 84);
	assert_int_equal(cmd.query.ids, 84);
	assert_int_equal(cmd.query.cached_tokens, 64);
	cmd = (struct kvc_cmd){.op = KVC_OP_TRUNCATE, .handle = h, .truncate.tokens = 85};
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd.truncate.tokens = 66;
	assert_int_equal(call(ep, &cmd), 0);
	assert_int_equal(append(h, 1, &room), 0);
	assert_int_equal(room.first_block, 4);
	assert_int_equal(room.nr_blocks, 1);
}

static struct kvc_op_query query(u32 h)
{
	struct kvc_cmd cmd = {.op = KVC_OP_QUERY, .handle = h};

	assert_int_equal(call(ep, &cmd), 0);
	return cmd.query;
}

/* A prompt that leaves the one before: no token of that stays under the new ids. */
static void another_prompt(void **state)
{
	u32 h = must_open("ns/b", KVC_OPEN_CREATE | KVC_OPEN_WRITE), ids[64], matched;
	struct kvc_op_append room;

	for (u32 i = 0; i < ARRAY_SIZE(ids); i++)
		ids[i] = i < 40 ? i : 5000 + i;
	assert_int_equal(append(h, 64, NULL), 0);
	assert_int_equal(commit(h, 64, ids, 64), 0);
	assert_int_equal(match(h, 50, KVC_MATCH_ATTACH, &matched), 0);
	assert_int_equal(matched, 48); /* what another has of it is more than the 40 */
	assert_int_equal(query(h).tokens, 48);
	assert_int_equal(query(h).ids, 50);
	assert_int_equal(append(h, 2, &room), 0);
	assert_int_equal(room.first_block, 3);
	assert_int_equal(commit(h, 64, NULL, 0), -EINVAL);
	assert_int_equal(commit(h, 50, NULL, 0), 0);
	assert_int_equal(query(h).tokens, 50);
}

/* As by ioctl: nothing can be mapped, so nothing is reserved; what kv was given can be committed. */
static void without_memory(void **state)
{
	struct sequence *seq;
	u32 ids[20] = {1, 2}, h = must_open("ns/b", KVC_OPEN_CREATE | KVC_OPEN_WRITE);
	u64 bytes;
	u8 *buf;

	endpoint_set_slots(ep, NULL, 0);
	assert_int_equal(append(h, 16, NULL), -EOPNOTSUPP);
	assert_int_equal(commit(h, 16, ids, 16), -EINVAL);
	assert_int_equal(query(h).ids, 0);
	seq = ep->handles[h - 1]->fseq->seq;
	bytes = 2 * seq->geo->block_bytes;
	buf = calloc(1, bytes);
	assert_int_equal(seq_write(seq, buf, bytes, 0), 0);
	free(buf);
	assert_int_equal(commit(h, 33, ids, 20), -EINVAL);
	assert_int_equal(commit(h, 20, ids, 20), 0);
	assert_int_equal(query(h).tokens, 20);
	assert_int_equal(query(h).ids, 20);
	assert_int_equal(commit(h, 19, NULL, 0), -EINVAL);
	assert_int_equal(map(must_open("ns/a", 0), 0, KVC_ALL, NULL), 0);
}

/* Who appends or looks at a sequence shares it with nobody. */
static void sharers(void **state)
{
	u32 h = must_open("ns/b", KVC_OPEN_CREATE | KVC_OPEN_WRITE), ids[40], matched;
	struct pool_residency res;

	for (u32 i = 0; i < ARRAY_SIZE(ids); i++)
		ids[i] = 9000 + i;
	assert_int_equal(append(h, 40, NULL), 0);
	assert_int_equal(commit(h, 20, ids, 20), 0);
	assert_int_equal(map(h, 0, KVC_ALL, NULL), 0);
	for (u32 tokens = 20; tokens <= 40; tokens += 20) {
		assert_int_equal(query(h).shared_blocks, 0);
		seq_residency(ep->handles[h - 1]->fseq->seq, &res);
		assert_int_equal(res.exclusive_bytes, res.bytes);
		assert_int_equal(res.nr, div_round_up(tokens, WORLD_BT));
		assert_int_equal(commit(h, 40, ids + 20, tokens == 20 ? 20 : 0), 0);
	}
	h = must_open("ns/c", KVC_OPEN_CREATE | KVC_OPEN_WRITE);
	assert_int_equal(match(h, 64, KVC_MATCH_ATTACH, &matched), 0);
	assert_int_equal(append(h, 20, NULL), 0);
	assert_int_equal(commit(h, 80, NULL, 0), 0);
	assert_int_equal(query(h).shared_blocks, 4);
	seq_residency(ep->handles[h - 1]->fseq->seq, &res);
	assert_int_equal(res.exclusive_bytes, res.bytes / 5);
}

/* An append that cannot be told reserves nothing. */
static void append_untold(void **state)
{
	u32 h = must_open("ns/a", KVC_OPEN_WRITE);
	struct kvc_cmd cmd = {.op = KVC_OP_APPEND, .handle = h, .append.tokens = 20};

	cmd.append.extents = (struct kvc_ref){32768, 8};
	assert_int_equal(call(ep, &cmd), -E2BIG);
	assert_null(ep->handles[h - 1]->room);
	assert_int_equal(atomic_load(&ep->shown_bytes), 0);
}

static int prefetch(u32 h, u64 first, u32 flags, u32 *ticket)
{
	struct kvc_cmd cmd = {.op = KVC_OP_PREFETCH, .handle = h};
	int err;

	cmd.prefetch = (struct kvc_op_prefetch){
		.first_block = first, .nr_blocks = KVC_ALL, .deadline_us = UINT64_MAX, .flags = flags};
	err = call(ep, &cmd);
	*ticket = cmd.prefetch.ticket;
	return err;
}

/* Where nothing ever leaves memory, prefetches end at once. */
static void prefetches(void **state)
{
	u64 *words = (u64 *)(void *)arena + WORLD_SLOTS, wanted = 0;
	u32 h = must_open("ns/a", 0), ticket;
	char bytes[8];
	int fds[2];

	assert_int_equal(prefetch(h, 0, KVC_PREFETCH_EVENT, &ticket), -EOPNOTSUPP);
	assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
	endpoint_set_events(ep, words, fds[1]);
	assert_int_equal(prefetch(h, 0, 2, &ticket), -EINVAL);
	assert_int_equal(prefetch(h, 5, KVC_PREFETCH_EVENT, &ticket), -EINVAL);
	assert_int_equal(prefetch(h, 0, 0, &ticket), 0);
	assert_int_equal(ticket, 0);
	assert_int_equal(words[h - 1], 0);
	assert_int_equal(read(fds[0], bytes, sizeof(bytes)), -1);
	for (u64 i = 0; i < 3; i++) {
		assert_int_equal(prefetch(h, 4 - i, KVC_PREFETCH_EVENT, &ticket), 0);
		assert_int_equal(ticket, ++wanted);
		assert_int_equal(words[h - 1], wanted);
	}
	assert_int_equal(read(fds[0], bytes, sizeof(bytes)), 3);
	/* Who never reads holds nobody up. */
	for (u32 i = 0; i < 70000; i++)
		if (write(fds[1], "", 1) < 0)
			break;
	assert_int_equal(prefetch(h, 0, KVC_PREFETCH_EVENT, &ticket), 0);
	assert_int_equal(words[h - 1], ++wanted);
	close(fds[0]);
	close(fds[1]);
}

static void mappings(void **state)
{
	u32 h = must_open("ns/a", 0);
	struct kvc_cmd cmd = {.op = KVC_OP_UNMAP, .handle = h};
	struct kvc_op_map view;

	assert_int_equal(map(h, 1, 2, &view), 0);
	assert_int_equal(view.nr_blocks, 2);
	assert_int_equal(map(h, 3, 100, &view), 0);
	assert_int_equal(view.nr_blocks, 1);
	assert_int_equal(map(h, 4, KVC_ALL, &view), 0);
	assert_int_equal(view.nr_blocks, 0);
	assert_int_equal(map(h, 5, 1, &view), -EINVAL);
	assert_int_equal(ep->pins.nr, 3);
	assert_int_equal(map(h, 1, 2, &view), 0);
	assert_int_equal(ep->pins.nr, 3);
	cmd.map = (struct kvc_op_map){.first_block = 1, .nr_blocks = 1};
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd.map.nr_blocks = 2;
	assert_int_equal(call(ep, &cmd), 0);
	assert_int_equal(ep->pins.nr, 3);
	assert_int_equal(call(ep, &cmd), 0);
	assert_int_equal(ep->pins.nr, 1);
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd = (struct kvc_cmd){.op = KVC_OP_MAP, .handle = h};
	cmd.map = (struct kvc_op_map){.nr_blocks = KVC_ALL, .extents = {32768, 8}};
	assert_int_equal(call(ep, &cmd), -E2BIG);
	assert_int_equal(ep->pins.nr, 1);
	cmd.map.extents = (struct kvc_ref){WORLD_ARENA - 8, 16};
	assert_int_equal(call(ep, &cmd), -EFAULT);
	assert_int_equal(ep->pins.nr, 1);
	assert_int_equal(simple(KVC_OP_CLOSE, h), 0);
	assert_int_equal(ep->pins.nr, 0);
	assert_int_equal(atomic_load(&ep->shown_bytes), 0);
}

/* One client gets half of DRAM, not more; what it gave back it can have again. */
#define BIG MIB(1)

/* Another namespace wants all of DRAM for a while, and gets most of it. */
static void squeeze(void)
{
	struct pool_owner owner = {.uid = WORLD_UID + 1, .mode = 0700};
	struct pool_want want = {.bytes = BIG, .space = 2, .near = BLOCK_NONE};
	struct pool *pool = rpc_world_pool(world);
	struct block_id ids[64];
	u32 nr = 0;
	void *addr;

	assert_int_equal(pool_set_space_owner(pool, want.space, &owner), 0);
	while (nr < ARRAY_SIZE(ids) && !pool_alloc(pool, &want, 1, &ids[nr])) {
		if (pool_begin_write(pool, ids[nr], false, &addr)) {
			pool_put(pool, &ids[nr], 1);
			break;
		}
		pool_end_write(pool, ids[nr++]);
	}
	assert_true(nr > 8);
	pool_put(pool, ids, nr);
}

/* Descriptors of pool files from @first on. Return: which there are. */
static u32 files(u32 first, u32 *nr)
{
	struct kvc_cmd cmd = {.op = KVC_OP_POOL, .pool.first = first};

	assert_int_equal(call(ep, &cmd), 0);
	assert_int_equal(cmd.pool.nr, cmd.pool.total - first);
	*nr = cmd.pool.nr;
	return cmd.pool.present;
}

/* Pool files that are gone do not hide those that came later. */
static void gone_files(void **state)
{
	u32 tokens = MIB(24) / 4096 * WORLD_BT, h = must_open("ns/b", KVC_OPEN_CREATE | KVC_OPEN_WRITE);
	u32 before, nr, present;

	assert_int_equal(append(h, tokens, NULL), 0);
	present = files(0, &before);
	assert_true(before > 1);
	assert_int_equal(present, (1u << before) - 1);
	assert_int_equal(simple(KVC_OP_CLOSE, h), 0);
	squeeze();
	h = must_open("ns/b", KVC_OPEN_WRITE);
	assert_int_equal(append(h, tokens, NULL), 0);
	present = files(0, &nr);
	assert_true(nr > before);
	assert_int_equal(present >> before, (1u << (nr - before)) - 1);
	assert_true((present & ((1u << before) - 1)) < (1u << before) - 1);
	for (u32 i = 0; i < before; i++)
		assert_int_equal(files(i, &nr), present >> i);
}

static void budget(void **state)
{
	u64 half = pool_hold_limit(rpc_world_fs(world)->pool) / 80 * 50;
	u32 h = must_open("ns/big", KVC_OPEN_CREATE | KVC_OPEN_WRITE);
	u32 fits = (u32)(half / KVC_PAGE_SIZE) * WORLD_BT;

	assert_int_equal(append(h, fits + WORLD_BT, NULL), -EAGAIN);
	assert_int_equal(append(h, fits, NULL), 0);
	assert_int_equal(map(must_open("ns/a", 0), 0, KVC_ALL, NULL), -EAGAIN);
	assert_int_equal(simple(KVC_OP_CLOSE, h), 0);
	assert_int_equal(map(must_open("ns/a", 0), 0, KVC_ALL, NULL), 0);
}

static void one_writer(void **state)
{
	struct endpoint *other = rpc_world_endpoint(world, WORLD_UID, arena);
	u32 h = must_open("ns/a", KVC_OPEN_WRITE);
	struct kvc_cmd cmd;
	u32 theirs;

	assert_int_equal(open_as(other, "ns/a", KVC_OPEN_WRITE, &cmd), 0);
	theirs = cmd.handle;
	assert_int_equal(append(h, 1, NULL), 0);
	cmd = (struct kvc_cmd){.op = KVC_OP_APPEND, .handle = theirs};
	cmd.append = (struct kvc_op_append){.tokens = 1, .extents = ext_room};
	assert_int_equal(call(other, &cmd), -EBUSY);
	cmd = (struct kvc_cmd){.op = KVC_OP_TRUNCATE, .handle = theirs, .truncate.tokens = 3};
	assert_int_equal(call(other, &cmd), -EBUSY);
	endpoint_free(ep);
	ep = rpc_world_endpoint(world, WORLD_UID, arena);
	assert_int_equal(call(other, &cmd), 0);
	endpoint_free(other);
}

static void forks(void **state)
{
	u32 h = must_open("ns/a", 0);
	struct kvc_cmd cmd = {.op = KVC_OP_FORK, .handle = h};

	cmd.fork.path = put("ns/f", 4);
	cmd.fork.tokens = 40;
	assert_int_equal(call(ep, &cmd), 0);
	cmd.fork.path = put("ns/f", 4);
	assert_int_equal(call(ep, &cmd), -EEXIST);
	cmd.fork.path = put("ns/g", 4);
	cmd.fork.tokens = 65;
	assert_int_equal(call(ep, &cmd), -EINVAL);
	cmd.fork.path = put("ns/g", 4);
	cmd.fork.tokens = 0;
	assert_int_equal(call(ep, &cmd), -EINVAL);
	assert_int_equal(open_as(ep, "ns/g", 0, &cmd), -ENOENT);
	assert_int_equal(open_as(ep, "ns/f", 0, &cmd), 0);
	assert_int_equal(cmd.open.tokens, 40);
}

static void pin_counts(void **state)
{
	struct pinset pins = {0};
	u32 counts[512] = {0}, nr = 0;
	struct test_rng rng;

	test_rng_init(&rng);
	for (u32 i = 0; i < 20000; i++) {
		struct block_id id = {(u32)test_rng_below(&rng, ARRAY_SIZE(counts)) * 4096};
		u32 *count = &counts[id.v / 4096];

		assert_int_equal(pins_count(&pins, id), *count);
		if (test_rng_below(&rng, 2)) {
			assert_int_equal(pins_reserve(&pins, 1), 0);
			nr += pins_add(&pins, id);
			assert_int_equal(++*count > 1, pins_count(&pins, id) > 1);
		} else if (*count) {
			--*count;
			nr -= pins_del(&pins, id);
		}
		assert_int_equal(pins.nr, nr);
	}
	for (u32 i = 0; i < ARRAY_SIZE(counts); i++)
		while (counts[i]--)
			pins_del(&pins, (struct block_id){i * 4096});
	pins_free(&pins);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heads),
		cmocka_unit_test_setup_teardown(commands, setup, teardown),
		cmocka_unit_test_setup_teardown(stop_on_error, setup, teardown),
		cmocka_unit_test_setup_teardown(opening, setup, teardown),
		cmocka_unit_test_setup_teardown(strangers, setup, teardown),
		cmocka_unit_test_setup_teardown(lost_rights, setup, teardown),
		cmocka_unit_test_setup_teardown(won_rights, setup, teardown),
		cmocka_unit_test_setup_teardown(a_prompt, setup, teardown),
		cmocka_unit_test_setup_teardown(another_prompt, setup, teardown),
		cmocka_unit_test_setup_teardown(without_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(sharers, setup, teardown),
		cmocka_unit_test_setup_teardown(append_untold, setup, teardown),
		cmocka_unit_test_setup_teardown(prefetches, setup, teardown),
		cmocka_unit_test_setup_teardown(mappings, setup, teardown),
		cmocka_unit_test_setup_teardown(gone_files, setup, teardown),
		cmocka_unit_test_setup_teardown(budget, setup, teardown),
		cmocka_unit_test_setup_teardown(one_writer, setup, teardown),
		cmocka_unit_test_setup_teardown(forks, setup, teardown),
		cmocka_unit_test(pin_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
