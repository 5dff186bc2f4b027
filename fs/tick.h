/* SPDX-License-Identifier: Apache-2.0 */
/* The commit interval: a thread that makes durable what nobody asked to be. */
#ifndef KVC_FS_TICK_H
#define KVC_FS_TICK_H

struct fs;
struct ticker;

int __attribute__((warn_unused_result)) ticker_start(struct ticker **ticker, struct fs *fs);
/** ticker_stop() - stop the thread; what is dirty stays so. NULL is ignored. */
void ticker_stop(struct ticker *ticker);

#endif
