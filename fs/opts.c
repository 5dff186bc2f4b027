/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: every option of UAPI section 1 is parsed and checked here, once. Options that
 * are part of the contract but not of this version are refused with a line that says so, so that a
 * script never runs with a setting that was silently dropped.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "fs/opts.h"

#define PAGE_2M	       MIB(2)
#define LINGER_DEFAULT 60
#define LINGER_MAX     (7 * 24 * 3600)

int opts_number(const char *text, u64 lo, u64 hi, u64 *value)
{
	unsigned long long v;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || v < lo || v > hi)
		return -EINVAL;
	*value = v;
	return 0;
}

int opts_size(const char *text, u64 *bytes)
{
	unsigned int shift = 0;
	unsigned long long v;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	switch (*end) {
	case 'T':
	case 't':
		shift = 40;
		break;
	case 'G':
	case 'g':
		shift = 30;
		break;
	case 'M':
	case 'm':
		shift = 20;
		break;
	case 'K':
	case 'k':
		shift = 10;
		break;
	case '\0':
		end--;
		break;
	default:
		return -EINVAL;
	}
	if (end[1] || v > (UINT64_MAX >> 1) >> shift)
		return -EINVAL;
	*bytes = v << shift;
	return 0;
}

/* First number in a file, UINT64_MAX when there is none (as in "max"). */
static u64 file_number(const char *path)
{
	unsigned long long v;
	FILE *f = fopen(path, "re");
	int n;

	if (!f)
		return UINT64_MAX;
	n = fscanf(f, "%llu", &v);
	fclose(f);
	return n == 1 ? v : UINT64_MAX;
}

u64 opts_default_dram(void)
{
	u64 ram = (u64)sysconf(_SC_PHYS_PAGES) * (u64)sysconf(_SC_PAGESIZE);
	u64 limit = min(file_number("/sys/fs/cgroup/memory.max"),
			file_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));

	return max(min(ram, limit) / 4 & ~(PAGE_2M - 1), MIB(64));
}

static int set_string(char **to, const char *value)
{
	free(*to);
	*to = strdup(value);
	return *to ? 0 : -ENOMEM;
}

static int not_yet(struct textbuf *why, const char *option)
{
	textbuf_printf(why, "option %s: this version does not have it yet", option);
	return -EOPNOTSUPP;
}

static int bad(struct textbuf *why, const char *option, const char *wanted)
{
	textbuf_printf(why, "option %s: expected %s", option, wanted);
	return -EINVAL;
}

static int opt_dram(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	if (opts_size(v, &o->dram_bytes) || o->dram_bytes < MIB(16))
		return bad(why, opt, "a size of at least 16M, such as 8G");
	o->dram_bytes &= ~(PAGE_2M - 1);
	return 0;
}

static int opt_nvme(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	if (opts_size(v, &o->nvme_bytes) || o->nvme_bytes < MIB(16))
		return bad(why, opt, "a size of at least 16M, such as 500G");
	o->nvme_bytes &= ~(PAGE_2M - 1);
	return 0;
}

static int opt_pinned(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	u64 bytes;

	if (opts_size(v, &bytes))
		return bad(why, opt, "a size");
	return bytes ? not_yet(why, opt) : 0;
}

static int opt_hbm(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	return strcmp(v, "off") ? not_yet(why, opt) : 0;
}

static int opt_never(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	return not_yet(why, opt);
}

static int opt_codec_nvme(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	return strcmp(v, "raw") ? not_yet(why, opt) : 0;
}

static int opt_write_nvme(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	if (!strncmp(v, "selective:", 10))
		return not_yet(why, opt);
	if (strcmp(v, "back") && strcmp(v, "through"))
		return bad(why, opt, "back or through");
	o->write_through = !strcmp(v, "through");
	return 0;
}

static int opt_pct(unsigned int *to, const char *v, const char *opt, struct textbuf *why)
{
	u64 pct;

	if (opts_number(v, 1, 99, &pct))
		return bad(why, opt, "a percentage from 1 to 99");
	*to = (unsigned int)pct;
	return 0;
}

