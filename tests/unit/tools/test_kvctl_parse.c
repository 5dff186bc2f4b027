/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl without a mount: sizes, geometries, model configs, control replies, listings. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "tools/kvctl/geometry.h"
#include "tools/kvctl/kvctl.h"

static void test_numbers(void **state)
{
	u64 n;

	assert_int_equal(cli_parse_u64("18446744073709551615", &n), 0);
	assert_true(n == UINT64_MAX);
	assert_int_equal(cli_parse_u64("18446744073709551616", &n), -ERANGE);
	assert_int_equal(cli_parse_u64("", &n), -EINVAL);
	assert_int_equal(cli_parse_u64("-1", &n), -EINVAL);
	assert_int_equal(cli_parse_u64("1 ", &n), -EINVAL);
	assert_int_equal(cli_parse_size("3K", &n), 0);
	assert_int_equal(n, 3072);
	assert_int_equal(cli_parse_size("2G", &n), 0);
	assert_true(n == GIB(2));
	assert_int_equal(cli_parse_size("1T", &n), 0);
	assert_true(n == GIB(1024));
	assert_int_equal(cli_parse_size("7", &n), 0);
	assert_int_equal(n, 7);
	assert_int_equal(cli_parse_size("K", &n), -EINVAL);
	assert_int_equal(cli_parse_size("1k", &n), -EINVAL);
	assert_int_equal(cli_parse_size("1KK", &n), -EINVAL);
	assert_int_equal(cli_parse_size("16777216T", &n), -ERANGE);
}

static int geometry(const char *text, struct geometry *g, struct geometry_sizes *s, char *why)
{
	struct textbuf buf = TEXTBUF_INIT;
	int err;

	*g = (struct geometry){0};
	err = geometry_parse(g, text, &buf) ?: geometry_complete(g, s, &buf);
	snprintf(why, 256, "%s", buf.text ? buf.text : "");
	textbuf_free(&buf);
	return err;
}

static void test_geometry_sizes(void **state)
{
	struct geometry_sizes s;
	struct geometry g;
	char why[256];

	assert_int_equal(geometry("layers=32 kv_heads=8 head_dim=128 dtype=bf16 block_tokens=64 "
				  "layout=hnd", &g, &s, why), 0);
	assert_int_equal(s.token_bytes, 131072);
	assert_int_equal(s.block_bytes, 8388608);
	assert_int_equal(s.block_stride, 8388608);
	assert_int_equal(s.slice_bytes, 262144);
	assert_int_equal(geometry("layers=61\nlatent_dim=576\ndtype=bf16\nlayout=mla\n", &g, &s, why),
			 0);
	assert_int_equal(s.token_bytes, 61 * 576 * 2);
	assert_int_equal(g.block_tokens, 64);
	assert_int_equal(geometry("layers=32 token_bytes=4100 layout=opaque block_tokens=16", &g, &s,
				  why), 0);
	assert_int_equal(s.block_bytes, 65600);
	assert_int_equal(s.block_stride, 69632);
	assert_int_equal(s.slice_bytes, 2050);
	assert_int_equal(geometry("layers=5 kv_heads=4 head_dim=8 dtype=fp8_e4m3 k_scale=0.5", &g, &s,
				  why), 0);
	assert_string_equal(g.layout, "hnd");
	assert_int_equal(s.token_bytes, 320);
}

static void test_geometry_names_the_key(void **state)
{
	static const struct {
		const char *text, *key;
	} bad[] = {
		{"layers=4 kv_heads=2 head_dim=16 dtype=f17", "dtype"},
		{"layers=4 kv_heads=2 head_dim=16", "dtype"},
		{"layers=4 kv_heads=2 dtype=f16", "head_dim"},
		{"layers=4 head_dim=2 dtype=f16", "kv_heads"},
		{"kv_heads=2 head_dim=16 dtype=f16", "layers"},
		{"layers=0 kv_heads=2 head_dim=16 dtype=f16", "layers"},
		{"layers=-4 kv_heads=2 head_dim=16 dtype=f16", "layers"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=48", "block_tokens"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=512", "block_tokens"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=8", "block_tokens"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 layout=xyz", "layout"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 layout=mla", "latent_dim"},
		{"layers=4 kv_heads=2 latent_dim=16 dtype=f16 layout=mla", "kv_heads"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 token_bytes=7", "token_bytes"},
		{"layers=4 layout=opaque", "token_bytes"},
		{"layers=1000000 kv_heads=1000000 head_dim=1000000 dtype=f32", "token_bytes"},
		{"layers=9999999 kv_heads=1 head_dim=1 dtype=f32", "layers"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 color=red", "color"},
		{"layers=4 kv_heads", "kv_heads"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 fingerprint=", "fingerprint"},
		{"layers=4 kv_heads=2 head_dim=16 dtype=f16 block_bytes=x", "block_bytes"},
	};
	struct geometry_sizes s;
	struct geometry g;
	char why[256];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		size_t len = strlen(bad[i].key);

		if (geometry(bad[i].text, &g, &s, why) != -EINVAL)
			fail_msg("accepted: %s", bad[i].text);
		if (strncmp(why, bad[i].key, len) || why[len] != ':')
			fail_msg("%s: '%s' does not name %s", bad[i].text, why, bad[i].key);
	}
}

/* One line has all that a layout still needs; the layout is what was asked for, or what the keys say. */
static void test_geometry_lists_what_is_missing(void **state)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{"", "layers, kv_heads, head_dim, dtype: missing for layout hnd"},
		{"layers=4", "kv_heads, head_dim, dtype: missing for layout hnd"},
		{"layers=4 layout=nhd dtype=f16", "kv_heads, head_dim: missing for layout nhd"},
		{"latent_dim=9", "layers, dtype: missing for layout mla"},
		{"layout=mla", "layers, latent_dim, dtype: missing for layout mla"},
		{"layout=opaque", "layers, token_bytes: missing for layout opaque"},
		{"token_bytes=9", "layers: missing for layout opaque"},
	};
	struct geometry_sizes s;
	struct geometry g;
	char why[256];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(geometry(bad[i].text, &g, &s, why), -EINVAL);
		assert_string_equal(why, bad[i].why);
	}
}

