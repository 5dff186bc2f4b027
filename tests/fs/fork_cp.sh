#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, row "copy_file_range / cp": forks share blocks, and stay apart.
. "$(dirname "$0")/../lib/mount.sh"

[ "${KVC_TEST_SOURCE:-}" = store ] || KVC_MOUNT_ARGS=(-o "dram=$((192 + 64 * KVC_SCALE))M")

# shares NAME BLOCKS: so many blocks of m/a/NAME belong to another one too
shares() {
	expect_eq "$2" "$(status "a/$1" shared_blocks)" "shared_blocks of $1"
}

t_cp_r() {
	ks make m/a/s Y:100
	expect_ok cp -r m/a/s m/a/f
	kcheck check m/a/f Y:100
	expect_same m/a/s/kv m/a/f/kv
	shares f 3
	[ "$(status a/f exclusive_bytes)" -le 32768 ] || bad "exclusive_bytes $(status a/f exclusive_bytes)"
}

t_cp_a() {
	ks make m/a/s Y:100
	touch -d 2020-01-01 m/a/s/kv
	expect_ok cp -a m/a/s m/a/f
	kcheck check m/a/f Y:100
	shares f 3
	expect_eq "$(stat -c %Y m/a/s/kv)" "$(stat -c %Y m/a/f/kv)" "mtime"
}

t_engine_made_ids_first() {
	ks make m/a/s Y:100 tk
	expect_ok cp -r m/a/s m/a/f
	kcheck check m/a/f Y:100
	shares f 3
}

t_updated_by_rename_then_cp() {
	ks make m/a/s Y:100
	cp m/a/s/kv m/a/s/.kv.abc; mv m/a/s/.kv.abc m/a/s/kv
	cp m/a/s/tokens m/a/s/.tokens.abc; mv m/a/s/.tokens.abc m/a/s/tokens
	expect_ok cp -r m/a/s m/a/f
	expect_ok cp -a m/a/s m/a/g
	kcheck check m/a/s Y:100
	kcheck check m/a/f Y:100
	kcheck check m/a/g Y:100
}

t_kv_alone() {
	ks make m/a/s Y:100
	mkdir m/a/f
	expect_ok cp m/a/s/kv m/a/f/kv
	expect_eq kv "$(ls m/a/f)" "no name appears by itself"
	expect_eq 100 "$(T m/a/f)" "T comes with the tail"
	touch m/a/f/tokens
	kcheck check m/a/f Y:100
	shares f 3
}

t_diverge() {
	ks make m/a/s Y:100
	cp -r m/a/s m/a/f
	py <<'E'
s = Spec('Y:100,F:60')
fd = os.open('m/a/f/kv', os.O_WRONLY)
err('EPERM', 'shared blocks are sealed', os.pwrite, fd, b'x', 0)
s.put(fd, 100)
os.close(fd)
set_tokens('m/a/f', 160)
spit('m/a/f/tokens', s.idbytes())
o = Spec('Y:100,O:28')
fd = os.open('m/a/s/kv', os.O_WRONLY)
o.put(fd, 100)
os.close(fd)
spit('m/a/s/tokens', o.idbytes())
check('m/a/f', s, 'the fork')
check('m/a/s', o, 'the original')
hits('m/a', s, 160)
hits('m/a', o, 128)
E
	rm -r m/a/s
	kcheck check m/a/f Y:100,F:60
	setT m/a/f 50
	kcheck check m/a/f Y:50
}

t_fork_of_a_fork() {
	ks make m/a/s Y:100
	cp -r m/a/s m/a/f
	truncate -s 256 m/a/f/tokens
	cp -r m/a/f m/a/g
	kcheck check m/a/g Y:64
	ks make m/a/h Q:128; rm -r m/a/s
	kcheck check m/a/f Y:64
	expect_ok cp -r m/a/g/. m/a/f/
	kcheck check m/a/f Y:64
}

t_over_an_existing_one() {
	ks make m/a/s Y:100
	ks make m/a/o Z:200
	ks make m/a/p Z:200
	cp -r m/a/s m/a/f
	expect_ok cp -r m/a/s/. m/a/f/; kcheck check m/a/f Y:100
	expect_ok cp -r m/a/o/. m/a/f/; kcheck check m/a/f Z:200
	expect_ok cp -rT m/a/s m/a/f; kcheck check m/a/f Y:100
	expect_ok cp m/a/s/kv m/a/o/kv
	kcheck check m/a/o Y:100 noids
	expect_ok cp m/a/s/tokens m/a/o/tokens
	kcheck check m/a/o Y:100
	kcheck check m/a/p Z:200
	for i in Y:100 Z:200; do kcheck probe m/a $i; done
}

t_loose_ids_are_replaced_by_copied_ones() {
	ks make m/a/s Y:100
	ks make m/a/o Z:200
	cp m/a/s/kv m/a/o/kv
	expect_same m/a/s/tokens m/a/o/tokens
	kcheck check m/a/o Y:100
}

