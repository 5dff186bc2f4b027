/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama2.c's tokenizer file: the length of its longest piece, then for each id a score (f32), a length
 * (i32) and the text. Ids 0 to 2 are unknown, BOS and EOS, the next 256 single bytes.
 */
#include <errno.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/common/mountroot.h"
#include "tools/kvdecode/kvdecode.h"

#define FIRST_BYTE	3u
#define MAX_PIECE_BYTES 64u /* of a prompt, for each token of the context */

struct part {
	const char *text;
	u32 len, id;
	const struct piece *joint; /* what it and the next part make, or NULL */
};

static bool parse(struct tokenizer *t)
{
	size_t at = sizeof(u32);

	for (u32 id = 0; id < t->nr; id++) {
		struct piece *p = &t->piece[id];

		if (at + 8 > t->file.len)
			return false;
		memcpy(&p->score, t->file.text + at, 4);
		memcpy(&p->len, t->file.text + at + 4, 4);
		at += 8;
		if (p->len > t->file.len - at)
			return false;
		p->text = t->file.text + at;
		at += p->len;
	}
	return at == t->file.len;
}

int tokenizer_load(struct tokenizer *t, const char *path, u32 vocab)
{
	int err;

	*t = (struct tokenizer){.nr = vocab, .piece = calloc(vocab, sizeof(struct piece))};
	err = t->piece ? mountroot_read_file(path, &t->file) : -ENOMEM;
	if (!err && (vocab < FIRST_BYTE + 256 || !parse(t)))
		err = -EINVAL;
	if (err == -EINVAL)
		cli_error("%s: not a tokenizer of exactly %u pieces, bytes included", path, vocab);
	else if (err)
		cli_error("%s: %s", path, strerror(-err));
	if (err)
		tokenizer_free(t);
	return err;
}

void tokenizer_free(struct tokenizer *t)
{
	textbuf_free(&t->file);
	free(t->piece);
	*t = (struct tokenizer){0};
}

static const struct piece *find(const struct tokenizer *t, const char *text, u32 len)
{
	for (const struct piece *p = t->piece; p < t->piece + t->nr; p++)
		if (p->len == len && !memcmp(p->text, text, len))
			return p;
	return NULL;
}

/* A character that is a piece becomes one part, another a part for each byte. Return: parts. */
static u32 split(const struct tokenizer *t, const char *text, struct part *parts)
{
	u32 nr = 0, len;

	for (; *text; text += len) {
		const struct piece *p;

		for (len = 1; (*text & 0xc0) == 0xc0 && len < 4 && (text[len] & 0xc0) == 0x80;)
			len++;
		p = find(t, text, len);
		if (p)
			parts[nr++] = (struct part){text, len, (u32)(p - t->piece), NULL};
		for (u32 i = 0; !p && i < len; i++)
			parts[nr++] = (struct part){text + i, 1, FIRST_BYTE + (u8)text[i], NULL};
	}
	for (u32 i = 0; i + 1 < nr; i++)
		parts[i].joint = find(t, parts[i].text, parts[i].len + parts[i + 1].len);
	return nr;
}

/* Join the neighbours whose joint piece has the best score; false when none make one. */
static bool merge(const struct tokenizer *t, struct part *parts, u32 *nr)
{
	u32 at = *nr;

	for (u32 i = 0; i + 1 < *nr; i++)
		if (parts[i].joint && (at == *nr || parts[i].joint->score > parts[at].joint->score))
			at = i;
	if (at == *nr)
		return false;
	parts[at].len = parts[at].joint->len;
	parts[at].id = (u32)(parts[at].joint - t->piece);
	memmove(&parts[at + 1], &parts[at + 2], (--*nr - at - 1) * sizeof(*parts));
	for (u32 i = at ? at - 1 : 0; i <= at; i++)
		parts[i].joint = i + 1 < *nr ? find(t, parts[i].text, parts[i].len + parts[i + 1].len)
					     : NULL;
	return true;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, u32 *ids, u32 max)
{
	struct textbuf words = TEXTBUF_INIT; /* a word begins with a blank, the first one too */
	struct part *parts = calloc(strlen(text) + 2, sizeof(*parts));
	u32 nr = UINT32_MAX;

	textbuf_printf(&words, "%s%s", *text ? " " : "", text);
	if (parts && !words.err && words.len / MAX_PIECE_BYTES < max)
		for (nr = split(t, words.text, parts); merge(t, parts, &nr);)
			;
	ids[0] = TOKEN_BOS;
	for (u32 i = 0; nr < max && i < nr; i++)
		ids[i + 1] = parts[i].id;
	textbuf_free(&words);
	free(parts);
	if (nr < max)
		return (int)nr + 1;
	cli_error("the prompt is too long: the model has room for %u tokens", max);
	return -E2BIG;
}

void tokenizer_print(const struct tokenizer *t, u32 before, u32 id, FILE *to)
{
	const struct piece *p = &t->piece[id];
	u32 blank = before == TOKEN_BOS && p->len && *p->text == ' ';

	if (id >= FIRST_BYTE && id < FIRST_BYTE + 256)
		fputc((int)(id - FIRST_BYTE), to);
	else
		fwrite(p->text + blank, 1, p->len - blank, to);
}
