/* SPDX-License-Identifier: Apache-2.0 */
/* Figures as lines, or as a JSON array. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "tools/kvbench/kvbench.h"

struct report {
	cJSON *array; /* NULL: lines */
	bool bad;
};

struct report *report_open(bool json)
{
	struct report *report = calloc(1, sizeof(*report));

	if (!report || !json)
		return report;
	report->array = cJSON_CreateArray();
	if (report->array)
		return report;
	free(report);
	return NULL;
}

static void add_number(struct textbuf *tb, double v)
{
	int digits = v >= 100 ? 0 : v >= 10 ? 1 : v >= 0.1 ? 2 : 4;

	textbuf_printf(tb, "%.*f", digits, v);
}

/* "<=1ms,>=3x"; nothing when there is none */
static void add_goal(struct textbuf *tb, const struct figure_spec *spec)
{
	if (spec->goal > 0)
		textbuf_printf(tb, "%s%g%s", spec->better == BETTER_LOW ? "<=" : ">=", spec->goal,
			       spec->unit);
	if (spec->goal_ratio > 0)
		textbuf_printf(tb, "%s>=%gx", spec->goal > 0 ? "," : "", spec->goal_ratio);
}

static void print_line(struct report *report, const struct figure *fig)
{
	const struct figure_spec *spec = fig->spec;
	double value = median(fig->value, fig->nr), ratio = figure_ratio(fig);
	struct textbuf tb = TEXTBUF_INIT;

	textbuf_printf(&tb, "%s %s ", spec->id, spec->name);
	if (isnan(value)) {
		textbuf_printf(&tb, "not measured (%s)", fig->why);
	} else {
		add_number(&tb, value);
		textbuf_printf(&tb, " %s", spec->unit);
	}
	if (!isnan(ratio)) {
		textbuf_printf(&tb, " peer=%s ", fig->peer);
		add_number(&tb, median(fig->against, fig->nr));
		textbuf_printf(&tb, " %s ratio=", spec->unit);
		add_number(&tb, ratio);
	} else if (!isnan(value) && fig->peer) {
		textbuf_printf(&tb, " peer=%s not measured (%s)", fig->peer, fig->why);
	}
	textbuf_printf(&tb, " goal=");
	add_goal(&tb, spec);
	if (figure_has_goal(fig))
		textbuf_printf(&tb, "%s", figure_met(fig) ? " met" : " not met");
	else
		textbuf_printf(&tb, "none");
	report->bad |= tb.err || puts(tb.text) < 0;
	fflush(stdout);
	textbuf_free(&tb);
}

/* A number, or null where there is none. */
static cJSON *number(double v)
{
	return isnan(v) ? cJSON_CreateNull() : cJSON_CreateNumber(v);
}

static cJSON *text(const char *s)
{
	return s ? cJSON_CreateString(s) : cJSON_CreateNull();
}

static void put(struct report *report, cJSON *object, const char *key, cJSON *item)
{
	if (!item || !cJSON_AddItemToObject(object, key, item))
		report->bad = true;
}

static void add_object(struct report *report, const struct figure *fig)
{
	const struct figure_spec *spec = fig->spec;
	cJSON *o = cJSON_CreateObject();
	struct textbuf goal = TEXTBUF_INIT;
	bool has_peer = !isnan(figure_ratio(fig));

	if (!o || !cJSON_AddItemToArray(report->array, o)) {
		report->bad = true;
		return;
	}
	add_goal(&goal, spec);
	put(report, o, "id", text(spec->id));
	put(report, o, "name", text(spec->name));
	put(report, o, "value", number(median(fig->value, fig->nr)));
	put(report, o, "unit", text(spec->unit));
	put(report, o, "peer", text(fig->peer));
	put(report, o, "peer_value", number(has_peer ? median(fig->against, fig->nr) : NAN));
	put(report, o, "ratio", number(figure_ratio(fig)));
	put(report, o, "goal", text(goal.text));
	put(report, o, "met",
	    figure_has_goal(fig) ? cJSON_CreateBool(figure_met(fig)) : cJSON_CreateNull());
	if (fig->why[0])
		put(report, o, "why", text(fig->why));
	report->bad |= goal.err;
	textbuf_free(&goal);
}

void report_figure(struct report *report, struct figure *fig)
{
	if (fig->err)
		figure_why(fig, "out of memory");
	else if (!fig->nr)
		figure_why(fig, "the run failed");
	if (report->array)
		add_object(report, fig);
	else
		print_line(report, fig);
	figure_free(fig);
}

void report_missing(struct report *report, const struct figure_spec *spec, const char *why)
{
	struct figure fig;

	figure_init(&fig, spec);
	figure_why(&fig, "%s", why);
	report_figure(report, &fig);
}

int report_close(struct report *report)
{
	bool bad = report->bad;
	char *json = report->array ? cJSON_Print(report->array) : NULL;

	if (report->array)
		bad |= !json || puts(json) < 0;
	bad |= fflush(stdout) != 0;
	cJSON_free(json);
	cJSON_Delete(report->array);
	free(report);
	return bad ? -EIO : 0;
}
