/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "tools/kvbench/kvbench.h"

void figure_init(struct figure *fig, const struct figure_spec *spec)
{
	*fig = (struct figure){.spec = spec, .peer = spec->peer};
}

void figure_add(struct figure *fig, double value, double against)
{
	if (fig->nr == fig->max) {
		u32 max_nr = fig->max ? 2 * fig->max : 16;
		double *v = reallocarray(fig->value, max_nr, sizeof(*v)), *a = NULL;

		if (v) {
			fig->value = v;
			a = reallocarray(fig->against, max_nr, sizeof(*a));
		}
		if (!a) {
			fig->err = -ENOMEM;
			return;
		}
		fig->against = a;
		fig->max = max_nr;
	}
	fig->value[fig->nr] = value;
	fig->against[fig->nr++] = against;
}

void figure_why(struct figure *fig, const char *fmt, ...)
{
	va_list args;

	if (fig->why[0])
		return;
	va_start(args, fmt);
	vsnprintf(fig->why, sizeof(fig->why), fmt, args);
	va_end(args);
}

void figure_free(struct figure *fig)
{
	free(fig->value);
	free(fig->against);
	*fig = (struct figure){.spec = fig->spec};
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(const double *values, u32 nr)
{
	double *sorted = nr ? kvc_alloc_array(nr, sizeof(*sorted)) : NULL, mid;

	if (!sorted)
		return NAN;
	memcpy(sorted, values, nr * sizeof(*sorted));
	qsort(sorted, nr, sizeof(*sorted), compare);
	mid = nr % 2 ? sorted[nr / 2] : (sorted[nr / 2 - 1] + sorted[nr / 2]) / 2;
	free(sorted);
	return mid;
}

double figure_ratio(const struct figure *fig)
{
	double *ratios = fig->nr ? kvc_alloc_array(fig->nr, sizeof(*ratios)) : NULL, mid;
	u32 nr = 0;

	if (!ratios)
		return NAN;
	for (u32 i = 0; i < fig->nr; i++) {
		double v = fig->value[i], a = fig->against[i];

		if (!isnan(a) && v > 0 && a > 0)
			ratios[nr++] = fig->spec->better == BETTER_LOW ? a / v : v / a;
	}
	mid = median(ratios, nr);
	free(ratios);
	return mid;
}

bool figure_has_goal(const struct figure *fig)
{
	return fig->spec->goal > 0 || fig->spec->goal_ratio > 0;
}

bool figure_met(const struct figure *fig)
{
	const struct figure_spec *spec = fig->spec;
	double value = median(fig->value, fig->nr), ratio = figure_ratio(fig);

	if (!figure_has_goal(fig) || isnan(value) || fig->err)
		return false;
	if (spec->goal > 0 &&
	    (spec->better == BETTER_LOW ? value > spec->goal : value < spec->goal))
		return false;
	return spec->goal_ratio <= 0 || ratio >= spec->goal_ratio; /* false for NAN */
}
