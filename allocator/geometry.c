/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing of .geometry texts: "key=value" words. One table says for each key where its
 * value goes and in which range it must be; what keys go together is judged once all are seen.
 */
#include <ctype.h>
#include <math.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/geometry.h"

#define MAX_BLOCK_BYTES GIB(1)	/* block.bytes is 32 bits wide, and one copy_file_range holds one */
#define MIN_BLOCK_TOKENS 16u
#define MAX_BLOCK_TOKENS 256u

enum key {
	KEY_LAYERS,
	KEY_KV_HEADS,
	KEY_HEAD_DIM,
	KEY_LATENT_DIM,
	KEY_TOKEN_BYTES,
	KEY_BLOCK_TOKENS,
	KEY_BLOCK_BYTES,
	KEY_BLOCK_STRIDE,
	KEY_SLICE_BYTES,
	NR_NUMBERS,
	KEY_DTYPE = NR_NUMBERS,
	KEY_LAYOUT,
	KEY_K_SCALE,
	KEY_V_SCALE,
	KEY_FINGERPRINT,
	KEY_GROUP,
	NR_KEYS,
};

#define BIT(key) (1u << (key))
#define COMPUTED (BIT(KEY_BLOCK_BYTES) | BIT(KEY_BLOCK_STRIDE) | BIT(KEY_SLICE_BYTES))
#define ALWAYS	 (BIT(KEY_LAYERS) | BIT(KEY_LAYOUT))
#define SCALES	 (BIT(KEY_K_SCALE) | BIT(KEY_V_SCALE))
#define ANYWHERE (ALWAYS | COMPUTED | BIT(KEY_TOKEN_BYTES) | BIT(KEY_BLOCK_TOKENS) | \
		  BIT(KEY_DTYPE) | BIT(KEY_FINGERPRINT) | BIT(KEY_GROUP))

static const char *const key_names[NR_KEYS] = {
	"layers",      "kv_heads",     "head_dim",    "latent_dim", "token_bytes", "block_tokens",
	"block_bytes", "block_stride", "slice_bytes", "dtype",	    "layout",	   "k_scale",
	"v_scale",     "fingerprint",  "group"};

static const u64 number_max[NR_NUMBERS] = {65536,	   65536,	    65536,
					   65536,	   MAX_BLOCK_BYTES, MAX_BLOCK_TOKENS,
					   MAX_BLOCK_BYTES, MAX_BLOCK_BYTES, MAX_BLOCK_BYTES};

static const char *const layout_names[] = {"hnd", "nhd", "mla", "opaque"};
static const char *const dtype_names[] = {"", "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2"};
static const u8 dtype_bytes[] = {0, 4, 2, 2, 1, 1};

/* Keys that each layout needs beside ALWAYS, and those that it may have beside ANYWHERE. */
static const u32 layout_needs[] = {
	BIT(KEY_KV_HEADS) | BIT(KEY_HEAD_DIM) | BIT(KEY_DTYPE),
	BIT(KEY_KV_HEADS) | BIT(KEY_HEAD_DIM) | BIT(KEY_DTYPE),
	BIT(KEY_LATENT_DIM) | BIT(KEY_DTYPE),
	BIT(KEY_TOKEN_BYTES),
};

struct parser {
	struct geometry *geo;
	struct textbuf *why;
	u32 seen;		/* BIT(key)s */
	u64 number[NR_NUMBERS];
};

struct word {
	const char *text;
	size_t len;
};

static int find_name(const char *const *names, size_t nr, struct word w)
{
	for (size_t i = 0; i < nr; i++)
		if (strlen(names[i]) == w.len && !memcmp(names[i], w.text, w.len))
			return (int)i;
	return -1;
}

static int bad(struct parser *p, const char *key, const char *what)
{
	textbuf_printf(p->why, "%s: %s", key, what);
	return -EINVAL;
}

static int parse_number(struct parser *p, enum key key, struct word value)
{
	u64 n = 0;

	if (!value.len || value.len > 12)
		return bad(p, key_names[key], "not a number");
	for (size_t i = 0; i < value.len; i++) {
		if (value.text[i] < '0' || value.text[i] > '9')
			return bad(p, key_names[key], "not a number");
		n = n * 10 + (u64)(value.text[i] - '0');
	}
	if (n > number_max[key] || (!n && key != KEY_SLICE_BYTES))
		return bad(p, key_names[key], "out of range");
	if (key == KEY_BLOCK_TOKENS && (n < MIN_BLOCK_TOKENS || n & (n - 1)))
		return bad(p, key_names[key], "must be a power of two from 16 to 256");
	p->number[key] = n;
	return 0;
}

static int parse_text(struct parser *p, enum key key, struct word value)
{
	char *to = key == KEY_FINGERPRINT ? p->geo->fingerprint : p->geo->group;

	if (!value.len)
		return bad(p, key_names[key], "empty");
	if (value.len > GEOMETRY_FINGERPRINT)
		return bad(p, key_names[key], "longer than 256 bytes");
	memcpy(to, value.text, value.len);
	to[value.len] = '\0';
	return 0;
}

