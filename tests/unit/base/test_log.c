/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/log.h"
#include "lib/test.h"

struct capture {
	int saved, read_fd;
};

/* Standard error goes into a pipe; what the tests log is far smaller than its buffer. */
static void capture_start(struct capture *cap)
{
	int fds[2];

	assert_return_code(pipe(fds), 0);
	cap->saved = dup(STDERR_FILENO);
	cap->read_fd = fds[0];
	dup2(fds[1], STDERR_FILENO);
	close(fds[1]);
}

static size_t capture_end(struct capture *cap, char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	dup2(cap->saved, STDERR_FILENO);
	close(cap->saved);
	while ((n = read(cap->read_fd, text + len, size - 1 - len)) > 0)
		len += n;
	close(cap->read_fd);
	text[len] = '\0';
	return len;
}

static int default_level(void **state)
{
	log_set_level(LOG_LEVEL_WARN);
	return 0;
}

static void below_the_level_is_silent(void **state)
{
	struct capture cap;
	char text[256];

	capture_start(&cap);
	log_error("one %d", 1);
	log_warn("two");
	log_info("three");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("four");
	capture_end(&cap, text, sizeof(text));
	assert_string_equal(text, "kvcachefs: one 1\nkvcachefs: two\nkvcachefs: four\n");
}

static void long_lines_are_cut(void **state)
{
	char long_text[4000], text[8000];
	struct capture cap;
	size_t len;

	memset(long_text, 'x', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = '\0';
	capture_start(&cap);
	log_error("%s", long_text);
	len = capture_end(&cap, text, sizeof(text));
	assert_in_range(len, 100, 1100);
	assert_int_equal(text[len - 1], '\n');
}

static void bug(void *arg)
{
	KVC_BUG_ON(*(bool *)arg);
}

static void bug_on_aborts_when_true(void **state)
{
	bool yes = true, no = false;

	assert_true(test_aborts(bug, &yes));
	assert_false(test_aborts(bug, &no));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(below_the_level_is_silent, default_level),
		cmocka_unit_test_teardown(long_lines_are_cut, default_level),
		cmocka_unit_test(bug_on_aborts_when_true),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
