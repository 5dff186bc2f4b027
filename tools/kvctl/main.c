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
	fprintf(to, "usage: kvctl COMMAND [ARGUMENT...]\n"
		    "       kvctl COMMAND --help, kvctl help COMMAND: what it takes\n\n"
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

static bool asks_help(const char *arg)
{
	return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

static bool asks_version(const char *arg)
{
	return !strcmp(arg, "--version") || !strcmp(arg, "-V");
}

/* A command of the interface that this version has not: it still tells what it will be. */
static int run_later(const struct kvctl_command *c, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (asks_version(argv[i])) {
			cli_print_version();
			return CLI_OK;
		}
		if (!asks_help(argv[i]))
			continue;
		printf("kvctl %s: %s. It is not in this version.\n", c->word, c->help);
		return CLI_OK;
	}
	cli_error("%s: not in this version", c->word);
	return CLI_USAGE;
}

static int run_command(const struct kvctl_command *c, int argc, char **argv)
{
	return c->run ? c->run(argc, argv) : run_later(c, argc, argv);
}

/* The first word of commands of two words: @arg is what stands for the second. */
static int run_group(const char *word, const char *arg)
{
	if (arg && asks_version(arg)) {
		cli_print_version();
		return CLI_OK;
	}
	if (!arg || !asks_help(arg)) {
		cli_error("%s: needs one of create, show (see kvctl %s --help)", word, word);
		return CLI_USAGE;
	}
	printf("usage: kvctl %s COMMAND [ARGUMENT...]\n\n"
	       "A namespace is a directory for one model: its .geometry says what the bytes of kv are.\n\n"
	       "commands:\n", word);
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (!strcmp(commands[i].word, word))
			printf("  %-12s %s\n", commands[i].sub, commands[i].help);
	printf("\nkvctl %s COMMAND --help tells more\n\n"
	       "exit status: 0 done, 1 failed, 2 called wrongly\n", word);
	return CLI_OK;
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
	if (word_known)
		return run_group(argv[1], argc > 2 ? argv[2] : NULL);
	cli_error("%s: no such command (kvctl --help lists them)", argv[1]);
	return CLI_USAGE;
}

/* kvctl help [COMMAND [WORD]] is kvctl [COMMAND [WORD]] --help. */
static int run_help(int argc, char **argv)
{
	static char help[] = "--help";
	char *args[] = {argv[0], argc > 2 ? argv[2] : NULL, help, NULL, NULL};
	bool two_words = argc > 3 && *argv[3] != '-';

	if (argc < 3 || *argv[2] == '-') {
		print_commands(stdout);
		return CLI_OK;
	}
	if (two_words) {
		args[2] = argv[3];
		args[3] = help;
	}
	return dispatch(two_words ? 4 : 3, args);
}

int main(int argc, char **argv)
{
	int status;

	cli_set_program("kvctl");
	if (argc < 2) {
		print_commands(stderr);
		return CLI_USAGE;
	}
	if (asks_help(argv[1])) {
		print_commands(stdout);
		return CLI_OK;
	}
	if (asks_version(argv[1])) {
		cli_print_version();
		return CLI_OK;
	}
	status = strcmp(argv[1], "help") ? dispatch(argc, argv) : run_help(argc, argv);
	if (fflush(stdout) && status == CLI_OK) {
		cli_error("standard output: can not be written");
		return CLI_FAILED;
	}
	return status;
}
