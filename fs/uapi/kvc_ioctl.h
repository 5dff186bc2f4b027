/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the programming interface, as they travel: over a session's socket, in an ioctl on a
 * `kv` file or the mount's root, and over the character device. One dispatcher serves all of them.
 *
 * A request is a batch: a struct kvc_batch, then nr_cmds struct kvc_cmd, then, for ioctls only, data.
 * The reply is the same bytes with results filled in. Commands run in order; one that fails does not
 * stop those behind it, unless KVC_BATCH_STOP is set (then they get -ECANCELED).
 *
 * Data that do not fit a command (token ids, paths, extents) lie in the *arena*: for a session the
 * shared memory that came with KVC_OP_HELLO, for an ioctl the bytes behind the commands. A struct
 * kvc_ref names a part of it by offset and length in bytes. What a reference does not cover is -EFAULT.
 *
 *   socket   SOCK_SEQPACKET at `socket=` of .kvc/config; one message a batch, at most KVC_MSG_MAX bytes
 *   ioctl    ioctl(fd, KVC_IOC_BATCH(bytes), buf), at most KVC_IOCTL_MAX bytes (-E2BIG from the library)
 *   device   the same ioctl on /dev/kvcache, as on the mount's root; what it opens goes with the descriptor
 *
 * An ioctl answers on a sequence's `kv` (-ESTALE: on one that is called otherwise, or was removed), on the
 * mount's root directory, and on the device; on everything else it is -ENOTTY. What is opened by it goes
 * with that open file. On `kv`, handle 0 is that file's sequence, with the rights that it was opened with.
 *
 * By ioctl and device no memory can be mapped (KVC_OP_HELLO: -EINVAL, KVC_OP_APPEND and KVC_OP_POOL:
 * -EOPNOTSUPP; KVC_OP_MAP pins and tells places): bytes are written to `kv` on the mount, then made final
 * by KVC_OP_COMMIT.
 *
 * Little-endian, naturally aligned, no padding that is not named. Unknown op: -EOPNOTSUPP; nonzero
 * reserved fields or unknown flags: -EINVAL. A message with a wrong length, magic or version ends the
 * session.
 */
#ifndef KVC_IOCTL_H
#define KVC_IOCTL_H

#include <linux/ioctl.h>
#include <stdint.h>

#define KVC_ABI_VERSION 1u
#define KVC_BATCH_MAGIC 0x4b564342u	/* "BCVK" on the wire */
#define KVC_MSG_MAX	65536u
#define KVC_IOCTL_MAX	16000u
#define KVC_ARENA_MIN	(1u << 20)
#define KVC_ARENA_MAX	(1u << 30)
#define KVC_ALL		UINT64_MAX

/** enum kvc_op - which member of struct kvc_cmd's union is in force. */
enum kvc_op {
	KVC_OP_HELLO = 1,	/* first message of a session, alone in its batch */
	KVC_OP_OPEN,		/* a sequence by path; out: kvc_cmd.handle */
	KVC_OP_CLOSE,		/* give a handle and its pins back */
	KVC_OP_MATCH,		/* token ids against the prefix cache: count only, or attach */
	KVC_OP_MAP,		/* pin a range and tell where its blocks lie */
	KVC_OP_UNMAP,		/* unpin a range that was mapped */
	KVC_OP_APPEND,		/* reserve blocks behind the committed tokens, to be filled in place (socket only) */
	KVC_OP_COMMIT,		/* the tokens filled so far are final */
	KVC_OP_FORK,		/* a second sequence that shares the leading tokens */
	KVC_OP_TRUNCATE,
	KVC_OP_PREFETCH,
	KVC_OP_STATE,		/* decoding, queued, paused, idle */
	KVC_OP_QUERY,		/* tokens, residency */
	KVC_OP_ADMIT,		/* may this sequence run now? */
	KVC_OP_POOL,		/* descriptors of pool files, as extents name them (socket only) */
	KVC_NR_OPS
};

