#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvdecode's logits are the same bits whether the KV of the prompt was computed now, attached from the
# cache, moved to NVMe and back, forked, or left by a daemon that was restarted or killed. Without the
# trained model (KVC_TEST_DATA) a random one is taken.
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
KVC_MOUNT_ARGS=(-o dram=64M,nvme=1G store)
KVDECODE=$(_bin kvdecode) || skip "kvdecode is not built"

# model DIRECTORY SEED LAYERS HEADS KVHEADS DIM VOCAB: a random one
model() { mkdir -p "$1" && "$PY" "$KVC_LIB/tiny_model.py" "$@" || bad "tiny_model.py $*"; }

DATA=${KVC_TEST_DATA:-$KVC_SOURCE_DIR/../shared}
STORY='Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day,'
if [ -r "$DATA/models/stories260K.bin" ]; then
	MODEL=$DATA/models/stories260K.bin
else
	echo "$KVC_SCRIPT: no $DATA/models/stories260K.bin: a random model instead"
	MODEL=out/random/model.bin
fi
need_model() { [ -r "$MODEL" ] || model out/random 7 5 8 4 64 512; }
NEW=40

# decode NAME [OPTIONS]: logits in out/NAME, text in out/NAME.txt, counts in out/NAME.stats
decode() {
	local name=$1
	shift
	need_model
	"$KVDECODE" --stats -n $NEW --logits "out/$name" "$@" "$MODEL" "$STORY" \
		>"out/$name.txt" 2>"out/$name.stats" || bad "kvdecode $name: $(cat "out/$name.stats")"
}
on_mount() { decode "$1" --mount m --sequence "d/$1" "${@:2}"; }
stat_of() { sed -n "s/^$2: //p" "out/$1.stats"; }
equal() { # NAME [FILE]: the logits are those of plain memory
	[ "$(stat -c %s "${2:-out/$1}")" = "$(stat -c %s out/plain)" ] || bad "$1: not as many logits"
	expect_same out/plain "${2:-out/$1}"
	[ $# = 2 ] || expect_same out/plain.txt "out/$1.txt"
}
# Whole blocks of the prompt and nothing else came from the cache.
attached() {
	local prompt=$(stat_of "$1" prompt_tokens)
	expect_eq $((prompt / 16 * 16)) "$(stat_of "$1" cached_tokens)" "$1: cached tokens"
	[ "$prompt" -ge 32 ] || bad "the prompt has $prompt tokens only"
}

t_empty_cache() {
	decode plain
	[ "$(stat -c %s out/plain)" -gt 0 ] || bad "no logits"
	on_mount first
	expect_eq 0 "$(stat_of first cached_tokens)" "cached tokens of the first run"
	equal first
	# Nothing is computed for the last token generated: it is not in the mount.
	expect_eq $(($(stat_of first prompt_tokens) + NEW - 1)) "$(T m/d/first)" "committed tokens"
}

t_prefix_hit() {
	on_mount hit
	attached hit
	equal hit
	# Its own name again.
	on_mount hit
	attached hit
	equal hit
	# A prompt that is whole blocks is cached entirely: only its last token is computed, for the logits.
	local text='WITHBOSANDBLANKITISTWOBLOCKSOK' # 30 letters, none of which make a pair
	model out/whole 7 2 4 2 32 400
	for name in whole1 whole2; do
		expect_ok "$KVDECODE" --mount m --sequence w/$name --logits out/$name -n 20 out/whole/model.bin "$text"
	done
	expect_same out/whole1 out/whole2
	expect_eq 'cached_tokens: 32' "$("$KVDECODE" --mount m --sequence w/3 --stats -n 1 out/whole/model.bin \
		"$text" 2>&1 | grep cached)" "a prompt of whole blocks"
}

t_demoted() {
	expect_ok "$KVCTL" demote m/d/first --to nvme --wait
	expect_ok "$KVCTL" demote m/d/hit --to nvme --wait
	on_mount restored
	attached restored
	equal restored
}

t_forks() {
	local bytes=$(stat -c %s out/plain) i
	on_mount forks --samples 3
	attached forks
	expect_eq $((3 * bytes)) "$(stat -c %s out/forks)" "size of three samples' logits"
	for i in 0 1 2; do
		tail -c +$((i * bytes + 1)) out/forks | head -c "$bytes" >out/fork.$i
		equal "sample $i" out/fork.$i
		expect_eq "$(T m/d/first)" "$(T m/d/forks.$((i + 1)))" "committed tokens of fork $i"
	done
	decode drawn --temperature 1.2 --seed 3
	on_mount drawn2 --temperature 1.2 --seed 3 --samples 1
	expect_same out/drawn out/drawn2
}

t_restarted() {
	kvc_remount
	on_mount restarted
	attached restarted
	equal restarted
	sync -f m/d/restarted/kv
	kvc_kill9
	kvc_again
	# What the daemon that was killed had in DRAM is there still.
	[ "$(counter restored_dram)" -gt 0 ] || bad "nothing was in DRAM after the restart"
	on_mount killed
	attached killed
	equal killed
	expect_eq 0 "$(tier nvme reads)" "reads of NVMe after the restart"
	# And once more where it is not.
	kvc_kill9
	KVC_OPTS=${KVC_OPTS/dram=64M/dram=80M}
	kvc_again
	expect_eq 0 "$(counter restored_dram)" "blocks in a DRAM of another size"
	on_mount cold
	attached cold
	equal cold
}

refused() { # MESSAGE ARGUMENT...
	local out
	out=$("$KVDECODE" "${@:2}" 2>&1) && bad "kvdecode ${*:2}: not refused"
	expect_match "$1" "$out" "kvdecode ${*:2}"
}

t_refusals() {
	need_model
	model out/other 1 1 2 1 8 300
	refused "d: the namespace is another model's: name another one" --mount m --sequence d/other out/other/model.bin x
	refused 'no kvcachefs mount at out' --mount out --sequence d/x "$MODEL" x
	refused 'samples is at most 1000' --mount m --sequence d/x --samples 1001 "$MODEL" x
	refused '--mount MOUNT and --sequence NAMESPACE/NAME go together' --mount m "$MODEL" x
	expect_fail "$KVDECODE" "$MODEL" "$(printf '%2000s')"
	"$KVDECODE" --mount m --sequence nowhere "$MODEL" x 2>/dev/null
	expect_eq 2 $? "exit status for a sequence without a namespace"
}

kvc_main "$@"
