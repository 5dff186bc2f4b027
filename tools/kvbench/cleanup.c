/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to be undone: scratch directories, mounts, children. A stack, undone from its top by the
 * group that pushed, or, when a signal ends the program, by the thread that waits for signals. That
 * it is a thread and no handler is what lets it unmount, wait and remove trees.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define MAX_ENTRIES   32
#define STOP_NS	      (20 * NSEC_PER_SEC) /* a daemon may have much to write back */
#define POLL_INTERVAL ((struct timespec){.tv_nsec = 10 * 1000 * 1000})

enum entry_kind { ENTRY_DIR, ENTRY_MOUNT, ENTRY_PROCESS };

struct entry {
	enum entry_kind kind;
	pid_t pid;
	char path[PATH_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while undoing: one thread does it */
static struct entry stack[MAX_ENTRIES];
static unsigned int nr_entries;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path) && errno != ENOENT;
}

static void stop_process(pid_t pid)
{
	u64 deadline = clock_mono_ns() + STOP_NS;
	int status;

	kill(pid, SIGTERM);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (clock_mono_ns() > deadline)
			kill(pid, SIGKILL);
		nanosleep(&POLL_INTERVAL, NULL);
	}
}

static void stop_mount(const char *path)
{
	char *argv[] = {"fusermount3", "-uzq", (char *)path, NULL};
	pid_t pid;

	if (!umount2(path, MNT_DETACH) || errno == EINVAL)
		return; /* gone, or was not mounted any more */
	pid = spawn(argv, -1);
	if (pid > 0 && spawn_wait(pid))
		cli_error("%s: can not be unmounted", path);
}

static void undo(const struct entry *e)
{
	switch (e->kind) {
	case ENTRY_PROCESS:
		stop_process(e->pid);
		break;
	case ENTRY_MOUNT:
		stop_mount(e->path);
		break;
	case ENTRY_DIR:
		if (nftw(e->path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT))
			cli_error("%s: can not be removed: %s", e->path, strerror(errno));
		break;
	}
}

static void push(const struct entry *e)
{
	pthread_mutex_lock(&lock);
	KVC_BUG_ON(nr_entries == MAX_ENTRIES);
	stack[nr_entries++] = *e;
	pthread_mutex_unlock(&lock);
}

unsigned int cleanup_mark(void)
{
	return nr_entries;
}

void cleanup_to(unsigned int mark)
{
	pthread_mutex_lock(&lock);
	while (nr_entries > mark)
		undo(&stack[--nr_entries]);
	pthread_mutex_unlock(&lock);
}

static void *wait_for_signal(void *arg)
{
	const sigset_t *set = arg;
	int sig;

	while (sigwait(set, &sig))
		;
	cli_error("interrupted: what was made is removed");
	pthread_mutex_lock(&lock);
	while (nr_entries)
		undo(&stack[--nr_entries]);
	_exit(CLI_FAILED);
}

int cleanup_start(void)
{
	static sigset_t set;
	pthread_t thread;
	int err;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	err = pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (!err)
		err = pthread_create(&thread, NULL, wait_for_signal, &set);
	if (err)
		return -err;
	pthread_detach(thread);
	return 0;
}

int scratch_make(const struct bench *bench, char path[PATH_MAX])
{
	struct entry e = {.kind = ENTRY_DIR};

	if (snprintf(e.path, PATH_MAX, "%s/kvbench.XXXXXX", bench->dir) >= PATH_MAX)
		return -ENAMETOOLONG;
	if (!mkdtemp(e.path)) {
		cli_error("%s: %s", e.path, strerror(errno));
		return -errno;
	}
	push(&e);
	memcpy(path, e.path, PATH_MAX);
	return 0;
}

void cleanup_mount(const char *path)
{
	struct entry e = {.kind = ENTRY_MOUNT};

	snprintf(e.path, sizeof(e.path), "%s", path);
	push(&e);
}

void cleanup_process(pid_t pid)
{
	struct entry e = {.kind = ENTRY_PROCESS, .pid = pid};

	push(&e);
}

/* Runs in the parent's memory, which waits meanwhile. */
static __attribute__((noinline, noreturn)) void exec_child(char *const argv[], int out_fd)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (dup2(out_fd, STDOUT_FILENO) >= 0)
		execvp(argv[0], argv);
	_exit(errno == ENOENT ? 127 : 126);
}

pid_t spawn(char *const argv[], int out_fd)
{
	int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pid_t pid;

	if (null_fd < 0)
		return -errno;
	/* Not fork(): to copy our page tables takes longer than some of what is measured. */
	pid = vfork();
	if (!pid)
		exec_child(argv, out_fd < 0 ? null_fd : out_fd);
	close(null_fd);
	return pid < 0 ? -EAGAIN : pid;
}

int spawn_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -ECHILD;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -ECHILD;
}