/** struct kvc_ref - bytes in the arena. */
struct kvc_ref {
	uint32_t off;
	uint32_t bytes;
};

/**
 * struct kvc_extent - where a run of a sequence's blocks lies. Blocks of a run are adjacent in memory,
 * each takes block_stride bytes.
 */
struct kvc_extent {
	uint32_t pool;		/* pool file, as numbered by KVC_OP_POOL */
	uint32_t nr_blocks;
	uint64_t off;		/* bytes in that file */
};

enum {
	KVC_OPEN_CREATE = 1,	/* make directory, kv and tokens when missing */
	KVC_OPEN_WRITE = 2,	/* append, commit, truncate, state; needs write permission */
	KVC_OPEN_EXCL = 4,
};

enum {
	KVC_HELLO_EVENTS = 1,	/* completion words and an event descriptor are wanted */
	KVC_HELLO_LEASE = 2,	/* a lease is wanted; out: there is one */
};

/*
 * With KVC_HELLO_EVENTS there come a second descriptor, which becomes readable when a prefetch ends
 * that asked for it (what is read says nothing; read until -EAGAIN, then look at the words), and view_slots
 * completion words behind the generation words. A handle's is the ticket of its prefetch that ended last,
 * and the errno (0, EIO, ENOMEM, ECANCELED) << 32. The daemon wakes who waits at its lower half by futex().
 *
 * With KVC_HELLO_LEASE, where pool memory outlives the daemon, one more comes, last: the lease. A client
 * keeps it open, and does nothing with it, as long as it looks at memory that this session mapped or
 * reserved. So much of it the next daemon leaves as it is, and tells the same places to who maps the same
 * blocks again: pool files that are the same have the same device and inode numbers.
 */
struct kvc_op_hello {
	uint32_t abi;		/* in: KVC_ABI_VERSION; out: the daemon's */
	uint32_t flags;		/* in: KVC_HELLO_*; out: those that are in force */
	uint64_t arena_bytes;	/* in: wanted; out: given. Its memfd comes with the reply, first */
	uint64_t generation;	/* out: changes whenever the daemon restarts */
	uint32_t view_slots;	/* out: u64 generation words at the start of the arena, one per handle */
	uint32_t reserved;
};

/*
 * The handle comes in kvc_cmd.handle: the lowest number that this client has not in use, from 1 on. So a
 * command behind it in the same batch can name it, if the client knows which that is.
 */
struct kvc_op_open {
	struct kvc_ref path;	/* in: below the mount, no leading slash */
	uint32_t flags;		/* in: KVC_OPEN_* */
	uint32_t slot;		/* out: generation word of this handle */
	uint32_t block_tokens;	/* out, as all below */
	uint32_t tokens;	/* committed */
	uint64_t block_bytes;
	uint64_t block_stride;
	uint64_t token_bytes;
	uint32_t layers;
	uint32_t layout;	/* enum kv_layout: 0 hnd, 1 nhd, 2 mla, 3 opaque */
	uint64_t generation;	/* value of the slot's word while handle and views are good */
};

enum { KVC_MATCH_ATTACH = 1 };	/* write the ids to the sequence and attach what is cached */

/*
 * After an attaching match the sequence shows these ids and has exactly @matched committed tokens, those
 * that it had under the same ids or, where that is more, those of the prefix cache. What it had beyond
 * them is cut, as by user.kvc.tokens = @matched, whether it was attached or its own, committed under other
 * ids, under none, or not at all. When it fails, nothing has changed but that the client's reservation is
 * gone. It needs KVC_OPEN_WRITE (-EACCES); -EBUSY: another client appends.
 */

