/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the metadata at mount. Records come in any order, so inodes are made at once, what refers
 * to something else is kept until all were seen, and then put together and checked: every name's
 * parent exists and is a directory, no name is there twice, every directory hangs on the root,
 * kinds and namespaces fit, every block table names blocks that exist. Anything else is refused,
 * with the number of the inode and what is wrong with it; the store is left as it is.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "allocator/base/textbuf.h"
#include "fs/fs_format.h"
#include "fs/kvdir.h"
#include "fs/persist.h"
#include "fs/xattr.h"

/** struct kept - a record or a part of one, in the arena. */
struct kept {
	u64 id;		     /* parent's number, table, sequence or inode */
	u64 order;	     /* cookie, or type << 32 | sub */
	struct inode *inode; /* whose it is, or NULL */
	size_t off;	     /* in the arena */
	u32 bytes;
};

struct kept_list {
	struct kept *items;
	size_t nr, max;
};

struct loader {
	struct fs *fs;
	struct textbuf why;
	struct textbuf arena;
	struct kept_list links, geometries, seqs, tables, bodies;
	u64 nr_dirs;
};

struct loader *loader_new(struct fs *fs)
{
	struct loader *l = calloc(1, sizeof(*l));

	if (l)
		l->fs = fs;
	return l;
}

void loader_free(struct loader *l)
{
	if (!l)
		return;
	free(l->links.items);
	free(l->geometries.items);
	free(l->seqs.items);
	free(l->tables.items);
	free(l->bodies.items);
	textbuf_free(&l->arena);
	textbuf_free(&l->why);
	free(l);
}

struct textbuf *loader_why(struct loader *l)
{
	return &l->why;
}

static int bad_inode(struct loader *l, u64 ino, const char *what)
{
	textbuf_printf(&l->why, "metadata of inode %llu: %s; nothing was changed",
		       (unsigned long long)ino, what);
	return -EUCLEAN;
}

static int keep(struct loader *l, struct kept_list *list, struct kept k, const void *data)
{
	if (list->nr == list->max) {
		size_t max_items = list->max ? list->max * 2 : 64;
		struct kept *items = reallocarray(list->items, max_items, sizeof(*items));

		if (!items)
			return -ENOMEM;
		list->items = items;
		list->max = max_items;
	}
	k.off = l->arena.len;
	textbuf_add(&l->arena, data, k.bytes);
	if (l->arena.err)
		return l->arena.err;
	list->items[list->nr++] = k;
	return 0;
}

