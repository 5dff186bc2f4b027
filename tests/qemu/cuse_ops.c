/* SPDX-License-Identifier: Apache-2.0 */
/* The whole programming interface through the device: each command does what kvc_ioctl.h says. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "qemu/cuse_client.h"

#define ALICE "ns/alice"
#define BOB   "ns/bob"

static uint32_t opened(int fd, const char *path, uint32_t flags)
{
	struct kvc_cmd cmd = {0};
	int err = seq_open(fd, path, flags, &cmd);

	check(!err, "open %s: %s", path, strerror(-err));
	return cmd.handle;
}

/* Ids by ioctl, bytes through the mount, which is how they get there where no memory can be mapped.
 */
static void check_open_and_write(void)
{
	struct kvc_op_match m = {.matched = 9};
	int fd = open_device(), err;
	struct kvc_op_query q;
	struct kvc_cmd cmd;

	err = seq_open(fd, ALICE, 0, &cmd);
	check(err == -ENOENT, "open of what is not there: %d", err);
	err = seq_open(fd, ALICE, KVC_OPEN_CREATE | KVC_OPEN_WRITE, &cmd);
	check(!err, "create: %s", strerror(-err));
	check(cmd.open.block_tokens == BLOCK_TOKENS && cmd.open.block_bytes == BLOCK_BYTES &&
		      cmd.open.block_stride == BLOCK_BYTES && cmd.open.token_bytes == 512 &&
		      cmd.open.layers == 4 && !cmd.open.tokens,
	      "geometry: %u tokens, %llu bytes", cmd.open.block_tokens,
	      (unsigned long long)cmd.open.block_bytes);
	err = seq_match(fd, cmd.handle, 64, KVC_MATCH_ATTACH, &m);
	check(!err && !m.matched, "attach to nothing: %d, %u", err, m.matched);
	err = write_kv(ALICE, 0, 4);
	check(!err, "write: %s", strerror(-err));
	err = seq_query(fd, cmd.handle, &q);
	check(!err && q.tokens == 64 && q.ids == 64 && q.blocks == 4 && q.dram_blocks == 4 &&
		      !q.cached_tokens,
	      "query: %d, %u tokens, %u ids, %u blocks, %u in DRAM", err, q.tokens, q.ids, q.blocks,
	      q.dram_blocks);
	err = seq_open(fd, ALICE, KVC_OPEN_CREATE | KVC_OPEN_EXCL, &cmd);
	check(err == -EEXIST, "create once more: %d", err);
}

static void check_match(void)
{
	int fd = open_device(), err;
	uint32_t h = opened(fd, BOB, KVC_OPEN_CREATE | KVC_OPEN_WRITE);
	struct kvc_op_match m = {0};
	struct kvc_op_query q;

	err = seq_match(fd, h, 70, 0, &m);
	check(!err && m.matched == 64 && m.dram_blocks == 4, "count: %d, %u, %u", err, m.matched,
	      m.dram_blocks);
	err = seq_query(fd, h, &q);
	check(!err && !q.tokens && !q.blocks, "counting changed it: %d, %u", err, q.tokens);
	err = seq_match(fd, h, 70, KVC_MATCH_ATTACH, &m);
	check(!err && m.matched == 64, "attach: %d, %u", err, m.matched);
	err = seq_query(fd, h, &q);
	check(!err && q.tokens == 64 && q.cached_tokens == 64 && q.shared_blocks == 4,
	      "after it: %d, %u tokens, %u cached, %u shared", err, q.tokens, q.cached_tokens,
	      q.shared_blocks);
	for (unsigned int i = 0; i < 4; i++)
		check(kv_is(BOB, i, block_byte(i)), "block %u of bob", i);
	h = opened(fd, ALICE, 0);
	err = seq_match(fd, h, 70, KVC_MATCH_ATTACH, &m);
	check(err == -EACCES, "attach to what was opened for reading: %d", err);
}

static void check_map(void)
{
	int fd = open_device(), err;
	uint32_t h = opened(fd, ALICE, 0);
	struct kvc_cmd unmap = {.op = KVC_OP_UNMAP, .handle = h};
	struct kvc_op_map map = {0};

	check(pins_shown() == 0, "%ld pins before", pins_shown());
	err = seq_map(fd, h, &map);
	check(!err && map.nr_blocks == 4, "map: %d, %llu", err, (unsigned long long)map.nr_blocks);
	check(pins_shown() == 4, "%ld pins", pins_shown());
	unmap.map.nr_blocks = KVC_ALL;
	err = seq_simple(fd, &unmap);
	check(!err && pins_shown() == 0, "unmap: %d, %ld pins", err, pins_shown());
}

