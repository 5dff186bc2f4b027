#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, row "cut", and truncation of both files.
. "$(dirname "$0")/../lib/mount.sh"

# cutcheck N WHAT: the sequence m/a/s, made of Y:128, is cut to N tokens
cutcheck() {
	KVC_NOTE="($2)" kcheck check m/a/s "Y:128" "$1" noids
	ks ids "Y:$1" >out/want
	cmp out/want m/a/s/tokens || bad "ids after $2"
}

t_by_T() {
	local n
	for n in 128 127 100 96 95 65 64 33 32 31 1; do
		ks make m/a/s Y:128
		setT m/a/s $n || bad "T = $n"
		cutcheck $n "T = $n on the directory"
		kcheck probe m/a Y:128
		rm -r m/a/s
	done
	ks make m/a/s Y:128; setT m/a/s/kv 50; cutcheck 50 "T = 50 on kv"
	setT m/a/s 40; cutcheck 40 "T = 40 after 50"
	setT m/a/s 0 || bad "T = 0"
	expect_eq 0 "$(T m/a/s)" "T = 0"
	expect_eq 0 "$(size m/a/s/kv)" "size at T = 0"
}

t_by_tokens() {
	local n
	for n in 100 64 31 1; do
		ks make m/a/s Y:128
		expect_ok truncate -s $((4 * n)) m/a/s/tokens
		cutcheck $n "tokens truncated to $n ids"
		rm -r m/a/s
	done
	ks make m/a/s Y:64; ks ids Y:128 >m/a/s/tokens
	expect_ok truncate -s 400 m/a/s/tokens
	expect_eq 64 "$(T m/a/s)" "ids ahead of T are cut alone"
	expect_eq 100 "$(nids m/a/s/tokens)" "ids"
	kcheck check m/a/s Y:64 noids
}

t_by_kv() {
	ks make m/a/s Y:128
	for z in 100 4096 16383 16385 65535; do
		expect_errno EINVAL truncate -s $z m/a/s/kv
	done
	kcheck check m/a/s Y:128
	expect_ok truncate -s 49152 m/a/s/kv; cutcheck 96 "kv to three blocks"
	expect_ok truncate -s 16384 m/a/s/kv; cutcheck 32 "kv to one block"
	expect_ok truncate -s 16384 m/a/s/kv; cutcheck 32 "kv to the same size"
	expect_ok truncate -s 70000 m/a/s/kv
	expect_eq 70000 "$(size m/a/s/kv)" "truncated up"
	expect_eq 32 "$(T m/a/s)" "T after truncating up"
	py <<'E'
eq(Spec('Y:32').kv() + bytes(70000 - 16384), slurp('m/a/s/kv'), 'zeros behind')
E
}

t_times_move() {
	py <<'E'
def seq():
    make('m/a/s', 'Y:128')
    for f in ('kv', 'tokens'):
        os.utime('m/a/s/' + f, ns=(STAMP, STAMP))
    return os.stat('m/a/s/kv').st_ctime_ns
for what, f in (('T', lambda: set_tokens('m/a/s', 100)),
                ('tokens', lambda: os.truncate('m/a/s/tokens', 400)),
                ('kv', lambda: os.truncate('m/a/s/kv', 16384))):
    c = seq()
    f()
    st = os.stat('m/a/s/kv')
    true(st.st_mtime_ns > STAMP, what + ': mtime of kv moves')
    true(st.st_ctime_ns > c, what + ': ctime of kv moves')
    shutil.rmtree('m/a/s')
seq()
set_tokens('m/a/s', 128)
eq(STAMP, os.stat('m/a/s/kv').st_mtime_ns, 'T to what it is: no cut, mtime stays')
E
}

