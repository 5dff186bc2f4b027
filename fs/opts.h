/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of kvcachefs (UAPI section 1). */
#ifndef KVC_FS_OPTS_H
#define KVC_FS_OPTS_H

#include "allocator/base/compiler.h"

struct textbuf;

/** struct fs_opts - what the operator asked for; strings are owned. */
struct fs_opts {
	char *source; /* store directory, NULL: volatile */
	char *mountpoint;
	char *socket;	/* path of the session socket, or "none"; NULL: default, until it is there */
	char *fuse;	/* options handed on to FUSE, comma separated, or NULL */
	u64 dram_bytes; /* 0: default */
	u64 nvme_bytes; /* 0: default or what the store has */
	unsigned int high_pct, low_pct;
	unsigned int commit_seconds;
	char hugepages[8];  /* auto tmpfs hugetlb off */
	int numa_node;	    /* -1: none */
	bool write_through; /* write.nvme=through */
	bool foreground, debug, read_only, noatime, help, version;
	bool cuse; /* serve the character device of the mount at @mountpoint instead */
};

/**
 * opts_parse() - read the command line.
 * @why: gets one clear line on error
 * Return: 0, -EINVAL (usage), -EOPNOTSUPP (an option that this version does not have), -ENOMEM.
 */
int __must_check opts_parse(struct fs_opts *opts, int argc, char **argv, struct textbuf *why);
void opts_free(struct fs_opts *opts);

/** opts_size() - parse "4096", "64M", "1G"; powers of 1024. Return: 0 or -EINVAL. */
int __must_check opts_size(const char *text, u64 *bytes);
/** opts_number() - parse a whole number in [@lo, @hi]. Return: 0 or -EINVAL. */
int __must_check opts_number(const char *text, u64 lo, u64 hi, u64 *value);

/** opts_default_dram() - 25 % of the smaller of RAM and the cgroup's limit, whole 2 MiB pages. */
u64 opts_default_dram(void);

void opts_usage(struct textbuf *tb);

#endif