static int parse_scale(struct parser *p, enum key key, struct word value)
{
	char *to = key == KEY_K_SCALE ? p->geo->k_scale : p->geo->v_scale, *end;
	double scale;

	if (!value.len || value.len >= sizeof(p->geo->k_scale))
		return bad(p, key_names[key], "not a number");
	memcpy(to, value.text, value.len);
	to[value.len] = '\0';
	scale = strtod(to, &end);
	if (*end || !isfinite(scale) || scale <= 0)
		return bad(p, key_names[key], "must be a number above 0");
	return 0;
}

static int parse_value(struct parser *p, enum key key, struct word value)
{
	int i;

	switch (key) {
	case KEY_DTYPE:
		i = find_name(dtype_names + 1, ARRAY_SIZE(dtype_names) - 1, value);
		if (i < 0)
			return bad(p, "dtype", "not one of f32 f16 bf16 fp8_e4m3 fp8_e5m2");
		p->geo->dtype = (enum kv_dtype)(i + 1);
		return 0;
	case KEY_LAYOUT:
		i = find_name(layout_names, ARRAY_SIZE(layout_names), value);
		if (i < 0)
			return bad(p, "layout", "not one of hnd nhd mla opaque");
		p->geo->layout = (enum kv_layout)i;
		return 0;
	case KEY_K_SCALE:
	case KEY_V_SCALE:
		return parse_scale(p, key, value);
	case KEY_FINGERPRINT:
	case KEY_GROUP:
		return parse_text(p, key, value);
	default:
		return parse_number(p, key, value);
	}
}

