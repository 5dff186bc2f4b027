/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry texts: what is complete, what is refused and why, and the canonical text. */
#include <errno.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "allocator/geometry.h"
#include "lib/test.h"

static int parse(const char *text, struct geometry *geo, bool *complete)
{
	struct textbuf why = TEXTBUF_INIT;
	int err = geometry_parse(text, strlen(text), geo, complete, &why);

	assert_true(err ? why.len > 0 : why.len == 0);
	textbuf_free(&why);
	return err;
}

static struct geometry must(const char *text)
{
	struct geometry geo;
	bool complete;

	assert_int_equal(parse(text, &geo, &complete), 0);
	assert_true(complete);
	return geo;
}

static void computes_sizes(void **state)
{
	struct geometry g = must("layers=32 kv_heads=8 head_dim=128 dtype=bf16 layout=hnd");

	assert_int_equal(g.block_tokens, 64);
	assert_int_equal(g.token_bytes, 131072);
	assert_int_equal(g.block_bytes, 131072 * 64);
	assert_int_equal(g.block_stride, g.block_bytes);
	assert_int_equal(g.slice_bytes, g.block_bytes / 32);
	assert_int_equal(geometry_unit(&g), 256);
	g = must("layers=61\nlatent_dim=576\ndtype=bf16\nblock_tokens=64\nlayout=mla\n");
	assert_int_equal(g.token_bytes, 61 * 576 * 2);
	assert_int_equal(geometry_unit(&g), 1152);
	g = must("layers=32 kv_heads=8 head_dim=128 dtype=fp8_e5m2 k_scale=0.5 layout=nhd");
	assert_int_equal(geometry_unit(&g), 1024);
	g = must("layers=3 token_bytes=100 block_tokens=16 layout=opaque");
	assert_int_equal(g.block_bytes, 1600);
	assert_int_equal(g.block_stride, 4096);
	assert_int_equal(g.slice_bytes, 0);
	assert_int_equal(geometry_unit(&g), 100);
}

static void lacking_keys_are_no_error(void **state)
{
	static const char *const texts[] = {"",
					    " \n",
					    "layers=32",
					    "layers=32 kv_heads=8 layout=hnd",
					    "layout=opaque layers=1",
					    "fingerprint=x block_bytes=5"};
	struct geometry geo;
	bool complete;

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(parse(texts[i], &geo, &complete), 0);
		assert_false(complete);
	}
}

#define HND "layers=2 kv_heads=2 head_dim=8 dtype=f16 layout=hnd "

static void bad_texts_are_refused(void **state)
{
	static const char *const texts[] = {
		"layer=1",
		"layers",
		"layers=",
		"layers=0",
		"layers=x",
		"layers=-1",
		"layers=1.5",
		"layers=99999999999999999999",
		"layers=1 layers=1",
		"dtype=int8",
		"layout=hdn",
		"block_tokens=8",
		"block_tokens=48",
		"block_tokens=512",
		"k_scale=abc",
		"v_scale=-1",
		"fingerprint=",
		"layers=1\x01",
		HND "latent_dim=5",
		HND "token_bytes=5",
		HND "block_bytes=1",
		HND "block_stride=1",
		HND "slice_bytes=1",
		HND "k_scale=1",
		"layers=1 layout=opaque token_bytes=8 kv_heads=1",
		"layers=1 latent_dim=1 dtype=f16 layout=mla head_dim=4",
		"layers=65536 kv_heads=65536 head_dim=65536 dtype=f32 layout=hnd",
		"layers=1 layout=opaque token_bytes=67108864 block_tokens=32"};
	char longer[GEOMETRY_MAX_TEXT + 2];
	struct geometry geo;
	bool complete;

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		if (parse(texts[i], &geo, &complete) != -EINVAL)
			fail_msg("accepted: %s", texts[i]);
	memset(longer, ' ', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(parse(longer, &geo, &complete), -EINVAL);
	memcpy(longer, "fingerprint=", 12);
	memset(longer + 12, 'x', 257);
	longer[300] = '\0';
	assert_int_equal(parse(longer, &geo, &complete), -EINVAL);
	longer[12 + 256] = '\0';
	assert_int_equal(parse(longer, &geo, &complete), 0);
}

static void names_the_key(void **state)
{
	struct textbuf why = TEXTBUF_INIT;
	struct geometry geo;
	bool complete;

	assert_int_equal(geometry_parse("layers=1 hedas=2", 16, &geo, &complete, &why), -EINVAL);
	assert_non_null(strstr(why.text, "hedas"));
	textbuf_free(&why);
}

static void text_comes_back(void **state)
{
	static const char *const texts[] = {
		HND "fingerprint=a/b:1 group=sliding", "layers=3 token_bytes=100 layout=opaque",
		"layers=61 latent_dim=576 dtype=bf16 layout=mla block_tokens=128",
		"layers=1 kv_heads=1 head_dim=1 dtype=fp8_e4m3 k_scale=1.25 v_scale=2 layout=nhd"};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		struct geometry a = must(texts[i]), b;
		struct textbuf once = TEXTBUF_INIT, twice = TEXTBUF_INIT;

		geometry_to_text(&a, &once);
		b = must(once.text);
		assert_true(geometry_equal(&a, &b));
		geometry_to_text(&b, &twice);
		assert_string_equal(once.text, twice.text);
		textbuf_free(&once);
		textbuf_free(&twice);
	}
}

static void equality_counts_every_key(void **state)
{
	struct geometry a = must(HND), b;
	static const char *const others[] = {HND "fingerprint=x",
					     HND "group=g",
					     HND "block_tokens=32",
					     "layers=2 kv_heads=2 head_dim=8 dtype=bf16 layout=hnd",
					     "layers=2 kv_heads=2 head_dim=8 dtype=f16 layout=nhd",
					     "layers=2 kv_heads=8 head_dim=2 dtype=f16 layout=hnd"};

	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		b = must(others[i]);
		assert_false(geometry_equal(&a, &b));
	}
	b = must(HND "token_bytes=128 block_bytes=8192");
	assert_true(geometry_equal(&a, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(computes_sizes),
		cmocka_unit_test(lacking_keys_are_no_error),
		cmocka_unit_test(bad_texts_are_refused),
		cmocka_unit_test(names_the_key),
		cmocka_unit_test(text_comes_back),
		cmocka_unit_test(equality_counts_every_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
