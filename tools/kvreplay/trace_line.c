/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a trace: JSON in, a checked request out, and back. */
#include <errno.h>
#include <string.h>
#include <cJSON.h>
#include "tools/kvreplay/trace.h"

void trace_request_free(struct trace_request *rq)
{
	free(rq->runs);
	*rq = (struct trace_request){0};
}

int trace_add_run(struct trace_request *rq, u64 first, u64 nr)
{
	struct trace_run *last = rq->nr_runs ? &rq->runs[rq->nr_runs - 1] : NULL;

	if (last && last->first + last->nr == first) {
		last->nr += nr;
		return 0;
	}
	if (rq->nr_runs == rq->runs_size) {
		size_t size = rq->runs_size ? 2 * rq->runs_size : 16;
		struct trace_run *runs = reallocarray(rq->runs, size, sizeof(*runs));

		if (!runs)
			return -ENOMEM;
		rq->runs = runs;
		rq->runs_size = size;
	}
	rq->runs[rq->nr_runs++] = (struct trace_run){first, nr};
	return 0;
}

/* A whole number from 0 to @limit. */
static bool whole_number(const cJSON *item, u64 limit, u64 *value)
{
	if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
	    item->valuedouble > (double)limit)
		return false;
	*value = (u64)item->valuedouble;
	return (double)*value == item->valuedouble;
}

static int take_number(const cJSON *object, const char *key, u64 limit, u64 *value,
		       struct textbuf *why)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

	if (whole_number(item, limit, value))
		return 0;
	textbuf_printf(why, "%s %s (a whole number from 0 to %llu)", key,
		       item ? "is out of range or not a number" : "is missing",
		       (unsigned long long)limit);
	return -EINVAL;
}

/* Times may have a fraction of a millisecond; it is dropped. */
static int take_timestamp(const cJSON *object, struct trace_request *rq, struct textbuf *why)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "timestamp");

	if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
	    item->valuedouble > (double)TRACE_MAX_ID) {
		textbuf_printf(why, "timestamp is %s",
			       item ? "out of range or not a number" : "missing");
		return -EINVAL;
	}
	rq->timestamp_ms = (u64)item->valuedouble;
	return 0;
}

static int take_hash_ids(const cJSON *ids, struct trace_request *rq, struct textbuf *why)
{
	const cJSON *item;
	u64 nr = 0, id;

	rq->unit_tokens = TRACE_UNIT_HASH_IDS;
	rq->known_tokens = rq->input_tokens;
	cJSON_ArrayForEach(item, ids)
	{
		if (!whole_number(item, TRACE_MAX_ID, &id)) {
			textbuf_printf(why, "hash_ids[%llu] is not an id", (unsigned long long)nr);
			return -EINVAL;
		}
		if (trace_add_run(rq, id, 1))
			return -ENOMEM;
		nr++;
	}
	if (nr == (rq->input_tokens + TRACE_UNIT_HASH_IDS - 1) / TRACE_UNIT_HASH_IDS)
		return 0;
	textbuf_printf(why, "hash_ids has %llu ids, input_length %u needs %u",
		       (unsigned long long)nr, rq->input_tokens,
		       (rq->input_tokens + TRACE_UNIT_HASH_IDS - 1) / TRACE_UNIT_HASH_IDS);
	return -EINVAL;
}

static int take_hash_runs(const cJSON *runs, struct trace_request *rq, struct textbuf *why)
{
	u64 tokens = 0, index = 0;
	const cJSON *item;

	rq->unit_tokens = TRACE_UNIT_HASH_RUNS;
	cJSON_ArrayForEach(item, runs)
	{
		u64 first, nr;

		if (cJSON_GetArraySize(item) != 2 || !cJSON_IsArray(item) ||
		    !whole_number(item->child, TRACE_MAX_ID, &first) ||
		    !whole_number(item->child->next, TRACE_MAX_TOKENS, &nr) || !nr) {
			textbuf_printf(why, "hash_runs[%llu] is not [first id, count]",
				       (unsigned long long)index);
			return -EINVAL;
		}
		tokens += nr * TRACE_UNIT_HASH_RUNS;
		if (tokens > rq->input_tokens) {
			textbuf_printf(why, "hash_runs stand for more tokens than input_length %u",
				       rq->input_tokens);
			return -EINVAL;
		}
		if (trace_add_run(rq, first, nr))
			return -ENOMEM;
		index++;
	}
	rq->known_tokens = (u32)tokens;
	return 0;
}

static int take_object(const cJSON *object, struct trace_request *rq, struct textbuf *why)
{
	const cJSON *ids = cJSON_GetObjectItemCaseSensitive(object, "hash_ids");
	const cJSON *runs = cJSON_GetObjectItemCaseSensitive(object, "hash_runs");
	const cJSON *stop = cJSON_GetObjectItemCaseSensitive(object, "stop");
	u64 input, output;
	int err = take_timestamp(object, rq, why) ?:
		  take_number(object, "input_length", TRACE_MAX_TOKENS, &input, why) ?:
		  take_number(object, "output_length", TRACE_MAX_TOKENS, &output, why);

	if (!err && cJSON_HasObjectItem(object, "session"))
		err = take_number(object, "session", TRACE_MAX_ID, &rq->session, why);
	if (err)
		return err;
	rq->input_tokens = (u32)input;
	rq->output_tokens = (u32)output;
	rq->tool_use = cJSON_IsString(stop) && !strcmp(stop->valuestring, "tool_use");
	if (cJSON_IsArray(ids))
		return take_hash_ids(ids, rq, why);
	if (cJSON_IsArray(runs))
		return take_hash_runs(runs, rq, why);
	textbuf_printf(why, "neither hash_ids nor hash_runs is there as an array");
	return -EINVAL;
}

int trace_parse_line(const char *text, size_t len, struct trace_request *rq, struct textbuf *why)
{
	const char *end = NULL;
	cJSON *object = cJSON_ParseWithLengthOpts(text, len, &end, 0);
	int err = -EINVAL;

	rq->nr_runs = 0;
	rq->session = 0;
	while (object && end < text + len && (*end == ' ' || *end == '\t' || *end == '\r'))
		end++;
	if (!cJSON_IsObject(object) || end != text + len)
		textbuf_printf(why, "not a JSON object");
	else
		err = take_object(object, rq, why);
	cJSON_Delete(object);
	return err;
}

void trace_write_line(const struct trace_request *rq, struct textbuf *text)
{
	textbuf_printf(text, "{\"timestamp\":%llu,\"session\":%llu,\"input_length\":%u,"
			     "\"output_length\":%u,\"stop\":\"%s\",\"hash_runs\":[",
		       (unsigned long long)rq->timestamp_ms, (unsigned long long)rq->session,
		       rq->input_tokens, rq->output_tokens, rq->tool_use ? "tool_use" : "end_turn");
	for (size_t i = 0; i < rq->nr_runs; i++)
		textbuf_printf(text, "%s[%llu,%llu]", i ? "," : "",
			       (unsigned long long)rq->runs[i].first,
			       (unsigned long long)rq->runs[i].nr);
	textbuf_printf(text, "]}\n");
}
