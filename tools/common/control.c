/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "fs/uapi/kvc_control.h"
#include "tools/common/control.h"

#define CONTROL_MAX_ERRNO 200

void control_begin(struct control_request *rq, const char *verb)
{
	*rq = (struct control_request){.line = TEXTBUF_INIT};
	textbuf_printf(&rq->line, "%s", verb);
}

/* As textbuf_escape(), and '=' too, so that an argument never looks like a key. */
static void add_escaped(struct textbuf *line, const char *text)
{
	for (; *text; text++) {
		char one[2] = {*text, '\0'};

		if (*text == '=')
			textbuf_printf(line, "\\075");
		else
			textbuf_escape(line, one);
	}
}

void control_arg(struct control_request *rq, const char *arg)
{
	textbuf_add(&rq->line, " ", 1);
	add_escaped(&rq->line, arg);
}

void control_key(struct control_request *rq, const char *key, const char *value)
{
	if (!value)
		return;
	textbuf_printf(&rq->line, " %s=", key);
	add_escaped(&rq->line, value);
}

void control_key_u64(struct control_request *rq, const char *key, u64 value)
{
	textbuf_printf(&rq->line, " %s=%llu", key, (unsigned long long)value);
}

void control_end(struct control_request *rq)
{
	textbuf_free(&rq->line);
}

static int write_all(int fd, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = write(fd, at, min(bytes, (size_t)KVC_CONTROL_WRITE_MAX));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int read_reply(int fd, char *text, size_t size, size_t *len)
{
	*len = 0;
	while (*len < size) {
		ssize_t n = read(fd, text + *len, size - *len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return 0;
		*len += (size_t)n;
	}
	return -EPROTO;
}

static int send_request(int fd, struct control_request *rq)
{
	int err;

	textbuf_add(&rq->line, "\n", 1);
	if (rq->line.err)
		return rq->line.err;
	if (rq->line.len > KVC_CONTROL_LINE_MAX)
		return -ENAMETOOLONG;
	err = write_all(fd, rq->line.text, rq->line.len);
	return err ? err : write_all(fd, rq->payload, rq->payload_bytes);
}

int control_call(const struct mountroot *mr, struct control_request *rq,
		 struct control_reply *reply)
{
	char path[PATH_MAX + 16], text[KVC_CONTROL_REPLY_MAX + 1];
	size_t len;
	int err, fd;

	snprintf(path, sizeof(path), "%s/%s", mr->root, KVC_CONTROL_PATH);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = send_request(fd, rq);
	if (!err)
		err = read_reply(fd, text, sizeof(text), &len);
	close(fd);
	return err ? err : control_parse_reply(text, len, reply);
}

static int errno_of_name(const char *name)
{
	for (int e = 1; e < CONTROL_MAX_ERRNO; e++) {
		const char *known = strerrorname_np(e);

		if (known && !strcmp(known, name))
			return -e;
	}
	return -EIO;
}

static int parse_pairs(char *at, struct control_reply *reply)
{
	char *save = NULL;

	for (at = strtok_r(at, " \n", &save); at; at = strtok_r(NULL, " \n", &save)) {
		char *equals = strchr(at, '=');

		if (!equals || equals == at)
			return -EPROTO;
		if (reply->nr_pairs == CONTROL_MAX_PAIRS)
			return 0;
		*equals = '\0';
		reply->pair[reply->nr_pairs++] = (struct control_pair){at, equals + 1};
	}
	return 0;
}

static int parse_error(char *at, struct control_reply *reply)
{
	char *text;

	at[strcspn(at, "\n")] = '\0';
	text = strchr(at, ' ');
	if (text)
		*text++ = '\0';
	if (*at != 'E')
		return -EPROTO;
	reply->err = errno_of_name(at);
	reply->message = text ? text : at;
	return 0;
}

/* The first word decides; what follows it starts behind one blank or newline. */
static char *after_word(char *text, const char *word)
{
	size_t len = strlen(word);

	if (strncmp(text, word, len) || (text[len] != ' ' && text[len] != '\n'))
		return NULL;
	return text + len + 1;
}

int control_parse_reply(const char *text, size_t len, struct control_reply *reply)
{
	char *rest;
	int err = -EPROTO;

	*reply = (struct control_reply){.message = ""};
	if (!len || text[len - 1] != '\n' || memchr(text, '\0', len))
		return -EPROTO;
	reply->text = strndup(text, len);
	if (!reply->text)
		return -ENOMEM;
	rest = after_word(reply->text, KVC_CONTROL_OK);
	if (rest) {
		err = parse_pairs(rest, reply);
	} else {
		rest = after_word(reply->text, KVC_CONTROL_ERROR);
		if (rest)
			err = parse_error(rest, reply);
	}
	if (err)
		control_reply_free(reply);
	return err;
}

void control_reply_free(struct control_reply *reply)
{
	free(reply->text);
	*reply = (struct control_reply){.message = ""};
}
