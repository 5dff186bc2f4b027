/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl prefetch, demote, drop: where blocks are. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
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

/* @tiers: those that this version can do, NULL at the end; @said: the same for the message. */
static int check_tier(const char *option, const char *tier, const char *const *tiers,
		      const char *said)
{
	static const char *const all[] = {"hbm", "dram", "nvme", "remote"};
	bool known = false;

	for (; *tiers; tiers++)
		if (!strcmp(tier, *tiers))
			return CLI_OK;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		known |= !strcmp(tier, all[i]);
	if (known)
		cli_error("%s %s: not in this version, only %s", option, tier, said);
	else
		cli_error("%s: '%s' is no tier; only %s", option, tier, said);
	return CLI_USAGE;
}

/* @to: the one tier that @verb has in this version. */
static int move_blocks(const char *verb, const char *to, const char *path,
		       const struct place_options *o)
{
	const char *const tiers[] = {to, NULL};
	struct control_request rq;
	struct mountroot mr;

	if (check_tier("--to", o->tier, tiers, to) != CLI_OK)
		return CLI_USAGE;
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
		{"to", 't', CLI_TEXT, &o.tier, "TIER", "dram, the default and only one in this version"},
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
	return move_blocks(KVC_CONTROL_PREFETCH, "dram", args[0], &o);
}

int kvctl_demote(int argc, char **argv)
{
	struct place_options o = {.tier = "nvme"};
	const struct cli_option options[] = {
		{"to", 't', CLI_TEXT, &o.tier, "TIER", "nvme, the default and only one in this version"},
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
	return move_blocks(KVC_CONTROL_DEMOTE, "nvme", args[0], &o);
}

/*
 * The namespace is named relative to the mount's root, or by a path of its own. Both are tried, in
 * this order, so that "drop mnt --namespace mnt/demo" finds what it means.
 */
static int drop_namespace(const struct mountroot *mr, const char *name, char *rel)
{
	char path[PATH_MAX];
	struct mountroot at;

	if (*name != '/' && !kvctl_join(path, sizeof(path), mr->root, name) && !access(path, F_OK))
		name = path;
	if (!*name || access(name, F_OK) || mountroot_find(name, &at) || strcmp(at.root, mr->root)) {
		cli_error("--namespace: no '%s' in the mount at %s", name, mr->root);
		return CLI_FAILED;
	}
	memcpy(rel, at.rel, sizeof(at.rel));
	return CLI_OK;
}

/* Whoever names a directory below the root means that directory, and would empty everything. */
static int drop_root(const char *path, struct mountroot *mr)
{
	if (kvctl_find(path, mr) != CLI_OK)
		return CLI_FAILED;
	if (!strcmp(mr->rel, "."))
		return CLI_OK;
	cli_error("%s: not the root of its mount, nothing was dropped; for one namespace: "
		  "kvctl drop --namespace %s %s", path, mr->rel, mr->root);
	return CLI_USAGE;
}

int kvctl_drop(int argc, char **argv)
{
	static const char *const tiers[] = {"dram", "nvme", NULL};
	struct place_options o = {0};
	const struct cli_option options[] = {
		{"namespace", 'n', CLI_TEXT, &o.namespace, "NS", "of this namespace only (relative to MOUNT)"},
		{"tier", 't', CLI_TEXT, &o.tier, "TIER", "from this tier only: dram or nvme"},
		{"json", 'j', CLI_FLAG, &o.json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl drop", "[--namespace NS] [--tier TIER] [--json] MOUNT",
		"Empties the prefix cache of the mount whose root is MOUNT, or of one namespace: blocks\n"
		"that no sequence names. Sequences and files stay.",
		options, ARRAY_SIZE(options), 1, 1};
	struct control_request rq;
	char rel[PATH_MAX];
	struct mountroot mr;
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	if (o.tier && check_tier("--tier", o.tier, tiers, "dram or nvme") != CLI_OK)
		return CLI_USAGE;
	status = drop_root(args[0], &mr);
	if (status != CLI_OK)
		return status;
	if (o.namespace && drop_namespace(&mr, o.namespace, rel) != CLI_OK)
		return CLI_FAILED;
	control_begin(&rq, KVC_CONTROL_DROP);
	control_key(&rq, "namespace", o.namespace ? rel : NULL);
	control_key(&rq, "tier", o.tier);
	return call_and_print(&mr, &rq, args[0], o.json);
}
