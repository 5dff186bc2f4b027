#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvreplay on a real mount: with room for everything the mount finds what a simulation finds, and for
# the first 3000 requests of the real traces that is what their description says; a store with room
# for a part of the trace does no worse than LRU. No request fails, no block is wrong.
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
DATA=${KVC_TEST_DATA:-$KVC_SOURCE_DIR/../shared}
CONVERSATION=$DATA/data/mooncake/conversation_trace.jsonl
AGENTS=$DATA/data/agents/agents_4h.jsonl.gz
BLOCK=4096 # bytes that one of 64 tokens of 64 bytes takes
REQUESTS=$(awk -v s="${KVC_TEST_SCALE:-1}" 'BEGIN { print int(3000 * (s < 1 ? s : 1)) }')

case " $* " in
*conversation* | *agents*)
	for f in "$CONVERSATION" "$AGENTS"; do
		[ -r "$f" ] || skip "no $f (set KVC_TEST_DATA)"
	done
	;;
esac

field() { sed -n "s/^$2 \{2,\}\([0-9.]*\).*/\1/p" "$1"; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }' || bad "$3: $1, expected at least $2"; }

# simulate ARGS...: what room for everything is worth, in out/simulated
simulate() {
	"$KVREPLAY" --virtual -n "$REQUESTS" "$@" >out/simulated || bad "kvreplay --virtual $*"
	WHOLE=$(field out/simulated 'distinct blocks') LONGEST=$(field out/simulated 'longest request')
}

# replay OPTIONS ARGS...: on a new store, in out/replayed
replay() {
	local opts=$1
	shift
	kvc_umount
	rm -rf "$STORE"
	kvc_mount -o "$opts" store || { bad "no mount with $opts"; tail -5 "$KVC_LOG"; exit 1; }
	if ! "$KVREPLAY" -m m --token-bytes 64 -n "$REQUESTS" "$@" >out/replayed 2>&1; then
		bad "kvreplay $*, $opts: $(tail -20 out/replayed)"
	fi
	expect_eq 0 "$(field out/replayed 'wrong blocks')" "wrong blocks"
	expect_eq "$(field out/simulated 'input tokens')" "$(field out/replayed 'input tokens')" "tokens"
	echo "     $opts: $(field out/replayed 'token hit rate') %, with room for everything" \
		"$(field out/simulated 'token hit rate') %"
}

# whole RATE ARGS...: RATE holds for 3000 requests
whole() {
	local want=$1
	shift
	simulate "$@"
	replay "dram=64M,nvme=$((WHOLE * BLOCK / 1048576 + 128))M" "$@"
	expect_eq "$(field out/simulated 'token hit rate')" "$(field out/replayed 'token hit rate')" \
		"the mount's hit rate"
	[ "$REQUESTS" = 3000 ] && [ -n "$want" ] || return 0
	awk -v a="$(field out/replayed 'token hit rate')" -v b="$want" \
		'BEGIN { d = a - b; exit !(d <= 0.0101 && d >= -0.0101) }' ||
		bad "hit rate $(field out/replayed 'token hit rate'), expected $want"
}

# part PERCENT RATE ARGS...: a store for PERCENT of the blocks, though for the longest request
part() {
	local percent=$1 want=$2 bytes
	shift 2
	simulate "$@"
	bytes=$((WHOLE * BLOCK * percent / 100))
	[ $bytes -ge $((LONGEST * BLOCK * 5 / 4)) ] || bytes=$((LONGEST * BLOCK * 5 / 4))
	[ $bytes -ge 16777216 ] || bytes=16777216
	replay "dram=64M,nvme=$(((bytes + 1048576) / 2097152 * 2))M" "$@"
	[ "$REQUESTS" = 3000 ] && [ -n "$want" ] || return 0
	at_least "$(field out/replayed 'token hit rate')" "$want" "hit rate with $percent % of the blocks"
}

t_synthetic_whole() { whole '' --synth --requests $((REQUESTS / 3)); }
t_synthetic_part() { part 10 '' --synth --requests $((REQUESTS / 3)); }
t_conversation_whole() { whole 31.97 "$CONVERSATION"; }
t_conversation_part() { part 5 5.7 "$CONVERSATION"; }
t_agents_whole() { whole 94.51 "$AGENTS"; }
t_agents_part() { part 10 37.0 "$AGENTS"; }

kvc_main "$@"
