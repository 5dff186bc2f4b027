/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include "allocator/base/clock.h"
#include "fs/fs.h"
#include "fs/fseq.h"

int fs_init(struct fs *fs, struct fs_opts *opts, struct pool *pool)
{
	memset(fs, 0, sizeof(*fs));
	lock_init(&fs->lock, LOCK_FS_TABLE);
	waitq_init(&fs->gate_wake);
	fs->opts = opts;
	fs->pool = pool;
	fs->start_ns = clock_real_ns();
	list_init(&fs->dirty_inodes);
	list_init(&fs->dirty_seqs);
	list_init(&fs->seqs);
	list_init(&fs->active_seqs);
	list_init(&fs->dead_seqs);
	list_init(&fs->files);
	list_init(&fs->controls);
	list_init(&fs->endpoints);
	fs->generation = fs->start_ns;
	fs->tick = 1;
	fs->next_seq_id = SEQ_ID_FIRST + 1;
	fs->next_space = 1;
	for (unsigned int kind = 1; kind < NR_KINDS; kind++)
		fs->next_ino[kind] = ((u64)kind << INO_KIND_SHIFT) + 1;
	if (htab_init(&fs->inodes) || htab_init(&fs->names))
		return -ENOMEM;
	fs->root = inode_insert(fs, INO_ROOT, S_IFDIR | 0755);
	if (!fs->root)
		return -ENOMEM;
	fs->root->nlink = 2;
	fs->root->uid = geteuid();	/* whoever mounts a new store owns it */
	fs->root->gid = getegid();
	return dir_init(fs->root);
}

void fs_lock(struct fs *fs)
{
	lock_acquire(&fs->lock);
}

static void free_dead_body(struct body *body)
{
	plain_destroy(&body->pf);
	free(body->saved);
	free(body->shown);
	free(body);
}

static void free_dead_seq(struct fseq *fseq)
{
	seq_destroy(fseq->seq);
	free(fseq);
}

void fs_unlock(struct fs *fs)
{
	struct body *body = fs->dead_bodies;
	struct list_head seqs;
	struct fseq *fseq, *next;

	list_init(&seqs);
	list_splice(&fs->dead_seqs, &seqs);
	fs->dead_bodies = NULL;
	lock_release(&fs->lock);
	while (body) {
		struct body *next_dead = body->next_dead;

		free_dead_body(body);
		body = next_dead;
	}
	list_for_each_entry_safe (fseq, next, &seqs, dead)
		free_dead_seq(fseq);
}

void fs_destroy(struct fs *fs)
{
	fs_lock(fs);
	inode_free_all(fs);
	fs_unlock(fs);
	meta_txn_free(&fs->log);
	htab_destroy(&fs->inodes);
	htab_destroy(&fs->names);
	waitq_destroy(&fs->gate_wake);
	lock_destroy(&fs->lock);
}