/* @ids: those of the tokens behind the known ones. */
static int commit(int fd, uint32_t h, uint32_t tokens, const uint32_t *ids, uint32_t nr_ids)
{
	struct batch b;
	int err;

	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_COMMIT;
	b.cmds[0].handle = h;
	b.cmds[0].commit.tokens = tokens;
	b.cmds[0].commit.durable = 1;
	b.cmds[0].commit.ids = batch_put(&b, ids, nr_ids * (uint32_t)sizeof(*ids));
	err = batch_run(&b, fd);
	if (!err && !b.cmds[0].result)
		check(b.cmds[0].commit.committed == tokens, "%u of %u are committed",
		      b.cmds[0].commit.committed, tokens);
	return err ? err : b.cmds[0].result;
}

/* Nothing can be reserved where no memory can be mapped; what `kv` was given is committed. */
static void check_append_commit(void)
{
	int fd = open_device(), err;
	uint32_t h = opened(fd, BOB, KVC_OPEN_WRITE), ids[10] = {5, 6, 7};
	struct kvc_cmd cmd = {.op = KVC_OP_APPEND, .handle = h, .append.tokens = 1};
	struct kvc_op_query q;

	err = seq_simple(fd, &cmd);
	check(err == -EOPNOTSUPP, "append: %d", err);
	err = commit(fd, h, 64 + BLOCK_TOKENS, ids, 10);
	check(err == -EINVAL, "commit of what nobody wrote: %d", err);
	err = seq_query(fd, h, &q);
	check(!err && q.tokens == 64 && q.ids == 70, "after it: %u tokens, %u ids", q.tokens, q.ids);
	err = write_kv(BOB, 4, 5);
	check(!err, "write: %s", strerror(-err));
	/* 70 are known: those of the next 10 */
	err = commit(fd, h, 64 + BLOCK_TOKENS, ids, 10);
	check(!err, "commit: %d", err);
	err = seq_query(fd, h, &q);
	check(!err && q.tokens == 80 && q.ids == 80, "then: %u tokens, %u ids", q.tokens, q.ids);
	check(kv_is(BOB, 4, block_byte(4)), "what was written is not there");
	err = commit(fd, opened(fd, ALICE, 0), 64, NULL, 0);
	check(err == -EACCES, "commit to what was opened for reading: %d", err);
}

static int fork_to(int fd, uint32_t h, const char *path, uint32_t tokens)
{
	struct batch b;
	int err;

	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_FORK;
	b.cmds[0].handle = h;
	b.cmds[0].fork.path = batch_put(&b, path, (uint32_t)strlen(path));
	b.cmds[0].fork.tokens = tokens;
	err = batch_run(&b, fd);
	return err ? err : b.cmds[0].result;
}

static void check_fork_truncate(void)
{
	int fd = open_device(), err;
	uint32_t h = opened(fd, BOB, KVC_OPEN_WRITE);
	struct kvc_cmd cut = {.op = KVC_OP_TRUNCATE, .handle = h, .truncate.tokens = 40};
	struct kvc_op_query q;

	err = fork_to(fd, h, "ns/carol", UINT32_MAX);
	check(!err, "fork: %s", strerror(-err));
	err = fork_to(fd, h, "ns/dave", 0);
	check(err == -EINVAL, "fork of nothing: %d", err);
	err = fork_to(fd, h, "ns/dave", 32);
	check(!err, "fork of a part: %s", strerror(-err));
	err = fork_to(fd, h, "ns/dave", 32);
	check(err == -EEXIST, "fork onto what is there: %d", err);
	err = seq_simple(fd, &cut);
	check(!err, "truncate: %s", strerror(-err));
	err = seq_query(fd, h, &q);
	check(!err && q.tokens == 40 && q.blocks == 3, "truncated: %u tokens, %u blocks", q.tokens,
	      q.blocks);
	cut.truncate.tokens = 41;
	err = seq_simple(fd, &cut);
	check(err == -EINVAL, "truncate upwards: %d", err);
	err = seq_query(fd, opened(fd, "ns/carol", 0), &q);
	check(!err && q.tokens == 80 && q.ids == 80, "carol: %u tokens, %u ids", q.tokens, q.ids);
	err = seq_query(fd, opened(fd, "ns/dave", 0), &q);
	check(!err && q.tokens == 32 && q.ids == 32, "dave: %u tokens, %u ids", q.tokens, q.ids);
	check(kv_is("ns/dave", 1, block_byte(1)), "dave's bytes");
}

