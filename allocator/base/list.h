/* SPDX-License-Identifier: Apache-2.0 */
/* Circular doubly linked list, embedded in its members. */
#ifndef KVC_BASE_LIST_H
#define KVC_BASE_LIST_H

#include "allocator/base/compiler.h"

struct list_head {
	struct list_head *next, *prev;
};

#define LIST_HEAD_INIT(name) {&(name), &(name)}

static inline void list_init(struct list_head *head)
{
	head->next = head;
	head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

static inline void list_add_between(struct list_head *item, struct list_head *prev,
				    struct list_head *next)
{
	item->prev = prev;
	item->next = next;
	prev->next = item;
	next->prev = item;
}

static inline void list_add(struct list_head *item, struct list_head *head)
{
	list_add_between(item, head, head->next);
}

static inline void list_add_tail(struct list_head *item, struct list_head *head)
{
	list_add_between(item, head->prev, head);
}

/** list_del() - unlink @item and leave it as an empty list, so that a second call does no harm. */
static inline void list_del(struct list_head *item)
{
	item->prev->next = item->next;
	item->next->prev = item->prev;
	list_init(item);
}

/** list_splice() - move all members of @from to the end of @to; @from is empty afterwards. */
static inline void list_splice(struct list_head *from, struct list_head *to)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

#define list_entry(ptr, type, member)	     container_of(ptr, type, member)
#define list_first_entry(head, type, member) list_entry((head)->next, type, member)
#define list_last_entry(head, type, member)  list_entry((head)->prev, type, member)

#define list_for_each_entry(pos, head, member)                                                     \
	for (pos = list_first_entry(head, __typeof__(*pos), member); &pos->member != (head);       \
	     pos = list_entry(pos->member.next, __typeof__(*pos), member))

#define list_for_each_entry_safe(pos, n, head, member)                                             \
	for (pos = list_first_entry(head, __typeof__(*pos), member),                               \
	    n = list_entry(pos->member.next, __typeof__(*pos), member);                            \
	     &pos->member != (head);                                                               \
	     pos = n, n = list_entry(n->member.next, __typeof__(*n), member))

#endif
