#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, row "commit": what commits, how much, and when it is refused.
. "$(dirname "$0")/../lib/mount.sh"

t_close() {
	mkdir m/a/s
	ks kv Y:64 >m/a/s/kv
	expect_eq 64 "$(T m/a/s)" "T seen by the next command"
	expect_errno EPERM dd if=/dev/zero of=m/a/s/kv bs=1 count=1 conv=notrunc status=none
}

t_close_of_a_duplicate() {
	py <<'E'
s = Spec('Y:96')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
s.put(fd, 0, 64)
os.close(os.dup(fd))
eq('64', xattr('m/a/s'), 'T after the duplicate was closed')
err('EPERM', 'sealed for the other descriptor as well', os.pwrite, fd, b'x', 0)
s.put(fd, 64, 96)
eq('64', xattr('m/a/s'), 'the first descriptor goes on')
os.close(fd)
eq('96', xattr('m/a/s'), 'and commits at its own close')
E
}

t_exit_of_a_forked_child() {
	py <<'E'
s = Spec('Y:64')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
s.put(fd)
if os.fork() == 0:
    os._exit(0)
os.wait()
eq('64', xattr('m/a/s'), 'T after a child that inherited the descriptor')
os.close(fd)
E
	mkdir m/a/sh
	(exec 3>m/a/sh/kv; ks kv Y:32 >&3; expect_eq 32 "$(T m/a/sh)" "a child of the shell"; exec 3>&-)
	expect_eq 32 "$(T m/a/sh)" "after the subshell"
}

