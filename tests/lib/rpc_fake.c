/* SPDX-License-Identifier: Apache-2.0 */
#undef NDEBUG /* what is asserted here is the test, in every build */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "lib/rpc_fake.h"

#define SLOTS 128u /* of a handle: its number */

/** struct client - the connection being served. */
struct client {
	struct rpc_fake *fake;
	int fd;
	u8 *arena;
	u64 arena_bytes, sequence;
	int send_fds[FAKE_POOLS + 1];
	u32 nr_send_fds;
	struct fake_seq *open[SLOTS]; /* by handle; [0] unused */
	u32 pins[SLOTS];
	_Alignas(struct kvc_batch) char held[KVC_MSG_MAX];
	size_t held_bytes;
};

static _Atomic u64 *word(struct client *c, u32 slot)
{
	return (_Atomic u64 *)(void *)c->arena + slot;
}

static void *arena(struct client *c, struct kvc_ref ref)
{
	assert(ref.off >= 2 * SLOTS * sizeof(u64) && (u64)ref.off + ref.bytes <= c->arena_bytes);
	return c->arena + ref.off;
}

static struct fake_seq *find(struct rpc_fake *fake, const char *path, size_t len)
{
	for (u32 i = 0; i < fake->nr_seqs; i++)
		if (strlen(fake->seq[i].path) == len && !memcmp(fake->seq[i].path, path, len))
			return &fake->seq[i];
	return NULL;
}

static struct fake_seq *make(struct rpc_fake *fake, const char *path, size_t len)
{
	struct fake_seq *seq = &fake->seq[fake->nr_seqs++];

	assert(fake->nr_seqs <= FAKE_SEQS && len < sizeof(seq->path));
	memcpy(seq->path, path, len);
	return seq;
}

static void add_block(struct rpc_fake *fake, struct fake_seq *seq)
{
	u32 pool = 0, nr;

	assert(seq->nr_blocks < FAKE_SEQ_BLOCKS);
	if (fake->scatter) {
		pool = seq->nr_blocks % FAKE_POOLS;
		nr = FAKE_POOL_BYTES / FAKE_STRIDE - 1 - fake->next_block[1]++;
	} else {
		nr = fake->next_block[0]++;
	}
	assert(nr < FAKE_POOL_BYTES / FAKE_STRIDE);
	seq->block[seq->nr_blocks++] = pool << 16 | nr;
}

/* ---- commands ---- */

