/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer's driver of rpc_world.h. */
#include "fuzz/rpc_world.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t bytes);

int LLVMFuzzerTestOneInput(const u8 *data, size_t bytes)
{
	struct rpc_world *w = rpc_world_new();

	rpc_world_fuzz(w, data, bytes);
	rpc_world_free(w);
	return 0;
}
