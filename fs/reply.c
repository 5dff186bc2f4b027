/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies to reads. Bytes that are resident, or could be brought up in one go, are pinned and go to
 * the kernel straight from the pool (one copy, the kernel's); others are copied block by block into
 * a buffer.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/err.h"
#include "fs/ops.h"

/* From a copy: once the reply is on its way, the owner of @data may go at any time. */
void reply_part(fuse_req_t req, const void *data, size_t bytes, size_t len, u64 off)
{
	char *part;

	if (off >= bytes) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	len = min(len, bytes - (size_t)off);
	part = malloc(len ? len : 1);
	if (part) {
		memcpy(part, (const char *)data + off, len);
		fuse_reply_buf(req, part, len);
	} else {
		fuse_reply_err(req, ENOMEM);
	}
	free(part);
}

static bool reply_resident(fuse_req_t req, struct blktab *tab, size_t len, u64 off)
{
	struct fs *fs = fs_of(req);
	struct blktab_view view;

	if (!blktab_view(tab, len, off, &view)) {
		blktab_fetch(tab, len, off);
		if (!blktab_view(tab, len, off, &view))
			return false;
	}
	atomic_fetch_add(&fs->read_bytes, view.bytes);
	fuse_reply_iov(req, view.iov, (int)view.nr);
	blktab_view_put(tab, &view);
	return true;
}

static void reply_read(fuse_req_t req, void *buf, ssize_t got)
{
	if (got < 0)
		fuse_reply_err(req, (int)-got);
	else
		fuse_reply_buf(req, buf, (size_t)got);
	free(buf);
}

static void count_read(fuse_req_t req, ssize_t got)
{
	if (got > 0)
		atomic_fetch_add(&fs_of(req)->read_bytes, (u64)got);
}

void reply_body(fuse_req_t req, struct inode *inode, size_t len, u64 off)
{
	struct body *body = inode->body;
	ssize_t got;
	void *buf;

	if (!body || off >= body->size) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	len = (size_t)min((u64)len, body->size - off);
	if (body->pf.tab && reply_resident(req, body->pf.tab, len, off))
		return;
	buf = malloc(len);
	got = buf ? plain_read(&body->pf, buf, len, off) : -ENOMEM;
	if (body->pf.tab)
		count_read(req, got);
	reply_read(req, buf, got);
}

static void reply_ids(fuse_req_t req, struct sequence *seq, size_t len, u64 off)
{
	void *buf = malloc(len ? len : 1);

	reply_read(req, buf, buf ? seq_read_ids(seq, buf, len, off) : -ENOMEM);
}

void reply_fseq(fuse_req_t req, struct inode *inode, size_t len, u64 off)
{
	struct sequence *seq = inode->fseq ? inode->fseq->seq : NULL;
	ssize_t got;
	void *buf;
	u64 size;

	if (!seq) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	if (inode->kind == KIND_IDS) {
		reply_ids(req, seq, len, off);
		return;
	}
	size = seq_size(seq);
	if (off >= size) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	len = (size_t)min((u64)len, size - off);
	if (reply_resident(req, &seq->tab, len, off))
		return;
	buf = malloc(len);
	got = buf ? seq_read(seq, buf, len, off) : -ENOMEM;
	count_read(req, got);
	reply_read(req, buf, got);
}
