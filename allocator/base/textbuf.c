/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/textbuf.h"

static bool textbuf_reserve(struct textbuf *tb, size_t more)
{
	size_t size = tb->size ? tb->size : 256;
	char *text;

	if (tb->err)
		return false;
	if (tb->len + more + 1 <= tb->size)
		return true;
	while (size < tb->len + more + 1)
		size *= 2;
	text = realloc(tb->text, size);
	if (!text) {
		tb->err = -ENOMEM;
		return false;
	}
	tb->text = text;
	tb->size = size;
	return true;
}

void textbuf_add(struct textbuf *tb, const void *data, size_t len)
{
	if (!textbuf_reserve(tb, len))
		return;
	memcpy(tb->text + tb->len, data, len);
	tb->len += len;
	tb->text[tb->len] = '\0';
}

void textbuf_printf(struct textbuf *tb, const char *fmt, ...)
{
	va_list args;
	int len;

	va_start(args, fmt);
	len = vsnprintf(NULL, 0, fmt, args);
	va_end(args);
	if (len < 0 || !textbuf_reserve(tb, len))
		return;
	va_start(args, fmt);
	vsnprintf(tb->text + tb->len, len + 1, fmt, args);
	va_end(args);
	tb->len += len;
}

void textbuf_escape(struct textbuf *tb, const char *name)
{
	for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
		if (*c <= ' ' || *c == '\\' || *c == 127)
			textbuf_printf(tb, "\\%03o", *c);
		else
			textbuf_add(tb, c, 1);
	}
}

void textbuf_free(struct textbuf *tb)
{
	free(tb->text);
	*tb = TEXTBUF_INIT;
}
