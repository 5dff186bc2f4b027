/* SPDX-License-Identifier: Apache-2.0 */
/* session MOUNT SEQUENCE: use what is cached of a prompt, add the rest. cc session.c $(pkg-config --cflags --libs kvc) */
#include <kvc.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	uint32_t prompt[200] = {1, 2, 3}, cached, n = 200;
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_room room = {.size = sizeof(room)};
	struct kvc *kvc;
	struct kvc_seq *seq;

	if (argc != 3 || kvc_open(&kvc, argv[1], NULL) ||
	    kvc_seq_open(kvc, &seq, argv[2], KVC_SEQ_CREATE | KVC_SEQ_WRITE) ||
	    kvc_seq_match(seq, prompt, n, &cached) || kvc_seq_map(seq, &view))
		return 1;
	printf("%u of %u tokens cached, %llu blocks at %p\n", cached, n,
	       (unsigned long long)view.nr_blocks, (void *)view.addr);
	if (cached < n && kvc_seq_append(seq, n - cached, &room))
		return 1;
	memset(room.addr, 42, room.bytes); /* here the model computes K and V */
	if (kvc_seq_commit(seq, n, NULL, 0))
		return 1;
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	kvc_close(kvc);
	return 0;
}
