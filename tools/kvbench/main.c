/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench: measure the figures that the project promises, each beside the peer that it is compared
 * with, on this machine and in one run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

struct group {
	const char *name;
	int (*run)(const struct bench *bench); /* NULL: later */
	struct figure_spec later;	       /* what it will tell */
};

static const struct group groups[] = {
	{"alloc", bench_alloc, {0}},
	{"lookup", bench_lookup, {0}},
	{"fork", bench_fork, {0}},
	{"map", bench_map, {0}},
	{"read", bench_read, {0}},
	{"write", bench_write, {0}},
	{"nvme", bench_nvme, {0}},
	{"session", bench_session, {0}},
	{"codec",
	 NULL,
	 {.id = "P12", .name = "codec_int8", .unit = "GB/s", .peer = "memcpy",
	  .better = BETTER_HIGH, .goal_ratio = 0.4}},
	{"attn",
	 NULL,
	 {.id = "P13", .name = "attn_cpu", .unit = "GB/s", .peer = "stream_read",
	  .better = BETTER_HIGH, .goal_ratio = 0.8}},
};

struct kvbench {
	const char *dir;
	u64 runs, size_bytes;
	bool json;
};

static const struct group *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++)
		if (!strcmp(name, groups[i].name))
			return &groups[i];
	return NULL;
}

static int parse(struct kvbench *k, int argc, char **argv, char ***args)
{
	const struct cli_option options[] = {
		{"dir", 'd', CLI_TEXT, &k->dir, "DIR", "for files and stores (default $TMPDIR)"},
		{"size", 's', CLI_SIZE, &k->size_bytes, "SIZE", "data to work on (see kvbench(1))"},
		{"runs", 'n', CLI_U64, &k->runs, "N", "runs of each figure, 5 or more (default 5)"},
		{"json", 'j', CLI_FLAG, &k->json, NULL, "print a JSON array"},
	};
	const struct cli_command command = {
		"kvbench", "NAME... [OPTION...]",
		"Measures figures and prints a line for each, with the peer that it is compared with,\n"
		"measured in turn in the same run. NAME: alloc lookup fork map read write nvme\n"
		"session, or all; codec attn are not in this version. A goal that is missed is told, and is\n"
		"no failure.",
		options, ARRAY_SIZE(options), 1, -1};

	return cli_parse(&command, argc, argv, args);
}

static int check(const struct kvbench *k, char **names, int nr)
{
	if (k->runs < BENCH_MIN_RUNS || k->runs > BENCH_MAX_RUNS) {
		cli_error("--runs: from 5 to 999 (see kvbench --help)");
		return CLI_USAGE;
	}
	for (int i = 0; i < nr; i++) {
		if (strcmp(names[i], "all") && !find(names[i])) {
			cli_error("%s: no such benchmark (see kvbench --help)", names[i]);
			return CLI_USAGE;
		}
	}
	return CLI_OK;
}

static int run_group(const struct group *group, const struct bench *bench)
{
	unsigned int mark = cleanup_mark();
	int err = 0;

	if (group->run)
		err = group->run(bench);
	else
		report_missing(bench->report, &group->later, "not in this version");
	cleanup_to(mark);
	if (err)
		cli_error("%s: failed: %s", group->name, strerror(-err));
	return err ? CLI_FAILED : CLI_OK;
}

/* A benchmark that fails does not keep the others from running. */
static int run_all(const struct bench *bench, char **names, int nr)
{
	int status = CLI_OK;

	for (int i = 0; i < nr; i++)
		for (size_t g = 0; g < ARRAY_SIZE(groups); g++)
			if (!strcmp(names[i], "all") || !strcmp(names[i], groups[g].name))
				status = max(status, run_group(&groups[g], bench));
	return status;
}

int main(int argc, char **argv)
{
	struct kvbench k = {.dir = getenv("TMPDIR"), .runs = BENCH_MIN_RUNS};
	struct bench bench;
	char **args;
	int status;

	cli_set_program("kvbench");
	if (argc == 4 && !strcmp(argv[1], "--null-server"))
		return nullfs_main(argv[2], argv[3]);
	status = parse(&k, argc, argv, &args);
	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	status = check(&k, args, cli_nr_args());
	if (status != CLI_OK)
		return status;
	alloc_prepare(argv);
	bench = (struct bench){.size_bytes = k.size_bytes,
			       .runs = (u32)k.runs,
			       .dir = k.dir && *k.dir ? k.dir : "/tmp",
			       .report = report_open(k.json)};
	if (!bench.report || cleanup_start()) {
		cli_error("out of memory");
		return CLI_FAILED;
	}
#ifdef KVC_DEBUG
	cli_error("built with checks: the figures say little");
#endif
	status = run_all(&bench, args, cli_nr_args());
	if (report_close(bench.report))
		status = CLI_FAILED;
	return status;
}
