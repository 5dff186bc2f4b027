/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch, and waiting for its end: a futex at the completion word, so that no message is needed, any
 * number of threads may wait, and nobody takes an event away from another. That the daemon has
 * died wakes nobody; so the wait looks after it now and then.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/client/client.h"

#define LOOK_AFTER_MS 100u
#define NSEC_PER_MSEC 1000000u
#define MAX_ERRNO     4095u

int kvc_seq_prefetch(struct kvc_seq *seq, uint64_t deadline_us)
{
	struct kvc_cmd cmd;
	int err = -ESTALE;

	seqs_take(seq->kvc, &seq, 1);
	cmd = seq_cmd(seq, KVC_OP_PREFETCH);
	cmd.prefetch = (struct kvc_op_prefetch){.nr_blocks = KVC_ALL, .deadline_us = deadline_us,
						.flags = KVC_PREFETCH_EVENT};
	if (seq->conn)
		err = conn_call(seq->conn, &cmd, 1, NULL, 0);
	if (err >= 0)
		err = cmd.result;
	if (!err)
		seq->ticket = cmd.prefetch.ticket;
	seqs_give(seq->kvc, &seq, 1);
	return err;
}

/** struct waiting - for the end of a prefetch. */
struct waiting {
	struct conn *conn; /* reference */
	u32 slot, ticket;
	u64 generation;
};

static _Atomic u64 *word_at(const struct waiting *w, u32 nr)
{
	return (_Atomic u64 *)(void *)w->conn->arena.base + nr;
}

static bool is_stale(const struct waiting *w)
{
	return atomic_load(word_at(w, w->slot)) != w->generation || !conn_alive(w->conn);
}

/* What the word says of our prefetch: 0 or how it ended, -EINPROGRESS. */
static int ended(const struct waiting *w, u64 word)
{
	int32_t ahead = (int32_t)((u32)word - w->ticket);
	u32 err = (u32)(word >> 32);

	if (ahead < 0)
		return -EINPROGRESS;
	if (ahead)
		return -ECANCELED;
	return err <= MAX_ERRNO ? -(int)err : -EPROTO;
}

static void sleep_at(const struct waiting *w, u64 word, u64 ns)
{
	struct timespec ts = {(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};

	syscall(SYS_futex, word_at(w, w->conn->arena.nr_slots + w->slot), FUTEX_WAIT, (u32)word, &ts,
		NULL, 0);
}

static int wait_end(const struct waiting *w, int timeout_ms)
{
	u64 now = clock_mono_ns(), until = UINT64_MAX, word;
	int err;

	if (timeout_ms >= 0)
		until = now + (u64)timeout_ms * NSEC_PER_MSEC;
	for (;;) {
		word = atomic_load(word_at(w, w->conn->arena.nr_slots + w->slot));
		err = ended(w, word);
		if (is_stale(w))
			return -ESTALE;
		if (err != -EINPROGRESS)
			return err;
		now = clock_mono_ns();
		if (now >= until)
			return -ETIMEDOUT;
		sleep_at(w, word, min(until - now, (u64)LOOK_AFTER_MS * NSEC_PER_MSEC));
	}
}

int kvc_seq_wait(struct kvc_seq *seq, int timeout_ms)
{
	struct waiting w = {.conn = NULL};
	int err;

	seqs_take(seq->kvc, &seq, 1);
	seq_get(seq);
	if (seq->conn)
		w = (struct waiting){conn_get(seq->conn), seq->slot, seq->ticket, seq->generation};
	seqs_give(seq->kvc, &seq, 1);
	if (!w.conn)
		err = -ESTALE;
	else if (!w.ticket)
		err = 0;
	else
		err = wait_end(&w, timeout_ms);
	if (w.conn)
		conn_put(w.conn);
	seq_put(seq);
	return err;
}

int kvc_event_fd(struct kvc *kvc)
{
	struct conn *conn = kvc_conn(kvc);
	int fd = conn->event_fd;

	conn_put(conn);
	return fd;
}
