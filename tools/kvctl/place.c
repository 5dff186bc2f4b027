/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl prefetch, demote, drop: where blocks are. */
#include <stdio.h>
#include <string.h>
#include "fs/uapi/kvc_control.h"
#include "tools/kvctl/kvctl.h"

struct place_options {
	const char *tier, *namespace;
	bool wait, json;
};

static int call_and_print(const struct mountroot *mr, struct control_request *rq, const char *path,
			  bool json)
{
	struct control_reply reply;

	if (kvctl_call(mr, rq, path, &reply) != CLI_OK)
		return CLI_FAILED;
	kvctl_print(kvctl_reply_object(&reply), '=', json);
	control_reply_free(&reply);
	return CLI_OK;
}

static int move_blocks(const char *verb, const char *path, const struct place_options *o)
{
	struct control_request rq;
	struct mountroot mr;

	if (kvctl_find(path, &mr) != CLI_OK)
		return CLI_FAILED;
	control_begin(&rq, verb);
	control_arg(&rq, mr.rel);
	control_key(&rq, "tier", o->tier);
	if (o->wait)
		control_key_u64(&rq, "wait", 1);
	return call_and_print(&mr, &rq, path, o->json);
}

int kvctl_prefetch(int argc, char **argv)
{
	struct place_options o = {.tier = "dram"};
	const struct cli_option options[] = {
		{"to", 't', CLI_TEXT, &o.tier, "TIER", "hbm or dram (default)"},
		{"wait", 'w', CLI_FLAG, &o.wait, NULL, "return when the blocks are there"},
		{"json", 'j', CLI_FLAG, &o.json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl prefetch", "[--to TIER] [--wait] [--json] PATH",
		"Copies the blocks of a sequence or a file up into a tier.", options,
		ARRAY_SIZE(options), 1, 1};
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	return move_blocks(KVC_CONTROL_PREFETCH, args[0], &o);
}

int kvctl_demote(int argc, char **argv)
{
	struct place_options o = {.tier = "nvme"};
	const struct cli_option options[] = {
		{"to", 't', CLI_TEXT, &o.tier, "TIER", "dram, nvme (default) or remote"},
		{"wait", 'w', CLI_FLAG, &o.wait, NULL, "return when the blocks have moved"},
		{"json", 'j', CLI_FLAG, &o.json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl demote", "[--to TIER] [--wait] [--json] PATH",
		"Moves the sealed blocks of a sequence or a file down into a tier. Open and pinned\n"
		"blocks stay where they are.",
		options, ARRAY_SIZE(options), 1, 1};
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	return move_blocks(KVC_CONTROL_DEMOTE, args[0], &o);
}

/* The namespace may be named as a path or relative to the mount's root. */
static int drop_namespace(const struct mountroot *mr, const char *name, char *rel)
{
	char path[PATH_MAX];
	struct mountroot at;

	if (*name == '/')
		snprintf(path, sizeof(path), "%s", name);
	else if (kvctl_join(path, sizeof(path), mr->root, name)) {
		cli_error("%s: name too long", name);
		return CLI_FAILED;
	}
	if (kvctl_find(path, &at) != CLI_OK)
		return CLI_FAILED;
	if (strcmp(at.root, mr->root)) {
		cli_error("%s: not on the mount at %s", name, mr->root);
		return CLI_FAILED;
	}
	memcpy(rel, at.rel, sizeof(at.rel));
	return CLI_OK;
}

int kvctl_drop(int argc, char **argv)
{
	struct place_options o = {0};
	const struct cli_option options[] = {
		{"namespace", 'n', CLI_TEXT, &o.namespace, "NS", "of this namespace only"},
		{"tier", 't', CLI_TEXT, &o.tier, "TIER", "from this tier only"},
		{"json", 'j', CLI_FLAG, &o.json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl drop", "[--namespace NS] [--tier TIER] [--json] MOUNT",
		"Empties the prefix cache: blocks that no sequence names. Sequences and files stay.",
		options, ARRAY_SIZE(options), 1, 1};
	struct control_request rq;
	char rel[PATH_MAX];
	struct mountroot mr;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (kvctl_find(args[0], &mr) != CLI_OK)
		return CLI_FAILED;
	if (o.namespace && drop_namespace(&mr, o.namespace, rel) != CLI_OK)
		return CLI_FAILED;
	control_begin(&rq, KVC_CONTROL_DROP);
	control_key(&rq, "namespace", o.namespace ? rel : NULL);
	control_key(&rq, "tier", o.tier);
	return call_and_print(&mr, &rq, args[0], o.json);
}
