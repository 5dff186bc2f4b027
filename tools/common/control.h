/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client side of the text protocol of `.kvc/control` (fs/uapi/kvc_control.h): build a request line,
 * send it with its payload, take the reply apart.
 */
#ifndef KVC_TOOLS_CONTROL_H
#define KVC_TOOLS_CONTROL_H

#include "allocator/base/compiler.h"
#include "allocator/base/textbuf.h"
#include "tools/common/mountroot.h"

#define CONTROL_MAX_PAIRS 32

struct control_pair {
	const char *key, *value; /* inside the reply's text */
};

struct control_reply {
	int err;	     /* 0 for "ok", else the negative errno that the daemon named */
	const char *message; /* the daemon's text when err, else "" */
	struct control_pair pair[CONTROL_MAX_PAIRS];
	size_t nr_pairs;
	char *text;	     /* owned; the pointers above point into it */
};

struct control_request {
	struct textbuf line; /* without the newline; see control_begin() */
	const void *payload; /* borrowed */
	size_t payload_bytes;
};

/** control_begin() - start a request line with @verb. Freed by control_end(). */
void control_begin(struct control_request *rq, const char *verb);
/** control_arg() - add a positional argument, escaped. */
void control_arg(struct control_request *rq, const char *arg);
/** control_key() - add key=value, the value escaped. NULL values are left out. */
void control_key(struct control_request *rq, const char *key, const char *value);
void control_key_u64(struct control_request *rq, const char *key, u64 value);
void control_end(struct control_request *rq);

/**
 * control_call() - send @rq to the mount and read the reply.
 *
 * Blocks for as long as the daemon works. @reply is valid (and to be freed) after 0 only.
 * Return: 0 when a reply came, also an error reply (see reply->err); -ENOENT when the mount has no
 * control file; -EPROTO for a reply that is none; another negative errno from the system calls.
 */
int __must_check control_call(const struct mountroot *mr, struct control_request *rq,
			      struct control_reply *reply);

/** control_parse_reply() - take @len bytes at @text apart; copies them. As control_call(). */
int __must_check control_parse_reply(const char *text, size_t len, struct control_reply *reply);
void control_reply_free(struct control_reply *reply);

#endif