static int by_id_and_order(const void *a, const void *b)
{
	const struct kept *x = a, *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static void sort(struct kept_list *list)
{
	if (list->nr)
		qsort(list->items, list->nr, sizeof(*list->items), by_id_and_order);
}

/* ---- one inode record ---- */

/** struct cursor - what is left of a record. */
struct cursor {
	const u8 *at;
	u32 left;
};

static const void *take(struct cursor *c, u32 bytes)
{
	const void *at = c->at;

	if (bytes > c->left)
		return NULL;
	c->at += bytes;
	c->left -= bytes;
	return at;
}

static int take_links(struct loader *l, struct inode *inode, struct cursor *c, u32 nr)
{
	const struct fs_link_record *link;
	const void *name;
	int err = 0;

	while (nr-- && !err) {
		link = take(c, sizeof(*link));
		name = link ? take(c, link->len) : NULL;
		if (!name || !link->len || memchr(name, '/', link->len) ||
		    memchr(name, '\0', link->len))
			return bad_inode(l, inode->ino, "malformed name");
		err = keep(l, &l->links,
			   (struct kept){.id = link->parent,
					 .order = link->cookie,
					 .inode = inode,
					 .bytes = link->len},
			   name);
	}
	return err;
}

static int take_xattrs(struct loader *l, struct inode *inode, struct cursor *c, u32 nr)
{
	const struct fs_xattr_record *head;
	const void *name, *value;
	char text[NAME_MAX_BYTES + 1];
	struct xattr *x;

	while (nr--) {
		head = take(c, sizeof(*head));
		name = head ? take(c, head->name_len) : NULL;
		value = name ? take(c, head->bytes) : NULL;
		if (!value || !head->name_len || memchr(name, '\0', head->name_len))
			return bad_inode(l, inode->ino, "malformed attribute");
		memcpy(text, name, head->name_len);
		text[head->name_len] = '\0';
		if (xattr_find(inode, text))
			return bad_inode(l, inode->ino, "an attribute twice");
		x = xattr_make(text, value, head->bytes);
		if (!x)
			return -ENOMEM;
		x->hidden = head->hidden;
		xattr_put(inode, x);
	}
	return 0;
}

static int take_content(struct loader *l, struct inode *inode, struct cursor *c,
			const struct fs_inode_record *rec)
{
	const void *geometry = take(c, rec->geometry_bytes);
	const void *data = geometry ? take(c, rec->inline_bytes) : NULL;

	if (!data || c->left)
		return bad_inode(l, inode->ino, "record of the wrong length");
	if (rec->flags & FS_RECORD_NAMESPACE)
		return keep(l, &l->geometries,
			    (struct kept){
				    .id = rec->space, .inode = inode, .bytes = rec->geometry_bytes},
			    geometry);
	if (inode_has_seq(inode))
		return keep(l, &l->seqs, (struct kept){.id = rec->ref, .inode = inode}, data);
	if (S_ISLNK(inode->mode)) {
		inode->target = strndup(data, rec->inline_bytes);
		return inode->target ? 0 : -ENOMEM;
	}
	if (inode_has_body(inode))
		return keep(
			l, &l->bodies,
			(struct kept){.id = rec->size, .inode = inode, .bytes = rec->inline_bytes},
			data);
	inode->rdev = inode_is_dir(inode) ? inode->rdev : rec->ref;
	return 0;
}

static bool record_sane(const struct fs_inode_record *rec, u64 ino)
{
	u32 type = rec->mode & S_IFMT;
	bool dir = type == S_IFDIR;

	if (rec->version != FS_INODE_RECORD_VERSION || rec->kind != ino_kind(ino) ||
	    rec->kind < KIND_GEOMETRY || rec->kind >= NR_KINDS)
		return false;
	if (dir != (rec->kind == KIND_DIR) || (rec->flags & FS_RECORD_NAMESPACE && !dir))
		return false;
	if ((rec->kind == KIND_KV || rec->kind == KIND_IDS || rec->kind == KIND_GEOMETRY) &&
	    type != S_IFREG)
		return false;
	if (type == S_IFREG && rec->inline_bytes > PLAIN_INLINE)
		return false;
	if (type == S_IFLNK && (!rec->inline_bytes || rec->inline_bytes > 4095))
		return false;
	return dir ? rec->nr_links == (ino != INO_ROOT) : rec->nr_links > 0;
}

static struct inode *make_inode(struct loader *l, u64 ino, const struct fs_inode_record *rec)
{
	struct inode *inode = ino == INO_ROOT ? l->fs->root : NULL;
	u64 kind = ino_kind(ino);

	if (!inode)
		inode = inode_insert(l->fs, ino, rec->mode);
	if (!inode)
		return NULL;
	inode->mode = rec->mode;
	inode->uid = rec->uid;
	inode->gid = rec->gid;
	inode->atime_ns = rec->atime_ns;
	inode->mtime_ns = rec->mtime_ns;
	inode->ctime_ns = rec->ctime_ns;
	if (ino != INO_ROOT)
		l->fs->next_ino[kind] = max(l->fs->next_ino[kind], ino + 1);
	if (kind == KIND_DIR && ino != INO_ROOT) {
		l->nr_dirs++;
		if (dir_init(inode))
			return NULL;
	}
	return inode;
}

static int load_inode(struct loader *l, u64 ino, const void *value, u32 bytes)
{
	struct cursor c = {.at = value, .left = bytes};
	const struct fs_inode_record *rec = take(&c, sizeof(*rec));
	struct inode *inode;
	int err;

	if (!rec || !record_sane(rec, ino))
		return bad_inode(l, ino, "malformed record");
	if (ino != INO_ROOT && inode_find(l->fs, ino))
		return bad_inode(l, ino, "recorded twice");
	inode = make_inode(l, ino, rec);
	if (!inode)
		return -ENOMEM;
	err = take_links(l, inode, &c, rec->nr_links);
	if (!err)
		err = take_xattrs(l, inode, &c, rec->nr_xattrs);
	return err ? err : take_content(l, inode, &c, rec);
}

static int load_counters(struct loader *l, const void *value, u32 bytes)
{
	const struct fs_counters_record *rec = value;
	struct fs *fs = l->fs;

	if (bytes != sizeof(*rec) || rec->version != 1) {
		textbuf_printf(&l->why, "metadata: malformed counters; nothing was changed");
		return -EUCLEAN;
	}
	fs->next_space = max(fs->next_space, rec->next_space);
	fs->next_seq_id = max(fs->next_seq_id, rec->next_seq_id);
	for (unsigned int kind = 1; kind < NR_KINDS; kind++)
		fs->next_ino[kind] = max(fs->next_ino[kind], rec->next_ino[kind]);
	return 0;
}

int loader_record(void *loader, const struct meta_key *key, const void *value, u32 bytes)
{
	struct loader *l = loader;
	struct kept k = {.id = key->id, .order = (u64)key->type << 32 | key->sub, .bytes = bytes};

	if (key->type < 16)
		return pool_load(l->fs->pool, key, value, bytes, &l->why);
	if (key->type < 32)
		return keep(l, &l->tables, k, value);
	if (key->type == META_FS_INODE)
		return load_inode(l, key->id, value, bytes);
	if (key->type == META_FS_COUNTERS)
		return load_counters(l, value, bytes);
	textbuf_printf(&l->why, "metadata: record of unknown type %u; nothing was changed",
		       key->type);
	return -EUCLEAN;
}

/* ---- putting together ---- */

static int link_names(struct loader *l)
{
	sort(&l->links);
	for (size_t i = 0; i < l->links.nr; i++) {
		const struct kept *k = &l->links.items[i];
		struct inode *dir = inode_find(l->fs, k->id);
		char name[NAME_MAX_BYTES + 1];

		memcpy(name, l->arena.text + k->off, k->bytes);
		name[k->bytes] = '\0';
		if (!dir || !inode_is_dir(dir))
			return bad_inode(l, k->inode->ino, "its directory does not exist");
		if (k->order <= COOKIE_DOTDOT || tree_find(l->fs, dir, name))
			return bad_inode(l, k->inode->ino, "its name is taken");
		if (!tree_add(l->fs, dir, name, k->inode, k->order))
			return bad_inode(l, k->inode->ino, "its place in the directory is taken");
	}
	return 0;
}

/* Directories that a walk from the root reaches are all that there are, or some form a ring. */
static int check_reachable(struct loader *l)
{
	struct dentry *d = NULL;
	u64 nr = 0;

	while ((d = tree_walk(l->fs->root, d)))
		nr += inode_is_dir(d->inode);
	if (nr == l->nr_dirs)
		return 0;
	textbuf_printf(&l->why,
		       "metadata: %llu of %llu directories do not hang on the root; "
		       "nothing was changed",
		       (unsigned long long)(l->nr_dirs - nr), (unsigned long long)l->nr_dirs);
	return -EUCLEAN;
}

static int enter_ns(struct loader *l, struct inode *top, struct nspace *ns)
{
	struct dentry *d = NULL;

	top->dir->ns_root = true;
	top->dir->ns = nspace_get(ns);
	nspace_set_owner(l->fs, top);
	while ((d = tree_walk(top, d))) {
		if (!inode_is_dir(d->inode))
			continue;
		if (d->inode->dir->ns)
			return bad_inode(l, d->inode->ino, "a namespace inside another");
		d->inode->dir->ns = nspace_get(ns);
	}
	return 0;
}

static int load_namespaces(struct loader *l)
{
	for (size_t i = 0; i < l->geometries.nr; i++) {
		const struct kept *k = &l->geometries.items[i];
		struct textbuf why = TEXTBUF_INIT;
		struct geometry geo;
		struct nspace *ns;
		bool complete;
		int err;

		err = geometry_parse(l->arena.text + k->off, k->bytes, &geo, &complete, &why);
		textbuf_free(&why);
		if (err || !complete || !k->id || k->inode->dir->ns)
			return bad_inode(l, k->inode->ino, "malformed geometry");
		ns = nspace_new(l->fs, &geo, (u32)k->id);
		if (!ns)
			return -ENOMEM;
		l->fs->next_space = max(l->fs->next_space, (u32)k->id + 1);
		err = enter_ns(l, k->inode, ns);
		nspace_put(ns);
		if (err)
			return err;
	}
	return 0;
}

static int load_salts(struct loader *l)
{
	struct inode *inode;
	u32 pos = 0;

	for (inode = inode_next(l->fs, &pos, NULL); inode; inode = inode_next(l->fs, &pos, inode)) {
		struct xattr *x = xattr_find(inode, "user.kvc.salt");
		int err;

		if (!x || !x->hidden)
			continue;
		if (!inode_is_dir(inode) || !inode->dir->ns)
			return bad_inode(l, inode->ino, "a salt outside of a namespace");
		err = pool_root(l->fs->pool, inode->dir->ns->space, xattr_value(x), x->bytes,
				&inode->dir->salt_root);
		if (err)
			return err;
	}
	return 0;
}

/* ---- sequences and bodies ---- */

static int attach_seq(struct loader *l, struct inode *inode, struct fseq *fseq)
{
	struct dentry *d = inode->links;
	struct inode *dir = d->dir;

	if (inode->kind == KIND_KV ? fseq->kv != NULL : fseq->ids != NULL)
		return bad_inode(l, inode->ino, "its sequence has two such files");
	if (name_is_sequence(dir, d->name)) {
		if (!fseq->dir && dir->dir->fseq)
			return bad_inode(l, inode->ino, "its directory has two sequences");
		if (fseq->dir && fseq->dir != dir)
			return bad_inode(l, inode->ino, "its sequence lies in two directories");
		if (!fseq->dir) {
			fseq_set_root(fseq, kvdir_root(dir));
			fseq->seq->priority = kvdir_priority(dir);
			fseq_attach(l->fs, fseq, dir);
		}
	} else if (fseq->kv || fseq->ids) {
		return bad_inode(l, inode->ino, "its sequence is another's");
	}
	fseq_set_inode(l->fs, inode, fseq);
	return 0;
}

static int check_seq_file(struct loader *l, const struct kept *k)
{
	struct dentry *d = k->inode->links;

	if (!d || d->next_link || !dir_ns(d->dir) ||
	    kind_of_name(d->dir, d->name) != (enum inode_kind)k->inode->kind)
		return bad_inode(l, k->inode->ino, "a KV or ids file where there can be none");
	if (k->id < SEQ_ID_FIRST)
		return bad_inode(l, k->inode->ino, "impossible sequence number");
	return 0;
}

/* Files of one sequence stand next to each other. */
static int make_sequences(struct loader *l)
{
	struct fseq *fseq = NULL;
	int err = 0;

	sort(&l->seqs);
	for (size_t i = 0; i < l->seqs.nr && !err; i++) {
		const struct kept *k = &l->seqs.items[i];

		err = check_seq_file(l, k);
		if (!err && (!fseq || fseq->id != k->id)) {
			if (fseq)
				fseq_put(l->fs, fseq);
			fseq = fseq_new(l->fs, dir_ns(k->inode->links->dir), k->id);
			l->fs->next_seq_id = max(l->fs->next_seq_id, k->id + 1);
			err = fseq ? 0 : -ENOMEM;
		}
		if (!err && fseq->ns != dir_ns(k->inode->links->dir))
			err = bad_inode(l, k->inode->ino, "its sequence is of another namespace");
		if (!err)
			err = attach_seq(l, k->inode, fseq);
	}
	if (fseq)
		fseq_put(l->fs, fseq);
	return err;
}

static struct fseq *seq_by_id(struct loader *l, u64 id)
{
	size_t lo = 0, hi = l->seqs.nr;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (l->seqs.items[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == l->seqs.nr || l->seqs.items[lo].id != id)
		return NULL;
	return l->seqs.items[lo].inode->fseq;
}

/* A table record: of a sequence, a plain file, or of nobody (removed between two records). */
static int load_table(struct loader *l, const struct kept *k)
{
	const void *value = l->arena.text + k->off;
	u8 type = (u8)(k->order >> 32);
	u32 sub = (u32)k->order;
	struct inode *inode;
	struct fseq *fseq;

	if (k->id >= SEQ_ID_FIRST) {
		l->fs->next_seq_id = max(l->fs->next_seq_id, k->id + 1);
		fseq = seq_by_id(l, k->id);
		if (fseq) {
			fseq->loaded = true;
			return seq_load(fseq->seq, type, sub, value, k->bytes);
		}
	} else {
		inode = inode_find(l->fs, k->id);
		if (inode && inode_has_body(inode) && type == META_TAB_CHUNK)
			return inode_body(l->fs, inode)
				       ? plain_load_chunk(&inode->body->pf, sub, value, k->bytes)
				       : -ENOMEM;
	}
	meta_txn_del(&l->fs->log, (struct meta_key){.id = k->id, .sub = sub, .type = type});
	return 0;
}

static int load_tables(struct loader *l)
{
	int err = 0;

	sort(&l->tables);
	for (size_t i = 0; i < l->tables.nr && !err; i++) {
		err = load_table(l, &l->tables.items[i]);
		if (err == -EUCLEAN && !l->why.len)
			textbuf_printf(&l->why,
				       "metadata: table %llu is malformed; nothing was "
				       "changed",
				       (unsigned long long)l->tables.items[i].id);
	}
	return err;
}

/* The name of a kv goes with the first record that is written, its sequence's record may be later. */
static int finish_sequence(struct loader *l, struct fseq *fseq)
{
	int err = seq_load_finish(fseq->seq, &l->why);

	if (!err && !fseq->kv)
		err = seq_load_kv_gone(fseq->seq);
	if (!err && seq_dirty(fseq->seq))
		fseq_mark_dirty(l->fs, fseq);
	return err;
}

/* A sequence without records is one that nothing was written to. */
static int finish_sequences(struct loader *l)
{
	struct fseq *last = NULL;
	int err = 0;

	for (size_t i = 0; i < l->seqs.nr && !err; i++) {
		struct fseq *fseq = l->seqs.items[i].inode->fseq;

		if (fseq != last && fseq->loaded)
			err = finish_sequence(l, fseq);
		if (err == -EUCLEAN && !l->why.len)
			err = bad_inode(l, l->seqs.items[i].inode->ino, "malformed sequence");
		last = fseq;
	}
	return err;
}

static int finish_bodies(struct loader *l)
{
	for (size_t i = 0; i < l->bodies.nr; i++) {
		const struct kept *k = &l->bodies.items[i];
		struct body *body;
		int err;

		if (!k->id && !k->inode->body)
			continue;
		body = inode_body(l->fs, k->inode);
		if (!body)
			return -ENOMEM;
		err = plain_load_finish(&body->pf, k->id, l->arena.text + k->off, k->bytes);
		if (err == -EUCLEAN)
			return bad_inode(l, k->inode->ino, "its bytes are not where it says");
		if (err)
			return err;
		body->size = plain_size(&body->pf);
		body->allocated_bytes = plain_allocated(&body->pf);
	}
	return 0;
}

int loader_finish(struct loader *l, struct textbuf *why)
{
	int err = link_names(l);

	if (!err)
		err = check_reachable(l);
	if (!err)
		err = load_namespaces(l);
	if (!err)
		err = load_salts(l);
	if (!err)
		err = make_sequences(l);
	if (!err)
		err = load_tables(l);
	if (!err)
		err = finish_sequences(l);
	if (!err)
		err = finish_bodies(l);
	if (err && l->why.len)
		textbuf_add(why, l->why.text, l->why.len);
	else if (err)
		textbuf_printf(why, "loading the metadata: %s", strerror(-err));
	return err;
}
