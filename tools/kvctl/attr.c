/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl state, pin, priority: one extended attribute each, with its values checked here so that the
 * message can say what is allowed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include "tools/kvctl/kvctl.h"

#define ATTR_MAX_PRIORITY 100

struct attr {
	const char *word, *name; /* "state", "user.kvc.state" */
	const char *allowed;
	const char *later; /* a value of the interface that this version has not; or NULL */
	bool (*valid)(const char *value);
	const char *text;
};

static bool one_of(const char *value, const char *const *words)
{
	for (; *words; words++)
		if (!strcmp(value, *words))
			return true;
	return false;
}

static bool valid_state(const char *value)
{
	static const char *const states[] = {"decoding", "queued", "paused", "idle", NULL};
	u64 seconds;

	if (!strncmp(value, "paused:", 7))
		return !cli_parse_u64(value + 7, &seconds);
	return one_of(value, states);
}

static bool valid_pin(const char *value)
{
	static const char *const tiers[] = {"none", "dram", NULL};

	return one_of(value, tiers);
}

static bool valid_priority(const char *value)
{
	u64 priority;

	return !cli_parse_u64(value, &priority) && priority <= ATTR_MAX_PRIORITY;
}

static const char *attr_refusal(int err)
{
	switch (err) {
	case EAGAIN:
		return "the tier's budget for pins is used up; unpin another sequence first";
	case ENODATA:
	case EOPNOTSUPP:
		return "has no such attribute; is it a sequence (or for priority a directory) on a "
		       "kvcachefs mount?";
	case EINVAL:
		return "refused by the daemon; is it a sequence (or for priority a directory)?";
	}
	return strerror(err);
}

static void print_value(const struct attr *a, const char *path, const char *value)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "path", path);
	kvctl_add(object, a->word, value);
	kvctl_print_json(object);
}

static int attr_show(const struct attr *a, const char *path, bool json)
{
	char value[256];

	if (!kvctl_get_xattr(path, a->name, value, sizeof(value))) {
		cli_error("%s: %s: %s", path, a->word, attr_refusal(errno));
		return CLI_FAILED;
	}
	if (json)
		print_value(a, path, value);
	else
		puts(value);
	return CLI_OK;
}

static int attr_set(const struct attr *a, const char *path, const char *value, bool json)
{
	if (a->later && !strcmp(value, a->later)) {
		cli_error("%s %s: not in this version, only %s", a->word, value, a->allowed);
		return CLI_USAGE;
	}
	if (!a->valid(value)) {
		cli_error("%s: '%s' is not allowed: %s", a->word, value, a->allowed);
		return CLI_USAGE;
	}
	if (setxattr(path, a->name, value, strlen(value), 0)) {
		cli_error("%s: %s=%s: %s", path, a->word, value, attr_refusal(errno));
		return CLI_FAILED;
	}
	if (json)
		print_value(a, path, value);
	return CLI_OK;
}

static int attr_run(const struct attr *a, int argc, char **argv)
{
	bool json = false;
	const struct cli_option options[] = {
		{"json", 'j', CLI_FLAG, &json, NULL, "print JSON: the path and its value"}};
	char name[32];
	const struct cli_command command = {name, "[--json] PATH [VALUE]", a->text, options,
					    ARRAY_SIZE(options), 1, 2};
	char **args;
	int status;

	snprintf(name, sizeof(name), "kvctl %s", a->word);
	status = cli_parse(&command, argc, argv, &args);
	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (cli_nr_args() == 1)
		return attr_show(a, args[0], json);
	return attr_set(a, args[0], args[1], json);
}

int kvctl_state(int argc, char **argv)
{
	static const struct attr state = {
		"state", "user.kvc.state", "idle, paused, paused:SECONDS, queued or decoding", NULL,
		valid_state,
		"Shows or sets what a sequence is doing: idle, paused, queued (will be read soon) or\n"
		"decoding; in this order sequences are evicted, decoding last. decoding and queued fall\n"
		"back to idle after 30 s without I/O. paused:SECONDS says when it is expected back; in\n"
		"this version the seconds are not used."};

	return attr_run(&state, argc, argv);
}

int kvctl_pin(int argc, char **argv)
{
	static const struct attr pin = {
		"pin", "user.kvc.pin", "none or dram", "hbm", valid_pin,
		"Shows or sets the tier that a sequence's blocks are held in: none or dram. A pin\n"
		"outlives its writer and a remount; all pins together take at most 80 % of DRAM."};

	return attr_run(&pin, argc, argv);
}

int kvctl_priority(int argc, char **argv)
{
	static const struct attr priority = {
		"priority", "user.kvc.priority", "a whole number from 0 to 100", NULL, valid_priority,
		"Shows or sets the priority, 0 to 100, of everything below a directory: lower ones\n"
		"are evicted first. Without one of its own the nearest directory above counts; 50."};

	return attr_run(&priority, argc, argv);
}
