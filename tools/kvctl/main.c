/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl: look at and steer a kvcachefs mount. Uses nothing but what every user has: POSIX calls on
 * the mount, extended attributes and the files in `.kvc/`.
 */
#include <stdio.h>
#include <string.h>
#include "tools/kvctl/kvctl.h"

struct kvctl_command {
	const char *word, *sub; /* sub: second word, or NULL */
	int (*run)(int argc, char **argv); /* NULL: not in this version */
	const char *help;
};

static const struct kvctl_command commands[] = {
	{"ns", "create", kvctl_ns_create, "make a directory a namespace with a geometry"},
	{"ns", "show", kvctl_ns_show, "geometry of the namespace that a path lies in"},
	{"ls", NULL, kvctl_ls, "sequences with tokens, state, tiers"},
	{"stat", NULL, kvctl_stat, "everything that is known about a file or sequence"},
	{"du", NULL, kvctl_du, "apparent, allocated and exclusive bytes"},
	{"match", NULL, kvctl_match, "how many leading tokens of a prompt are cached"},
	{"fork", NULL, kvctl_fork, "a second sequence that shares the first one's blocks"},
	{"state", NULL, kvctl_state, "show or set decoding, queued, paused, idle"},
	{"pin", NULL, kvctl_pin, "show or set the tier that a sequence is held in"},
	{"priority", NULL, kvctl_priority, "show or set a directory's eviction priority"},
	{"prefetch", NULL, kvctl_prefetch, "copy blocks up into a tier"},
	{"demote", NULL, kvctl_demote, "move blocks down into a tier"},
	{"drop", NULL, kvctl_drop, "empty the unnamed prefix cache"},
	{"ttl", NULL, NULL, "show or set a directory's time to live"},
	{"export", NULL, NULL, "write a sequence as safetensors"},
	{"import", NULL, NULL, "read a sequence from safetensors"},
	{"scrub", NULL, NULL, "read and verify everything"},
	{"top", NULL, NULL, "live view"},
};

static void print_commands(FILE *to)
{
	fprintf(to, "usage: kvctl COMMAND [ARGUMENT...]     kvctl COMMAND --help tells more\n\n"
		    "Look at and steer a kvcachefs mount.\n\ncommands:\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		const struct kvctl_command *c = &commands[i];
		char name[32];

		snprintf(name, sizeof(name), "%s%s%s", c->word, c->sub ? " " : "",
			 c->sub ? c->sub : "");
		fprintf(to, "  %-12s %s%s\n", name, c->help, c->run ? "" : " (not in this version)");
	}
	fprintf(to, "\nexit status: 0 done, 1 failed, 2 called wrongly\n");
}

static int run_command(const struct kvctl_command *c, int argc, char **argv)
{
	if (c->run)
		return c->run(argc, argv);
	cli_error("%s: not in this version", c->word);
	return CLI_USAGE;
}

static int dispatch(int argc, char **argv)
{
	bool word_known = false;

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		const struct kvctl_command *c = &commands[i];

		if (strcmp(c->word, argv[1]))
			continue;
		word_known = true;
		if (!c->sub)
			return run_command(c, argc - 1, argv + 1);
		if (argc > 2 && !strcmp(c->sub, argv[2]))
			return run_command(c, argc - 2, argv + 2);
	}
	if (word_known && argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"))) {
		print_commands(stdout);
		return CLI_OK;
	}
	if (word_known)
		cli_error("%s: needs one of create, show", argv[1]);
	else
		cli_error("%s: no such command (kvctl --help lists them)", argv[1]);
	return CLI_USAGE;
}

int main(int argc, char **argv)
{
	int status;

	cli_set_program("kvctl");
	if (argc < 2) {
		print_commands(stderr);
		return CLI_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		print_commands(stdout);
		return CLI_OK;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		cli_print_version();
		return CLI_OK;
	}
	status = dispatch(argc, argv);
	if (fflush(stdout) && status == CLI_OK) {
		cli_error("standard output: can not be written");
		return CLI_FAILED;
	}
	return status;
}
