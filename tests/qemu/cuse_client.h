/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of the character device share. */
#ifndef KVC_TESTS_QEMU_CUSE_CLIENT_H
#define KVC_TESTS_QEMU_CUSE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/uapi/kvc_ioctl.h"

#define DEVICE "/dev/kvcache"
#define MOUNT  "/mnt"

/* The geometry that the guest's namespaces have. */
#define BLOCK_TOKENS 16u
#define BLOCK_BYTES  8192u

/** check() - when @good is false, say what should have been and let the check fail. */
#define check(good, ...)                                                                           \
	do {                                                                                       \
		if (!(good))                                                                       \
			complain(__FILE__, __LINE__, __VA_ARGS__);                                 \
	} while (0)
void complain(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** struct batch - an ioctl being put together: commands, then what they refer to. */
struct batch {
	struct kvc_batch head;
	uint8_t body[KVC_IOCTL_MAX - sizeof(struct kvc_batch)];
	uint32_t used;	      /* of the arena */
	struct kvc_cmd *cmds; /* in @body */
};

void batch_init(struct batch *b, uint32_t nr_cmds);
/** batch_put() - @bytes of @data into the arena; NULL: room. */
struct kvc_ref batch_put(struct batch *b, const void *data, uint32_t bytes);
void *batch_at(struct batch *b, struct kvc_ref ref);
/** batch_run() - Return: 0 or -errno of the ioctl itself. */
int batch_run(struct batch *b, int fd);

/** open_device() - fails the check and ends it when that does not work. */
int open_device(void);

/* One command in a batch of its own. Return: its result, or the ioctl's. */
int seq_open(int fd, const char *path, uint32_t flags, struct kvc_cmd *out);
int seq_simple(int fd, struct kvc_cmd *cmd);
int seq_query(int fd, uint32_t handle, struct kvc_op_query *out);
int seq_map(int fd, uint32_t handle, struct kvc_op_map *out);
int seq_match(int fd, uint32_t handle, uint32_t nr_ids, uint32_t flags, struct kvc_op_match *out);
int seq_close(int fd, uint32_t handle);

/** write_kv() - blocks [@from, @to) of @path's kv through the mount. Return: 0 or -errno. */
int write_kv(const char *path, unsigned int from, unsigned int to);
/** kv_is() - is block @nr of @path's kv filled with @byte? */
bool kv_is(const char *path, unsigned int nr, uint8_t byte);
uint8_t block_byte(unsigned int nr);
/** pins_shown() - sum of the pins in .kvc/sessions. */
long pins_shown(void);
/** wait_until() - look again and again, for up to 30 s. Return: whether it became true. */
bool wait_until(bool (*what)(void *arg), void *arg);
void guest(const char *command);

/* ---- the checks ---- */
/** struct named_check - what the guest calls by name. */
struct named_check {
	const char *name;
	void (*run)(void);
};
extern const struct named_check op_checks[], way_checks[];

#endif
