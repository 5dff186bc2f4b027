/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "fs/xattr.h"

static struct xattr **xattr_at(struct inode *inode, const char *name)
{
	struct xattr **at = &inode->xattrs;

	while (*at && strcmp((*at)->data, name))
		at = &(*at)->next;
	return at;
}

struct xattr *xattr_find(struct inode *inode, const char *name)
{
	return *xattr_at(inode, name);
}

struct xattr *xattr_make(const char *name, const void *value, size_t bytes)
{
	size_t len = strlen(name);
	struct xattr *x = malloc(sizeof(*x) + len + 1 + bytes);

	if (!x)
		return NULL;
	x->next = NULL;
	x->bytes = (u32)bytes;
	x->hidden = false;
	x->name_len = (u8)len;
	memcpy(x->data, name, len + 1);
	if (bytes)
		memcpy(x->data + len + 1, value, bytes);
	return x;
}

struct xattr *xattr_put(struct inode *inode, struct xattr *x)
{
	struct xattr **at = xattr_at(inode, x->data), *old = *at;

	x->next = old ? old->next : NULL;
	*at = x;
	return old;
}

struct xattr *xattr_remove(struct inode *inode, const char *name)
{
	struct xattr **at = xattr_at(inode, name), *x = *at;

	if (x)
		*at = x->next;
	return x;
}