static void test_geometry_round_trip(void **state)
{
	static const char *const texts[] = {
		("layers=32 kv_heads=8 head_dim=128 dtype=bf16 block_tokens=64 layout=nhd "
		 "fingerprint=w1/t2 group=sw\n"),
		"layers=61 latent_dim=576 dtype=f32 block_tokens=128 layout=mla\n",
		"layers=32 token_bytes=4096 block_tokens=16 layout=opaque\n",
	};
	struct geometry_sizes s;
	struct geometry g;
	char why[256];

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		struct textbuf out = TEXTBUF_INIT;

		assert_int_equal(geometry(texts[i], &g, &s, why), 0);
		geometry_to_text(&g, &out);
		assert_string_equal(out.text, texts[i]);
		textbuf_free(&out);
	}
}

static int from_hf(const char *json, struct geometry *g, char *why)
{
	struct textbuf buf = TEXTBUF_INIT;
	int err;

	*g = (struct geometry){0};
	err = geometry_from_hf(g, json, &buf);
	snprintf(why, 256, "%s", buf.text ? buf.text : "");
	textbuf_free(&buf);
	return err;
}

static void test_hf_config(void **state)
{
	struct geometry g;
	char why[256];

	assert_int_equal(from_hf("{\"num_hidden_layers\":32,\"num_attention_heads\":32,"
				 "\"num_key_value_heads\":8,\"hidden_size\":4096,"
				 "\"torch_dtype\":\"bfloat16\"}", &g, why), 0);
	assert_int_equal(g.layers, 32);
	assert_int_equal(g.kv_heads, 8);
	assert_int_equal(g.head_dim, 128);
	assert_string_equal(g.dtype, "bf16");
	assert_int_equal(from_hf("{\"num_hidden_layers\":2,\"num_attention_heads\":12,"
				 "\"hidden_size\":768,\"head_dim\":null,\"dtype\":\"torch.float16\"}",
				 &g, why), 0);
	assert_int_equal(g.kv_heads, 12);
	assert_int_equal(g.head_dim, 64);
	assert_string_equal(g.dtype, "f16");
	assert_int_equal(from_hf("{\"num_hidden_layers\":61,\"kv_lora_rank\":512,"
				 "\"qk_rope_head_dim\":64,\"torch_dtype\":\"bfloat16\"}", &g, why), 0);
	assert_int_equal(g.latent_dim, 576);
	assert_string_equal(g.layout, "mla");
	assert_int_equal(from_hf("{\"text_config\":{\"num_hidden_layers\":3,\"head_dim\":32,"
				 "\"num_key_value_heads\":2}}", &g, why), 0);
	assert_int_equal(g.layers, 3);
	assert_string_equal(g.dtype, "");
}

static void test_hf_config_bad(void **state)
{
	static const struct {
		const char *json, *key;
	} bad[] = {
		{"", "not a JSON object"},
		{"[1]", "not a JSON object"},
		{"{}", "num_hidden_layers"},
		{"{\"num_hidden_layers\":\"3\"}", "num_hidden_layers"},
		{"{\"num_hidden_layers\":1e30}", "num_hidden_layers"},
		{"{\"num_hidden_layers\":3}", "num_key_value_heads"},
		{"{\"num_hidden_layers\":3,\"num_attention_heads\":3,\"hidden_size\":10}", "head_dim"},
		{"{\"num_hidden_layers\":3,\"kv_lora_rank\":3}", "qk_rope_head_dim"},
		{"{\"num_hidden_layers\":3,\"num_attention_heads\":2,\"hidden_size\":10,"
		 "\"torch_dtype\":\"int7\"}", "torch_dtype"},
	};
	struct geometry g;
	char why[256];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (from_hf(bad[i].json, &g, why) != -EINVAL || !strstr(why, bad[i].key))
			fail_msg("%s: '%s'", bad[i].json, why);
	}
}

static int reply_of(const char *text, struct control_reply *reply)
{
	return control_parse_reply(text, strlen(text), reply);
}

