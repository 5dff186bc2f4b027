/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the daemon of a mount, and the life of a struct kvc.
 *
 * The mount's root is the nearest directory above the path that has `.kvc/version`; `socket=` in
 * `.kvc/config` names the session socket. Both are read again at a reconnect, since another daemon may
 * serve the mount by then.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "fs/client/client.h"

#define CONFIG_MAX 16384

/* The beginning of a small file as a string. */
static int read_text(const char *root, const char *name, char *text, size_t max)
{
	char path[PATH_MAX + 16];
	ssize_t n;
	size_t len = 0;
	int fd, err = 0;

	snprintf(path, sizeof(path), "%s/.kvc/%s", root, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (len < max - 1 && (n = read(fd, text + len, max - 1 - len)) != 0) {
		if (n > 0)
			len += (size_t)n;
		else if (errno != EINTR) {
			err = -errno;
			break;
		}
	}
	close(fd);
	text[len] = '\0';
	return err;
}

static bool is_root(const char *dir)
{
	static const char name[] = "kvcachefs ";
	char text[64];

	return !read_text(dir, "version", text, sizeof(text)) &&
	       !strncmp(text, name, sizeof(name) - 1);
}

/* Cut @path down to the root of its mount. */
static int find_root(char path[PATH_MAX])
{
	while (!is_root(path)) {
		char *slash = strrchr(path, '/');

		if (!slash || !path[1])
			return -ENOENT;
		slash[slash == path] = '\0';
	}
	return 0;
}

static int find_socket(const char *root, char path[PATH_MAX])
{
	static const char key[] = "socket=";
	char text[CONFIG_MAX], *line = text, *end;
	int err = read_text(root, "config", text, sizeof(text));

	if (err)
		return err;
	while (strncmp(line, key, sizeof(key) - 1)) {
		line = strchr(line, '\n');
		if (!line++)
			return -ENOENT;
	}
	line += sizeof(key) - 1;
	end = strchrnul(line, '\n');
	*end = '\0';
	return snprintf(path, PATH_MAX, "%s", line) < PATH_MAX && *line ? 0 : -ENOENT;
}

static int attach(const struct kvc *kvc, struct conn **out)
{
	char path[PATH_MAX];
	struct conn_want want = {path, kvc->arena_bytes, kvc->timeout_ms};
	int err = find_socket(kvc->root, path);

	return err ? err : conn_open(&want, out);
}

struct kvc *kvc_new(struct conn *conn)
{
	struct kvc *kvc = calloc(1, sizeof(*kvc));

	if (!kvc)
		return NULL;
	atomic_init(&kvc->ref, 1);
	kvc->arena_bytes = CLIENT_ARENA_BYTES;
	kvc->timeout_ms = CLIENT_TIMEOUT_MS;
	kvc->conn = conn;
	pthread_mutex_init(&kvc->lock, NULL);
	pthread_mutex_init(&kvc->busy_lock, NULL);
	pthread_cond_init(&kvc->idle, NULL);
	return kvc;
}

void kvc_put(struct kvc *kvc)
{
	if (atomic_fetch_sub(&kvc->ref, 1) != 1)
		return;
	if (kvc->conn)
		conn_put(kvc->conn);
	pthread_mutex_destroy(&kvc->lock);
	pthread_mutex_destroy(&kvc->busy_lock);
	pthread_cond_destroy(&kvc->idle);
	free(kvc);
}

struct conn *kvc_conn(struct kvc *kvc)
{
	struct conn *conn;

	pthread_mutex_lock(&kvc->lock);
	conn = conn_get(kvc->conn);
	pthread_mutex_unlock(&kvc->lock);
	return conn;
}

static int take_options(struct kvc *kvc, const struct kvc_options *options)
{
	if (!options)
		return 0;
	if (options->size < sizeof(*options) || options->arena_bytes > KVC_ARENA_MAX ||
	    options->timeout_ms > (u64)INT_MAX)
		return -EINVAL;
	if (options->arena_bytes)
		kvc->arena_bytes = max((u64)KVC_ARENA_MIN,
				       round_up_pow2(options->arena_bytes, KVC_PAGE_SIZE));
	if (options->timeout_ms)
		kvc->timeout_ms = options->timeout_ms;
	return 0;
}

int kvc_open(struct kvc **out, const char *mount, const struct kvc_options *options)
{
	struct kvc *kvc = kvc_new(NULL);
	int err;

	if (!kvc)
		return -ENOMEM;
	err = take_options(kvc, options);
	if (!err && !realpath(mount, kvc->root))
		err = -errno;
	if (!err)
		err = find_root(kvc->root);
	if (!err)
		err = attach(kvc, &kvc->conn);
	if (err) {
		kvc_put(kvc);
		return err;
	}
	*out = kvc;
	return 0;
}

void kvc_close(struct kvc *kvc)
{
	if (!kvc)
		return;
	pthread_mutex_lock(&kvc->lock);
	conn_end(kvc->conn);
	pthread_mutex_unlock(&kvc->lock);
	kvc_put(kvc);
}

int kvc_reconnect(struct kvc *kvc)
{
	struct conn *conn, *old;
	int err = 0;

	pthread_mutex_lock(&kvc->lock);
	old = kvc->conn;
	if (conn_alive(old)) {
		pthread_mutex_unlock(&kvc->lock);
		return 0;
	}
	err = attach(kvc, &conn);
	if (!err) {
		kvc->conn = conn;
		for (struct kvc_seq *seq = kvc->seqs; seq; seq = seq->next)
			seq_reopen(seq, conn);
	}
	pthread_mutex_unlock(&kvc->lock);
	if (err)
		return err;
	conn_settle(old);
	conn_put(old);
	return 0;
}