static int parse_word(struct parser *p, struct word w)
{
	const char *eq = memchr(w.text, '=', w.len);
	struct word name = {w.text, eq ? (size_t)(eq - w.text) : w.len};
	char shown[32];
	int key = find_name(key_names, NR_KEYS, name);

	if (key < 0 || !eq) {
		size_t n = min(name.len, sizeof(shown) - 1);

		for (size_t i = 0; i < n; i++)
			shown[i] = isprint((unsigned char)name.text[i]) ? name.text[i] : '?';
		shown[n] = '\0';
		return bad(p, shown, key < 0 ? "unknown key" : "has no value");
	}
	if (p->seen & BIT(key))
		return bad(p, key_names[key], "given twice");
	p->seen |= BIT(key);
	return parse_value(p, (enum key)key, (struct word){eq + 1, w.len - name.len - 1});
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int parse_words(struct parser *p, const char *text, size_t len)
{
	size_t from, to;
	int err;

	for (from = 0; from < len; from = to) {
		while (from < len && is_blank(text[from]))
			from++;
		for (to = from; to < len && !is_blank(text[to]); to++)
			if (iscntrl((unsigned char)text[to]))
				return bad(p, "text", "has a control character");
		if (from == to)
			break;
		err = parse_word(p, (struct word){text + from, to - from});
		if (err)
			return err;
	}
	return 0;
}

/* Keys that do not go with the layout, or a scale without fp8. */
static int check_together(struct parser *p)
{
	const struct geometry *geo = p->geo;
	u32 odd;

	if (p->seen & BIT(KEY_LAYOUT)) {
		odd = p->seen & ~(ANYWHERE | SCALES | layout_needs[geo->layout]);
		if (odd)
			return bad(p, key_names[__builtin_ctz(odd)], "does not go with the layout");
	}
	if (p->seen & SCALES && p->seen & BIT(KEY_DTYPE) && geo->dtype < DTYPE_FP8_E4M3)
		return bad(p, key_names[__builtin_ctz(p->seen & SCALES)], "goes with fp8 only");
	return 0;
}

static void take_numbers(struct parser *p)
{
	struct geometry *geo = p->geo;

	geo->layers = (u32)p->number[KEY_LAYERS];
	geo->kv_heads = (u32)p->number[KEY_KV_HEADS];
	geo->head_dim = (u32)p->number[KEY_HEAD_DIM];
	geo->latent_dim = (u32)p->number[KEY_LATENT_DIM];
	geo->block_tokens = p->seen & BIT(KEY_BLOCK_TOKENS) ? (u32)p->number[KEY_BLOCK_TOKENS] : 64;
}

static u64 one_token(const struct geometry *geo, u64 given)
{
	switch (geo->layout) {
	case LAYOUT_MLA:
		return (u64)geo->layers * geo->latent_dim * dtype_bytes[geo->dtype];
	case LAYOUT_OPAQUE:
		return given;
	default:
		return 2ull * geo->layers * geo->kv_heads * geo->head_dim * dtype_bytes[geo->dtype];
	}
}

/* Fill the computed fields and compare with what the text says of them. */
static int compute(struct parser *p)
{
	static const enum key computed[] = {KEY_TOKEN_BYTES, KEY_BLOCK_BYTES, KEY_BLOCK_STRIDE,
					    KEY_SLICE_BYTES};
	struct geometry *geo = p->geo;
	u64 value[ARRAY_SIZE(computed)];

	geo->token_bytes = one_token(geo, p->number[KEY_TOKEN_BYTES]);
	geo->block_bytes = geo->token_bytes * geo->block_tokens;
	if (geo->block_bytes > MAX_BLOCK_BYTES)
		return bad(p, "block_bytes", "a block would have more than 1 GiB");
	geo->block_stride = round_up_pow2(geo->block_bytes, KVC_PAGE_SIZE);
	geo->slice_bytes = geo->block_bytes % geo->layers ? 0 : geo->block_bytes / geo->layers;
	value[0] = geo->token_bytes;
	value[1] = geo->block_bytes;
	value[2] = geo->block_stride;
	value[3] = geo->slice_bytes;
	for (size_t i = 0; i < ARRAY_SIZE(computed); i++)
		if (p->seen & BIT(computed[i]) && p->number[computed[i]] != value[i])
			return bad(p, key_names[computed[i]], "does not agree with the other keys");
	return 0;
}

int geometry_parse(const char *text, size_t len, struct geometry *geo, bool *complete,
		   struct textbuf *why)
{
	struct parser p = {.geo = geo, .why = why};
	int err;

	*geo = (struct geometry){0};
	*complete = false;
	if (len > GEOMETRY_MAX_TEXT)
		return bad(&p, "text", "longer than 4096 bytes");
	err = parse_words(&p, text, len);
	if (!err)
		err = check_together(&p);
	if (err)
		return err;
	take_numbers(&p);
	if (~p.seen & ALWAYS || ~p.seen & layout_needs[geo->layout])
		return 0;
	err = compute(&p);
	*complete = !err;
	return err;
}

static bool scale_equal(const char *a, const char *b)
{
	return !*a == !*b && (!*a || strtod(a, NULL) == strtod(b, NULL));
}

bool geometry_equal(const struct geometry *a, const struct geometry *b)
{
	return a->layers == b->layers && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
	       a->latent_dim == b->latent_dim && a->block_tokens == b->block_tokens &&
	       a->layout == b->layout && a->dtype == b->dtype && a->token_bytes == b->token_bytes &&
	       !strcmp(a->fingerprint, b->fingerprint) && !strcmp(a->group, b->group) &&
	       scale_equal(a->k_scale, b->k_scale) && scale_equal(a->v_scale, b->v_scale);
}

static void add_number(struct textbuf *tb, enum key key, u64 n)
{
	if (n)
		textbuf_printf(tb, "%s=%llu\n", key_names[key], (unsigned long long)n);
}

static void add_text(struct textbuf *tb, enum key key, const char *text)
{
	if (*text)
		textbuf_printf(tb, "%s=%s\n", key_names[key], text);
}

void geometry_to_text(const struct geometry *geo, struct textbuf *tb)
{
	bool opaque = geo->layout == LAYOUT_OPAQUE;

	add_number(tb, KEY_LAYERS, geo->layers);
	add_number(tb, KEY_KV_HEADS, geo->kv_heads);
	add_number(tb, KEY_HEAD_DIM, geo->head_dim);
	add_number(tb, KEY_LATENT_DIM, geo->latent_dim);
	if (opaque)
		add_number(tb, KEY_TOKEN_BYTES, geo->token_bytes);
	add_text(tb, KEY_DTYPE, dtype_names[geo->dtype]);
	add_number(tb, KEY_BLOCK_TOKENS, geo->block_tokens);
	add_text(tb, KEY_LAYOUT, layout_names[geo->layout]);
	add_text(tb, KEY_K_SCALE, geo->k_scale);
	add_text(tb, KEY_V_SCALE, geo->v_scale);
	add_text(tb, KEY_FINGERPRINT, geo->fingerprint);
	add_text(tb, KEY_GROUP, geo->group);
	if (!opaque)
		add_number(tb, KEY_TOKEN_BYTES, geo->token_bytes);
	add_number(tb, KEY_BLOCK_BYTES, geo->block_bytes);
	add_number(tb, KEY_BLOCK_STRIDE, geo->block_stride);
	textbuf_printf(tb, "slice_bytes=%llu\n", (unsigned long long)geo->slice_bytes);
}

u64 geometry_unit(const struct geometry *geo)
{
	u64 element = dtype_bytes[geo->dtype];

	switch (geo->layout) {
	case LAYOUT_HND:
		return geo->head_dim * element;
	case LAYOUT_NHD:
		return (u64)geo->kv_heads * geo->head_dim * element;
	case LAYOUT_MLA:
		return geo->latent_dim * element;
	default:
		return geo->token_bytes;
	}
}
