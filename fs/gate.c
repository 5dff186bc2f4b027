/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: see inode.h. One wait queue serves all, since waiting is rare and short. */
#include "allocator/base/bug.h"
#include "fs/fs.h"

void gates_add(struct gates *gates, struct inode *inode, bool alone)
{
	if (!inode)
		return;
	for (unsigned int i = 0; i < gates->nr; i++) {
		if (gates->gate[i].inode != inode)
			continue;
		gates->gate[i].alone |= alone;
		return;
	}
	KVC_BUG_ON(gates->nr == MAX_GATES);
	gates->gate[gates->nr].inode = inode;
	gates->gate[gates->nr++].alone = alone;
}

static bool gate_free(const struct inode *inode, bool alone)
{
	if (inode->gate_alone)
		return false;
	return alone ? inode->gate_shared == 0 : inode->gate_waiting == 0;
}

/* Who waits to enter alone keeps new readers out, or a busy file could never be written. */
static bool gates_wait(struct fs *fs, struct inode *inode, bool alone)
{
	if (alone)
		inode->gate_waiting++;
	waitq_wait(&fs->gate_wake, &fs->lock);
	if (alone) {
		inode->gate_waiting--;
		waitq_wake_all(&fs->gate_wake);
		inode_drop_if_unused(fs, inode);
	}
	return false;
}

bool gates_take(struct fs *fs, struct gates *gates)
{
	for (unsigned int i = 0; i < gates->nr; i++)
		if (!gate_free(gates->gate[i].inode, gates->gate[i].alone))
			return gates_wait(fs, gates->gate[i].inode, gates->gate[i].alone);
	for (unsigned int i = 0; i < gates->nr; i++) {
		if (gates->gate[i].alone)
			gates->gate[i].inode->gate_alone = true;
		else
			gates->gate[i].inode->gate_shared++;
	}
	return true;
}

void gates_drop(struct fs *fs, struct gates *gates)
{
	for (unsigned int i = 0; i < gates->nr; i++) {
		struct inode *inode = gates->gate[i].inode;

		if (gates->gate[i].alone)
			inode->gate_alone = false;
		else
			inode->gate_shared--;
	}
	for (unsigned int i = 0; i < gates->nr; i++)
		inode_drop_if_unused(fs, gates->gate[i].inode);
	gates->nr = 0;
	waitq_wake_all(&fs->gate_wake);
}