static void test_replies(void **state)
{
	struct control_reply r;

	assert_int_equal(reply_of("ok matched=128 blocks=2\ndram=2 nvme=0\n", &r), 0);
	assert_int_equal(r.err, 0);
	assert_int_equal(r.nr_pairs, 4);
	assert_string_equal(r.pair[0].key, "matched");
	assert_string_equal(r.pair[0].value, "128");
	assert_string_equal(r.pair[3].key, "nvme");
	control_reply_free(&r);
	assert_int_equal(reply_of("ok\n", &r), 0);
	assert_int_equal(r.nr_pairs, 0);
	control_reply_free(&r);
	assert_int_equal(reply_of("error ENOENT a/b: no such sequence\n", &r), 0);
	assert_int_equal(r.err, -ENOENT);
	assert_string_equal(r.message, "a/b: no such sequence");
	control_reply_free(&r);
	assert_int_equal(reply_of("error EUNHEARD_OF what\n", &r), 0);
	assert_int_equal(r.err, -EIO);
	control_reply_free(&r);
	assert_int_equal(reply_of("error EAGAIN\n", &r), 0);
	assert_int_equal(r.err, -EAGAIN);
	control_reply_free(&r);
}

static void test_bad_replies(void **state)
{
	static const char *const bad[] = {"", "\n", "ok", "okay\n", "ok x\n", "ok =1\n", "error\n",
					  "error nope text\n", "matched=1\n"};
	struct control_reply r;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (reply_of(bad[i], &r) != -EPROTO)
			fail_msg("accepted: '%s'", bad[i]);
	assert_int_equal(control_parse_reply("ok a=\0\n", 7, &r), -EPROTO);
}

static void test_request_line(void **state)
{
	struct control_request rq;

	control_begin(&rq, "fork");
	control_arg(&rq, "a b/c=d\\e");
	control_arg(&rq, "x");
	control_key(&rq, "salt", "s t");
	control_key(&rq, "none", NULL);
	control_key_u64(&rq, "tokens", 12);
	assert_string_equal(rq.line.text,
			    "fork a\\040b/c\\075d\\134e x salt=s\\040t tokens=12");
	control_end(&rq);
}

static void test_unescape(void **state)
{
	char good[] = "a\\040b\\134\\377", broken[] = "a\\04", nul[] = "\\000", nine[] = "\\129";

	assert_int_equal(kvctl_unescape(good), 0);
	assert_string_equal(good, "a b\\\377");
	assert_int_equal(kvctl_unescape(broken), -EINVAL);
	assert_int_equal(kvctl_unescape(nul), -EINVAL);
	assert_int_equal(kvctl_unescape(nine), -EINVAL);
}

static void test_sequence_lines(void **state)
{
	struct kvctl_sequence s;

	assert_int_equal(kvctl_parse_sequence("ns/a\\040b 100 4 paused:9 3 1 0 0 "
					      "2025-01-01T00:00:00Z", &s), 0);
	assert_string_equal(s.path, "ns/a b");
	assert_string_equal(s.tokens, "100");
	assert_string_equal(s.state, "paused:9");
	assert_string_equal(s.dram, "3");
	assert_string_equal(s.nvme, "1");
	assert_string_equal(s.last_use, "2025-01-01T00:00:00Z");
	free(s.path);
	assert_int_equal(kvctl_parse_sequence("", &s), -EINVAL);
	assert_int_equal(kvctl_parse_sequence("a 1 2 idle", &s), -EINVAL);
	assert_int_equal(kvctl_parse_sequence("a\\9 1 2 idle 1 1 1 1 x", &s), -EINVAL);
	kvctl_parse_residency("hbm=0 dram=17 nvme=4 remote=1 lossy=0", &s);
	assert_string_equal(s.dram, "17");
	assert_string_equal(s.remote, "1");
}

static void test_status(void **state)
{
	cJSON *o = kvctl_parse_status("name: a b\ntokens: 100\nlast_use: 2025-01-01T10:00:00Z\n"
				      "restore_ms: unknown\njunk\n", ':');

	assert_string_equal(cJSON_GetObjectItem(o, "name")->valuestring, "a b");
	assert_int_equal(cJSON_GetObjectItem(o, "tokens")->valueint, 100);
	assert_string_equal(cJSON_GetObjectItem(o, "last_use")->valuestring,
			    "2025-01-01T10:00:00Z");
	assert_string_equal(cJSON_GetObjectItem(o, "restore_ms")->valuestring, "unknown");
	assert_int_equal(cJSON_GetArraySize(o), 4);
	cJSON_Delete(o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_geometry_sizes),
		cmocka_unit_test(test_geometry_names_the_key),
		cmocka_unit_test(test_geometry_lists_what_is_missing),
		cmocka_unit_test(test_geometry_round_trip),
		cmocka_unit_test(test_hf_config),
		cmocka_unit_test(test_hf_config_bad),
		cmocka_unit_test(test_replies),
		cmocka_unit_test(test_bad_replies),
		cmocka_unit_test(test_request_line),
		cmocka_unit_test(test_unescape),
		cmocka_unit_test(test_sequence_lines),
		cmocka_unit_test(test_status),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
