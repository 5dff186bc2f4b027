/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachefs: the daemon's life. Without -f the work is done by a child; the parent waits until the
 * mount (or the device) answers, or until the child has said on stderr why it can not.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "fs/cuse/cuse.h"
#include "fs/mountpoint.h"
#include "fs/ops.h"
#include "fs/rpc/server.h"
#include "fs/session.h"
#include "fs/store.h"
#include "fs/tick.h"

/** struct daemon - everything that lives as long as the mount. */
struct daemon {
	struct fs_opts opts;
	struct fs fs;
	struct store *store;
	struct ticker *ticker;
	struct rpc_server *server;	/* session socket, NULL: none */
	pthread_t signals;
	int ready_fd;  /* pipe to the waiting parent, -1: none */
	atomic_bool stopping;	/* the end has come by itself: the signal thread may go */
};

static int fail(const char *why)
{
	fprintf(stderr, "kvcachefs: %s\n", why);
	return 1;
}

static int fail_why(struct textbuf *why, int err)
{
	fail(why->text && why->len ? why->text : strerror(-err));
	textbuf_free(why);
	return err == -EINVAL || err == -EOPNOTSUPP ? 2 : 1;
}

/* The parent of a daemon: wait for the child's word. Return: exit status. */
static int wait_ready(int fd, pid_t child)
{
	char word;
	ssize_t got;
	int status;

	do
		got = read(fd, &word, 1);
	while (got < 0 && errno == EINTR);
	if (got == 1)
		return 0;
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status))
		return WEXITSTATUS(status);
	return fail("the daemon ended before it was ready");
}

/* Return: -1 to go on (child, or in the foreground), else the parent's exit status. */
static int go_background(struct daemon *d)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC))
		return fail(strerror(errno));
	child = fork();
	if (child < 0)
		return fail(strerror(errno));
	if (child) {
		close(fds[1]);
		return wait_ready(fds[0], child);
	}
	close(fds[0]);
	d->ready_fd = fds[1];
	setsid();
	return -1;
}

static void leave_terminal(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	log_to_syslog();
	if (fd < 0)
		return;
	dup2(fd, 0);
	dup2(fd, 1);
	dup2(fd, 2);
	close(fd);
}

static void on_ready(void *ctx)
{
	struct daemon *d = ctx;

	if (d->ready_fd < 0)
		return;
	leave_terminal();
	if (write(d->ready_fd, "r", 1) != 1)
		log_warn("the command that mounted did not wait");
	close(d->ready_fd);
}

static int sync_mount(const char *mountpoint)
{
	int fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? fd : syncfs(fd);
}

/*
 * SIGTERM and SIGINT: dirty pages of mappings are still in the kernel and come as requests, so they
 * are synced while the session still serves; then the mount goes.
 */
static void leave(struct daemon *d)
{
	if (session_from_outside(sync_mount, d->opts.mountpoint))
		log_warn("leaving: the mount could not be synced");
	session_stop(&d->fs);
}

static void *signal_main(void *arg)
{
	struct daemon *d = arg;
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR2);
	while (sigwait(&set, &sig) || (sig == SIGUSR2 && !d->stopping))
		;
	if (sig != SIGUSR2)
		leave(d);
	return NULL;
}

/* Threads inherit the mask: only the signal thread takes these. */
static void block_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* What is dirty must be durable before the store closes. */
static int flush_all(struct daemon *d)
{
	int err = persist_tick(&d->fs);

	if (!err)
		err = pool_save_cached(d->store->pool);
	if (!err)
		err = pool_tick(d->store->pool);
	if (!err)
		err = pool_flush(d->store->pool);
	if (err)
		log_error("leaving: not everything could be written: %s", strerror(-err));
	return err;
}

/* A mount without its socket serves files all the same, unless somebody said where it is to be. */
static int start_server(struct daemon *d)
{
	struct textbuf why = TEXTBUF_INIT;
	bool wanted = d->opts.socket;
	int err = rpc_server_start(&d->server, &d->fs, &why);

	if (err)
		log_warn("%s: no sessions", why.text ? why.text : strerror(-err));
	if (d->server && !wanted)
		d->opts.socket = strdup(rpc_server_path(d->server));
	textbuf_free(&why);
	return wanted ? err : 0;
}

static int serve(struct daemon *d)
{
	int err = start_server(d), end;

	if (!err)
		err = ticker_start(&d->ticker, &d->fs);
	if (err) {
		rpc_server_stop(d->server);
		session_end(&d->fs);
		return err;
	}
	err = -pthread_create(&d->signals, NULL, signal_main, d);
	if (!err) {
		d->store->served = true;
		err = session_run(&d->fs, on_ready, d);
		d->stopping = true;
		pthread_kill(d->signals, SIGUSR2);
		pthread_join(d->signals, NULL);
	}
	rpc_server_stop(d->server);
	session_end(&d->fs);
	files_end(&d->fs);
	ticker_stop(d->ticker);
	end = flush_all(d);
	return err ? err : end;
}

static int run(struct daemon *d)
{
	struct textbuf why = TEXTBUF_INIT;
	int err, end;

	block_signals();
	err = store_open(&d->store, &d->opts, &why);
	if (err)
		return fail_why(&why, err);
	err = fs_init(&d->fs, &d->opts, d->store->pool);
	if (!err)
		err = store_load(d->store, &d->fs, &why);
	if (!err)
		err = session_mount(&d->fs, &why);
	if (err) {
		fail_why(&why, err);
	} else {
		err = serve(d);
		if (err)
			log_error("the mount ended: %s", strerror(-err));
	}
	pool_end(d->store->pool); /* names go now, what is in DRAM may stay */
	fs_destroy(&d->fs);
	end = store_close(d->store);
	if (end)
		log_error("closing the store: %s", strerror(-end));
	textbuf_free(&why);
	return err || end ? 1 : 0;
}

/* The device's process, which outlives daemons of the mount. */
static int run_device(struct daemon *d)
{
	const struct cuse_args args = {
		.mountpoint = d->opts.mountpoint,
		.debug = d->opts.debug,
		.ready = on_ready,
		.ctx = d,
	};
	struct textbuf why = TEXTBUF_INIT;
	int err;

	block_signals();
	err = cuse_serve(&args, &why);
	if (err)
		log_error("%s", why.text ? why.text : strerror(-err));
	textbuf_free(&why);
	return err ? 1 : 0;
}

static int show_text(void (*to_text)(struct textbuf *tb))
{
	struct textbuf tb = TEXTBUF_INIT;

	to_text(&tb);
	fputs(tb.text ? tb.text : "", stdout);
	textbuf_free(&tb);
	return 0;
}

static void version_text(struct textbuf *tb)
{
	textbuf_printf(tb, "kvcachefs %s uapi %d\n", KVC_VERSION, KVC_UAPI);
}

int main(int argc, char **argv)
{
	static struct daemon d;
	struct textbuf why = TEXTBUF_INIT;
	int err = opts_parse(&d.opts, argc, argv, &why), status = -1;

	d.ready_fd = -1;
	if (err)
		return fail_why(&why, err);
	if (d.opts.help || d.opts.version)
		return show_text(d.opts.help ? opts_usage : version_text);
	err = mountpoint_check(&d.opts, &why);
	if (err)
		return fail_why(&why, err);
	if (!d.opts.foreground)
		status = go_background(&d);
	if (status < 0)
		status = d.opts.cuse ? run_device(&d) : run(&d);
	opts_free(&d.opts);
	return status;
}