/* The same way as a daemon does it: the word, who waits for it, the pipe. */
void rpc_fake_prefetched(struct rpc_fake *fake, int err)
{
	pthread_mutex_lock(&fake->lock);
	assert(fake->words && fake->ticket);
	atomic_store(&fake->words[fake->slot], (u64)(u32)-err << 32 | fake->ticket);
	syscall(SYS_futex, &fake->words[fake->slot], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	if (write(fake->event_fd, "", 1) != 1)
		abort();
	pthread_mutex_unlock(&fake->lock);
}

static void do_prefetch(struct client *c, u32 slot, struct kvc_op_prefetch *p)
{
	assert(p->flags == KVC_PREFETCH_EVENT && !p->ticket);
	pthread_mutex_lock(&c->fake->lock);
	c->fake->slot = slot;
	p->ticket = ++c->fake->ticket;
	pthread_mutex_unlock(&c->fake->lock);
	if (!c->fake->slow)
		rpc_fake_prefetched(c->fake, 0);
}

static void set_events(struct rpc_fake *fake, _Atomic u64 *words, int fd)
{
	pthread_mutex_lock(&fake->lock);
	if (fake->words)
		close(fake->event_fd);
	fake->words = words;
	fake->event_fd = fd;
	fake->ticket = 0;
	pthread_mutex_unlock(&fake->lock);
}

static int do_hello(struct client *c, struct kvc_op_hello *h, int *fd)
{
	int event[2];

	if (h->abi != KVC_ABI_VERSION || h->flags != (KVC_HELLO_EVENTS | KVC_HELLO_LEASE) || h->reserved || c->arena)
		return -EPROTO;
	if (c->fake->fault == FAKE_OLD_ABI) {
		c->fake->fault = FAKE_OK;
		h->abi = 0;
	}
	c->arena_bytes = h->arena_bytes;
	*fd = memfd_create("arena", MFD_CLOEXEC);
	assert(*fd >= 0 && !ftruncate(*fd, (off_t)c->arena_bytes));
	c->arena = mmap(NULL, c->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert(c->arena != MAP_FAILED);
	if (pipe2(event, O_CLOEXEC | O_NONBLOCK))
		abort();
	fd[1] = event[0];
	set_events(c->fake, word(c, SLOTS), event[1]);
	h->view_slots = SLOTS;
	h->generation = c->fake->generation;
	return 0;
}

/* @fd: the client's end. Return: whether there is one. */
static bool new_lease(struct rpc_fake *fake, struct kvc_op_hello *h, int *fd)
{
	int ends[2];

	if (fake->nr_leases == FAKE_LEASES) {
		h->flags &= ~(u32)KVC_HELLO_LEASE;
		return false;
	}
	if (pipe2(ends, O_CLOEXEC))
		abort();
	fake->lease[fake->nr_leases++] = ends[1];
	*fd = ends[0];
	return true;
}

bool rpc_fake_leased(const struct rpc_fake *fake, u32 nr)
{
	struct pollfd p = {.fd = fake->lease[nr]};

	return nr < fake->nr_leases && poll(&p, 1, 0) == 0;
}

static int do_open(struct client *c, struct kvc_cmd *cmd)
{
	struct kvc_op_open *o = &cmd->open;
	const char *path = arena(c, o->path);
	struct fake_seq *seq = find(c->fake, path, o->path.bytes);
	u32 h = 1;

	if (seq && o->flags & KVC_OPEN_EXCL)
		return -EEXIST;
	if (!seq && !(o->flags & KVC_OPEN_CREATE))
		return -ENOENT;
	while (c->open[h])
		h++;
	assert(h < SLOTS);
	c->open[h] = seq ? seq : make(c->fake, path, o->path.bytes);
	c->fake->handles++;
	cmd->handle = h;
	o->slot = h;
	o->generation = c->fake->generation + h;
	*word(c, h) = o->generation;
	o->block_tokens = FAKE_BLOCK_TOKENS;
	o->block_bytes = FAKE_BLOCK_BYTES;
	o->block_stride = FAKE_STRIDE;
	o->token_bytes = FAKE_BLOCK_BYTES / FAKE_BLOCK_TOKENS;
	o->layers = 2;
	o->tokens = c->open[h]->tokens;
	return 0;
}

static void close_handle(struct client *c, u32 h)
{
	*word(c, h) = 0;
	c->open[h] = NULL;
	c->fake->pins -= c->pins[h];
	c->pins[h] = 0;
	c->fake->handles--;
}

static u32 common(const struct fake_seq *seq, const u32 *ids, u32 nr)
{
	u32 n = 0;

	while (n < nr && n < seq->tokens && seq->ids[n] == ids[n])
		n++;
	return n / FAKE_BLOCK_TOKENS * FAKE_BLOCK_TOKENS;
}

static int do_match(struct client *c, struct fake_seq *seq, struct kvc_op_match *m)
{
	const u32 *ids = arena(c, m->ids);
	u32 nr = m->ids.bytes / 4;
	struct fake_seq *best = seq;

	assert(m->ids.bytes % 4 == 0 && nr <= ARRAY_SIZE(seq->ids));
	for (u32 i = 0; i < c->fake->nr_seqs; i++)
		if (common(&c->fake->seq[i], ids, nr) > common(best, ids, nr))
			best = &c->fake->seq[i];
	m->matched = common(best, ids, nr);
	m->dram_blocks = m->matched / FAKE_BLOCK_TOKENS;
	if (m->flags & KVC_MATCH_ATTACH && best != seq)
		memcpy(seq->block, best->block, m->dram_blocks * sizeof(u32));
	if (m->flags & KVC_MATCH_ATTACH) {
		seq->nr_blocks = m->dram_blocks;
		seq->tokens = m->matched;
		memcpy(seq->ids, ids, m->ids.bytes);
		seq->nr_ids = nr;
	}
	return 0;
}

/* One extent a block: to merge them is the client's. */
static int put_extents(struct client *c, const struct fake_seq *seq, u64 first, u64 *nr,
		       struct kvc_ref *ref)
{
	struct kvc_extent *ext = arena(c, *ref);
	int fault = c->fake->fault;

	if (*nr > ref->bytes / sizeof(*ext))
		return -E2BIG;
	for (u64 i = 0; i < *nr; i++)
		ext[i] = (struct kvc_extent){seq->block[first + i] >> 16, 1,
					     (u64)(seq->block[first + i] & 0xffff) * FAKE_STRIDE};
	ref->bytes = (u32)(*nr * sizeof(*ext));
	if (fault < FAKE_TOO_FAR || fault > FAKE_TOO_MANY)
		return 0;
	c->fake->fault = FAKE_OK;
	if (fault == FAKE_TOO_FAR)
		ext[*nr - 1].off = FAKE_POOL_BYTES - FAKE_STRIDE + KVC_PAGE_SIZE;
	else if (fault == FAKE_ODD_EXTENT)
		ext[0].off += 512;
	else
		++*nr;
	return 0;
}

static int do_map(struct client *c, u32 h, struct kvc_op_map *m)
{
	struct fake_seq *seq = c->open[h];
	u64 end = seq->tokens / FAKE_BLOCK_TOKENS;
	int err;

	if (m->first_block > end)
		return -EINVAL;
	if (m->flags & KVC_MAP_NOWAIT && c->fake->cold)
		return -EAGAIN;
	m->nr_blocks = min(m->nr_blocks, end - m->first_block);
	err = put_extents(c, seq, m->first_block, &m->nr_blocks, &m->extents);
	if (err)
		return err;
	c->pins[h] += (u32)m->nr_blocks;
	c->fake->pins += (u32)m->nr_blocks;
	return 0;
}

static int do_unmap(struct client *c, u32 h, const struct kvc_op_map *m)
{
	assert(m->nr_blocks <= c->pins[h]);
	c->pins[h] -= (u32)m->nr_blocks;
	c->fake->pins -= (u32)m->nr_blocks;
	return 0;
}

static int do_append(struct client *c, struct fake_seq *seq, struct kvc_op_append *a)
{
	u32 first = seq->tokens / FAKE_BLOCK_TOKENS;
	u32 end = (u32)div_round_up((u64)seq->tokens + a->tokens, FAKE_BLOCK_TOKENS);

	if (end > FAKE_SEQ_BLOCKS)
		return -ENOSPC;
	while (seq->nr_blocks < end)
		add_block(c->fake, seq);
	a->first_block = first;
	a->nr_blocks = end - first;
	return put_extents(c, seq, first, &a->nr_blocks, &a->extents);
}

static int do_commit(struct client *c, struct fake_seq *seq, struct kvc_op_commit *m)
{
	u32 nr = m->ids.bytes / 4;

	if (m->tokens < seq->tokens || m->tokens > seq->nr_blocks * FAKE_BLOCK_TOKENS || nr > m->tokens)
		return -EINVAL;
	if (nr)
		memcpy(seq->ids + m->tokens - nr, arena(c, m->ids), m->ids.bytes);
	seq->nr_ids = max(seq->nr_ids, m->tokens);
	seq->tokens = m->committed = m->tokens;
	return 0;
}

static int do_fork(struct client *c, const struct fake_seq *seq, const struct kvc_op_fork *f)
{
	const char *path = arena(c, f->path);
	struct fake_seq *copy;

	if (find(c->fake, path, f->path.bytes))
		return -EEXIST;
	copy = make(c->fake, path, f->path.bytes);
	copy->tokens = copy->nr_ids = min(f->tokens, seq->tokens);
	copy->nr_blocks = copy->tokens / FAKE_BLOCK_TOKENS;
	memcpy(copy->block, seq->block, sizeof(seq->block));
	memcpy(copy->ids, seq->ids, sizeof(seq->ids));
	return 0;
}

static int do_pool(struct client *c, struct kvc_op_pool *p)
{
	char path[40];

	if (p->first > c->fake->nr_pools)
		return -EINVAL;
	p->total = c->fake->nr_pools;
	p->bytes = FAKE_POOL_BYTES;
	for (p->nr = 0; p->first + p->nr < p->total; p->nr++) {
		int *fd = &c->send_fds[c->nr_send_fds];

		if (c->fake->gone >> (p->first + p->nr) & 1)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", c->fake->pool_fd[p->first + p->nr]);
		*fd = open(path, (c->fake->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		assert(*fd >= 0);
		c->nr_send_fds++;
		p->present |= 1u << p->nr;
		p->writable |= (u32)!c->fake->read_only << p->nr;
	}
	return 0;
}

static int do_query(const struct fake_seq *seq, struct kvc_op_query *q)
{
	*q = (struct kvc_op_query){.tokens = seq->tokens, .ids = seq->nr_ids, .state = 2,
				   .blocks = seq->nr_blocks, .dram_blocks = seq->nr_blocks};
	return 0;
}

static int do_cmd(struct client *c, struct kvc_cmd *cmd)
{
	struct fake_seq *seq = cmd->handle < SLOTS ? c->open[cmd->handle] : NULL;

	assert(!cmd->flags && !cmd->reserved);
	if (cmd->op == KVC_OP_OPEN)
		return do_open(c, cmd);
	if (cmd->op == KVC_OP_POOL)
		return do_pool(c, &cmd->pool);
	if (!seq)
		return -EBADF;
	switch (cmd->op) {
	case KVC_OP_CLOSE:
		close_handle(c, cmd->handle);
		return 0;
	case KVC_OP_MATCH:
		return do_match(c, seq, &cmd->match);
	case KVC_OP_MAP:
		return do_map(c, cmd->handle, &cmd->map);
	case KVC_OP_UNMAP:
		return do_unmap(c, cmd->handle, &cmd->map);
	case KVC_OP_APPEND:
		return do_append(c, seq, &cmd->append);
	case KVC_OP_COMMIT:
		return do_commit(c, seq, &cmd->commit);
	case KVC_OP_FORK:
		return do_fork(c, seq, &cmd->fork);
	case KVC_OP_TRUNCATE:
		seq->tokens = min(seq->tokens, cmd->truncate.tokens);
		return 0;
	case KVC_OP_QUERY:
		return do_query(seq, &cmd->query);
	case KVC_OP_ADMIT:
		cmd->admit.answer = cmd->admit.tokens % 3;
		return 0;
	case KVC_OP_PREFETCH:
		do_prefetch(c, cmd->handle, &cmd->prefetch);
		return 0;
	case KVC_OP_STATE:
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

/* ---- messages ---- */

static void send_reply(struct client *c, void *bytes, size_t len)
{
	char control[CMSG_SPACE(sizeof(c->send_fds))] = {0};
	struct iovec iov = {bytes, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm = (struct cmsghdr *)(void *)control;
	size_t fd_bytes = c->nr_send_fds * sizeof(int);

	if (c->nr_send_fds) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(fd_bytes);
		*cm = (struct cmsghdr){CMSG_LEN(fd_bytes), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(cm), c->send_fds, fd_bytes);
	}
	/* The client may have gone: then nobody waits. */
	if (sendmsg(c->fd, &msg, MSG_NOSIGNAL) < 0)
		assert(errno == EPIPE || errno == ECONNRESET);
	for (u32 i = 0; i < c->nr_send_fds; i++)
		close(c->send_fds[i]);
	c->nr_send_fds = 0;
}

/* Return: whether to go on with this client. */
static bool spoil(struct client *c, struct kvc_batch *head, size_t *len)
{
	int fault = c->fake->fault;

	if (fault == FAKE_OK || fault >= FAKE_TOO_FAR)
		return true;
	c->fake->fault = FAKE_OK;
	if (fault == FAKE_MUTE)
		*len = 0;
	if (fault == FAKE_BAD_MAGIC)
		head->magic++;
	if (fault == FAKE_BAD_SEQUENCE)
		head->sequence += 7;
	if (fault == FAKE_SHORT)
		*len -= 8;
	if (fault == FAKE_POSITIVE)
		((struct kvc_cmd *)(head + 1))->result = 1;
	return fault != FAKE_HANG_UP;
}

static void answer_held(struct client *c)
{
	if (c->held_bytes)
		send_reply(c, c->held, c->held_bytes);
	c->held_bytes = 0;
}

static bool serve_message(struct client *c, void *bytes, size_t len)
{
	struct kvc_batch *head = bytes;
	struct kvc_cmd *cmds = (struct kvc_cmd *)(head + 1);

	assert(len >= sizeof(*head) && head->magic == KVC_BATCH_MAGIC && head->bytes == len &&
	       head->abi == KVC_ABI_VERSION && !head->flags && head->sequence == ++c->sequence &&
	       head->nr_cmds && len == sizeof(*head) + head->nr_cmds * sizeof(*cmds));
	c->fake->messages++;
	for (u32 i = 0; i < head->nr_cmds; i++) {
		if (cmds[i].op == KVC_OP_HELLO) {
			cmds[i].result = do_hello(c, &cmds[i].hello, c->send_fds);
			c->nr_send_fds = cmds[i].result ? 0 : 2;
			if (c->nr_send_fds && new_lease(c->fake, &cmds[i].hello, &c->send_fds[2]))
				c->nr_send_fds++;
		} else {
			assert(c->arena);
			cmds[i].result = do_cmd(c, &cmds[i]);
		}
	}
	if (cmds[0].op == KVC_OP_PREFETCH && cmds[0].prefetch.deadline_us == FAKE_HOLD) {
		memcpy(c->held, bytes, len);
		c->held_bytes = len;
		return true;
	}
	if (!spoil(c, head, &len))
		return false;
	if (len)
		send_reply(c, bytes, len);
	answer_held(c);
	return true;
}

static void serve(struct rpc_fake *fake, int fd)
{
	static _Thread_local _Alignas(struct kvc_batch) char msg[KVC_MSG_MAX];
	struct client *c = calloc(1, sizeof(*c));
	struct pollfd p = {fd, POLLIN, 0};
	ssize_t n;

	assert(c);
	c->fake = fake;
	c->fd = fd;
	while (!fake->stop) {
		if (poll(&p, 1, 10) <= 0)
			continue;
		n = recv(fd, msg, sizeof(msg), 0);
		if (n <= 0 || !serve_message(c, msg, (size_t)n))
			break;
	}
	for (u32 h = 1; h < SLOTS; h++)
		if (c->open[h])
			close_handle(c, h);
	set_events(fake, NULL, -1);
	if (c->arena)
		munmap(c->arena, c->arena_bytes);
	close(fd);
	free(c);
}

static void *serve_all(void *arg)
{
	struct rpc_fake *fake = arg;
	struct pollfd p = {fake->listen_fd, POLLIN, 0};

	while (!fake->stop) {
		int fd;

		if (poll(&p, 1, 10) <= 0)
			continue;
		fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			serve(fake, fd);
	}
	return NULL;
}

/* ---- beginning and end ---- */

static void put_file(const struct rpc_fake *fake, const char *name, const char *text)
{
	char path[PATH_MAX + 32];
	FILE *f;

	snprintf(path, sizeof(path), "%s/.kvc/%s", fake->dir, name);
	f = fopen(path, "we");
	assert(f && fputs(text, f) >= 0 && !fclose(f));
}

void rpc_fake_restart(struct rpc_fake *fake)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int err;

	fake->stop = false;
	fake->generation += 1000;
	fake->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	err = snprintf(addr.sun_path, sizeof(addr.sun_path), "%.90s/socket", fake->dir) >=
	      (int)sizeof(addr.sun_path);
	unlink(addr.sun_path);
	assert(!err && !bind(fake->listen_fd, (struct sockaddr *)&addr, sizeof(addr)));
	err = listen(fake->listen_fd, 8);
	assert(!err);
	err = pthread_create(&fake->thread, NULL, serve_all, fake);
	assert(!err);
}

struct rpc_fake *rpc_fake_start(void)
{
	struct rpc_fake *fake = calloc(1, sizeof(*fake));
	char text[PATH_MAX + 64], path[PATH_MAX + 32];
	const char *tmp = getenv("TMPDIR");

	assert(fake);
	pthread_mutex_init(&fake->lock, NULL);
	snprintf(fake->dir, sizeof(fake->dir), "%s/kvc-fake.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(fake->dir))
		abort();
	snprintf(path, sizeof(path), "%s/.kvc", fake->dir);
	if (mkdir(path, 0700))
		abort();
	put_file(fake, "version", "kvcachefs 0 uapi 1\n");
	snprintf(text, sizeof(text), "dram=1\nsocket=%s/socket\nnvme=0\n", fake->dir);
	put_file(fake, "config", text);
	for (u32 i = 0; i < FAKE_POOLS; i++) {
		fake->pool_fd[i] = memfd_create("pool", MFD_CLOEXEC);
		if (fake->pool_fd[i] < 0 || ftruncate(fake->pool_fd[i], FAKE_POOL_BYTES))
			abort();
		fake->pool[i] = mmap(NULL, FAKE_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
				     fake->pool_fd[i], 0);
		if (fake->pool[i] == MAP_FAILED)
			abort();
	}
	fake->nr_pools = FAKE_POOLS;
	rpc_fake_restart(fake);
	return fake;
}

void rpc_fake_stop(struct rpc_fake *fake)
{
	fake->stop = true;
	pthread_join(fake->thread, NULL);
	close(fake->listen_fd);
}

void rpc_fake_free(struct rpc_fake *fake)
{
	static const char *const names[] = {"/.kvc/version", "/.kvc/config", "/.kvc", "/socket", ""};
	char path[PATH_MAX + 32];

	if (!fake->stop)
		rpc_fake_stop(fake);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s%s", fake->dir, names[i]);
		remove(path);
	}
	for (u32 i = 0; i < fake->nr_leases; i++)
		close(fake->lease[i]);
	for (u32 i = 0; i < FAKE_POOLS; i++) {
		munmap(fake->pool[i], FAKE_POOL_BYTES);
		close(fake->pool_fd[i]);
	}
	pthread_mutex_destroy(&fake->lock);
	free(fake);
}

void rpc_fake_grow(struct rpc_fake *fake, const char *path, u32 nr)
{
	struct fake_seq *seq = find(fake, path, strlen(path));

	assert(seq);
	for (u32 i = 0; i < nr; i++)
		add_block(fake, seq);
	seq->tokens += nr * FAKE_BLOCK_TOKENS;
}

u8 *rpc_fake_block(struct rpc_fake *fake, const char *path, u32 nr)
{
	struct fake_seq *seq = find(fake, path, strlen(path));

	assert(seq && nr < seq->nr_blocks);
	return fake->pool[seq->block[nr] >> 16] + (size_t)(seq->block[nr] & 0xffff) * FAKE_STRIDE;
}
