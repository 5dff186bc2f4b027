/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE session, on libfuse 3.14 to 3.18.
 *
 * Settings that UAPI section 4 rests on: O_TRUNC comes with the open; the kernel drops cached pages
 * only when told (EXPLICIT_INVAL_DATA), never by itself on a changed size; no writeback cache; no
 * splice, since replies come from the pool's own memory.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "fs/notify.h"
#include "fs/ops.h"
#include "fs/session.h"

#define MAX_THREADS   64
#define IDLE_THREADS  16
#define MAX_TRANSFER  (1u << 20) /* bytes of one READ or WRITE */
#define READ_AHEAD_KB 4096

/* What the helper thread waits for: INIT was seen. */
static struct {
	struct lock lock; /* LOCK_LEAF */
	struct waitq wake;
	bool inited, ended, helping;
	pthread_t helper, main;
	void (*ready)(void *ctx);
	void *ctx;
	struct fs *fs;
} run;

static void want(struct fuse_conn_info *conn, unsigned int bits)
{
	conn->want |= conn->capable & bits;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_ASYNC_READ |
			   FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ASYNC_DIO | FUSE_CAP_EXPORT_SUPPORT);
	conn->want &= ~(unsigned int)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE |
				      FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
				      FUSE_CAP_SPLICE_MOVE | FUSE_CAP_POSIX_ACL |
				      FUSE_CAP_HANDLE_KILLPRIV);
	conn->max_write = MAX_TRANSFER;
	conn->max_readahead = MAX_TRANSFER;
	conn->max_background = MAX_THREADS;
	conn->congestion_threshold = MAX_THREADS * 3 / 4;
	conn->time_gran = 1;
	lock_acquire(&run.lock);
	run.inited = true;
	waitq_wake_all(&run.wake);
	lock_release(&run.lock);
}

static const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.copy_file_range = op_copy_file_range,
	.fallocate = op_fallocate,
	.ioctl = op_ioctl,
};

/* fsname may hold commas: libfuse wants them behind a backslash. */
static void add_escaped(struct textbuf *tb, const char *text)
{
	for (; *text; text++)
		textbuf_printf(tb, "%s%c", *text == ',' || *text == '\\' ? "\\" : "", *text);
}

static void mount_options(struct textbuf *tb, const struct fs_opts *opts)
{
	textbuf_printf(tb, "default_permissions,subtype=kvcachefs");
	if (opts->fuse)
		textbuf_printf(tb, ",%s", opts->fuse);
	if (!opts->fuse || !strstr(opts->fuse, "fsname=")) {
		textbuf_printf(tb, ",fsname=");
		add_escaped(tb, opts->source ? opts->source : "none");
	}
}

static void nothing(int sig)
{
}

