/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of plain files, for plainfile*.c only. */
#ifndef KVC_PLAINFILE_IMPL_H
#define KVC_PLAINFILE_IMPL_H

#include "allocator/plainfile.h"

/** plain_to_table() - give an inline file a table. May block. */
int __must_check plain_to_table(struct plainfile *pf);
/** plain_grow_tail() - a short last block gets its full size if the file is to reach @end. Busy. */
int __must_check plain_grow_tail(struct blktab *tab, u64 end);

#endif
