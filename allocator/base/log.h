/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines for the operator: what happened, to which object, what to do. To stderr or syslog. */
#ifndef KVC_BASE_LOG_H
#define KVC_BASE_LOG_H

#include "allocator/base/compiler.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
/** log_to_syslog() - once the daemon has left its terminal. */
void log_to_syslog(void);
void log_line(enum log_level level, const char *fmt, ...) __printf(2, 3);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
