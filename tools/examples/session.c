/* SPDX-License-Identifier: Apache-2.0 */
/* session MOUNT NS/NAME: use what is cached of a prompt, add the rest. cc session.c $(pkg-config --cflags --libs kvc) */
#include <kvc.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	uint32_t prompt[200] = {1, 2, 3}, cached, n = 200, rows = 4 * 2 * 2; /* hnd: layers, K and V, heads */
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_room room = {.size = sizeof(room), .first_token = n};
	struct kvc_layout l = {.size = sizeof(l)};
	struct kvc_seq *seq;
	struct kvc *kvc;

	if (argc != 3 || kvc_open(&kvc, argv[1], NULL) ||
	    kvc_seq_open(kvc, &seq, argv[2], KVC_SEQ_CREATE | KVC_SEQ_WRITE) || kvc_seq_layout(seq, &l) ||
	    kvc_seq_match(seq, prompt, n, &cached) || kvc_seq_map(seq, &view) ||
	    (cached < n && kvc_seq_append(seq, n - cached, &room)))
		return 1;
	printf("%u of %u tokens cached, %u blocks\n", cached, n, (unsigned int)view.nr_blocks);
	for (uint32_t t = room.first_token, bt = l.block_tokens, bytes = l.token_bytes / rows; t < n; t++)
		for (uint32_t row = 0; row < rows; row++) /* here the model computes K and V of token t */
			memset(room.addr + (t / bt - room.first_block) * room.block_stride +
			       (row * bt + t % bt) * bytes, 42, bytes);
	if (kvc_seq_commit(seq, n, NULL, 0))
		return 1;
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	kvc_close(kvc);
}
