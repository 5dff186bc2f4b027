/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "tools/common/cli.h"

/* getopt_long() returns these for options without a letter; above every character. */
enum { CLI_CODE_BASE = 0x1000, CLI_CODE_HELP = CLI_CODE_BASE + CLI_MAX_OPTIONS, CLI_CODE_VERSION };

static const char *program = "kvctl";
static int nr_args;

void cli_set_program(const char *name)
{
	program = name;
}

int cli_nr_args(void)
{
	return nr_args;
}

void cli_error(const char *fmt, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "%s: ", program);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

void cli_print_version(void)
{
	printf("%s %s uapi %d\n", program, KVC_VERSION, KVC_UAPI);
}

int cli_parse_u64(const char *text, u64 *value)
{
	u64 n = 0;

	if (!*text)
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -EINVAL;
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (u64)(*text - '0'), &n))
			return -ERANGE;
	}
	*value = n;
	return 0;
}

int cli_parse_size(const char *text, u64 *bytes)
{
	static const char units[] = "KMGT";
	size_t len = strlen(text);
	const char *unit = len ? strchr(units, text[len - 1]) : NULL;
	unsigned int shift = unit ? 10 * (unsigned int)(unit - units + 1) : 0;
	char digits[32];
	int err;

	if (!len || len >= sizeof(digits))
		return -EINVAL;
	memcpy(digits, text, len + 1);
	if (unit)
		digits[len - 1] = '\0';
	err = cli_parse_u64(digits, bytes);
	if (err)
		return err;
	if (*bytes > UINT64_MAX >> shift)
		return -ERANGE;
	*bytes <<= shift;
	return 0;
}

static void print_option(const struct cli_option *option)
{
	char left[64];

	snprintf(left, sizeof(left), "%c%c%c --%s%s%s", option->letter ? '-' : ' ',
		 option->letter ? option->letter : ' ', option->letter ? ',' : ' ', option->name,
		 option->arg ? " " : "", option->arg ? option->arg : "");
	printf("  %-28s %s%s\n", left, option->help,
	       option->kind == CLI_LATER ? " (not in this version)" : "");
}

static void print_help(const struct cli_command *command)
{
	static const struct cli_option common[] = {
		{"help", 'h', CLI_FLAG, NULL, NULL, "print this text and exit"},
		{"version", 'V', CLI_FLAG, NULL, NULL, "print the version and exit"},
	};

	printf("usage: %s %s\n\n%s\n\noptions:\n", command->name, command->synopsis, command->text);
	for (size_t i = 0; i < command->nr_options; i++)
		print_option(&command->options[i]);
	for (size_t i = 0; i < ARRAY_SIZE(common); i++)
		print_option(&common[i]);
	printf("\nexit status: 0 done, 1 failed, 2 called wrongly\n");
}

static int usage(const struct cli_command *command, const char *what, const char *which)
{
	cli_error("%s%s%s (see %s --help)", what, *which ? " " : "", which, command->name);
	return CLI_USAGE;
}

static int store_option(const struct cli_command *command, const struct cli_option *option,
			const char *value)
{
	int err = 0;

	switch (option->kind) {
	case CLI_FLAG:
		*(bool *)option->value = true;
		return CLI_OK;
	case CLI_TEXT:
		*(const char **)option->value = value;
		return CLI_OK;
	case CLI_U64:
		err = cli_parse_u64(value, option->value);
		break;
	case CLI_COUNT:
		err = cli_parse_u64(value, option->value);
		if (err || *(u64 *)option->value)
			break;
		cli_error("--%s: a number from 1 (see %s --help)", option->name, command->name);
		return CLI_USAGE;
	case CLI_SIZE:
		err = cli_parse_size(value, option->value);
		break;
	case CLI_LATER:
		cli_error("--%s: not in this version", option->name);
		return CLI_USAGE;
	}
	if (!err)
		return CLI_OK;
	cli_error("--%s: '%s' is %s%s (see %s --help)", option->name, value,
		  err == -ERANGE ? "too large" : "not a whole number",
		  option->kind == CLI_SIZE ? ", K M G T may follow it" : "", command->name);
	return CLI_USAGE;
}

/* Both forms of every option in getopt's terms; codes of letterless options carry their index. */
static void build_tables(const struct cli_command *command, struct option *longs, char *shorts)
{
	size_t s = 0;
	size_t i;

	kvc_assert(command->nr_options <= CLI_MAX_OPTIONS);
	shorts[s++] = ':';
	for (i = 0; i < command->nr_options; i++) {
		const struct cli_option *option = &command->options[i];

		longs[i] = (struct option){option->name,
					   option->arg ? required_argument : no_argument, NULL,
					   CLI_CODE_BASE + (int)i};
		if (!option->letter)
			continue;
		shorts[s++] = option->letter;
		if (option->arg)
			shorts[s++] = ':';
	}
	shorts[s++] = 'h';
	shorts[s++] = 'V';
	shorts[s] = '\0';
	longs[i++] = (struct option){"help", no_argument, NULL, CLI_CODE_HELP};
	longs[i++] = (struct option){"version", no_argument, NULL, CLI_CODE_VERSION};
	longs[i] = (struct option){0};
}

static const struct cli_option *option_of(const struct cli_command *command, int code)
{
	if (code >= CLI_CODE_BASE)
		return &command->options[code - CLI_CODE_BASE];
	for (size_t i = 0; i < command->nr_options; i++)
		if (command->options[i].letter == code)
			return &command->options[i];
	return NULL;
}

static int take_option(const struct cli_command *command, int code, char **argv)
{
	switch (code) {
	case 'h':
	case CLI_CODE_HELP:
		print_help(command);
		return CLI_DONE;
	case 'V':
	case CLI_CODE_VERSION:
		cli_print_version();
		return CLI_DONE;
	case ':':
		return usage(command, "a value is missing after", argv[optind - 1]);
	case '?':
		return usage(command, "unknown or ambiguous option", argv[optind - 1]);
	}
	return store_option(command, option_of(command, code), optarg);
}

int cli_parse(const struct cli_command *command, int argc, char **argv, char ***args)
{
	struct option longs[CLI_MAX_OPTIONS + 3];
	char shorts[2 * CLI_MAX_OPTIONS + 4];
	int code, ret;

	build_tables(command, longs, shorts);
	opterr = 0;
	optind = 0;
	while ((code = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		ret = take_option(command, code, argv);
		if (ret != CLI_OK)
			return ret;
	}
	nr_args = argc - optind;
	*args = argv + optind;
	if (nr_args < command->min_args)
		return usage(command, "an argument is missing", "");
	if (command->max_args >= 0 && nr_args > command->max_args)
		return usage(command, "unexpected argument", argv[optind + command->max_args]);
	return CLI_OK;
}
