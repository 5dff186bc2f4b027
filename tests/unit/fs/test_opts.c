/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: what is understood, what is refused and with which words. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "fs/opts.h"
#include "lib/test.h"

static struct fs_opts o;
static struct textbuf why;

/* Parse one line of words; frees what the last call left. */
static int parse(const char *line)
{
	static char copy[512];
	char *argv[16] = {"kvcachefs"}, *rest = copy, *w;
	int argc = 1;

	opts_free(&o);
	textbuf_free(&why);
	why = TEXTBUF_INIT;
	snprintf(copy, sizeof(copy), "%s", line);
	while ((w = strsep(&rest, " ")))
		if (*w)
			argv[argc++] = w;
	return opts_parse(&o, argc, argv, &why);
}

static void refused(const char *line, int err, const char *word)
{
	assert_int_equal(parse(line), err);
	assert_non_null(why.text);
	if (!strstr(why.text, word))
		fail_msg("'%s' says '%s', not '%s'", line, why.text, word);
	assert_null(strchr(why.text, '\n'));
}

static void test_defaults(void **state)
{
	assert_int_equal(parse("/mnt"), 0);
	assert_string_equal(o.mountpoint, "/mnt");
	assert_null(o.source);
	assert_int_equal(o.high_pct, 90);
	assert_int_equal(o.low_pct, 85);
	assert_int_equal(o.commit_seconds, 1);
	assert_true(o.dram_bytes >= MIB(16) && o.dram_bytes % MIB(2) == 0);
	assert_int_equal(o.numa_node, -1);
	assert_false(o.foreground || o.debug || o.write_through);
}

static void test_all_options(void **state)
{
	assert_int_equal(parse("-f -o dram=1G,nvme=3T,high=80,low=70 /store /mnt "
			       "-o commit=5,hugepages=off,numa=1,write.nvme=back"),
			 0);
	assert_string_equal(o.source, "/store");
	assert_true(o.dram_bytes == GIB(1) && o.nvme_bytes == 3 * GIB(1024));
	assert_int_equal(o.high_pct, 80);
	assert_int_equal(o.low_pct, 70);
	assert_int_equal(o.commit_seconds, 5);
	assert_string_equal(o.hugepages, "off");
	assert_int_equal(o.numa_node, 1);
	assert_false(o.write_through);
	assert_true(o.foreground);
	assert_int_equal(parse("-owrite.nvme=through /store /mnt"), 0);
	assert_true(o.write_through);
	assert_int_equal(parse("-o codec.nvme=raw,hbm=off,evict=lru,pinned=0 none /mnt"), 0);
	assert_null(o.source);
}

/* As mount(8) and fstab call it. */
static void test_mount_helper(void **state)
{
	assert_int_equal(parse("/store /mnt -o rw,noatime,nofail,x-systemd.automount,dram=64M,dev"),
			 0);
	assert_true(o.noatime);
	assert_string_equal(o.fuse, "noatime,dev");
	assert_int_equal(parse("none /mnt -o ro,allow_other"), 0);
	assert_true(o.read_only);
	assert_string_equal(o.fuse, "ro,allow_other");
	assert_int_equal(parse("--help"), 0);
	assert_true(o.help);
	assert_int_equal(parse("--version"), 0);
	assert_true(o.version);
}

static void test_device(void **state)
{
	assert_int_equal(parse("none /mnt"), 0);
	assert_false(o.cuse);
	assert_int_equal(parse("--cuse /mnt"), 0);
	assert_true(o.cuse);
	assert_false(o.foreground);
	assert_string_equal(o.mountpoint, "/mnt");
	assert_int_equal(parse("/mnt -f --cuse"), 0);
	assert_true(o.cuse && o.foreground);
	refused("--cuse", -EINVAL, "--cuse");
	refused("--cuse none /mnt", -EINVAL, "--cuse");
	refused("--cuse -o ro /mnt", -EINVAL, "--cuse");
	refused("--cuse -oro /mnt", -EINVAL, "--cuse");
}

static void test_not_in_this_version(void **state)
{
	static const char *const later[] = {
		"remote=redis://h:1", "remote_key=/k", "codec.nvme=int8",
		"codec.hbm=fp8",      "hbm=auto",      "evict=auto",
		"pinned=1G",	      "write.remote=back"};
	char line[128];

	for (unsigned int i = 0; i < ARRAY_SIZE(later); i++) {
		snprintf(line, sizeof(line), "-o %s none /mnt", later[i]);
		refused(line, -EOPNOTSUPP, later[i]);
		assert_non_null(strstr(why.text, "does not have"));
	}
	refused("/a:/b /mnt", -EOPNOTSUPP, "/a:/b");
}

static void test_bad_values(void **state)
{
	static const char *const bad[] = {"dram=",
					  "dram=x",
					  "dram=1Q",
					  "dram=-1G",
					  "dram=1GG",
					  "dram=1M",
					  "dram=99999999T",
					  "nvme=0",
					  "high=0",
					  "high=100",
					  "low=x",
					  "commit=0",
					  "commit=1.5",
					  "numa=-1",
					  "hugepages=maybe",
					  "write.nvme=never",
					  "dram"};
	char line[128];

	for (unsigned int i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(line, sizeof(line), "-o %s /s /mnt", bad[i]);
		refused(line, -EINVAL, bad[i]);
	}
	refused("-o high=50,low=50 none /mnt", -EINVAL, "low=50");
	refused("-o nvme=1G none /mnt", -EINVAL, "nvme=");
	refused("", -EINVAL, "usage");
	refused("a b c", -EINVAL, "usage");
	refused("-x /mnt", -EINVAL, "-x");
	refused("/mnt -o", -EINVAL, "-o");
	refused("-o colour=blue /mnt", -EINVAL, "colour=blue");
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		u64 bytes;
	} good[] = {{"0", 0},	    {"1", 1},	    {"4k", 4096},      {"1K", 1024},
		    {"2M", MIB(2)}, {"3G", GIB(3)}, {"1T", GIB(1024)}, {"1t", GIB(1024)}};
	static const char *const bad[] = {
		"", "k", "1kb", " 1", "+1", "0x10", "18446744073709551616", "9000000T"};
	u64 bytes;

	for (unsigned int i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(opts_size(good[i].text, &bytes), 0);
		assert_true(bytes == good[i].bytes);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(opts_size(bad[i], &bytes), -EINVAL);
}

static int teardown(void **state)
{
	opts_free(&o);
	textbuf_free(&why);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),     cmocka_unit_test(test_all_options),
		cmocka_unit_test(test_mount_helper), cmocka_unit_test(test_device),
		cmocka_unit_test(test_not_in_this_version),
		cmocka_unit_test(test_bad_values),   cmocka_unit_test(test_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, teardown);
}
