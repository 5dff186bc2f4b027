/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing text buffer. Every object's *_to_text() writes into one; logs, the control files and the
 * debugger use the same text. An allocation failure is latched in @err and told once, at the end.
 */
#ifndef KVC_BASE_TEXTBUF_H
#define KVC_BASE_TEXTBUF_H

#include "allocator/base/compiler.h"

struct textbuf {
	char *text;	/* NUL-terminated when not NULL */
	size_t len;	/* bytes without the NUL */
	size_t size;	/* bytes allocated */
	int err;	/* 0 or -ENOMEM */
};

#define TEXTBUF_INIT ((struct textbuf){0})

void textbuf_printf(struct textbuf *tb, const char *fmt, ...) __printf(2, 3);
void textbuf_add(struct textbuf *tb, const void *data, size_t len);
/** textbuf_escape() - add @name with blanks, control bytes and backslash as \ooo. */
void textbuf_escape(struct textbuf *tb, const char *name);
void textbuf_free(struct textbuf *tb);

#endif
