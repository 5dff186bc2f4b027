#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Removal: of sequences, of one of the two files, of namespaces, of open files.
. "$(dirname "$0")/../lib/mount.sh"

t_rm_rf_and_find() {
	ks makens m/a
	cp -a m/a m/b; expect_ok find m/b -delete; expect_absent m/b
	cp -a m/a m/b; expect_ok find m/b -type f -delete
	expect_eq "" "$(find m/b -type f)" "no file is left"
	expect_ok find m/b -depth -delete; expect_absent m/b
	cp -a m/a m/b; rm -rf m/b/*
	expect_eq .geometry "$(ls -A m/b)" "rm -rf NS/*"
	expect_ok cp -a m/a/A m/b/A; kcheck check m/b/A A:100
	expect_ok rm -rf m/b; expect_absent m/b
	kcheck checkns m/a
	py <<'E'
shutil.copytree('m/a', 'm/c', symlinks=True)
shutil.rmtree('m/c')
true(not os.path.exists('m/c'), 'rmtree')
E
}

t_rmdir() {
	ks make m/a/s Y:64
	expect_errno ENOTEMPTY rmdir m/a/s
	rm m/a/s/kv; expect_errno ENOTEMPTY rmdir m/a/s
	rm m/a/s/tokens; expect_ok rmdir m/a/s
	expect_errno ENOENT rm m/a/s/kv
	expect_errno ENOTEMPTY rmdir m/a
}

t_kv_then_new_bytes() {
	ks make m/a/s Y:64
	rm m/a/s/kv
	expect_eq 0 "$(T m/a/s)" "T without kv"
	ks ids Y:64 >out/y; expect_same out/y m/a/s/tokens
	ks kv Z:64 >m/a/s/kv
	kcheck probe m/a Y:64
	kcheck probe m/a Z:64
	rm m/a/s/tokens m/a/s/kv
	ks make m/a/s Z:64
	kcheck check m/a/s Z:64
}

t_tokens_then_kv() {
	ks make m/a/s Y:64
	rm m/a/s/tokens; kcheck check m/a/s Y:64 noids
	rm m/a/s/kv
	expect_eq none "$(T m/a/s)" "nothing is left"
	touch m/a/s/tokens
	expect_eq 0 "$(size m/a/s/tokens)" "new ids begin anew"
}

t_open_and_unlinked() {
	ks make m/a/s Y:64
	py <<'E'
s = Spec('Y:64')
r = os.open('m/a/s/kv', os.O_RDONLY)
t = os.open('m/a/s/tokens', os.O_RDONLY)
os.unlink('m/a/s/kv')
os.unlink('m/a/s/tokens')
eq(s.kv(), os.pread(r, 1 << 20, 0), 'kv after unlink')
eq(s.idbytes(), os.pread(t, 1 << 20, 0), 'tokens after unlink')
eq(0, os.fstat(r).st_nlink, 'nlink')
make('m/a/s', 'Z:64')
eq(s.kv(), os.pread(r, 1 << 20, 0), 'kv after another took the name')
check('m/a/s', 'Z:64')
os.close(r); os.close(t)
w = os.open('m/a/s/kv', os.O_RDWR)
os.unlink('m/a/s/kv')
Spec('Z:96').put(w, 64)
eq(Spec('Z:96').kv(), os.pread(w, 1 << 20, 0), 'written after unlink')
os.close(w)
E
	kcheck probe m/a Z:64
}

t_cached_after_unlink() {
	ks make m/a/s Y:100
	rm -r m/a/s
	kcheck probe m/a Y:100 96
	mkdir m/a/s; touch m/a/s/kv; ks ids Y:100 >m/a/s/tokens
	expect_eq 96 "$(cached m/a/s)" "attached again"
	kcheck check m/a/s Y:96 noids
	rm -r m/a/s
	kvc_drop
	kcheck probe m/a Y:100 0
}

t_space_comes_back() {
	[ -e m/.kvc/tiers ] || { bad "no .kvc/tiers"; return; }
	rm -rf m/a; kvc_drop
	kvc_ns m/a "$GBIG"
	local before after
	before=$(tier dram used)
	ks make m/a/s B:512
	[ "$(tier dram used)" -ge $((before + 32 * 1048576)) ] || bad "used does not show 32 MiB: $before, $(tier dram used)"
	rm -r m/a/s
	kvc_drop
	after=$(tier dram used)
	[ "$after" -le $((before + 4194304)) ] || bad "used $after after removing everything, $before before"
}

t_many() {
	py <<'E'
for i in range(200):
    make('m/a/n%d' % i, 'M%d:33' % i)
for i in range(0, 200, 2):
    shutil.rmtree('m/a/n%d' % i)
eq(sorted('n%d' % i for i in range(1, 200, 2)), sorted(os.listdir('m/a'))[1:], 'every second one')
for i in range(1, 200, 20):
    check('m/a/n%d' % i, 'M%d:33' % i)
E
	expect_ok rm -rf m/a
}

kvc_main "$@"
