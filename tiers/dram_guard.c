/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Against clients that shrink a slab's file.
 *
 * Who may write a slab has its file open for writing, and so may truncate it. Our next access to it
 * would be a SIGBUS: one client would end the daemon of all. memfds are sealed against that; files of
 * a tmpfs cannot be. So a SIGBUS inside such a slab gives the file its size back and goes on: the bytes
 * are then zeros, which the client could have written as well, and which the checksums of sealed blocks
 * tell apart from what was there.
 *
 * Any other SIGBUS (no memory left for a page, say) does what it did before. The handler makes system
 * calls that are safe in it and takes no lock: the list of tiers has a fixed place for each.
 */
#include <errno.h>
#include <signal.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tiers/dram_pool.h"

#define GUARDED 16 /* tiers at once; those beyond are not guarded */

static struct dram_guard *_Atomic guarded[GUARDED];
static struct sigaction before;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

/* Return: whether it is whole again. */
static bool restore(const struct dram_guard *guard, const char *addr)
{
	u64 off = (u64)(addr - guard->base);
	int fd = __atomic_load_n(&guard->fd[off / guard->slab_bytes], __ATOMIC_RELAXED);
	struct stat st;

	if (fstat(fd, &st) || (u64)st.st_size >= guard->slab_bytes)
		return false;
	return !ftruncate(fd, (off_t)guard->slab_bytes);
}

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
	const char *addr = info->si_addr;
	int err = errno;

	for (int i = 0; i < GUARDED; i++) {
		const struct dram_guard *guard = atomic_load(&guarded[i]);

		if (!guard || addr < guard->base || addr >= guard->base + guard->bytes)
			continue;
		if (restore(guard, addr)) {
			errno = err;
			return;
		}
	}
	errno = err;
	/* The access is repeated and meets whoever was here before us. */
	sigaction(sig, &before, NULL);
}

static void install(void)
{
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};

	struct sigaction now;

	sigemptyset(&action.sa_mask);
	pthread_mutex_lock(&installing);
	if (!sigaction(SIGBUS, NULL, &now) &&
	    (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_bus_error)) {
		before = now;
		sigaction(SIGBUS, &action, NULL);
	}
	pthread_mutex_unlock(&installing);
}

void dram_guard_begin(struct dram_guard *guard)
{
	install();
	for (int i = 0; i < GUARDED; i++) {
		struct dram_guard *none = NULL;

		if (atomic_compare_exchange_strong(&guarded[i], &none, guard))
			return;
	}
}

void dram_guard_end(struct dram_guard *guard)
{
	for (int i = 0; i < GUARDED; i++) {
		struct dram_guard *this = guard;

		if (atomic_compare_exchange_strong(&guarded[i], &this, NULL))
			return;
	}
}
