/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvctl/geometry.h"

#define GEOMETRY_MIN_BLOCK  16
#define GEOMETRY_MAX_BLOCK  256
#define GEOMETRY_MAX_COUNT  (1u << 20)
#define GEOMETRY_MAX_BYTES  GIB(1) /* of one block: beyond it someone mistyped */

/* Every key that a .geometry may hold. Exactly one of number and text is set, or neither. */
struct geometry_key {
	const char *name;
	size_t number; /* offset of a u64 + 1 */
	size_t text;   /* offset of a char array + 1 */
	size_t size;   /* of that array */
	bool computed; /* shown by the daemon; accepted, not kept */
};

#define KEY_NUMBER(member) {#member, offsetof(struct geometry, member) + 1, 0, 0, false}
#define KEY_TEXT(member)                                                                           \
	{#member, 0, offsetof(struct geometry, member) + 1, sizeof(((struct geometry *)0)->member), \
	 false}
#define KEY_COMPUTED(name) {#name, 0, 0, 0, true}

static const struct geometry_key geometry_keys[] = {
	KEY_NUMBER(layers),	   KEY_NUMBER(kv_heads),      KEY_NUMBER(head_dim),
	KEY_NUMBER(latent_dim),	   KEY_NUMBER(token_bytes),   KEY_NUMBER(block_tokens),
	KEY_TEXT(dtype),	   KEY_TEXT(layout),	      KEY_TEXT(fingerprint),
	KEY_TEXT(group),	   KEY_COMPUTED(block_bytes), KEY_COMPUTED(block_stride),
	KEY_COMPUTED(slice_bytes), {"k_scale", 0, 0, 0, false}, {"v_scale", 0, 0, 0, false},
};

u64 geometry_element_bytes(const char *dtype)
{
	static const struct {
		const char *name;
		u64 bytes;
	} types[] = {{"f32", 4}, {"f16", 2}, {"bf16", 2}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1}};

	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (!strcmp(types[i].name, dtype))
			return types[i].bytes;
	return 0;
}

static int set_number(u64 *number, const char *key, const char *value, struct textbuf *why)
{
	if (!cli_parse_u64(value, number) && *number)
		return 0;
	textbuf_printf(why, "%s: '%s' is not a whole number above 0", key, value);
	return -EINVAL;
}

static int set_text(char *text, size_t size, const char *value, const char *key,
		    struct textbuf *why)
{
	size_t len = strlen(value);

	if (!len || len >= size) {
		textbuf_printf(why, "%s: '%s' is %s (1 to %zu bytes)", key, value,
			       len ? "too long" : "empty", size - 1);
		return -EINVAL;
	}
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)value[i] > ' ' && value[i] != 127)
			continue;
		textbuf_printf(why, "%s: values have no blanks or control characters", key);
		return -EINVAL;
	}
	memcpy(text, value, len + 1);
	return 0;
}

int geometry_set(struct geometry *g, const char *key, const char *value, struct textbuf *why)
{
	for (size_t i = 0; i < ARRAY_SIZE(geometry_keys); i++) {
		const struct geometry_key *k = &geometry_keys[i];
		u64 ignored;

		if (strcmp(k->name, key))
			continue;
		if (k->number)
			return set_number((u64 *)((char *)g + k->number - 1), key, value, why);
		if (k->text)
			return set_text((char *)g + k->text - 1, k->size, value, key, why);
		return k->computed ? set_number(&ignored, key, value, why) : 0;
	}
	textbuf_printf(why, "%s: no such key", key);
	return -EINVAL;
}

int geometry_parse(struct geometry *g, const char *text, struct textbuf *why)
{
	char *copy, *save = NULL;
	int err = 0;

	if (strlen(text) > GEOMETRY_MAX_TEXT) {
		textbuf_printf(why, ".geometry: longer than %d bytes", GEOMETRY_MAX_TEXT);
		return -EINVAL;
	}
	copy = strdup(text);
	if (!copy)
		return -ENOMEM;
	for (char *pair = strtok_r(copy, " \t\n", &save); pair && !err;
	     pair = strtok_r(NULL, " \t\n", &save)) {
		char *equals = strchr(pair, '=');

		if (equals) {
			*equals = '\0';
			err = geometry_set(g, pair, equals + 1, why);
		} else {
			textbuf_printf(why, "%s: not of the form key=value", pair);
			err = -EINVAL;
		}
	}
	free(copy);
	return err;
}

static int require(bool good, struct textbuf *why, const char *line)
{
	if (good)
		return 0;
	textbuf_printf(why, "%s", line);
	return -EINVAL;
}

static void set_default_layout(struct geometry *g)
{
	bool opaque = g->token_bytes && !g->kv_heads && !g->head_dim;
	const char *layout = g->latent_dim ? "mla" : opaque ? "opaque" : "hnd";

	if (!*g->layout)
		snprintf(g->layout, sizeof(g->layout), "%s", layout);
}

static bool has_heads(const struct geometry *g)
{
	return !strcmp(g->layout, "hnd") || !strcmp(g->layout, "nhd");
}

/* All that is missing for the layout in one line, so that nobody has to ask key by key. */
static int check_missing(const struct geometry *g, struct textbuf *why)
{
	bool heads = has_heads(g), mla = !strcmp(g->layout, "mla");
	bool opaque = !strcmp(g->layout, "opaque");
	const struct {
		const char *key;
		bool needed, given;
	} keys[] = {
		{"layers", true, g->layers},
		{"kv_heads", heads, g->kv_heads},
		{"head_dim", heads, g->head_dim},
		{"latent_dim", mla, g->latent_dim},
		{"token_bytes", opaque, g->token_bytes},
		{"dtype", !opaque, *g->dtype},
	};
	size_t nr_missing = 0;

	if (!heads && !mla && !opaque)
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		if (keys[i].needed && !keys[i].given)
			textbuf_printf(why, "%s%s", nr_missing++ ? ", " : "", keys[i].key);
	if (!nr_missing)
		return 0;
	textbuf_printf(why, ": missing for layout %s", g->layout);
	return -EINVAL;
}

