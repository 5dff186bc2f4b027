/* SPDX-License-Identifier: Apache-2.0 */
/* Throw-away mounts: kvcachefs, found beside this program, and the null server, which is this program. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define FUSE_MAGIC    0x65735546
#define START_NS      (60 * NSEC_PER_SEC)
#define POLL_INTERVAL ((struct timespec){.tv_nsec = 5 * 1000 * 1000})

/* "…/bin/NAME" beside the running program. */
static int beside_me(const char *name, char path[PATH_MAX])
{
	ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	if (len < 0)
		return -errno;
	path[len] = '\0';
	slash = strrchr(path, '/');
	if (!slash || slash + 1 - path + strlen(name) >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(slash + 1, name, strlen(name) + 1);
	return 0;
}

static bool answers(const char *mountpoint)
{
	struct statfs st;

	return !statfs(mountpoint, &st) && st.f_type == FUSE_MAGIC;
}

/* Start a server and wait until it serves @mountpoint. */
static int serve(char *const argv[], const char *mountpoint)
{
	u64 deadline = clock_mono_ns() + START_NS;
	pid_t pid = spawn(argv, -1);

	if (pid < 0)
		return pid;
	cleanup_mount(mountpoint);
	cleanup_process(pid);
	while (!answers(mountpoint)) {
		if (waitpid(pid, NULL, WNOHANG)) {
			cli_error("%s: ended before it served %s", argv[0], mountpoint);
			return -ECHILD;
		}
		if (clock_mono_ns() > deadline) {
			cli_error("%s: %s does not answer", argv[0], mountpoint);
			return -ETIMEDOUT;
		}
		nanosleep(&POLL_INTERVAL, NULL);
	}
	return 0;
}

int mount_kvcachefs(const char *source, const char *mountpoint, const char *options)
{
	char program[PATH_MAX];
	char *argv[] = {program, "-f", "-o", (char *)options, (char *)source, (char *)mountpoint,
			NULL};
	int err = beside_me("kvcachefs", program);

	if (!err && access(program, X_OK))
		err = -errno;
	if (err) {
		cli_error("%s: %s", program, strerror(-err));
		return err;
	}
	return serve(argv, mountpoint);
}

int mount_null(const char *mountpoint, u64 bytes)
{
	char size[24];
	char *argv[] = {"/proc/self/exe", "--null-server", (char *)mountpoint, size, NULL};

	snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
	return serve(argv, mountpoint);
}

static int make_namespace(const char *path, u32 token_bytes)
{
	char file[PATH_MAX + 40], text[96];
	int len = snprintf(text, sizeof(text), "layers=1 token_bytes=%u block_tokens=%u layout=opaque\n",
			   token_bytes, MOUNTS_BLOCK_TOKENS);

	if (mkdir(path, 0700)) {
		cli_error("%s: %s", path, strerror(errno));
		return -errno;
	}
	snprintf(file, sizeof(file), "%s/.geometry", path);
	return file_put(file, text, (size_t)len);
}

int mounts_make(struct mounts *m, const struct bench *bench, u64 dram_bytes, u64 nvme_bytes,
		u32 token_bytes)
{
	char store[PATH_MAX + 16], options[96];
	int err = scratch_make(bench, m->dir);

	if (err)
		return err;
	snprintf(m->mnt, sizeof(m->mnt), "%s/mnt", m->dir);
	snprintf(m->ns, sizeof(m->ns), "%s/ns", m->mnt);
	snprintf(m->other, sizeof(m->other), "%s/other", m->dir);
	snprintf(store, sizeof(store), "%s/store", m->dir);
	if (mkdir(m->mnt, 0700) || mkdir(m->other, 0700) || mkdir(store, 0700))
		return -errno;
	snprintf(options, sizeof(options), nvme_bytes ? "dram=%llu,nvme=%llu" : "dram=%llu",
		 (unsigned long long)dram_bytes, (unsigned long long)nvme_bytes);
	err = mount_kvcachefs(nvme_bytes ? store : "none", m->mnt, options);
	return err ? err : make_namespace(m->ns, token_bytes);
}
