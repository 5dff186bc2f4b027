/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvctl's command groups share. A command is a function int (argc, argv) with argv[0] its last
 * word; it parses its own options, prints its own result and returns an exit status.
 *
 * Data are printed from one cJSON value in both forms, so that text and --json can not differ.
 */
#ifndef KVCTL_KVCTL_H
#define KVCTL_KVCTL_H

#include <cJSON.h>
#include "tools/common/cli.h"
#include "tools/common/control.h"
#include "tools/common/mountroot.h"

int kvctl_ns_create(int argc, char **argv);
int kvctl_ns_show(int argc, char **argv);
int kvctl_ls(int argc, char **argv);
int kvctl_stat(int argc, char **argv);
int kvctl_du(int argc, char **argv);
int kvctl_match(int argc, char **argv);
int kvctl_fork(int argc, char **argv);
int kvctl_state(int argc, char **argv);
int kvctl_pin(int argc, char **argv);
int kvctl_priority(int argc, char **argv);
int kvctl_prefetch(int argc, char **argv);
int kvctl_demote(int argc, char **argv);
int kvctl_drop(int argc, char **argv);

/** kvctl_add() - object[key] = @value, as a number where it is a whole decimal number below 2^53. */
void kvctl_add(cJSON *object, const char *key, const char *value);
void kvctl_add_u64(cJSON *object, const char *key, u64 value);

/** kvctl_print() - print @object as "key=value" lines or, with @json, as JSON; frees it. */
void kvctl_print(cJSON *object, char separator, bool json);

/** kvctl_print_json() - print and free. */
void kvctl_print_json(cJSON *value);

/**
 * kvctl_parse_status() - the "key: value" lines of a status file (or the "key=value" pairs of a
 * geometry, with @separator '=') as an object. Lines without the separator are left out.
 */
cJSON *kvctl_parse_status(const char *text, char separator);

/**
 * kvctl_find() - mountroot_find() of a path that exists; says on stderr what went wrong.
 *
 * Return: CLI_OK or CLI_FAILED.
 */
int kvctl_find(const char *path, struct mountroot *mr);

/**
 * kvctl_call() - send a control request about @object and say on stderr what went wrong.
 *
 * Frees @rq. Return: CLI_OK with @reply to be freed, or CLI_FAILED.
 */
int kvctl_call(const struct mountroot *mr, struct control_request *rq, const char *object,
	       struct control_reply *reply);

/** kvctl_reply_object() - the pairs of a reply as an object. */
cJSON *kvctl_reply_object(const struct control_reply *reply);

/** kvctl_join() - "DIR/NAME" into @out; -ENAMETOOLONG. */
int __must_check kvctl_join(char *out, size_t size, const char *dir, const char *name);

/** kvctl_get_xattr() - attribute as text; false when it can not be read. */
bool kvctl_get_xattr(const char *path, const char *name, char *value, size_t size);

/* One line of `.kvc/sequences`, or what a walk finds out about a sequence. Texts are "-" when not
 * known. */
struct kvctl_sequence {
	char *path;	  /* unescaped, relative to the mount's root; owned */
	char tokens[24], blocks[24], state[32], last_use[40];
	char dram[24], nvme[24], hbm[24], remote[24];
};

/**
 * kvctl_parse_sequence() - take one line apart (path tokens blocks state dram nvme hbm remote
 * last_use). Return: 0, -EINVAL for a line of another form, -ENOMEM.
 */
int __must_check kvctl_parse_sequence(const char *line, struct kvctl_sequence *seq);

/** kvctl_unescape() - undo \ooo in place; -EINVAL for a broken escape or \000. */
int __must_check kvctl_unescape(char *text);

/** kvctl_parse_residency() - "dram=3 nvme=1 ..." into the tier fields. */
void kvctl_parse_residency(const char *text, struct kvctl_sequence *seq);

#endif