t_fsync() {
	py <<'E'
s = Spec('Y:96')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
for call, n in ((os.fsync, 32), (os.fdatasync, 70)):
    s.put(fd, 0 if n == 32 else 32, n)
    call(fd)
    eq(str(n // 32 * 32), xattr('m/a/s'), 'T after %s with %d tokens written' % (call.__name__, n))
os.close(fd)
eq('64', xattr('m/a/s'), 'the tail of 6 stays open')
E
	mkdir m/a/d
	ks kv Y:64 | dd of=m/a/d/kv conv=fsync bs=4096 status=none
	expect_eq 64 "$(T m/a/d)" "dd conv=fsync"
}

t_a_reader_commits_nothing() {
	py <<'E'
s = Spec('Y:32')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
s.put(fd)
slurp('m/a/s/kv')
r = os.open('m/a/s/kv', os.O_RDONLY)
os.close(os.dup(r))
os.close(r)
eq('0', xattr('m/a/s'), 'closing a read-only descriptor')
os.pwrite(fd, b'x', 0)
s.put(fd)
os.close(fd)
eq('32', xattr('m/a/s'), 'closing the writer')
E
}

t_T_commits_exactly_N() {
	py <<'E'
s = Spec('Y:128')
for where in ('kv', 'dir'):
    d = 'm/a/' + where
    os.mkdir(d)
    fd = os.open(d + '/kv', os.O_CREAT | os.O_WRONLY)
    s.put(fd, 0, 100)
    set_tokens(d if where == 'dir' else d + '/kv', 100)
    eq('100', xattr(d), 'T on the ' + where)
    eq('100', xattr(d + '/kv'), 'T on kv')
    err('EPERM', 'whole committed blocks are sealed', os.pwrite, fd, b'x', 95)
    os.close(fd)
    eq('100', xattr(d), 'close leaves T')
    check(d, s, where, tokens=100, ids=False)
    spit(d + '/tokens', s.idbytes())
    hits('m/a', 'Y:128', 96, where)
E
}

t_T_on_a_temporary_name() {
	py <<'E'
s = Spec('Y:40')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv.part', os.O_CREAT | os.O_WRONLY)
s.put(fd)
os.close(fd)
set_tokens('m/a/s/kv.part', 40)
eq('40', xattr('m/a/s/kv.part'), 'T of kv.part')
os.rename('m/a/s/kv.part', 'm/a/s/kv')
check('m/a/s', s, 'after the rename', ids=False)
E
}

t_T_beyond_what_is_written_is_EINVAL() {
	py <<'E'
s = Spec('Y:128')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
s.put(fd, 0, 40)
for n in (41, 64, 65, 1000):
    err('EINVAL', 'T = %d with 40 written' % n, set_tokens, 'm/a/s/kv', n)
    eq('0', xattr('m/a/s'), 'T after the refused %d' % n)
s.put(fd, 64, 128)
err('EINVAL', 'a hole below', set_tokens, 'm/a/s', 128)
set_tokens('m/a/s', 40)
eq('40', xattr('m/a/s'), 'T = 40')
for text in (b'abc', b'', b'-1', b'12x', b' ', b'99999999999999999999'):
    err('EINVAL', 'T = %r' % text, os.setxattr, 'm/a/s', TOKENS, text)
eq('40', xattr('m/a/s'), 'T after nonsense')
os.close(fd)
E
}

# One row of one plane is missing: no commit may count that token.
t_every_plane_counts() {
	py <<'E'
g, s = geo(), Spec('Y:32')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
data = s.kv()
hole = (g.planes - 1) * g.block_tokens * g.row + 20 * g.row
os.pwrite(fd, data[:hole], 0)
os.pwrite(fd, data[hole + g.row:], hole + g.row)
os.fsync(fd)
eq('0', xattr('m/a/s'), 'a whole block but for token 20 of the last plane')
err('EINVAL', 'T = 21', set_tokens, 'm/a/s', 21)
set_tokens('m/a/s', 20)
eq('20', xattr('m/a/s'), 'T = 20')
os.pwrite(fd, data[hole:hole + g.row - 1], hole)
err('EINVAL', 'a byte missing', set_tokens, 'm/a/s', 21)
os.close(fd)
E
}

t_bytes_behind_N_count_as_unwritten() {
	py <<'E'
s, g = Spec('Y:128'), geo()
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_RDWR)
Spec('Q:128').put(fd, 96, 128)
s.put(fd, 0, 100)
before = slurp('m/a/s/kv')
set_tokens('m/a/s', 100)
eq(before, slurp('m/a/s/kv'), 'they read as before')
os.fsync(fd)
eq('100', xattr('m/a/s'), 'fsync leaves T at 100')
os.close(fd)
eq('100', xattr('m/a/s'), 'close leaves T at 100')
err('EINVAL', 'T = 101 counts them as unwritten', set_tokens, 'm/a/s', 101)
fd = os.open('m/a/s/kv', os.O_WRONLY)
s.put(fd, 100, 127)
os.fsync(fd)
eq('100', xattr('m/a/s'), 'one token still missing')
s.put(fd, 127, 128)
os.close(fd)
eq('128', xattr('m/a/s'), 'all written')
check('m/a/s', s, ids=False)
E
}

t_pending_T() {
	py <<'E'
s = Spec('Y:100')
def fresh(name):
    os.mkdir('m/a/' + name)
    os.mknod('m/a/%s/kv' % name, stat.S_IFREG | 0o644)
    return 'm/a/%s' % name
# as tar does it: node, attributes, then bytes (whole blocks, with padding)
d = fresh('tar')
set_tokens(d + '/kv', 100)
spit(d + '/kv', s.kv(), os.O_WRONLY)
check(d, s, 'T before the bytes', ids=False)
# bytes that do not reach it: the next commit that does applies it
d = fresh('two')
set_tokens(d, 100)
fd = os.open(d + '/kv', os.O_WRONLY)
os.pwrite(fd, s.kv()[:2 * geo().block_bytes], 0)
os.fsync(fd)
eq('64', xattr(d), 'whole blocks so far')
os.pwrite(fd, s.kv()[2 * geo().block_bytes:], 2 * geo().block_bytes)
os.close(fd)
check(d, s, 'T applied at the commit that reaches it', ids=False)
# a later T replaces the pending one
d = fresh('again')
set_tokens(d, 100)
set_tokens(d, 40)
spit(d + '/kv', s.kv(), os.O_WRONLY)
eq('40', xattr(d), 'the last one counts')
# the file emptied: nothing is pending any more
d = fresh('cut')
set_tokens(d, 40)
spit(d + '/kv', s.kv(), os.O_WRONLY | os.O_TRUNC)
true(xattr(d) in ('40', '128'), 'T is one of the two after O_TRUNC: ' + xattr(d))
E
}

t_open_tail_is_not_indexed() {
	ks make m/a/s Y:100
	kcheck probe m/a Y:128 96
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
s = Spec('Y:128')
s.put(fd, 100)
os.close(fd)
spit('m/a/s/tokens', s.idbytes())
check('m/a/s', s)
E
	kcheck probe m/a Y:128 128
}

t_opaque() {
	rm -rf m/a; kvc_ns m/a "$GOPQ"
	py <<'E'
s = Spec('Y:40')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
os.pwrite(fd, s.kv()[:2500], 0)
os.fsync(fd)
eq('2', xattr('m/a/s'), 'floor(2500 / 1000)')
eq(2500, os.fstat(fd).st_size, 'st_size is the bytes written')
os.pwrite(fd, s.kv()[2500:], 2500)
os.close(fd)
check('m/a/s', s, ids=False)
err('EINVAL', 'T = 41', set_tokens, 'm/a/s', 41)
set_tokens('m/a/s', 39)
eq(39000, os.stat('m/a/s/kv').st_size, 'T = 39: N * token_bytes')
check('m/a/s', s, tokens=39, ids=False)
spit('m/a/s/tokens', s.idbytes(39))
hits('m/a', s, 32, 'opaque')
E
	printf 0123456789 >>m/a/s/kv
	expect_eq 39 "$(T m/a/s)" "part of a token"
	expect_eq 39010 "$(size m/a/s/kv)" "st_size with part of a token"
}

t_agreeing_ids_decide_what_is_indexed() {
	py <<'E'
s = Spec('Y:64')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
s.put(fd)
os.close(fd)
eq(0, hits('m/a', 'Y:64', None), 'no ids, no index')
spit('m/a/s/tokens', s.idbytes())
hits('m/a', 'Y:64', 64, 'ids after the bytes')
E
}

t_fsync_of_tokens_matches_too() {
	ks make m/a/src Y:64
	py <<'E'
os.mkdir('m/a/s')
fd = os.open('m/a/s/tokens', os.O_CREAT | os.O_WRONLY)
os.write(fd, Spec('Y:64').idbytes())
eq('0', xattr('m/a/s', CACHED), 'nothing is matched by a write')
os.fsync(fd)
eq('64', xattr('m/a/s', CACHED), 'matched by fsync')
os.close(fd)
E
}

kvc_main "$@"