t_opaque() {
	rm -rf m/a; kvc_ns m/a "$GOPQ"
	ks make m/a/s Y:40
	expect_errno EINVAL truncate -s 1500 m/a/s/kv
	expect_ok truncate -s 35000 m/a/s/kv
	kcheck check m/a/s Y:40 35 noids
	expect_eq 35 "$(nids m/a/s/tokens)" "ids"
	expect_ok truncate -s 32000 m/a/s/kv
	kcheck check m/a/s Y:32
	expect_ok truncate -s 60 m/a/s/tokens
	kcheck check m/a/s Y:15
	kcheck probe m/a Y:40
}

# The partial block is a private copy: whoever else has the block keeps it.
t_the_others_keep_theirs() {
	ks make m/a/o Y:128
	cp -r m/a/o m/a/s
	setT m/a/s 100
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
s = Spec('Y:100,Z:28')
s.put(fd, 100)
os.close(fd)
spit('m/a/s/tokens', s.idbytes())
check('m/a/s', s)
check('m/a/o', 'Y:128')
hits('m/a', s, 128)
hits('m/a', 'Y:128', 128)
E
}

t_cut_then_other_tokens() {
	ks make m/a/s Y:128
	py <<'E'
for n in (100, 70, 32, 5):
    s = Spec('Y:%d,N%d:60' % (n, n))
    set_tokens('m/a/s', n)
    fd = os.open('m/a/s/kv', os.O_WRONLY)
    s.put(fd, n)
    os.close(fd)
    set_tokens('m/a/s', len(s))
    spit('m/a/s/tokens', s.idbytes(), os.O_WRONLY)
    check('m/a/s', s, 'cut to %d and continued' % n)
    hits('m/a', s, len(s) // 32 * 32)
    hits('m/a', 'Y:128', None)
E
}

t_a_cut_tail_can_be_rewritten() {
	ks make m/a/s Y:128
	py <<'E'
set_tokens('m/a/s', 100)
fd = os.open('m/a/s/kv', os.O_WRONLY)
err('EPERM', 'before the partial block', os.pwrite, fd, b'x', 3 * 16384 - 1)
eq('0', outcome(os.pwrite, fd, Spec('Y:128').rows(96, 1, 0), 3 * 16384), 'inside the partial block')
os.close(fd)
eq('100', xattr('m/a/s'), 'T')
check('m/a/s', 'Y:128', tokens=100, ids=False)
E
}

t_cut_of_an_attached_one() {
	ks make m/a/src Y:128
	mkdir m/a/s; touch m/a/s/kv; ks ids Y:128 >m/a/s/tokens
	expect_eq 128 "$(cached m/a/s)" attached
	setT m/a/s 50 || bad "T = 50"
	cutcheck 50 "cut inside an attached block"
	kcheck check m/a/src Y:128
	rm -r m/a/s; mkdir m/a/s; touch m/a/s/kv; ks ids Y:128 >m/a/s/tokens
	expect_ok truncate -s 256 m/a/s/tokens
	cutcheck 64 "tokens of an attached one"
}

t_size_of_uncommitted_bytes() {
	mkdir m/a/s
	ks kv Y:128 >m/a/s/kv
	setT m/a/s 100
	expect_eq 65536 "$(size m/a/s/kv)" "100 tokens are four blocks"
	setT m/a/s 96
	expect_eq 49152 "$(size m/a/s/kv)" "96 tokens are three"
}

t_ftruncate_and_O_TRUNC() {
	ks make m/a/s Y:128
	py <<'E'
fd = os.open('m/a/s/kv', os.O_RDWR)
err('EINVAL', 'ftruncate inside a block', os.ftruncate, fd, 5)
os.ftruncate(fd, 32768)
eq('64', xattr('m/a/s'), 'ftruncate')
os.ftruncate(fd, 0)
eq('0', xattr('m/a/s'), 'ftruncate to zero')
eq(64, os.stat('m/a/s/tokens').st_size // 4, 'ids stay when kv is cut to zero')
Spec('Z:64').put(fd)
os.close(fd)
check('m/a/s', 'Z:64', ids=False)
hits('m/a', 'Y:64', None, 'loose ids')
E
}

kvc_main "$@"
