#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, rows "create", "write tokens", "write kv", "st_size".
. "$(dirname "$0")/../lib/mount.sh"

t_empty_sequence() {
	mkdir m/a/s
	touch m/a/s/kv
	expect_eq 0 "$(T m/a/s)" "T of an empty sequence"
	expect_eq 0 "$(T m/a/s/kv)" "T on its kv"
	expect_eq 0 "$(size m/a/s/kv)" "size of an empty kv"
	touch m/a/s/tokens
	expect_eq 0 "$(size m/a/s/tokens)" "size of empty tokens"
	expect_eq 0 "$(cached m/a/s)" "cached_tokens of an empty sequence"
	expect_eq none "$(T m/a)" "T on a directory that is no sequence"
}

t_a_write_seals_nothing() {
	py <<'E'
s = Spec('Y:64')
os.mkdir('m/a/s')
spit('m/a/s/tokens', s.idbytes())
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_RDWR)
s.put(fd)
eq('0', xattr('m/a/s'), 'T before a commit')
eq(s.kv(), os.pread(fd, 1 << 20, 0), 'the writer reads back its bytes')
eq(s.kv(), slurp('m/a/s/kv'), 'another descriptor reads them too')
eq(0, hits('m/a', 'Y:64', None), 'nothing is indexed yet')
Spec('Q:64').put(fd)
Spec('Y:64').put(fd)
os.close(fd)
eq('64', xattr('m/a/s'), 'T after close')
hits('m/a', 'Y:64', 64)
check('m/a/s', 'Y:64')
E
}

t_write_into_sealed_is_EPERM() {
	ks make m/a/s Y:100
	py <<'E'
fd = os.open('m/a/s/kv', os.O_RDWR)
g = geo()
for off, n in ((0, 1), (5000, 100), (2 * g.block_bytes, g.block_bytes), (3 * g.block_bytes - 1, 2)):
    err('EPERM', 'pwrite(%d, %d) at T=100' % (off, n), os.pwrite, fd, bytes(n), off)
check('m/a/s', 'Y:100')
Spec('Y:100').put(fd, 96)
Spec('Y:128').put(fd, 100)
os.close(fd)
check('m/a/s', 'Y:128', ids=False)
E
	expect_errno EPERM dd if=/dev/zero of=m/a/s/kv bs=4096 count=1 conv=notrunc status=none
	expect_errno EPERM dd if=/dev/zero of=m/a/s/kv bs=1M count=1 conv=notrunc status=none
	kcheck check m/a/s Y:128 noids
}

t_any_order_any_size() {
	py <<'E'
s = Spec('R:160')
data = s.kv()
r = random.Random(7)
for case, step in (('odd', 1000), ('small', 333), ('page', 4096), ('big', 1 << 20)):
    os.mkdir('m/a/' + case)
    chunks = [(o, data[o:o + step]) for o in range(0, len(data), step)]
    r.shuffle(chunks)
    fd = os.open('m/a/%s/kv' % case, os.O_CREAT | os.O_WRONLY)
    for o, c in chunks:
        os.pwrite(fd, c, o)
    os.close(fd)
    spit('m/a/%s/tokens' % case, s.idbytes())
    check('m/a/' + case, s, case)
# overlapping writes into open blocks: the last one wins
os.mkdir('m/a/ov')
fd = os.open('m/a/ov/kv', os.O_CREAT | os.O_WRONLY)
model = bytearray(len(data))
for _ in range(60):
    o = r.randrange(len(data) - 1)
    c = r.randbytes(r.randrange(1, min(30000, len(data) - o) + 1))
    os.pwrite(fd, c, o)
    model[o:o + len(c)] = c
size = os.stat('m/a/ov/kv').st_size
eq(bytes(model[:size]), slurp('m/a/ov/kv'), 'overlapping writes')
os.close(fd)
E
}

t_dd_of_odd_sizes() {
	mkdir m/a/s
	ks kv Y:64 | dd of=m/a/s/kv bs=1000 conv=fsync status=none || bad "dd bs=1000"
	ks ids Y:64 | dd of=m/a/s/tokens bs=64 status=none || bad "dd of the ids"
	kcheck check m/a/s Y:64
	mkdir m/a/z
	dd if=m/a/s/kv of=m/a/z/kv bs=4096 conv=sparse,fsync status=none || bad "dd conv=sparse"
	expect_same m/a/s/kv m/a/z/kv
	mkdir m/a/d
	dd if=m/a/s/kv of=m/a/d/kv bs=16384 iflag=direct oflag=direct status=none || bad "dd O_DIRECT"
	expect_same m/a/s/kv m/a/d/kv
}

