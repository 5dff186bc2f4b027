/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding an inode's record. */
#include <string.h>
#include <sys/stat.h>
#include "allocator/base/textbuf.h"
#include "fs/fs_format.h"
#include "fs/persist.h"
#include "fs/xattr.h"

/* What a record says about a plain file's bytes: the state of its last submit, not of memory. */
struct body_view {
	u64 size;
	u32 inline_bytes;
	const u8 *data;
};

static struct body_view body_view(const struct inode *inode)
{
	const struct body *body = inode->body;
	struct body_view v = {0};

	if (!body)
		return v;
	if (body->saved) {
		v.size = body->saved->size;
		v.inline_bytes = body->saved->inline_bytes;
		v.data = body->saved->inline_data;
		return v;
	}
	v.size = body->size;
	if (!body->pf.tab && body->pf.inline_data) {
		v.inline_bytes = (u32)min(body->size, (u64)PLAIN_INLINE);
		v.data = body->pf.inline_data;
	}
	return v;
}

static void put_links(struct textbuf *tb, const struct inode *inode, struct fs_inode_record *rec)
{
	for (const struct dentry *d = inode->links; d; d = d->next_link) {
		struct fs_link_record link = {
			.parent = d->dir->ino, .cookie = d->cookie, .len = d->len};

		textbuf_add(tb, &link, sizeof(link));
		textbuf_add(tb, d->name, d->len);
		rec->nr_links++;
	}
}

static void put_xattrs(struct textbuf *tb, const struct inode *inode, struct fs_inode_record *rec)
{
	for (const struct xattr *x = inode->xattrs; x; x = x->next) {
		struct fs_xattr_record head = {
			.bytes = x->bytes, .name_len = x->name_len, .hidden = x->hidden};

		textbuf_add(tb, &head, sizeof(head));
		textbuf_add(tb, x->data, x->name_len);
		textbuf_add(tb, xattr_value(x), x->bytes);
		rec->nr_xattrs++;
	}
}

static void put_directory(struct textbuf *tb, const struct inode *inode,
			  struct fs_inode_record *rec)
{
	const struct dir *dir = inode->dir;
	struct textbuf text = TEXTBUF_INIT;

	if (!dir->ns || !dir->ns_root)
		return;
	geometry_to_text(&dir->ns->geo, &text);
	tb->err = tb->err ? tb->err : text.err;
	textbuf_add(tb, text.text ? text.text : "", text.len);
	rec->flags |= FS_RECORD_NAMESPACE;
	rec->space = dir->ns->space;
	rec->geometry_bytes = (u32)text.len;
	textbuf_free(&text);
}

static void put_content(struct textbuf *tb, const struct inode *inode, struct fs_inode_record *rec)
{
	struct body_view v;

	if (inode_is_dir(inode)) {
		put_directory(tb, inode, rec);
	} else if (inode_has_seq(inode)) {
		rec->ref = inode->fseq ? inode->fseq->id : 0;
	} else if (S_ISLNK(inode->mode)) {
		rec->inline_bytes = (u32)strlen(inode->target);
		textbuf_add(tb, inode->target, rec->inline_bytes);
	} else if (S_ISREG(inode->mode)) {
		v = body_view(inode);
		rec->size = v.size;
		rec->inline_bytes = v.inline_bytes;
		textbuf_add(tb, v.data ? v.data : (const u8 *)"", v.inline_bytes);
	} else {
		rec->ref = inode->rdev;
	}
}

void record_put(struct fs *fs, struct meta_txn *txn, struct inode *inode)
{
	struct meta_key key = {.id = inode->ino, .type = META_FS_INODE};
	struct textbuf tail = TEXTBUF_INIT;
	struct fs_inode_record rec = {
		.version = FS_INODE_RECORD_VERSION,
		.kind = inode->kind,
		.mode = inode->mode,
		.uid = inode->uid,
		.gid = inode->gid,
		.atime_ns = inode->atime_ns,
		.mtime_ns = inode->mtime_ns,
		.ctime_ns = inode->ctime_ns,
	};
	struct iovec parts[2];

	put_links(&tail, inode, &rec);
	put_xattrs(&tail, inode, &rec);
	put_content(&tail, inode, &rec);
	parts[0] = (struct iovec){&rec, sizeof(rec)};
	parts[1] = (struct iovec){tail.text, tail.len};
	if (tail.err)
		txn->err = tail.err;
	else
		meta_txn_putv(txn, key, parts, 2);
	textbuf_free(&tail);
}

size_t record_bytes(const struct inode *inode)
{
	size_t bytes = sizeof(struct fs_inode_record) + PLAIN_INLINE + GEOMETRY_MAX_TEXT;

	for (const struct dentry *d = inode->links; d; d = d->next_link)
		bytes += sizeof(struct fs_link_record) + d->len;
	for (const struct xattr *x = inode->xattrs; x; x = x->next)
		bytes += sizeof(struct fs_xattr_record) + x->name_len + x->bytes;
	return bytes;
}
