/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by half. Where memory may say no, fault injection may say it too. */
#ifndef KVC_GROW_H
#define KVC_GROW_H

#include <errno.h>
#include <string.h>
#include "allocator/base/compiler.h"
#include "allocator/base/fault.h"

/**
 * grow_array() - make room for @need elements of @size bytes in *@array, which holds *@max.
 * Return: 0, -ENOMEM (nothing changed).
 */
static inline int __must_check grow_array(void *array, u32 *max, u64 need, size_t size)
{
	u64 room = *max + *max / 2u;
	void *p;

	if (need <= *max)
		return 0;
	room = min(max(room, need), (u64)UINT32_MAX);
	if (need > room || fault_point(FAULT_MEMORY))
		return -ENOMEM;
	memcpy(&p, array, sizeof(p));
	p = reallocarray(p, room, size);
	if (!p)
		return -ENOMEM;
	memcpy(array, &p, sizeof(p));
	*max = (u32)room;
	return 0;
}

#endif