static int opt_high(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	return opt_pct(&o->high_pct, v, opt, why);
}

static int opt_low(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	return opt_pct(&o->low_pct, v, opt, why);
}

static int opt_evict(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	if (!strcmp(v, "auto"))
		return not_yet(why, opt);
	return strcmp(v, "lru") ? bad(why, opt, "lru, the only policy of this version") : 0;
}

static int opt_commit(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	u64 seconds;

	if (opts_number(v, 1, 3600, &seconds))
		return bad(why, opt, "seconds from 1 to 3600");
	o->commit_seconds = (unsigned int)seconds;
	return 0;
}

static int opt_linger(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	u64 seconds;

	if (opts_number(v, 0, LINGER_MAX, &seconds))
		return bad(why, opt, "seconds from 0 to 604800");
	o->linger_seconds = (unsigned int)seconds;
	o->linger_named = true;
	return 0;
}

static int opt_hugepages(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	static const char *const modes[] = {"auto", "tmpfs", "hugetlb", "off"};

	for (unsigned int i = 0; i < ARRAY_SIZE(modes); i++) {
		if (strcmp(v, modes[i]))
			continue;
		snprintf(o->hugepages, sizeof(o->hugepages), "%s", v);
		return 0;
	}
	return bad(why, opt, "auto, tmpfs, hugetlb or off");
}

static int opt_socket(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	if (*v != '/' && strcmp(v, "none"))
		return bad(why, opt, "an absolute path, or none");
	return set_string(&o->socket, v);
}

static int opt_numa(struct fs_opts *o, const char *v, const char *opt, struct textbuf *why)
{
	u64 node;

	if (!strcmp(v, "none")) {
		o->numa_node = -1;
		return 0;
	}
	if (opts_number(v, 0, 1023, &node))
		return bad(why, opt, "a NUMA node's number or none");
	o->numa_node = (int)node;
	return 0;
}

static const struct option_def {
	const char *key; /* with its '=' */
	int (*set)(struct fs_opts *o, const char *value, const char *option, struct textbuf *why);
} option_defs[] = {
	{"dram=", opt_dram},
	{"pinned=", opt_pinned},
	{"nvme=", opt_nvme},
	{"hbm=", opt_hbm},
	{"remote=", opt_never},
	{"remote_key=", opt_never},
	{"codec.nvme=", opt_codec_nvme},
	{"codec.remote=", opt_codec_nvme},
	{"codec.hbm=", opt_codec_nvme},
	{"write.nvme=", opt_write_nvme},
	{"write.remote=", opt_never},
	{"write.hbm=", opt_never},
	{"high=", opt_high},
	{"low=", opt_low},
	{"evict=", opt_evict},
	{"commit=", opt_commit},
	{"linger=", opt_linger},
	{"hugepages=", opt_hugepages},
	{"numa=", opt_numa},
	{"socket=", opt_socket},
};

/* Words of fstab that are for mount(8) and systemd, or the default anyway. */
static bool ignored_word(const char *w)
{
	static const char *const words[] = {
		"rw",	    "auto",	  "noauto",	 "user",
		"nouser",   "users",	  "owner",	 "group",
		"nofail",   "_netdev",	  "defaults",	 "default_permissions",
		"relatime", "norelatime", "strictatime", "nostrictatime",
		"async",
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(words); i++)
		if (!strcmp(w, words[i]))
			return true;
	return !strncmp(w, "x-", 2) || !strncmp(w, "comment=", 8) || !strncmp(w, "subtype=", 8);
}

static bool fuse_word(const char *w)
{
	static const char *const words[] = {
		"ro",	   "atime",	  "noatime",	"nodiratime",	"diratime", "dev",
		"nodev",   "suid",	  "nosuid",	"exec",		"noexec",   "sync",
		"dirsync", "allow_other", "allow_root", "auto_unmount",
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(words); i++)
		if (!strcmp(w, words[i]))
			return true;
	return !strncmp(w, "fsname=", 7) || !strncmp(w, "context=", 8) ||
	       !strncmp(w, "rootcontext=", 12);
}