static void check_others(void)
{
	int fd = open_device(), err;
	uint32_t h = opened(fd, BOB, KVC_OPEN_WRITE), reader;
	struct kvc_cmd cmd = {.op = KVC_OP_PREFETCH, .handle = h, .prefetch.nr_blocks = KVC_ALL};
	struct kvc_op_query q;

	err = seq_simple(fd, &cmd);
	check(!err, "prefetch: %s", strerror(-err));
	cmd = (struct kvc_cmd){.op = KVC_OP_STATE, .handle = h, .state.state = 3};
	err = seq_simple(fd, &cmd);
	check(!err, "state: %s", strerror(-err));
	reader = opened(fd, BOB, 0);
	err = seq_query(fd, reader, &q);
	check(!err && q.state == 3, "state is %u", q.state);
	cmd = (struct kvc_cmd){.op = KVC_OP_ADMIT, .handle = h, .admit = {100, 99}};
	err = seq_simple(fd, &cmd);
	check(!err && cmd.admit.answer == KVC_ADMIT_RUN, "admit: %d, %u", err, cmd.admit.answer);
	err = seq_close(fd, h);
	check(!err, "close: %s", strerror(-err));
	err = seq_query(fd, h, &q);
	check(err == -EBADF, "query of what was closed: %d", err);
	err = seq_query(fd, reader, &q);
	check(!err && q.state == 0, "state outlived its handle: %u", q.state);
}

/* What needs a session, and what nobody knows. */
static void check_refused(void)
{
	struct kvc_cmd cmd = {.op = KVC_OP_HELLO, .hello = {.abi = KVC_ABI_VERSION}};
	int fd = open_device(), err = seq_simple(fd, &cmd);
	struct batch b;

	check(err == -EINVAL, "hello: %d", err);
	cmd = (struct kvc_cmd){.op = KVC_OP_POOL};
	err = seq_simple(fd, &cmd);
	check(err == -EOPNOTSUPP, "pool: %d", err);
	cmd = (struct kvc_cmd){.op = KVC_NR_OPS};
	err = seq_simple(fd, &cmd);
	check(err == -EOPNOTSUPP, "unknown command: %d", err);
	batch_init(&b, 3);
	for (int i = 0; i < 3; i++)
		b.cmds[i].op = i ? KVC_OP_QUERY : KVC_OP_OPEN;
	b.cmds[0].open.path = batch_put(&b, ALICE, strlen(ALICE));
	b.cmds[1].handle = 77;
	b.cmds[2].handle = 1;
	b.head.flags = KVC_BATCH_STOP;
	err = batch_run(&b, fd);
	check(!err && !b.cmds[0].result && b.cmds[1].result == -EBADF &&
		      b.cmds[2].result == -ECANCELED,
	      "a batch that stops: %d: %d %d %d", err, b.cmds[0].result, b.cmds[1].result,
	      b.cmds[2].result);
	b.head.flags = 0;
	err = batch_run(&b, fd);
	check(!err && b.cmds[1].result == -EBADF && !b.cmds[2].result && b.cmds[2].cookie == 1002,
	      "one that goes on: %d: %d %d", err, b.cmds[1].result, b.cmds[2].result);
	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_OPEN;
	b.cmds[0].open.path = (struct kvc_ref){.off = 8, .bytes = 4};
	err = batch_run(&b, fd);
	check(!err && b.cmds[0].result == -EFAULT, "a reference outside: %d, %d", err,
	      b.cmds[0].result);
}

const struct named_check op_checks[] = {
	{"open_and_write", check_open_and_write},
	{"match", check_match},
	{"map", check_map},
	{"append_commit", check_append_commit},
	{"fork_truncate", check_fork_truncate},
	{"others", check_others},
	{"refused", check_refused},
	{NULL, NULL},
};