/* Which layouts there are, and which keys would contradict one. */
static int check_layout(const struct geometry *g, struct textbuf *why)
{
	if (has_heads(g))
		return require(!g->latent_dim, why, "latent_dim: only with layout=mla");
	if (!strcmp(g->layout, "mla"))
		return require(!g->kv_heads, why, "kv_heads: not with layout=mla") ?:
		       require(!g->head_dim, why, "head_dim: not with layout=mla");
	if (!strcmp(g->layout, "opaque"))
		return require(!g->kv_heads && !g->head_dim, why,
			       "kv_heads, head_dim: not with layout=opaque") ?:
		       require(!g->latent_dim, why, "latent_dim: not with layout=opaque") ?:
		       require(!*g->dtype, why, "dtype: not with layout=opaque");
	textbuf_printf(why, "layout: '%s' is none of hnd nhd mla opaque", g->layout);
	return -EINVAL;
}

static int check_counts(const struct geometry *g, struct textbuf *why)
{
	int err = require(g->layers <= GEOMETRY_MAX_COUNT, why, "layers: too large") ?:
		  require(g->kv_heads <= GEOMETRY_MAX_COUNT, why, "kv_heads: too large") ?:
		  require(g->head_dim <= GEOMETRY_MAX_COUNT, why, "head_dim: too large") ?:
		  require(g->latent_dim <= GEOMETRY_MAX_COUNT, why, "latent_dim: too large");

	if (err)
		return err;
	if (g->block_tokens >= GEOMETRY_MIN_BLOCK && g->block_tokens <= GEOMETRY_MAX_BLOCK &&
	    !(g->block_tokens & (g->block_tokens - 1)))
		return 0;
	textbuf_printf(why, "block_tokens: %llu is not a power of two from %d to %d",
		       (unsigned long long)g->block_tokens, GEOMETRY_MIN_BLOCK, GEOMETRY_MAX_BLOCK);
	return -EINVAL;
}

static int check_dtype(const struct geometry *g, struct textbuf *why)
{
	if (!strcmp(g->layout, "opaque") || geometry_element_bytes(g->dtype))
		return 0;
	textbuf_printf(why, "dtype: '%s' is none of f32 f16 bf16 fp8_e4m3 fp8_e5m2", g->dtype);
	return -EINVAL;
}

/* No overflow: every count is at most 2^20, and the product is checked step by step. */
static int compute(struct geometry *g, struct geometry_sizes *s, struct textbuf *why)
{
	u64 per_layer = !strcmp(g->layout, "mla") ? g->latent_dim : 2 * g->kv_heads * g->head_dim;
	u64 given = g->token_bytes;

	*s = (struct geometry_sizes){.token_bytes = given};
	if (strcmp(g->layout, "opaque") &&
	    __builtin_mul_overflow(per_layer * geometry_element_bytes(g->dtype), g->layers,
				   &s->token_bytes))
		s->token_bytes = UINT64_MAX;
	if (s->token_bytes > GEOMETRY_MAX_BYTES / g->block_tokens) {
		textbuf_printf(why, "token_bytes: a block would be larger than 1 GiB");
		return -EINVAL;
	}
	if (given && given != s->token_bytes) {
		textbuf_printf(why, "token_bytes: %llu given, the other keys make %llu",
			       (unsigned long long)given, (unsigned long long)s->token_bytes);
		return -EINVAL;
	}
	s->block_bytes = s->token_bytes * g->block_tokens;
	s->block_stride = round_up_pow2(s->block_bytes, KVC_PAGE_SIZE);
	s->slice_bytes = s->block_bytes % g->layers ? 0 : s->block_bytes / g->layers;
	return 0;
}

int geometry_complete(struct geometry *g, struct geometry_sizes *sizes, struct textbuf *why)
{
	if (!g->block_tokens)
		g->block_tokens = GEOMETRY_DEFAULT_BLOCK;
	set_default_layout(g);
	return check_missing(g, why) ?: check_layout(g, why) ?: check_counts(g, why) ?:
	       check_dtype(g, why) ?: compute(g, sizes, why);
}

void geometry_to_text(const struct geometry *g, struct textbuf *text)
{
	textbuf_printf(text, "layers=%llu", (unsigned long long)g->layers);
	if (!strcmp(g->layout, "opaque"))
		textbuf_printf(text, " token_bytes=%llu", (unsigned long long)g->token_bytes);
	else if (!strcmp(g->layout, "mla"))
		textbuf_printf(text, " latent_dim=%llu dtype=%s",
			       (unsigned long long)g->latent_dim, g->dtype);
	else
		textbuf_printf(text, " kv_heads=%llu head_dim=%llu dtype=%s",
			       (unsigned long long)g->kv_heads, (unsigned long long)g->head_dim,
			       g->dtype);
	textbuf_printf(text, " block_tokens=%llu layout=%s", (unsigned long long)g->block_tokens,
		       g->layout);
	if (*g->fingerprint)
		textbuf_printf(text, " fingerprint=%s", g->fingerprint);
	if (*g->group)
		textbuf_printf(text, " group=%s", g->group);
	textbuf_printf(text, "\n");
}