static int add_fuse_word(struct fs_opts *o, const char *w)
{
	char *joined;

	if (asprintf(&joined, "%s%s%s", o->fuse ? o->fuse : "", o->fuse ? "," : "", w) < 0)
		return -ENOMEM;
	free(o->fuse);
	o->fuse = joined;
	o->read_only |= !strcmp(w, "ro");
	o->noatime |= !strcmp(w, "noatime");
	return 0;
}

static int parse_word(struct fs_opts *o, const char *w, struct textbuf *why)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(option_defs); i++) {
		size_t len = strlen(option_defs[i].key);

		if (!strncmp(w, option_defs[i].key, len))
			return option_defs[i].set(o, w + len, w, why);
	}
	if (!strcmp(w, "debug")) {
		o->debug = o->foreground = true;
		return 0;
	}
	if (!*w || ignored_word(w))
		return 0;
	if (fuse_word(w))
		return add_fuse_word(o, w);
	textbuf_printf(why, "unknown option %s (see kvcachefs --help)", w);
	return -EINVAL;
}

static int parse_list(struct fs_opts *o, const char *list, struct textbuf *why)
{
	char *copy = strdup(list), *rest = copy, *w;
	int err = 0;

	if (!copy)
		return -ENOMEM;
	while (!err && (w = strsep(&rest, ",")))
		err = parse_word(o, w, why);
	free(copy);
	return err;
}

static int parse_switch(struct fs_opts *o, const char *arg, struct textbuf *why)
{
	if (!strcmp(arg, "-f"))
		o->foreground = true;
	else if (!strcmp(arg, "-d"))
		o->debug = o->foreground = true;
	else if (!strcmp(arg, "-h") || !strcmp(arg, "--help"))
		o->help = true;
	else if (!strcmp(arg, "-V") || !strcmp(arg, "--version"))
		o->version = true;
	else if (!strcmp(arg, "--cuse"))
		o->cuse = true;
	else if (strcmp(arg, "-s") && strcmp(arg, "-n") && strcmp(arg, "-v")) {
		textbuf_printf(why, "unknown option %s (see kvcachefs --help)", arg);
		return -EINVAL;
	}
	return 0;
}

static int set_source(struct fs_opts *o, const char *source, struct textbuf *why)
{
	struct stat st;

	if (!strcmp(source, "none"))
		return 0;
	if (!*source) {
		textbuf_printf(why, "SOURCE is empty: name a directory, or none");
		return -EINVAL;
	}
	if (stat(source, &st) == 0 && S_ISBLK(st.st_mode)) {
		textbuf_printf(why,
			       "%s: a block device as SOURCE: this version does not have it "
			       "yet",
			       source);
		return -EOPNOTSUPP;
	}
	if (strchr(source, ':') && stat(source, &st)) {
		textbuf_printf(why, "%s: several SOURCEs: this version does not have them yet",
			       source);
		return -EOPNOTSUPP;
	}
	return set_string(&o->source, source);
}

static int check_all(struct fs_opts *o, char *const words[], unsigned int nr, struct textbuf *why)
{
	int err;

	if (nr == 0 || nr > (o->cuse ? 1 : 2)) {
		textbuf_printf(why, "usage: kvcachefs %s MOUNTPOINT",
			       o->cuse ? "--cuse [-f] [-d]"
				       : "[-f] [-d] [-o OPTION,...] [SOURCE]");
		return -EINVAL;
	}
	if (o->low_pct >= o->high_pct) {
		textbuf_printf(why, "option low=%u: must be below high=%u", o->low_pct,
			       o->high_pct);
		return -EINVAL;
	}
	err = nr == 2 ? set_source(o, words[0], why) : 0;
	if (err)
		return err;
	if (o->nvme_bytes && !o->source) {
		textbuf_printf(why, "option nvme=: needs a SOURCE directory");
		return -EINVAL;
	}
	if (!o->dram_bytes)
		o->dram_bytes = opts_default_dram();
	return set_string(&o->mountpoint, words[nr - 1]);
}

