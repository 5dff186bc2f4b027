#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvctl on a mount: what it shows, what it moves, and what it says when it is
# asked for something that is not there.
. "$(dirname "$0")/../lib/mount.sh"

need_store

# out RC ARGS...: kvctl's exit status is RC; OUTPUT holds both streams.
out() {
	local want=$1 rc=0
	shift
	OUTPUT=$("$KVCTL" "$@" 2>&1) || rc=$?
	[ $rc = "$want" ] || bad "kvctl $*: exit $rc, not $want: $OUTPUT"
}

says() { [[ $OUTPUT == *"$1"* ]] || bad "'$1' is not in: $OUTPUT"; }

t_stat_of_files_in_a_sequence() {
	ks make m/a/x Y:100
	out 0 stat m/a/x
	says "name: a/x"
	expect_eq "$(grep -v last_use <<<"$OUTPUT")" "$("$KVCTL" stat m/a/x/kv | grep -v last_use)" "stat of kv"
	expect_eq "$(grep -v last_use <<<"$OUTPUT")" "$("$KVCTL" stat m/a/x/tokens | grep -v last_use)" "stat of tokens"
	ln -s kv m/a/x/link
	out 0 stat m/a/x/link
	says "name: a/x"
	put m/a/x/notes text
	out 1 stat m/a/x/notes
	says "lies in a sequence"
	out 0 stat --json m/a/x/kv
	says '"tokens":'
	# Outside a namespace a file called kv is one like any other.
	mkdir m/d
	put m/d/kv text
	out 0 stat m/d/kv
	says "name: d/kv"
}

t_stat_of_directories() {
	local d
	mkdir m/a/empty
	for d in m/a/empty m/a m; do
		out 1 stat $d
		says "$d: not a sequence yet: no kv or tokens in it"
	done
	out 1 stat m/a/nosuch
	says "m/a/nosuch: No such file or directory"
	: >m/a/empty/tokens
	out 0 stat m/a/empty
}

t_ls() {
	ks make m/a/x Y:100
	out 0 ls m/a
	says " x"
	out 1 ls m/a/x/kv
	says "Not a directory"
	out 1 ls "$OUT"
	says "not on a kvcachefs mount"
}

t_drop_wants_the_root() {
	local cached
	ks make m/a/x Y:100
	rm -r m/a/x
	cached=$(counter cached_blocks_now)
	[ "$cached" -gt 0 ] || bad "nothing is cached"
	out 2 drop m/a
	says "--namespace a $MNT"
	expect_eq "$cached" "$(counter cached_blocks_now)" "cached blocks after a refused drop"
	out 1 drop --namespace nosuch m
	says "no 'nosuch' in the mount"
	out 1 drop --namespace "$OUT" m
	says "in the mount"
	out 1 drop --namespace "" m
	expect_eq "$cached" "$(counter cached_blocks_now)" "cached blocks after refused drops"
}

# A namespace is named below the mount, or by any path that leads to it.
t_drop_namespace() {
	local ns
	mkdir m/deep
	kvc_ns m/deep/b
	for ns in a m/a "$MNT/a"; do
		ks make m/a/x Y:100
		ks make m/deep/b/x Y:100
		rm -r m/a/x
		rm -r m/deep/b/x
		out 0 drop --namespace "$ns" m
		says "dropped_blocks=3"
		out 0 drop --namespace deep/b --tier dram m
		says "dropped_blocks=3"
	done
	expect_eq 0 "$(counter cached_blocks_now)" "cached blocks"
}

t_fork_tokens() {
	ks make m/a/x Y:100
	out 2 fork --tokens 0 m/a/x m/a/y
	says "--tokens: a number from 1"
	expect_absent m/a/y
	out 0 fork --tokens 40 m/a/x m/a/y
	expect_eq 40 "$(T m/a/y)" "T of the fork"
	out 1 fork --tokens 101 m/a/x m/a/z
	expect_absent m/a/z
}

t_set_prints_json() {
	ks make m/a/x Y:100
	out 0 state m/a/x paused:30
	expect_eq "" "$OUTPUT" "text of a set"
	out 0 state --json m/a/x queued
	expect_eq "m/a/x queued" "$(jsons path state)" "state --json"
	out 0 pin --json m/a/x dram
	expect_eq "m/a/x dram" "$(jsons path pin)" "pin --json"
	out 0 pin m/a/x none
	out 0 priority m/a 7 --json
	expect_eq "m/a 7" "$(jsons path priority)" "priority --json"
	out 0 priority m/a
	expect_eq 7 "$OUTPUT" "priority"
}

# jsons KEY...: values of OUTPUT's object
jsons() { "$PY" -c 'import json, sys; o = json.loads(sys.argv[1]); print(*[o[k] for k in sys.argv[2:]])' "$OUTPUT" "$@"; }

exclusive() { "$PY" -c 'import json, sys; print(json.loads(sys.argv[1])[0]["exclusive_bytes"])' "$OUTPUT"; }

# Of a directory: what its files have alone; a file without a status takes nothing away from that.
t_du_of_a_directory() {
	local alone
	ks make m/a/x Y:96
	out 0 du --json m/a/x
	alone=$(exclusive)
	[ "$alone" -ge $((3 * 16384)) ] || bad "exclusive of a sequence: $alone"
	put m/a/x/notes text
	out 0 du --json m/a
	expect_eq "$alone" "$(exclusive)" "exclusive of the namespace"
	cp -r m/a/x m/a/y
	out 0 du --json m/a
	expect_eq 0 "$(exclusive)" "exclusive of two that share all"
}

t_ns_create() {
	out 0 ns create m/n --layers 2 --kv-heads 1 --head-dim 64 --dtype f16
	says "layout=hnd"
	out 0 ns show m/n
	says "namespace=$MNT/n"
	out 2 ns create m/n2 --layers 2 --head-dim 64
	says "--kv-heads, --dtype (kv_heads, dtype): missing for layout hnd"
	expect_absent m/n2
	out 1 ns create "$OUT/n" --layers 2 --kv-heads 1 --head-dim 64 --dtype f16
	says "not on a kvcachefs mount"
	expect_absent "$OUT/n"
}

kvc_main "$@"
