/* SPDX-License-Identifier: Apache-2.0 */
#include "allocator/base/list.h"
#include "lib/test.h"

struct item {
	int nr;
	struct list_head link;
};

/* Walk in both directions, so that a broken back link is seen, and give the numbers as digits. */
static int digits(struct list_head *head)
{
	int forward = 0, backward = 0, place = 1;
	struct list_head *pos;
	struct item *item;

	list_for_each_entry(item, head, link)
		forward = forward * 10 + item->nr;
	for (pos = head->prev; pos != head; pos = pos->prev, place *= 10)
		backward += list_entry(pos, struct item, link)->nr * place;
	assert_int_equal(forward, backward);
	return forward;
}

static void adds_at_both_ends(void **state)
{
	struct list_head head = LIST_HEAD_INIT(head);
	struct item items[] = {{.nr = 1}, {.nr = 2}, {.nr = 3}};

	assert_true(list_empty(&head));
	list_add(&items[1].link, &head);
	list_add(&items[0].link, &head);
	list_add_tail(&items[2].link, &head);
	assert_int_equal(digits(&head), 123);
	assert_ptr_equal(list_first_entry(&head, struct item, link), &items[0]);
	assert_ptr_equal(list_last_entry(&head, struct item, link), &items[2]);
}

static void deleting_twice_does_no_harm(void **state)
{
	struct list_head head = LIST_HEAD_INIT(head);
	struct item items[] = {{.nr = 1}, {.nr = 2}, {.nr = 3}};

	for (int i = 0; i < 3; i++)
		list_add_tail(&items[i].link, &head);
	list_del(&items[1].link);
	list_del(&items[1].link);
	assert_true(list_empty(&items[1].link));
	assert_int_equal(digits(&head), 13);
	list_del(&items[0].link);
	list_del(&items[2].link);
	assert_true(list_empty(&head));
}

static void safe_walk_survives_deleting(void **state)
{
	struct list_head head = LIST_HEAD_INIT(head);
	struct item items[] = {{.nr = 1}, {.nr = 2}, {.nr = 3}, {.nr = 4}}, *item, *next;

	for (int i = 0; i < 4; i++)
		list_add_tail(&items[i].link, &head);
	list_for_each_entry_safe(item, next, &head, link)
		if (item->nr % 2)
			list_del(&item->link);
	assert_int_equal(digits(&head), 24);
}

static void splice_appends_and_empties(void **state)
{
	struct list_head a = LIST_HEAD_INIT(a), b;
	struct item items[] = {{.nr = 1}, {.nr = 2}, {.nr = 3}, {.nr = 4}};

	list_init(&b);
	list_splice(&a, &b);
	assert_true(list_empty(&b));
	list_add_tail(&items[0].link, &a);
	list_add_tail(&items[1].link, &a);
	list_splice(&a, &b);
	assert_int_equal(digits(&b), 12);
	list_add_tail(&items[2].link, &a);
	list_add_tail(&items[3].link, &a);
	list_splice(&a, &b);
	assert_true(list_empty(&a));
	assert_int_equal(digits(&b), 1234);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(adds_at_both_ends),
		cmocka_unit_test(deleting_twice_does_no_harm),
		cmocka_unit_test(safe_walk_survives_deleting),
		cmocka_unit_test(splice_appends_and_empties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
