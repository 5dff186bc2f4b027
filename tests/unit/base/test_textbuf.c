/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "lib/test.h"

static void starts_empty(void **state)
{
	struct textbuf tb = TEXTBUF_INIT;

	assert_null(tb.text);
	assert_int_equal(tb.len, 0);
	textbuf_printf(&tb, "%s", "");
	assert_string_equal(tb.text, "");
	textbuf_free(&tb);
	assert_null(tb.text);
}

/* Every length around the first sizes, so that an off-by-one in the growth is seen. */
static void grows_at_every_length(void **state)
{
	for (size_t len = 250; len < 520; len++) {
		struct textbuf tb = TEXTBUF_INIT;

		for (size_t i = 0; i < len; i++)
			textbuf_printf(&tb, "%c", (int)('a' + i % 26));
		textbuf_printf(&tb, "%d", 12345);
		assert_int_equal(tb.len, len + 5);
		assert_int_equal(strlen(tb.text), len + 5);
		assert_true(tb.size > tb.len);
		assert_string_equal(tb.text + len, "12345");
		textbuf_free(&tb);
	}
}

static void one_large_piece(void **state)
{
	struct textbuf tb = TEXTBUF_INIT;
	static char piece[100000];

	memset(piece, 'p', sizeof(piece));
	textbuf_add(&tb, piece, sizeof(piece));
	textbuf_add(&tb, "end", 3);
	assert_int_equal(tb.len, sizeof(piece) + 3);
	assert_string_equal(tb.text + sizeof(piece), "end");
	textbuf_free(&tb);
}

static void names_are_escaped(void **state)
{
	struct textbuf tb = TEXTBUF_INIT;

	textbuf_escape(&tb, "a b\n\\\t\x7f\xc3\xa4z");
	assert_string_equal(tb.text, "a\\040b\\012\\134\\011\\177\xc3\xa4z");
	textbuf_free(&tb);
}

static void an_error_is_latched(void **state)
{
	struct textbuf tb = TEXTBUF_INIT;

	textbuf_printf(&tb, "kept");
	tb.err = -ENOMEM;
	textbuf_printf(&tb, "lost");
	textbuf_add(&tb, "lost", 4);
	assert_string_equal(tb.text, "kept");
	assert_int_equal(tb.err, -ENOMEM);
	textbuf_free(&tb);
	assert_int_equal(tb.err, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starts_empty),
		cmocka_unit_test(grows_at_every_length),
		cmocka_unit_test(one_large_piece),
		cmocka_unit_test(names_are_escaped),
		cmocka_unit_test(an_error_is_latched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
