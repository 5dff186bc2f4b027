/* SPDX-License-Identifier: Apache-2.0 */
#include "allocator/base/fault.h"

atomic_bool fault_on;
static atomic_uint_fast64_t asked[NR_FAULT_SITES], fail_at[NR_FAULT_SITES];

void fault_arm(enum fault_site site, u64 nth)
{
	bool on = false;

	asked[site] = 0;
	fail_at[site] = nth;
	for (int i = 0; i < NR_FAULT_SITES; i++)
		on |= fail_at[i] != 0;
	fault_on = on;
}

u64 fault_asked(enum fault_site site)
{
	return asked[site];
}

bool __fault_point(enum fault_site site)
{
	return fail_at[site] && atomic_fetch_add(&asked[site], 1) + 1 == fail_at[site];
}
