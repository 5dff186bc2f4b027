/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of the tools: one described table of options per command, from which parsing,
 * --help and the messages come. Every command has --help and --version, exits 0 when it did its
 * work, 1 when it could not, 2 when it was called wrongly.
 */
#ifndef KVC_TOOLS_CLI_H
#define KVC_TOOLS_CLI_H

#include "allocator/base/compiler.h"

enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

enum cli_kind {
	CLI_FLAG, /* value is bool * */
	CLI_TEXT, /* value is const char ** */
	CLI_U64,  /* value is u64 * */
	CLI_COUNT, /* as CLI_U64, from 1: 0 stands for an option that was not given */
	CLI_SIZE, /* value is u64 *, accepts K M G T */
	CLI_LATER /* known to the interface, refused by this version; value is unused */
};

struct cli_option {
	const char *name; /* long name without the dashes */
	char letter;	  /* short form, or 0 */
	enum cli_kind kind;
	void *value;
	const char *arg;  /* what the argument is called in --help; NULL for flags */
	const char *help;
};

/* One command: what its --help says and which options it takes. Constant after start. */
struct cli_command {
	const char *name;    /* "kvctl ns create" */
	const char *synopsis; /* what follows the name on the usage line */
	const char *text;    /* a paragraph for --help */
	const struct cli_option *options;
	size_t nr_options;
	int min_args, max_args; /* positional arguments; max_args < 0: any number */
};

#define CLI_MAX_OPTIONS 32

/* cli_parse() is done: --help or --version has been printed, exit with CLI_OK. */
#define CLI_DONE (-1)

/**
 * cli_parse() - read @argv (argv[0] is skipped) into the variables of @command's table.
 * @args: receives the positional arguments, an array inside @argv
 *
 * Return: CLI_OK to go on, CLI_DONE, or CLI_USAGE after a line on stderr.
 */
int cli_parse(const struct cli_command *command, int argc, char **argv, char ***args);

/** cli_nr_args() - positional arguments that the last cli_parse() found. */
int cli_nr_args(void);

/** cli_set_program() - the name that begins every message; the string is kept, not copied. */
void cli_set_program(const char *name);

/** cli_error() - "PROGRAM: text" on stderr: what happened to which object, and what to do. */
void cli_error(const char *fmt, ...) __printf(1, 2);

/** cli_print_version() - the --version line. */
void cli_print_version(void);

/** cli_parse_u64() - a whole decimal number; -EINVAL for anything else, -ERANGE beyond 64 bits. */
int __must_check cli_parse_u64(const char *text, u64 *value);

/** cli_parse_size() - as cli_parse_u64(), with one of K M G T (powers of 1024) behind it. */
int __must_check cli_parse_size(const char *text, u64 *bytes);

#endif
