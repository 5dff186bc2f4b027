/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>
#include "allocator/base/bug.h"
#include "allocator/base/log.h"

static atomic_int max_level = LOG_LEVEL_WARN;
static atomic_bool use_syslog;

void log_set_level(enum log_level level)
{
	max_level = level;
}

void log_to_syslog(void)
{
	openlog("kvcachefs", LOG_PID, LOG_DAEMON);
	use_syslog = true;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
	char line[1024];
	va_list args;

	if ((int)level > max_level)
		return;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (use_syslog)
		syslog(priorities[level], "%s", line);
	else
		fprintf(stderr, "kvcachefs: %s\n", line);
}

void kvc_bug(const char *file, int line, const char *what)
{
	log_error("bug at %s:%d: %s", file, line, what);
	abort();
}