t_holes() {
	py <<'E'
g, s = geo(), Spec('H:96')
os.mkdir('m/a/h')
fd = os.open('m/a/h/kv', os.O_CREAT | os.O_RDWR)
s.put(fd, 64, 96)
eq(3 * g.block_bytes, os.fstat(fd).st_size, 'st_size is the end of the highest byte')
eq(bytes(2 * g.block_bytes), os.pread(fd, 2 * g.block_bytes, 0), 'unwritten bytes read as zeros')
os.fsync(fd)
eq('0', xattr('m/a/h'), 'a hole in front: nothing to commit')
s.put(fd, 0, 32)
os.fsync(fd)
eq('32', xattr('m/a/h'), 'the whole blocks before the hole')
s.put(fd, 32, 63)
os.fsync(fd)
eq('32', xattr('m/a/h'), 'one token missing')
s.put(fd, 63, 64)
os.close(fd)
eq('96', xattr('m/a/h'), 'no hole any more')
check('m/a/h', s, ids=False)
E
}

t_size_is_the_end_of_the_highest_byte() {
	mkdir m/a/s
	printf x >m/a/s/kv; expect_eq 1 "$(size m/a/s/kv)" "one byte"
	ls -l m/a/s >/dev/null
	printf yz >>m/a/s/kv; ls -l m/a/s >/dev/null; expect_eq 3 "$(size m/a/s/kv)" "an append after ls"
	expect_eq xyz "$(cat m/a/s/kv)" "appended bytes"
	truncate -s 100000 m/a/s/kv; expect_eq 100000 "$(size m/a/s/kv)" "truncated up"
	expect_eq 0 "$(T m/a/s)" "T of an open tail"
	ks make m/a/t Y:100
	expect_eq 65536 "$(size m/a/t/kv)" "after T = 100, rounded up to a block"
	[ "$(stat -c %b m/a/t/kv)" -ge 128 ] || bad "st_blocks $(stat -c %b m/a/t/kv) is less than the bytes allocated"
}

t_append_with_cat() {
	ks make m/a/s Y:64
	ks kv Y:96 | tail -c 16384 >>m/a/s/kv
	expect_eq 96 "$(T m/a/s)" "T after an append"
	ks ids Y:96 | tail -c 128 >>m/a/s/tokens
	kcheck check m/a/s Y:96
	kcheck probe m/a Y:96 96
}

t_new_kv_starts_empty_only_with_excl_or_trunc() {
	ks make m/a/src Y:64
	py <<'E'
s = Spec('Y:64')
def seq(name):
    os.mkdir('m/a/' + name)
    spit('m/a/%s/tokens' % name, s.idbytes())
    eq('64', xattr('m/a/' + name, CACHED), name + ': attached')
    return 'm/a/%s/kv' % name
for name, flags in (('plain', 0), ('append', os.O_APPEND)):
    kv = seq(name)
    os.close(os.open(kv, os.O_CREAT | os.O_WRONLY | flags, 0o644))
    eq(s.kv(), slurp(kv), 'O_CREAT shows the attached blocks: ' + name)
    eq('64', xattr(kv), name + ': T')
for name, flags in (('excl', os.O_EXCL), ('trunc', os.O_TRUNC)):
    kv = seq(name)
    os.close(os.open(kv, os.O_CREAT | os.O_WRONLY | flags, 0o644))
    eq(0, os.stat(kv).st_size, 'O_CREAT|O_%s starts empty' % name.upper())
    eq(s.idbytes(), slurp(os.path.dirname(kv) + '/tokens'), name + ': ids are kept')
    fd = os.open(kv, os.O_WRONLY)
    s.put(fd)
    os.close(fd)
    check(os.path.dirname(kv), s, name + ': written again')
kv = seq('mknod')
os.mknod(kv, stat.S_IFREG | 0o644)
eq(0, os.stat(kv).st_size, 'mknod starts empty')
eq(s.idbytes(), slurp('m/a/mknod/tokens'), 'mknod: ids are kept')
E
}

