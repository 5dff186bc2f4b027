/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <cJSON.h>
#include "tools/kvctl/geometry.h"

#define HF_MAX_COUNT 1e6

/* A count from the config: 0 when the key is not there or null, -EINVAL when it is no count. */
static int hf_count(const cJSON *config, const char *key, u64 *count, struct textbuf *why)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);

	*count = 0;
	if (!item || cJSON_IsNull(item))
		return 0;
	if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1) ||
	    item->valuedouble > HF_MAX_COUNT || item->valuedouble != (u64)item->valuedouble) {
		textbuf_printf(why, "%s: not a whole number above 0", key);
		return -EINVAL;
	}
	*count = (u64)item->valuedouble;
	return 0;
}

static int hf_dtype(struct geometry *g, const cJSON *config, struct textbuf *why)
{
	static const struct {
		const char *theirs, *ours;
	} names[] = {
		{"bfloat16", "bf16"},		{"float16", "f16"},
		{"float32", "f32"},		{"float8_e4m3fn", "fp8_e4m3"},
		{"float8_e5m2", "fp8_e5m2"},
	};
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "torch_dtype");
	const char *name;

	if (!cJSON_IsString(item))
		item = cJSON_GetObjectItemCaseSensitive(config, "dtype");
	if (!cJSON_IsString(item))
		return 0;
	name = item->valuestring;
	if (!strncmp(name, "torch.", 6))
		name += 6;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strcmp(names[i].theirs, name))
			continue;
		snprintf(g->dtype, sizeof(g->dtype), "%s", names[i].ours);
		return 0;
	}
	textbuf_printf(why, "torch_dtype: '%s' is not known; name one with --dtype",
		       item->valuestring);
	return -EINVAL;
}

static int hf_latent(struct geometry *g, const cJSON *config, u64 rank, struct textbuf *why)
{
	u64 rope;
	int err = hf_count(config, "qk_rope_head_dim", &rope, why);

	if (err)
		return err;
	if (!rope) {
		textbuf_printf(why, "qk_rope_head_dim: missing beside kv_lora_rank");
		return -EINVAL;
	}
	g->latent_dim = rank + rope;
	snprintf(g->layout, sizeof(g->layout), "mla");
	return 0;
}

static int hf_heads(struct geometry *g, const cJSON *config, struct textbuf *why)
{
	u64 heads, hidden;
	int err = hf_count(config, "num_attention_heads", &heads, why) ?:
		  hf_count(config, "hidden_size", &hidden, why) ?:
		  hf_count(config, "num_key_value_heads", &g->kv_heads, why) ?:
		  hf_count(config, "head_dim", &g->head_dim, why);

	if (err)
		return err;
	if (!g->kv_heads)
		g->kv_heads = heads;
	if (!g->kv_heads) {
		textbuf_printf(why, "num_key_value_heads, num_attention_heads: both missing");
		return -EINVAL;
	}
	if (g->head_dim)
		return 0;
	if (!heads || !hidden || hidden % heads) {
		textbuf_printf(why, "head_dim: missing, and hidden_size / num_attention_heads is "
				    "no whole number");
		return -EINVAL;
	}
	g->head_dim = hidden / heads;
	return 0;
}

static int hf_read(struct geometry *g, const cJSON *config, struct textbuf *why)
{
	u64 rank;
	int err = hf_count(config, "num_hidden_layers", &g->layers, why) ?:
		  hf_count(config, "kv_lora_rank", &rank, why);

	if (err)
		return err;
	if (!g->layers) {
		textbuf_printf(why, "num_hidden_layers: missing");
		return -EINVAL;
	}
	err = rank ? hf_latent(g, config, rank, why) : hf_heads(g, config, why);
	if (err)
		return err;
	return *g->dtype ? 0 : hf_dtype(g, config, why);
}

int geometry_from_hf(struct geometry *g, const char *json, struct textbuf *why)
{
	cJSON *config = cJSON_Parse(json);
	const cJSON *at = config;
	int err;

	if (!cJSON_IsObject(config)) {
		textbuf_printf(why, "not a JSON object");
		cJSON_Delete(config);
		return -EINVAL;
	}
	if (!cJSON_HasObjectItem(at, "num_hidden_layers") &&
	    cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(at, "text_config")))
		at = cJSON_GetObjectItemCaseSensitive(at, "text_config");
	err = hf_read(g, at, why);
	cJSON_Delete(config);
	return err;
}