int opts_parse(struct fs_opts *opts, int argc, char **argv, struct textbuf *why)
{
	unsigned int nr = 0;
	bool listed = false;
	char *words[3];
	int err = 0;

	*opts = (struct fs_opts){
		.high_pct = 90,
		.low_pct = 85,
		.commit_seconds = 1,
		.linger_seconds = LINGER_DEFAULT,
		.hugepages = "auto",
		.numa_node = -1,
	};
	for (int i = 1; i < argc && !err; i++) {
		listed |= !strncmp(argv[i], "-o", 2);
		if (!strcmp(argv[i], "-o") && i + 1 < argc)
			err = parse_list(opts, argv[++i], why);
		else if (!strcmp(argv[i], "-o"))
			err = bad(why, "-o", "a list of options behind it");
		else if (!strncmp(argv[i], "-o", 2))
			err = parse_list(opts, argv[i] + 2, why);
		else if (!strcmp(argv[i], "-t") && i + 1 < argc)
			i++;
		else if (argv[i][0] == '-' && argv[i][1])
			err = parse_switch(opts, argv[i], why);
		else if (nr < ARRAY_SIZE(words))
			words[nr++] = argv[i];
	}
	if (err || opts->help || opts->version)
		return err;
	if (opts->cuse && listed) {
		textbuf_printf(why, "option --cuse: takes no -o, options belong to the mount");
		return -EINVAL;
	}
	return check_all(opts, words, nr, why);
}

void opts_free(struct fs_opts *opts)
{
	free(opts->source);
	free(opts->mountpoint);
	free(opts->fuse);
	free(opts->socket);
	opts->source = opts->mountpoint = opts->fuse = opts->socket = NULL;
}

void opts_usage(struct textbuf *tb)
{
	textbuf_printf(
		tb,
		"usage: kvcachefs [-f] [-d] [-o OPTION,...] [SOURCE] MOUNTPOINT\n"
		"       mount -t fuse.kvcachefs SOURCE MOUNTPOINT -o OPTION,...\n"
		"       kvcachefs --cuse [-f] [-d] MOUNTPOINT\n"
		"\n"
		"Mounts the KV cache filesystem. SOURCE is the store directory (created when\n"
		"missing), or none: everything in DRAM and gone at the end (the default).\n"
		"Returns when the mount answers. With --cuse it serves the character device\n"
		"/dev/kvcache for a mount that is there already, until SIGTERM (root only).\n"
		"\n"
		"  -f                   stay in the foreground\n"
		"  -d                   foreground, with every FUSE request on stderr\n"
		"  --help, --version\n"
		"\n"
		"  -o dram=SIZE         DRAM tier (25 %% of the smaller of RAM and cgroup limit)\n"
		"  -o nvme=SIZE         NVMe tier (80 %% of what SOURCE has free, when it is "
		"made)\n"
		"  -o write.nvme=POLICY back, through (back)\n"
		"  -o high=PCT,low=PCT  watermarks of DRAM (90, 85)\n"
		"  -o evict=lru         eviction policy\n"
		"  -o commit=SECONDS    metadata commit interval (1)\n"
		"  -o linger=SECONDS    DRAM outlives a killed daemon (60); named: a clean end too\n"
		"  -o hugepages=MODE    auto, tmpfs, hugetlb, off (auto)\n"
		"  -o numa=NODE         bind the pool (none)\n"
		"  -o socket=PATH       session socket, or none (SOURCE.socket, else under /run)\n"
		"  -o allow_other, ro, noatime, ...   as for any FUSE mount\n"
		"\n"
		"Sizes take K M G T. Not in this version: hbm, remote, codecs, pinned,\n"
		"several SOURCEs, block devices.\n");
}
