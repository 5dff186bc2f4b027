/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvc/control: one conversation per open file (fs/uapi/kvc_control.h). Writes gather a request,
 * the first read after it is complete runs it, reads go on through the reply.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/control.h"
#include "fs/fuse.h"
#include "fs/opts.h"
#include "fs/ops.h"
#include "fs/uapi/kvc_control.h"

struct conversation {
	struct lock lock; /* LOCK_LEAF: all that follows but while a request runs */
	bool running;
	char line[KVC_CONTROL_LINE_MAX + 1];
	size_t line_len;
	bool line_done; /* its newline has come */
	u8 *ids;	/* match: bytes of token ids */
	size_t ids_len, ids_want;
	char reply[KVC_CONTROL_REPLY_MAX];
	size_t reply_len, reply_off;
};

struct conversation *conversation_new(void)
{
	struct conversation *c = calloc(1, sizeof(*c));

	if (c)
		lock_init(&c->lock, LOCK_LEAF);
	return c;
}

void conversation_free(struct conversation *c)
{
	if (!c)
		return;
	lock_destroy(&c->lock);
	free(c->ids);
	free(c);
}

static void afresh(struct conversation *c)
{
	free(c->ids);
	c->ids = NULL;
	c->ids_len = c->ids_want = c->line_len = 0;
	c->line_done = false;
}

/* tokens=N of a match line says how many ids follow it. 0 for anything else or malformed. */
static size_t ids_wanted(const char *line)
{
	const char *at = strstr(line, " tokens=");
	char digits[16] = "";
	u64 nr;

	if (strncmp(line, KVC_CONTROL_MATCH " ", strlen(KVC_CONTROL_MATCH) + 1) || !at)
		return 0;
	at += strlen(" tokens=");
	for (size_t i = 0; i < sizeof(digits) - 1 && isdigit((unsigned char)at[i]); i++)
		digits[i] = at[i];
	return opts_number(digits, 0, KVC_CONTROL_TOKENS_MAX, &nr) ? 0 : (size_t)nr * 4;
}

/* Take the part of @buf up to and with the newline. Return: bytes taken or -errno. */
static ssize_t take_line(struct conversation *c, const char *buf, size_t len)
{
	const char *end = memchr(buf, '\n', len);
	size_t part = end ? (size_t)(end - buf) + 1 : len;

	if (c->line_len + part > KVC_CONTROL_LINE_MAX)
		return -EMSGSIZE;
	memcpy(c->line + c->line_len, buf, part);
	c->line_len += part;
	c->line[c->line_len] = '\0';
	if (!end)
		return (ssize_t)part;
	c->line[c->line_len - 1] = '\0';
	c->line_done = true;
	c->ids_want = ids_wanted(c->line);
	return (ssize_t)part;
}

static int take_ids(struct conversation *c, const char *buf, size_t len)
{
	u8 *ids;

	if (!len)
		return 0;
	if (len > c->ids_want - c->ids_len)
		return -EFBIG;
	ids = realloc(c->ids, c->ids_len + len);
	if (!ids)
		return -ENOMEM;
	memcpy(ids + c->ids_len, buf, len);
	c->ids = ids;
	c->ids_len += len;
	return 0;
}

int conversation_write(struct conversation *c, const char *buf, size_t len)
{
	ssize_t used = 0;
	int err = 0;

	lock_acquire(&c->lock);
	if (c->running || c->reply_off < c->reply_len)
		err = -EBUSY;
	else if (len > KVC_CONTROL_WRITE_MAX)
		err = -EMSGSIZE;
	if (!err && !c->line_done) {
		used = take_line(c, buf, len);
		err = used < 0 ? (int)used : 0;
	}
	if (!err)
		err = take_ids(c, buf + used, len - (size_t)used);
	if (err == -EMSGSIZE || err == -EFBIG)
		afresh(c);
	lock_release(&c->lock);
	return err;
}

/* Undo \ooo in place. */
static int unescape(char *text)
{
	char *to = text;

	for (; *text; text++, to++) {
		if (*text != '\\') {
			*to = *text;
			continue;
		}
		for (int i = 1; i <= 3; i++)
			if (text[i] < '0' || text[i] > '7')
				return -EINVAL;
		*to = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
		if (!*to)
			return -EINVAL;
		text += 3;
	}
	*to = '\0';
	return 0;
}

static int add_word(struct request *r, char *word)
{
	char *value = strchr(word, '=');

	if (value) {
		*value++ = '\0';
		if (r->nr_opts == ARRAY_SIZE(r->opts))
			return -EINVAL;
		r->opts[r->nr_opts].key = word;
		r->opts[r->nr_opts++].value = value;
		return unescape(value);
	}
	if (!*word || r->nr_args == ARRAY_SIZE(r->args))
		return -EINVAL;
	r->args[r->nr_args++] = word;
	return unescape(word);
}

static int split(struct request *r, char *line)
{
	char *word;
	int err = 0;

	while (!err && (word = strsep(&line, " ")))
		err = add_word(r, word);
	if (!err && !r->nr_args)
		err = -EINVAL;
	if (err)
		textbuf_printf(r->reply, "malformed request");
	return err;
}

static int run_line(struct conversation *c, fuse_req_t req, const struct cred *cred,
		    struct textbuf *reply)
{
	struct request r = {.fs = fs_of(req),
			    .req = req,
			    .cred = cred,
			    .reply = reply,
			    .ids = (const u32 *)(void *)c->ids,
			    .nr_ids = (u32)(c->ids_len / 4)};
	int err;

	if (!c->line_done || c->ids_len < c->ids_want) {
		textbuf_printf(reply, "the request is not complete");
		return -EINVAL;
	}
	err = split(&r, c->line);
	return err ? err : request_run(&r);
}

static void run(struct conversation *c, fuse_req_t req)
{
	struct textbuf reply = TEXTBUF_INIT;
	struct cred cred;
	const char *name;
	int err, n;

	cred_of(&cred, req);
	err = run_line(c, req, &cred, &reply);
	name = strerrorname_np(-err);
	if (!err)
		n = snprintf(c->reply, sizeof(c->reply), KVC_CONTROL_OK "%s%s\n",
			     reply.len ? " " : "", reply.len ? reply.text : "");
	else
		n = snprintf(c->reply, sizeof(c->reply), KVC_CONTROL_ERROR " %s %s\n",
			     name ? name : "EIO", reply.len ? reply.text : strerror(-err));
	c->reply_len = (size_t)min(n, (int)sizeof(c->reply) - 1);
	c->reply[c->reply_len - 1] = '\n';
	c->reply_off = 0;
	textbuf_free(&reply);
}

void conversation_read(struct conversation *c, fuse_req_t req, size_t size)
{
	bool fresh;
	char part[KVC_CONTROL_REPLY_MAX];
	size_t len = 0;

	lock_acquire(&c->lock);
	if (c->running) {
		lock_release(&c->lock);
		fuse_reply_err(req, EBUSY);
		return;
	}
	/* after the end of a reply, one read says so; the next request has not come yet */
	fresh = c->reply_off == c->reply_len && (c->line_len || !c->reply_len);
	c->running = fresh;
	lock_release(&c->lock);
	if (fresh)
		run(c, req);
	lock_acquire(&c->lock);
	c->running = false;
	if (fresh)
		afresh(c);
	len = min(size, c->reply_len - c->reply_off);
	memcpy(part, c->reply + c->reply_off, len);
	c->reply_off += len;
	lock_release(&c->lock);
	fuse_reply_buf(req, part, len);
}