int session_mount(struct fs *fs, struct textbuf *why)
{
	struct textbuf mount = TEXTBUF_INIT;
	char *argv[] = {"kvcachefs", "-o", NULL, "-d", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(fs->opts->debug ? 4 : 3, argv);
	struct sigaction wake = {.sa_handler = nothing};
	int err = -EINVAL;

	mount_options(&mount, fs->opts);
	if (mount.err)
		return -ENOMEM;
	argv[2] = mount.text;
	fs->session = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
	textbuf_free(&mount);
	fuse_opt_free_args(&args);
	if (!fs->session) {
		textbuf_printf(why, "FUSE refused the mount options");
		return err;
	}
	lock_init(&run.lock, LOCK_LEAF);
	waitq_init(&run.wake);
	run.main = pthread_self(); /* before there is anybody who might call session_stop() */
	sigaction(SIGUSR1, &wake, NULL);
	if (fuse_session_mount(fs->session, fs->opts->mountpoint)) {
		textbuf_printf(why, "%s: cannot mount", fs->opts->mountpoint);
		fuse_session_destroy(fs->session);
		fs->session = NULL;
		return -EIO;
	}
	return 0;
}

/* mountinfo writes blanks, tabs, newlines and backslashes of paths as \ooo. */
static bool same_path(const char *escaped, const char *path)
{
	unsigned int c;
	int used;

	while (*escaped && *path) {
		if (*escaped == '\\' && sscanf(escaped, "\\%3o%n", &c, &used) == 1)
			escaped += used;
		else
			c = (unsigned char)*escaped++;
		if (c != (unsigned char)*path++)
			return false;
	}
	return !*escaped && !*path;
}

/* The kernel's read-ahead can be raised only from outside and only after INIT. */
static void raise_read_ahead(const char *mountpoint)
{
	char line[8192], dev[32] = "", path[4096], file[128];
	FILE *f = fopen("/proc/self/mountinfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		char where[32];

		if (sscanf(line, "%*s %*s %31s %*s %4095s", where, path) == 2 &&
		    same_path(path, mountpoint))
			snprintf(dev, sizeof(dev), "%s", where);
	}
	if (f)
		fclose(f);
	if (!*dev)
		return;
	snprintf(file, sizeof(file), "/sys/class/bdi/%s/read_ahead_kb", dev);
	f = fopen(file, "we");
	if (f)
		fprintf(f, "%d\n", READ_AHEAD_KB);
	if (!f || fclose(f))
		log_info("read-ahead stays at the kernel's default: cannot write %s", file);
}

/*
 * Nobody in this process asks anything of our own mount. If we were killed before the answer, who asked
 * would wait for it for good, and with him the process, its connection, and all who use the mount. A
 * child has none of our descriptors: for it the connection ends with us.
 */
int session_from_outside(int (*ask)(const char *mountpoint), const char *mountpoint)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		return -errno;
	if (!child) {
		close_range(3, ~0u, 0);
		_exit(ask(mountpoint) ? 1 : 0);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO;
}

static int answers(const char *mountpoint)
{
	struct statfs sf;

	return statfs(mountpoint, &sf);
}

static void *helper_main(void *arg)
{
	bool ended;

	lock_acquire(&run.lock);
	while (!run.inited && !run.ended)
		waitq_wait(&run.wake, &run.lock);
	ended = run.ended;
	lock_release(&run.lock);
	/*
	 * The kernel sets its read-ahead when it gets our answer to INIT; a request that was served
	 * is behind that. When the loop ends before it serves this one, the unmount does.
	 */
	if (ended || session_from_outside(answers, run.fs->opts->mountpoint))
		return NULL;
	raise_read_ahead(run.fs->opts->mountpoint);
	run.ready(run.ctx);
	return NULL;
}

/* The helper may be waiting for an answer that nobody gives any more: it is joined after the
 * unmount. */
static void end_helper(void)
{
	lock_acquire(&run.lock);
	run.ended = true;
	waitq_wake_all(&run.wake);
	lock_release(&run.lock);
}

int session_run(struct fs *fs, void (*ready)(void *ctx), void *ctx)
{
	struct fuse_loop_config *config;
	int err;

	run.ready = ready;
	run.ctx = ctx;
	run.fs = fs;
	err = notify_start(fs->session);
	if (!err)
		err = -pthread_create(&run.helper, NULL, helper_main, NULL);
	if (err)
		return err;
	run.helping = true;
	config = fuse_loop_cfg_create();
	if (config) {
		fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
		fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
		fuse_loop_cfg_set_clone_fd(config, 0);
	}
	err = fuse_session_loop_mt(fs->session, config);
	if (config)
		fuse_loop_cfg_destroy(config);
	end_helper();
	return err < 0 ? err : 0; /* > 0: ended by a signal or session_stop() */
}

void session_stop(struct fs *fs)
{
	struct timespec pause = {.tv_nsec = 20000000};
	bool ended = false;

	fuse_session_exit(fs->session);
	/* the loop sleeps in a semaphore, which only a signal to its own thread interrupts */
	while (!ended) {
		pthread_kill(run.main, SIGUSR1);
		nanosleep(&pause, NULL);
		lock_acquire(&run.lock);
		ended = run.ended;
		lock_release(&run.lock);
	}
}

void session_end(struct fs *fs)
{
	if (!fs->session)
		return;
	notify_stop();
	fuse_session_unmount(fs->session);
	if (run.helping)
		pthread_join(run.helper, NULL);
	fuse_session_destroy(fs->session);
	fs->session = NULL;
}