t_ids_kept_by_an_empty_kv_are_not_loose() {
	py <<'E'
s = Spec('K:64')
os.mkdir('m/a/s')
spit('m/a/s/tokens', s.idbytes())
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
s.put(fd)
os.close(fd)
hits('m/a', 'K:64', 64, 'ids first, then a new kv: indexed')
E
}

t_temporary_names_are_files_of_their_kind() {
	mkdir m/a/s
	ks kv Y:64 >m/a/s/kv.tmp
	ks kv Y:64 >m/a/s/.kv.Xy12
	ks kv Y:64 >"m/a/s/kv~"
	ks ids Y:64 >m/a/s/tokens.new
	ks ids Y:64 >m/a/s/.tokens.new
	ks ids Y:64 >"m/a/s/tokens~"
	ks kv Y:64 >out/kv; ks ids Y:64 >out/tokens
	for f in kv.tmp .kv.Xy12 "kv~"; do expect_same out/kv "m/a/s/$f"; expect_eq 64 "$(T "m/a/s/$f")" "T of $f"; done
	for f in tokens.new .tokens.new "tokens~"; do expect_same out/tokens "m/a/s/$f"; done
	expect_eq none "$(T m/a/s)" "only kv and tokens make a sequence"
	echo notes >m/a/s/kvnotes; echo notes >m/a/s/mytokens; echo 12345 >m/a/s/x.kv
	expect_eq notes "$(cat m/a/s/kvnotes)" "kvnotes is plain"
	expect_eq 12345 "$(cat m/a/s/x.kv)" "x.kv is plain"
	expect_ok mv m/a/s/kv.tmp m/a/s/kv
	expect_ok mv m/a/s/tokens.new m/a/s/tokens
	rm -f m/a/s/.kv.Xy12 "m/a/s/kv~" "m/a/s/tokens~" m/a/s/.tokens.new
	kcheck check m/a/s Y:64
	kcheck probe m/a Y:64 64
}

t_other_layouts() {
	local g
	for g in "$GODD" "$GNHD" "$GMLA" "$GOPQ"; do
		rm -rf m/v; kvc_ns m/v "$g"
		py <<'E'
g = geo()
for n in (1, g.block_tokens - 1, g.block_tokens, g.block_tokens + 1, 5 * g.block_tokens + 7):
    spec = 'L%d:%d' % (n, n)
    make('m/v/s%d' % n, spec)
    check('m/v/s%d' % n, spec, '%s, %d tokens' % (g.layout, n))
    make('m/v/t%d' % n, 'Z' + spec, 'tk')
    check('m/v/t%d' % n, 'Z' + spec, '%s, %d tokens, ids first' % (g.layout, n))
E
	done
}

t_fallocate() {
	mkdir m/a/s
	expect_ok fallocate -l 100000 m/a/s/kv
	expect_eq 100000 "$(size m/a/s/kv)" "fallocate grows st_size"
	expect_ok fallocate -l 50000 m/a/s/kv
	expect_eq 100000 "$(size m/a/s/kv)" "and never shrinks it"
	expect_ok fallocate -n -l 200000 m/a/s/kv
	expect_eq 100000 "$(size m/a/s/kv)" "nor grows it with KEEP_SIZE"
	expect_eq 0 "$(T m/a/s)" "reserved is not written"
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
err('EOPNOTSUPP', 'punch', fallocate, fd, 3, 0, 4096)
err('EOPNOTSUPP', 'zero', fallocate, fd, 16, 0, 4096)
E
	expect_eq 0 "$(tr -d '\0' <m/a/s/kv | wc -c)" "reserved bytes read as zeros"
}

t_two_writers() {
	py <<'E'
s = Spec('W:128')
os.mkdir('m/a/s')
a = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
b = os.open('m/a/s/kv', os.O_WRONLY)
s.put(a, 0, 64)
s.put(b, 64, 128)
Spec('Q:128').put(b, 32, 64)
s.put(a, 32, 64)
os.close(b)
os.close(a)
check('m/a/s', s, 'two writers', ids=False)
E
}

kvc_main "$@"
