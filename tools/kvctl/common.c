/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "tools/kvctl/kvctl.h"

#define JSON_EXACT_MAX (1ull << 53) /* whole numbers that a double holds exactly */

void kvctl_add_u64(cJSON *object, const char *key, u64 value)
{
	cJSON_AddNumberToObject(object, key, (double)value);
}

void kvctl_add(cJSON *object, const char *key, const char *value)
{
	bool leading_zero = value[0] == '0' && value[1];
	u64 number;

	if (!leading_zero && !cli_parse_u64(value, &number) && number < JSON_EXACT_MAX)
		kvctl_add_u64(object, key, number);
	else
		cJSON_AddStringToObject(object, key, value);
}

void kvctl_print_json(cJSON *value)
{
	char *text = cJSON_Print(value);

	if (text)
		puts(text);
	else
		cli_error("out of memory");
	cJSON_free(text);
	cJSON_Delete(value);
}

static void print_item(const cJSON *item)
{
	if (cJSON_IsNumber(item) && item->valuedouble == (double)(u64)item->valuedouble)
		printf("%llu", (unsigned long long)item->valuedouble);
	else if (cJSON_IsNumber(item))
		printf("%.2f", item->valuedouble);
	else
		printf("%s", cJSON_IsString(item) ? item->valuestring : "-");
}

void kvctl_print(cJSON *object, char separator, bool json)
{
	const cJSON *item;

	if (json) {
		kvctl_print_json(object);
		return;
	}
	cJSON_ArrayForEach(item, object)
	{
		printf("%s%c%s", item->string, separator, separator == ':' ? " " : "");
		print_item(item);
		putchar('\n');
	}
	cJSON_Delete(object);
}

cJSON *kvctl_parse_status(const char *text, char separator)
{
	const char *blanks = separator == ':' ? "\n" : " \t\n";
	cJSON *object = cJSON_CreateObject();
	char *copy = strdup(text);
	char *save = NULL;

	if (!copy || !object) {
		free(copy);
		cJSON_Delete(object);
		return NULL;
	}
	for (char *line = strtok_r(copy, blanks, &save); line; line = strtok_r(NULL, blanks, &save)) {
		char *value = strchr(line, separator);

		if (!value || value == line)
			continue;
		*value++ = '\0';
		kvctl_add(object, line, separator == ':' && *value == ' ' ? value + 1 : value);
	}
	free(copy);
	return object;
}

int kvctl_find(const char *path, struct mountroot *mr)
{
	int err = access(path, F_OK) ? -errno : mountroot_find(path, mr);

	if (!err)
		return CLI_OK;
	if (err == -ENODEV)
		cli_error("%s: not on a kvcachefs mount (no .kvc/version in %s)", path, mr->root);
	else
		cli_error("%s: %s", path, strerror(-err));
	return CLI_FAILED;
}

int kvctl_call(const struct mountroot *mr, struct control_request *rq, const char *object,
	       struct control_reply *reply)
{
	int err = control_call(mr, rq, reply);

	control_end(rq);
	if (err == -ENOENT)
		cli_error("%s: the daemon at %s has no .kvc/control; update it", object, mr->root);
	else if (err == -EPROTO)
		cli_error("%s: the daemon at %s gave an answer that is none; versions may differ "
			  "(see .kvc/version)", object, mr->root);
	else if (err)
		cli_error("%s: %s/.kvc/control: %s", object, mr->root, strerror(-err));
	if (err)
		return CLI_FAILED;
	if (!reply->err)
		return CLI_OK;
	if (strcasestr(reply->message, strerror(-reply->err)))
		cli_error("%s: %s", object, reply->message);
	else
		cli_error("%s: %s (%s)", object, reply->message, strerror(-reply->err));
	control_reply_free(reply);
	return CLI_FAILED;
}

cJSON *kvctl_reply_object(const struct control_reply *reply)
{
	cJSON *object = cJSON_CreateObject();

	for (size_t i = 0; i < reply->nr_pairs; i++)
		kvctl_add(object, reply->pair[i].key, reply->pair[i].value);
	return object;
}

int kvctl_join(char *out, size_t size, const char *dir, const char *name)
{
	size_t len = strlen(dir);
	const char *slash = len && dir[len - 1] == '/' ? "" : "/";
	int n = snprintf(out, size, "%s%s%s", dir, slash, name);

	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

bool kvctl_get_xattr(const char *path, const char *name, char *value, size_t size)
{
	ssize_t n = getxattr(path, name, value, size - 1);

	if (n < 0)
		return false;
	value[n] = '\0';
	return true;
}

int kvctl_unescape(char *text)
{
	char *to = text;

	while (*text) {
		unsigned int code = 0;

		if (*text != '\\') {
			*to++ = *text++;
			continue;
		}
		for (int i = 1; i <= 3; i++) {
			if (text[i] < '0' || text[i] > '7')
				return -EINVAL;
			code = code * 8 + (unsigned int)(text[i] - '0');
		}
		if (!code || code > 255)
			return -EINVAL;
		*to++ = (char)code;
		text += 4;
	}
	*to = '\0';
	return 0;
}