struct kvc_op_match {
	struct kvc_ref ids;	/* in: u32 token ids */
	uint32_t flags;		/* in: KVC_MATCH_* */
	uint32_t matched;	/* out: leading tokens cached (attached with KVC_MATCH_ATTACH) */
	uint32_t dram_blocks;	/* out: of these, how many lie in DRAM */
	uint32_t nvme_blocks;
};

enum {
	KVC_MAP_NOWAIT = 1,	/* -EAGAIN when something is not resident (a prefetch is started) */
	KVC_MAP_WRITE = 2,	/* APPEND's range: open blocks of this handle */
};

/*
 * A map pins blocks where they are; each MAP is undone by one UNMAP of the same range (or of 0, KVC_ALL:
 * all of the handle's), by CLOSE, or the end of the session. Only committed tokens are mapped. The last
 * block, while not full, is as of the MAP: map it again after a commit. -EAGAIN: pins beyond the budget
 * (half of DRAM for one client, 80 % for all); -E2BIG: more runs than there is room for; -EACCES: the
 * client may not read the namespace.
 */
struct kvc_op_map {
	uint64_t first_block;	/* in */
	uint64_t nr_blocks;	/* in: KVC_ALL: to the end; out: blocks mapped */
	struct kvc_ref extents;	/* in: room for struct kvc_extent[]; out: bytes used */
	uint32_t flags;		/* in: KVC_MAP_* */
	uint32_t reserved;
};

/*
 * One client at a time appends to a sequence (-EBUSY), and needs write permission on the namespace,
 * whose memory it fills. Until it closes the handle, truncates, matches with KVC_MATCH_ATTACH or dies,
 * writes to the file by others fail with EBUSY too. Blocks that hold only committed tokens leave the
 * reservation at the next APPEND; what was reserved and not committed is lost with the handle. A smaller
 * APPEND takes nothing back of what an earlier one reserved.
 *
 * Whole or not at all: -ENOSPC; -EAGAIN: pins beyond the budget, as of MAP; -E2BIG: more runs than there is
 * room for, where 16 bytes for each block are always enough: give more, or ask for fewer tokens.
 * -EOPNOTSUPP: by ioctl, where nothing can be mapped.
 */
struct kvc_op_append {
	uint32_t tokens;	/* in: room for this many beyond the committed ones; -EBUSY: another client appends */
	uint32_t flags;		/* 0 */
	uint64_t first_block;	/* out: block that holds token T (T = committed tokens) */
	uint64_t nr_blocks;	/* out: blocks reserved for this handle, pinned, zero where new */
	struct kvc_ref extents;	/* in: room; out: bytes used */
};

/*
 * With a reservation the tokens were filled there: no fewer than are committed and no more than those and
 * what APPEND asked for, else -EINVAL. Without one (always so by ioctl) they were written to `kv`, and a
 * commit is user.kvc.tokens = @tokens with the ids given first, both or neither: -EINVAL when there are
 * fewer than are committed, or one is not wholly written; -EBUSY: another client appends.
 */
struct kvc_op_commit {
	uint32_t tokens;	/* in: committed tokens from now on */
	uint32_t flags;		/* 0 */
	struct kvc_ref ids;	/* in: ids of the tokens beyond the known ones; may be empty */
	uint32_t durable;	/* in: 1: as fsync */
	uint32_t committed;	/* out */
};

struct kvc_op_fork {
	struct kvc_ref path;	/* in: the new sequence */
	uint32_t tokens;	/* in: how many leading ones; UINT32_MAX: all; 0: -EINVAL */
	uint32_t reserved;
};

struct kvc_op_truncate {
	uint32_t tokens;
	uint32_t reserved;
};

enum { KVC_PREFETCH_EVENT = 1 };	/* tell its end; needs KVC_HELLO_EVENTS, else -EOPNOTSUPP */

/*
 * One prefetch a handle: another one ends the one before with ECANCELED, as does CLOSE. Earlier deadlines
 * go first, those without one last; all give way to readers while they have time. -EAGAIN: too many.
 */
