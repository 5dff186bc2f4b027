/* SPDX-License-Identifier: Apache-2.0 */
/* What kvbench makes of its runs: medians, ratios, goals, and what it says of what was not measured. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lib/test.h"
#include "tools/kvbench/kvbench.h"

static const struct figure_spec low = {"P5", "match", "ms", "sha", BETTER_LOW, 1, 3};
static const struct figure_spec high = {"P3", "restore", "GB/s", "disk", BETTER_HIGH, 0, 0.95};

static void fill(struct figure *fig, const struct figure_spec *spec, const double (*runs)[2], u32 nr)
{
	figure_init(fig, spec);
	for (u32 i = 0; i < nr; i++)
		figure_add(fig, runs[i][0], runs[i][1]);
	assert_int_equal(fig->err, 0);
}

static void median_ignores_order_and_outliers(void **state)
{
	const double odd[] = {5, 1, 900, 3, 4}, even[] = {4, 1, 2, 3};

	assert_float_equal(median(odd, 5), 4, 0);
	assert_float_equal(median(even, 4), 2.5, 0);
	assert_true(isnan(median(odd, 0)));
	assert_float_equal(odd[2], 900, 0);
}

static void ratio_is_taken_run_by_run(void **state)
{
	/* The machine slows down tenfold in the middle: each run's ratio is still 2. */
	const double runs[][2] = {{1, 2}, {1, 2}, {10, 20}, {10, 20}, {10, 20}};
	struct figure fig;

	fill(&fig, &low, runs, 5);
	assert_float_equal(figure_ratio(&fig), 2, 1e-9);
	figure_free(&fig);
	fill(&fig, &high, runs, 5);
	assert_float_equal(figure_ratio(&fig), 0.5, 1e-9);
	figure_free(&fig);
}

static void goals_of_value_and_ratio_both_count(void **state)
{
	const double fast[][2] = {{0.5, 2}, {0.5, 2}, {0.5, 2}};
	const double slow[][2] = {{1.5, 9}, {1.5, 9}, {1.5, 9}};
	const double close[][2] = {{0.5, 1}, {0.5, 1}, {0.5, 1}};
	struct figure fig;

	fill(&fig, &low, fast, 3);
	assert_true(figure_met(&fig));
	figure_free(&fig);
	fill(&fig, &low, slow, 3);
	assert_false(figure_met(&fig));
	figure_free(&fig);
	fill(&fig, &low, close, 3);
	assert_false(figure_met(&fig));
	figure_free(&fig);
	fill(&fig, &high, close, 3);
	assert_false(figure_met(&fig));
	figure_free(&fig);
}

static void without_a_peer_a_ratio_is_not_met(void **state)
{
	const double runs[][2] = {{0.5, NAN}, {0.5, NAN}};
	struct figure fig;

	fill(&fig, &low, runs, 2);
	assert_true(isnan(figure_ratio(&fig)));
	assert_false(figure_met(&fig));
	figure_free(&fig);
	figure_init(&fig, &low);
	assert_false(figure_met(&fig));
	figure_free(&fig);
}

/* The line of @fig, which is freed. */
static void capture(char text[400], struct figure *fig)
{
	FILE *file = tmpfile();
	int saved = dup(STDOUT_FILENO);
	struct report *report;
	size_t len;

	assert_non_null(file);
	fflush(stdout);
	assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
	report = report_open(false);
	assert_non_null(report);
	report_figure(report, fig);
	assert_int_equal(report_close(report), 0);
	assert_true(dup2(saved, STDOUT_FILENO) >= 0);
	close(saved);
	rewind(file);
	len = fread(text, 1, 399, file);
	text[len] = '\0';
	fclose(file);
}

static void lines_read_as_promised(void **state)
{
	const double runs[][2] = {{0.71, 4.9}, {0.71, 4.9}};
	const double alone[][2] = {{0.71, NAN}};
	struct figure fig;
	char text[400];

	fill(&fig, &low, runs, 2);
	capture(text, &fig);
	assert_string_equal(text, "P5 match 0.71 ms peer=sha 4.90 ms ratio=6.90 "
				  "goal=<=1ms,>=3x met\n");
	fill(&fig, &low, alone, 1);
	figure_why(&fig, "no sha here");
	capture(text, &fig);
	assert_string_equal(text, "P5 match 0.71 ms peer=sha not measured (no sha here) "
				  "goal=<=1ms,>=3x not met\n");
	figure_init(&fig, &high);
	figure_why(&fig, "no disk");
	capture(text, &fig);
	assert_string_equal(text, "P3 restore not measured (no disk) goal=>=0.95x not met\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(median_ignores_order_and_outliers),
		cmocka_unit_test(ratio_is_taken_run_by_run),
		cmocka_unit_test(goals_of_value_and_ratio_both_count),
		cmocka_unit_test(without_a_peer_a_ratio_is_not_met),
		cmocka_unit_test(lines_read_as_promised),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
