#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prefix sharing is exact: what is attached, and what must not be.
. "$(dirname "$0")/../lib/mount.sh"

# Two sequences of 1000 tokens, block 16, that share 800.
setup() { rm -rf m/a; kvc_ns m/a "$G16"; ks make m/a/first A:1000; }
# attach NAME SPEC WANT: ids first, as an engine does
attach() {
	mkdir -p "m/a/$1"; touch "m/a/$1/kv"
	ks ids "$2" >"m/a/$1/tokens"
	expect_eq "$3" "$(cached "m/a/$1")" "cached_tokens of $1"
	expect_eq "$3" "$(T "m/a/$1")" "T of $1"
	cmp -n $(($3 * 512)) m/a/first/kv "m/a/$1/kv" || bad "the first $3 tokens' bytes of $1 are not the first's"
	expect_eq $(($3 * 512)) "$(size "m/a/$1/kv")" "size of $1"
}

t_share_800() {
	setup
	attach second A:800,B:200 800
	py <<'E'
s = Spec('A:800,B:200')
fd = os.open('m/a/second/kv', os.O_WRONLY)
s.put(fd, 800)
os.close(fd)
set_tokens('m/a/second', 1000)
check('m/a/second', s)
check('m/a/first', 'A:1000')
hits('m/a', s, 992)
E
}

t_token_5_changed() { setup; attach second A:5,X:1,A:994@6 0; }
t_token_500_changed() { setup; attach second A:500,X:1,A:499@501 496; }
t_whole_blocks_only() { setup; attach second A:999 992; attach third A:15 0; attach fourth A:16 16; }

t_salt() {
	setup
	mkdir m/a/tenant
	setfattr -n user.kvc.salt -v alice m/a/tenant || bad "setting the salt"
	attach tenant/second A:1000 0
	py <<'E'
s = Spec('A:1000')
fd = os.open('m/a/tenant/second/kv', os.O_WRONLY)
s.put(fd)
os.close(fd)
set_tokens('m/a/tenant/second', 1000)
check('m/a/tenant/second', s)
hits('m/a/tenant', s, 992, 'inside the salt')
E
	mkdir -p m/a/tenant/deep; attach tenant/deep/third A:1000 992
	mkdir m/a/other; setfattr -n user.kvc.salt -v bob m/a/other
	attach other/fourth A:1000 0
	mkdir m/a/own; setfattr -n user.kvc.salt -v carol m/a/own
	attach own A:1000 0
	mkdir m/a/twin; setfattr -n user.kvc.salt -v alice m/a/twin
	attach twin/fifth A:1000 992
}

t_fingerprint() {
	setup
	kvc_ns m/f "$G16 fingerprint=llama"
	mkdir m/f/s; touch m/f/s/kv; ks ids A:1000 >m/f/s/tokens
	expect_eq 0 "$(cached m/f/s)" "another fingerprint"
	kvc_ns m/g "$G16"
	kcheck probe m/f A:1000 0
	rm -rf m/f; kvc_ns m/f "$G16 fingerprint=llama"
	kcheck make m/f/s A:1000
	kvc_ns m/h "$G16 fingerprint=qwen"
	kcheck probe m/h A:1000 0
	kcheck probe m/f A:1000 992
	kcheck check m/f/s A:1000
}

t_another_geometry() {
	setup
	kvc_ns m/h "${G16/=f16/=bf16}"
	kcheck probe m/h A:1000 0
}

t_ids_after_bytes() {
	setup
	py <<'E'
s = Spec('A:800,C:200')
make('m/a/late', s, 'k')
spit('m/a/late/tokens', s.idbytes())
check('m/a/late', s)
eq('0', xattr('m/a/late', CACHED), 'bytes of its own: nothing attached')
hits('m/a', s, 992, 'indexed under its ids')
E
}

t_equal_tokens_different_bytes_keep_their_own() {
	setup
	ks make m/a/other 'A:1000!other'
	kcheck check m/a/other 'A:1000!other'
	kcheck check m/a/first A:1000
	kcheck probe m/a A:1000 992
	rm -r m/a/first
	kcheck check m/a/other 'A:1000!other'
}

t_equal_bytes_share() {
	setup
	ks make m/a/same A:1000
	kcheck check m/a/same A:1000
	[ "$(status a/same shared_blocks)" -ge 62 ] || bad "shared_blocks of an equal sequence: $(status a/same shared_blocks)"
}

t_same_block_under_other_parents() {
	setup
	ks make m/a/x X:16,A:16
	kcheck probe m/a Z:16,A:16 0
	kcheck probe m/a A:16@16 0
	kcheck probe m/a X:16,A:16 32
}

t_unlinked_blocks_stay_cached() {
	setup
	ks make m/a/gone Y:160
	rm -r m/a/gone
	kcheck probe m/a Y:160 160
	kvc_drop
	kcheck probe m/a Y:160 0
	kcheck check m/a/first A:1000
	kcheck probe m/a A:1000 992
}

t_attached_survives_the_other() {
	setup
	attach second A:1000 992
	rm -r m/a/first
	kvc_drop
	py <<'E'
check('m/a/second', 'A:992', ids=False)
E
	kcheck probe m/a A:1000 992
}

t_kvctl_match() {
	[ -n "${KVCTL:-}" ] || return 0
	setup
	ks ids A:800,B:200 >out/ids
	expect_match '(^|[^0-9])800([^0-9]|$)' "$("$KVCTL" match m/a out/ids)" "kvctl match"
	expect_match '(^|[^0-9])0([^0-9]|$)' "$("$KVCTL" match m/a out/ids --salt bob)" "kvctl match --salt"
}

t_hit_counters() {
	setup
	[ -e m/.kvc/stat ] || { bad "no .kvc/stat"; return; }
	local h l
	h=$(counter hit_tokens) l=$(counter lookup_tokens)
	py <<'E'
os.mkdir('m/a/second')
spit('m/a/second/tokens', Spec('A:800,B:200').idbytes())
E
	expect_eq 800 $(($(counter hit_tokens) - h)) "hit_tokens"
	expect_eq 1000 $(($(counter lookup_tokens) - l)) "lookup_tokens"
}

kvc_main "$@"
