/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the device: what must be there before, the kernel's side of it, the end. */
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "allocator/base/log.h"
#include "fs/cuse/cuse.h"
#include "fs/cuse/front.h"

#define DEVICE	    "/dev/kvcache"
#define CLASS	    "/sys/class/cuse/kvcache"
#define MAX_THREADS 64 /* requests that may wait at the same time */
#define POKE_MS	    20

static struct device {
	struct front front;
	const struct cuse_args *args;
	struct fuse_session *session;
	pthread_t main, signals;
	bool asked, ended; /* to end; protected by front.lock */
} device;

/* ---- what must be there ---- */

static int check_kernel(struct textbuf *why)
{
	int fd = open("/dev/cuse", O_RDWR | O_CLOEXEC), err = fd < 0 ? -errno : 0;

	if (fd >= 0)
		close(fd);
	else if (err == -ENOENT || err == -ENODEV || err == -ENXIO)
		textbuf_printf(why, "no /dev/cuse: this kernel has no CUSE, or its module is not "
				    "loaded (modprobe cuse)");
	else
		textbuf_printf(why, "/dev/cuse: %s", strerror(-err));
	return err;
}

static int check_mount(const char *path, struct textbuf *why)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;
	struct mounted m;

	if (fd < 0) {
		err = -errno;
		textbuf_printf(why, "%s: %s%s", path, strerror(-err),
			       err == -EACCES ? " (mounted by a user without allow_other?)" : "");
		return err;
	}
	err = mount_describe(fd, &m);
	close(fd);
	if (err)
		textbuf_printf(why, "%s is not a mount of kvcachefs", path);
	return err;
}

static int check_all(const struct cuse_args *args, struct textbuf *why)
{
	int err;

	if (geteuid()) {
		textbuf_printf(why, "--cuse: only root can make a device and act as its callers");
		return -EPERM;
	}
	err = check_mount(args->mountpoint, why);
	if (!err)
		err = check_kernel(why);
	if (!err && !access(CLASS, F_OK)) {
		textbuf_printf(why, DEVICE " is taken: another kvcachefs --cuse serves it");
		err = -EBUSY;
	}
	return err;
}

/* ---- the session ---- */

/* Called behind the answer to the kernel's INIT, which made the device or refused it. */
static void init_done(void *userdata)
{
	if (access(CLASS, F_OK))
		return;
	if (access(DEVICE, F_OK))
		log_warn("no " DEVICE " appeared: mknod it, " CLASS "/dev has its numbers");
	device.args->ready(device.args->ctx);
}

static const struct cuse_lowlevel_ops device_ops = {
	.init_done = init_done,
	.open = client_open,
	.read = client_read,
	.release = client_release,
	.ioctl = client_ioctl,
	.poll = client_poll,
};

/* One descriptor for each open of the device. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		log_info("the limit of open files stays: %s", strerror(errno));
}

static struct fuse_session *make_session(const struct cuse_args *args)
{
	static const char *info[] = {"DEVNAME=kvcache"};
	static const struct cuse_info cuse = {.dev_info_argc = 1, .dev_info_argv = info};
	char *argv[] = {"kvcachefs", "-f", "-d", NULL};
	int threads;

	return cuse_lowlevel_setup(args->debug ? 3 : 2, argv, &cuse, &device_ops, &threads,
				   &device.front);
}

static int run_loop(void)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int err;

	if (config) {
		fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
		fuse_loop_cfg_set_clone_fd(config, 0);
	}
	err = fuse_session_loop_mt(device.session, config);
	if (config)
		fuse_loop_cfg_destroy(config);
	return err < 0 ? err : 0;
}

/* ---- the end ---- */

static void nothing(int sig)
{
}

/* The loop sleeps in a semaphore, which only a signal to its own thread interrupts. */
static void end_loop(void)
{
	struct front *front = &device.front;
	bool ended = false;

	lock_acquire(&front->lock);
	device.asked = true;
	lock_release(&front->lock);
	fuse_session_exit(device.session);
	while (!ended) {
		pthread_kill(device.main, SIGUSR1);
		lock_acquire(&front->lock);
		if (!device.ended)
			waitq_wait_ms(&front->wake, &front->lock, POKE_MS);
		ended = device.ended;
		lock_release(&front->lock);
	}
}

static void *signal_main(void *arg)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR2);
	while (sigwait(&set, &sig))
		;
	if (sig != SIGUSR2)
		end_loop();
	return NULL;
}

static bool loop_ended(void)
{
	bool asked;

	lock_acquire(&device.front.lock);
	device.ended = true;
	asked = device.asked;
	waitq_wake_all(&device.front.wake);
	lock_release(&device.front.lock);
	pthread_kill(device.signals, SIGUSR2);
	pthread_join(device.signals, NULL);
	return asked;
}

static int serve(struct textbuf *why)
{
	struct sigaction wake = {.sa_handler = nothing};
	int err = watch_start(&device.front);

	if (err)
		return err;
	device.main = pthread_self();
	sigaction(SIGUSR1, &wake, NULL);
	err = -pthread_create(&device.signals, NULL, signal_main, NULL);
	if (!err) {
		err = run_loop();
		if (!loop_ended() && !err) {
			textbuf_printf(why, "the kernel ended " DEVICE " (is its name taken?)");
			err = -ENODEV;
		}
	}
	watch_stop(&device.front);
	clients_end(&device.front);
	return err;
}

int cuse_serve(const struct cuse_args *args, struct textbuf *why)
{
	int err = check_all(args, why);

	if (err)
		return err;
	if (setgroups(0, NULL)) /* what threads come back to after each caller */
		return -errno;
	raise_limits();
	device.args = args;
	device.front.mountpoint = args->mountpoint;
	list_init(&device.front.clients);
	lock_init(&device.front.lock, LOCK_LEAF);
	waitq_init(&device.front.wake);
	device.session = make_session(args);
	if (device.session) {
		err = serve(why);
		cuse_lowlevel_teardown(device.session);
	} else {
		textbuf_printf(why, "the kernel refused " DEVICE);
		err = -EIO;
	}
	waitq_destroy(&device.front.wake);
	lock_destroy(&device.front.lock);
	return err;
}