t_refresh_a_diverged_fork() {
	ks make m/a/s Y:100
	cp -r m/a/s m/a/f
	py <<'E'
fd = os.open('m/a/f/kv', os.O_WRONLY)
Spec('Y:100,F:60').put(fd, 100)
os.close(fd)
spit('m/a/f/tokens', Spec('Y:100,F:60').idbytes())
E
	expect_ok cp -a m/a/s/. m/a/f/
	kcheck check m/a/f Y:100
	kcheck probe m/a Y:100,F:60
}

t_copy_file_range() {
	ks make m/a/s Y:128
	py <<'E'
bb = geo().block_bytes
def pair(name):
    os.makedirs('m/a/' + name)
    return os.open('m/a/s/kv', os.O_RDONLY), os.open('m/a/%s/kv' % name, os.O_CREAT | os.O_WRONLY)
a, b = pair('front')
eq(2 * bb, os.copy_file_range(a, b, 2 * bb, 0, 0), 'two blocks')
os.close(b)
eq('64', xattr('m/a/front'), 'T')
check('m/a/front', 'Y:64', ids=False)
open('m/a/front/tokens', 'a').close()
check('m/a/front', 'Y:64', 'ids come along')
a, b = pair('behind')
n = 0
while n < 4 * bb:
    n += os.copy_file_range(a, b, 4 * bb - n, n, n)
os.close(b)
check('m/a/behind', 'Y:128', ids=False)
a, b = pair('shifted')
n = 0
while n < bb:
    n += os.copy_file_range(a, b, bb - n, bb + n, n)
os.close(b)
eq(Spec('Y:64').kv()[bb:], slurp('m/a/shifted/kv'), 'other offsets copy bytes')
for spec in ('Y:128', 'Y:32@32'):
    hits('m/a', spec, None)
a, b = pair('odd')
n = 0
while n < 5000:
    n += os.copy_file_range(a, b, 5000 - n, 100 + n, n)
os.close(b)
eq(slurp('m/a/s/kv')[100:5100], slurp('m/a/odd/kv'), 'odd offsets copy bytes')
E
}

t_cp_without_sharing() {
	ks make m/a/s Y:100
	mkdir m/a/f
	expect_ok cp --reflink=never m/a/s/kv m/a/f/kv
	setT m/a/f 100
	cp m/a/s/tokens m/a/f/tokens
	kcheck check m/a/f Y:100
	shares f 3
}

t_other_namespace_and_salt() {
	ks make m/a/s Y:100
	kvc_ns m/b "$G fingerprint=other"
	mkdir m/a/t; setfattr -n user.kvc.salt -v x m/a/t
	for d in m/b m/a/t; do
		expect_ok cp -r m/a/s $d/f
		expect_same m/a/s/kv $d/f/kv
		expect_same m/a/s/tokens $d/f/tokens
		expect_eq 0 "$(status "${d#m/}/f" shared_blocks)" "nothing is shared across the border to $d"
		expect_ok cp -a m/a/s $d/g
		kcheck check $d/g Y:100
		kcheck probe $d Y:100
	done
	cp m/a/s/kv out/kv; cp m/a/s/tokens out/tokens
	expect_same m/a/s/kv out/kv
}

t_plain_files_beside_are_copied() {
	ks make m/a/s Y:100
	echo '{}' >m/a/s/sampler.json
	cp -r m/a/s m/a/f
	expect_same m/a/s/sampler.json m/a/f/sampler.json
}

# A big sequence (1 GiB with KVC_TEST_SCALE=16): the copy stores at most one block and reads none.
t_big() {
	local blocks=$((64 * KVC_SCALE)) r w
	rm -rf m/a; kvc_ns m/a "$GBIG"
	ks make m/a/s B:$((blocks * 16))
	r=$(counter dram_read_bytes) w=$(counter dram_write_bytes)
	mkdir m/a/f
	expect_ok cp m/a/s/kv m/a/f/kv
	if [ -n "$r" ] && [ -n "$w" ]; then
		r=$(($(counter dram_read_bytes) - r)) w=$(($(counter dram_write_bytes) - w))
		[ $r -eq 0 ] || bad "cp of $blocks MiB read $r bytes"
		[ $w -le 1048576 ] || bad "cp of $blocks MiB stored $w bytes"
	else
		bad "no dram_read_bytes, dram_write_bytes in .kvc/stat"
	fi
	expect_ok cp m/a/s/tokens m/a/f/tokens
	expect_same m/a/s/kv m/a/f/kv
	shares f $blocks
	head -c 1048576 /dev/zero >>m/a/f/kv
	expect_eq $((blocks * 16 + 16)) "$(T m/a/f)" "T of the copy after an append"
	kcheck check m/a/s B:$((blocks * 16))
	setT m/a/f 100
	rm -r m/a/s
	kcheck check m/a/f B:100
}

t_kvctl_fork() {
	[ -n "${KVCTL:-}" ] || return 0
	ks make m/a/s Y:100
	expect_ok "$KVCTL" fork m/a/s m/a/f
	kcheck check m/a/f Y:100
	shares f 3
	expect_ok "$KVCTL" fork m/a/s m/a/g --tokens 40
	kcheck check m/a/g Y:40
	expect_fail "$KVCTL" fork m/a/none m/a/h
}

kvc_main "$@"