struct kvc_op_prefetch {
	uint64_t first_block, nr_blocks;
	uint64_t deadline_us;	/* in: from now; 0: none */
	uint32_t flags;		/* in: KVC_PREFETCH_* */
	uint32_t ticket;	/* out, with KVC_PREFETCH_EVENT: counts those of the session */
};

struct kvc_op_state {
	uint32_t state;		/* 0 idle, 1 paused, 2 queued, 3 decoding */
	uint32_t paused_s;	/* expected return, 0 unknown */
};

struct kvc_op_query {
	uint32_t tokens, ids, cached_tokens, state;	/* out */
	uint32_t blocks, dram_blocks, nvme_blocks, shared_blocks;
};

enum { KVC_ADMIT_RUN = 0, KVC_ADMIT_WAIT = 1, KVC_ADMIT_RECOMPUTE = 2 };

struct kvc_op_admit {
	uint32_t tokens;	/* in: the sequence's full input */
	uint32_t answer;	/* out: KVC_ADMIT_* */
};

/*
 * Pool files have a number of their own in each session, given when an extent first lies in one. A
 * file may go once nothing in it is mapped or reserved: then nothing comes for it any more.
 */
struct kvc_op_pool {
	uint32_t first;		/* in: first pool file wanted */
	uint32_t nr;		/* out: pool files that this reply is about, from @first on */
	uint32_t total;		/* out: numbers given so far */
	uint32_t writable;	/* out: bit i: file @first + i may be mapped for writing */
	uint64_t bytes;		/* out: size of each file */
	uint32_t present;	/* out: bit i: its descriptor came with this reply (SCM_RIGHTS), in order */
	uint32_t reserved;
};

/** struct kvc_cmd - one command; 96 bytes. */
struct kvc_cmd {
	uint16_t op;		/* enum kvc_op */
	uint16_t flags;		/* 0 */
	int32_t result;		/* out: 0 or negative errno */
	uint32_t handle;	/* sequence; 0 on a `kv` file's ioctl: that file's sequence */
	uint32_t reserved;
	uint64_t cookie;	/* the caller's, returned as given */
	union {
		struct kvc_op_hello hello;
		struct kvc_op_open open;
		struct kvc_op_match match;
		struct kvc_op_map map;
		struct kvc_op_append append;
		struct kvc_op_commit commit;
		struct kvc_op_fork fork;
		struct kvc_op_truncate truncate;
		struct kvc_op_prefetch prefetch;
		struct kvc_op_state state;
		struct kvc_op_query query;
		struct kvc_op_admit admit;
		struct kvc_op_pool pool;
		uint64_t room[9];
	};
};

/** struct kvc_batch - head of a message. */
struct kvc_batch {
	uint32_t magic;		/* KVC_BATCH_MAGIC */
	uint16_t abi;		/* KVC_ABI_VERSION */
	uint16_t flags;		/* KVC_BATCH_* */
	uint32_t nr_cmds;
	uint32_t bytes;		/* of the whole message */
	uint64_t sequence;	/* counts a session's messages from 1: a replayed one ends it; not looked at by ioctl */
};

enum { KVC_BATCH_STOP = 1 };

/** KVC_IOC_BATCH() - request number of a batch of @bytes. */
#define KVC_IOC_BATCH(bytes) _IOC(_IOC_READ | _IOC_WRITE, 'k', 0x56, (bytes))

#ifdef __cplusplus
#define KVC_STATIC_ASSERT static_assert
#else
#define KVC_STATIC_ASSERT _Static_assert
#endif
KVC_STATIC_ASSERT(sizeof(struct kvc_cmd) == 96, "wire format");
KVC_STATIC_ASSERT(sizeof(struct kvc_batch) == 24, "wire format");
KVC_STATIC_ASSERT(sizeof(struct kvc_extent) == 16, "wire format");
#undef KVC_STATIC_ASSERT

#endif
