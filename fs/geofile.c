/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file .geometry. It is written as text, a piece at a time and by several processes in turn,
 * and judged at each close; once complete it makes its directory a namespace and shows computed
 * lines.
 *
 * What was written stays in the file as it is while writers may go on (a redirection shared by two
 * commands appends at its own offset); what readers see in between is `body.shown`. The next write
 * goes back to the raw text, the last close makes the shown text real (geofile_settle()).
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "fs/kvdir.h"
#include "fs/persist.h"

struct dentry *geofile_entry(const struct inode *inode)
{
	struct dentry *d = inode->links;

	while (d && strcmp(d->name, GEOMETRY_NAME))
		d = d->next_link;
	return d;
}

/* A block that DRAM has no room for beside others could never be written or read. */
static int check_size(struct fs *fs, const struct geo_verdict *v, struct textbuf *why)
{
	u64 limit = pool_block_limit(fs->pool);

	if (!v->complete || v->geo.block_stride <= limit)
		return 0;
	textbuf_printf(why, "blocks of %llu bytes are too large for a DRAM tier that takes up to %llu",
		       (unsigned long long)v->geo.block_stride, (unsigned long long)limit);
	return kvc_err(-EINVAL, geometry_block_large);
}

static int parse(struct fs *fs, const struct inode *inode, const char *text, size_t len,
		 struct geo_verdict *v)
{
	struct textbuf why = TEXTBUF_INIT;
	int err = geometry_parse(text, len, &v->geo, &v->complete, &why);

	if (!err)
		err = check_size(fs, v, &why);
	if (err)
		log_warn("geometry in inode %llu: %s", (unsigned long long)inode->ino,
			 why.text ? why.text : "malformed");
	textbuf_free(&why);
	return err;
}

int geofile_read(struct fs *fs, struct inode *inode, struct geo_verdict *v)
{
	char text[GEOMETRY_MAX_TEXT + 1];
	ssize_t got = 0;

	if (inode->body)
		got = plain_read(&inode->body->pf, text, sizeof(text), 0);
	if (got < 0)
		return (int)got;
	if (got > GEOMETRY_MAX_TEXT)
		return -EINVAL;
	return parse(fs, inode, text, (size_t)got, v);
}

int geofile_write(struct fs *fs, struct inode *inode, const void *buf, size_t len, u64 off)
{
	char text[GEOMETRY_MAX_TEXT] = "";
	struct geo_verdict v;
	ssize_t got = 0;
	size_t end;

	if (off > sizeof(text) || len > sizeof(text) - off)
		return -EINVAL;
	if (inode->body)
		got = plain_read(&inode->body->pf, text, sizeof(text), 0);
	if (got < 0)
		return (int)got;
	memcpy(text + off, buf, len);
	/* the last word may go on in the next write */
	end = max((size_t)got, (size_t)off + len);
	while (end && !strchr(" \t\n", text[end - 1]))
		end--;
	return parse(fs, inode, text, end, &v);
}

void geofile_unshow(struct inode *inode)
{
	if (!geofile_entry(inode))
		return;
	inode->flags |= INODE_GEO_WRITTEN;
	if (inode->body) {
		free(inode->body->shown);
		inode->body->shown = NULL;
	}
}

/* Symlinks hold no bytes: rsync makes them before the first file arrives. */
static bool is_harmless(const struct dentry *d)
{
	return S_ISLNK(d->inode->mode) && !name_is_special(d->name);
}

/* Is there anything but directories below @dir, @but and a namespace's own .geometry apart? */
static bool has_files(struct inode *dir, const struct inode *but)
{
	struct dentry *d = NULL;

	while ((d = tree_walk(dir, d))) {
		if (inode_is_dir(d->inode)) {
			if (d->inode->dir->ns_root)
				return true;
		} else if (d->inode != but && !is_harmless(d) &&
			   (d->dir != dir || strcmp(d->name, GEOMETRY_NAME))) {
			return true;
		}
	}
	return false;
}

static void set_ns(struct inode *dir, struct nspace *ns)
{
	if (dir->dir->ns)
		nspace_put(dir->dir->ns);
	dir->dir->ns = nspace_get(ns);
}

/* @dir becomes a namespace, or its empty namespace another. */
static int found_ns(struct fs *fs, struct inode *dir, const struct geometry *geo)
{
	struct nspace *ns = nspace_new(fs, geo, fs->next_space), *old = dir->dir->ns;
	struct dentry *d = NULL;

	if (!ns)
		return -ENOMEM;
	fs->next_space++;
	if (old)
		prefix_drop_space(fs->pool, old->space);
	set_ns(dir, ns);
	while ((d = tree_walk(dir, d)))
		if (inode_is_dir(d->inode))
			set_ns(d->inode, ns);
	nspace_put(ns);
	nspace_set_owner(fs, dir);
	dir->dir->ns_root = true;
	log_counters(fs);
	log_inode(fs, dir);
	return log_submit(fs);
}

int geofile_apply(struct fs *fs, struct inode *dir, struct inode *inode,
		  const struct geo_verdict *v)
{
	struct nspace *ns = dir_ns(dir);
	bool empty = !inode->body || !plain_size(&inode->body->pf);

	if (!ns) {
		if (!v->complete)
			return 0;
		return has_files(dir, inode) ? -ENOTEMPTY : found_ns(fs, dir, &v->geo);
	}
	if (v->complete && geometry_equal(&ns->geo, &v->geo))
		return 0;
	if (!dir->dir->ns_root)
		return empty ? 0 : -EPERM;
	if (!v->complete)
		return 0;
	return has_files(dir, inode) ? -EPERM : found_ns(fs, dir, &v->geo);
}

/* From now on readers see the namespace's text. */
static void show(struct fs *fs, struct inode *inode, struct nspace *ns)
{
	struct textbuf text = TEXTBUF_INIT;

	geometry_to_text(&ns->geo, &text);
	if (text.err || !inode_body(fs, inode)) {
		textbuf_free(&text);
		return;
	}
	free(inode->body->shown);
	inode->body->shown = text.text;
}

int geofile_judge(struct fs *fs, struct inode *inode)
{
	struct geo_verdict v;
	struct dentry *d;
	int err = geofile_read(fs, inode, &v);

	fs_lock(fs);
	d = geofile_entry(inode);
	if (d) {
		inode->flags &= (u8)~INODE_GEO_WRITTEN;
		if (!err)
			err = geofile_apply(fs, d->dir, inode, &v);
		if (dir_ns(d->dir) && d->dir->dir->ns_root)
			show(fs, inode, dir_ns(d->dir));
	}
	fs_unlock(fs);
	return err;
}

void geofile_settle(struct fs *fs, struct inode *inode)
{
	struct body *body = inode->body;
	char *text = NULL;
	int err = 0;

	fs_lock(fs);
	if (body && body->shown && !inode_dirty_body(fs, inode))
		text = strdup(body->shown);
	fs_unlock(fs);
	if (!text)
		return;
	err = plain_truncate(&body->pf, 0);
	if (!err)
		err = plain_write(&body->pf, text, strlen(text), 0);
	free(text);
	if (err)
		log_warn("geometry in inode %llu: %d", (unsigned long long)inode->ino, -err);
	fs_lock(fs);
	body->size = plain_size(&body->pf);
	body->allocated_bytes = plain_allocated(&body->pf);
	if (!err) {
		free(body->shown);
		body->shown = NULL;
	}
	fs_unlock(fs);
}
