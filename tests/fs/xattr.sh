#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 5, but for ttl, quota and cache.
. "$(dirname "$0")/../lib/mount.sh"

t_where_tokens_and_cached_tokens_answer() {
	ks make m/a/src Y:64
	mkdir m/a/s; touch m/a/s/kv; ks ids Y:64 >m/a/s/tokens
	echo x >m/a/s/note
	py <<'E'
for p in ('m/a/s', 'm/a/s/kv'):
    eq('64', xattr(p), 'user.kvc.tokens on ' + p)
for p in ('m/a/s', 'm/a/s/kv', 'm/a/s/tokens'):
    eq('64', xattr(p, CACHED), 'user.kvc.cached_tokens on ' + p)
for p in ('m/a', 'm/a/s/note', 'm'):
    eq('ENODATA', xattr(p), 'user.kvc.tokens on ' + p)
    eq('ENODATA', xattr(p, CACHED), 'user.kvc.cached_tokens on ' + p)
true(outcome(os.setxattr, 'm/a/s', CACHED, b'5') != '0', 'cached_tokens cannot be written')
eq('64', xattr('m/a/s', CACHED), 'nor changes')
E
}

t_listxattr() {
	ks make m/a/s Y:64
	setfattr -n user.mine -v 1 m/a/s/kv
	setfattr -n user.kvc.priority -v 70 m/a/s
	setfattr -n user.kvc.salt -v x m/a/s 2>/dev/null
	setfattr -n user.kvc.state -v idle m/a/s
	py <<'E'
eq(['user.kvc.tokens', 'user.mine'], sorted(os.listxattr('m/a/s/kv')), 'kv')
eq([], os.listxattr('m/a/s/tokens'), 'tokens')
eq(['user.kvc.priority'], os.listxattr('m/a/s'), 'a sequence directory with a priority')
eq([], os.listxattr('m/a'), 'a directory with nothing set')
os.removexattr('m/a/s', 'user.kvc.priority')
eq([], os.listxattr('m/a/s'), 'after removing it')
E
}

t_salt() {
	mkdir m/a/t m/a/u
	py <<'E'
os.setxattr('m/a/t', SALT, b'alpha')
eq('ENODATA', xattr('m/a/t', SALT), 'never shown')
eq([], os.listxattr('m/a/t'), 'nor listed')
os.setxattr('m/a/t', SALT, b'beta')
make('m/a/t/d/s', 'Y:64')
err('EBUSY', 'after ids below', os.setxattr, 'm/a/t', SALT, b'gamma')
err('EBUSY', 'after ids below, one level down', os.setxattr, 'm/a/t/d', SALT, b'gamma')
true(outcome(os.setxattr, 'm/a', SALT, b'gamma') != '0', 'on the namespace itself, ids below')
hits('m/a/t', 'Y:64', 64, 'beta is in force')
hits('m/a', 'Y:64', 0, 'outside')
os.setxattr('m/a/u', SALT, b'beta')
hits('m/a/u', 'Y:64', 64, 'the same salt elsewhere')
os.mkdir('m/plain')
true(outcome(os.setxattr, 'm/plain', SALT, b'x') != '0', 'no salt outside a namespace')
true(outcome(os.setxattr, 'm/a/t/d/s/kv', SALT, b'x') != '0', 'no salt on a file')
E
}

t_state() {
	ks make m/a/s Y:64
	py <<'E'
S = 'user.kvc.state'
eq('idle', xattr('m/a/s', S), 'idle at first')
for v in ('decoding', 'queued', 'paused', 'idle'):
    os.setxattr('m/a/s', S, v.encode())
    eq(v, xattr('m/a/s', S), 'state')
os.setxattr('m/a/s', S, b'paused:30')
true(xattr('m/a/s', S).startswith('paused'), 'paused:30 reads as ' + xattr('m/a/s', S))
for v in (b'running', b'', b'paused:', b'paused:x', b'paused:-1', b'idle2'):
    err('EINVAL', 'state %r' % v, os.setxattr, 'm/a/s', S, v)
true(xattr('m/a/s', S).startswith('paused'), 'unchanged by refused values')
true(outcome(os.setxattr, 'm/a', S, b'idle') != '0', 'a state needs a sequence')
E
}

t_pin() {
	ks make m/a/s Y:64
	py <<'E'
P = 'user.kvc.pin'
eq('none', xattr('m/a/s', P), 'none at first')
os.setxattr('m/a/s', P, b'dram')
eq('dram', xattr('m/a/s', P), 'pinned')
os.setxattr('m/a/s', P, b'none')
eq('none', xattr('m/a/s', P), 'released')
for v in (b'nvme', b'', b'yes'):
    err('EINVAL', 'pin %r' % v, os.setxattr, 'm/a/s', P, v)
os.setxattr('m/a/s', P, b'dram')
E
	expect_ok rm -r m/a/s
}

t_priority() {
	mkdir -p m/a/d/e
	py <<'E'
P = 'user.kvc.priority'
for v in ('0', '50', '100', '7'):
    os.setxattr('m/a/d', P, v.encode())
    eq(v, xattr('m/a/d', P), 'priority')
for v in (b'101', b'-1', b'', b'x', b'5x'):
    err('EINVAL', 'priority %r' % v, os.setxattr, 'm/a/d', P, v)
eq('7', xattr('m/a/d', P), 'unchanged by refused values')
os.setxattr('m/a/d', P, b'9', os.XATTR_REPLACE)
err('EEXIST', 'create over one', os.setxattr, 'm/a/d', P, b'9', os.XATTR_CREATE)
E
	[ -e m/.kvc/status ] || { bad "no .kvc/status"; return; }
	ks make m/a/d/e/s Y:64; ks make m/a/o Z:64
	expect_eq 9 "$(status a/d/e/s priority)" "the nearest ancestor's"
	expect_eq 50 "$(status a/o priority)" "the default"
}

t_residency() {
	ks make m/a/s Y:100
	echo x >m/f; dd if=/dev/zero of=m/big bs=1M count=1 status=none
	py <<'E'
import re
for p in ('m/a/s', 'm/a/s/kv', 'm/f', 'm/big'):
    v = xattr(p, RESIDENCY)
    true(re.fullmatch(r'hbm=\d+ dram=\d+ nvme=\d+ remote=\d+ lossy=\d+', v), '%s: residency is %r' % (p, v))
r = dict(w.split('=') for w in xattr('m/a/s', RESIDENCY).split() if '=' in w)
true(int(r.get('dram', 0)) + int(r.get('nvme', 0)) >= 4, 'four blocks somewhere: %s' % r)
true(outcome(os.setxattr, 'm/a/s', RESIDENCY, b'x') != '0', 'residency cannot be written')
E
}

t_stored_as_given() {
	ks make m/a/s Y:64
	py <<'E'
for p in ('m/a/s', 'm/a/s/kv', 'm/a/s/tokens', 'm/a', 'm'):
    for v in (b'', b'\x00\xff' * 9, b'x' * 3000):
        os.setxattr(p, 'user.any', v)
        eq(v, os.getxattr(p, 'user.any'), p)
    err('EEXIST', p + ' XATTR_CREATE', os.setxattr, p, 'user.any', b'1', os.XATTR_CREATE)
    os.setxattr(p, 'user.any', b'2', os.XATTR_REPLACE)
    eq('2', xattr(p, 'user.any'), p + ' XATTR_REPLACE')
    os.removexattr(p, 'user.any')
    err('ENODATA', p + ' removed', os.getxattr, p, 'user.any')
    err('ENODATA', p + ' XATTR_REPLACE of none', os.setxattr, p, 'user.any', b'1', os.XATTR_REPLACE)
    err('ENODATA', p + ' remove of none', os.removexattr, p, 'user.any')
E
}

t_getfattr_dump_and_restore() {
	ks make m/a/s Y:100
	setfattr -n user.note -v hello m/a/s/kv
	getfattr -d m/a/s/kv >out/dump
	expect_match 'user.kvc.tokens="100"' "$(cat out/dump)" "getfattr -d"
	expect_match 'user.note="hello"' "$(cat out/dump)" "getfattr -d"
	setT m/a/s 64
	expect_ok setfattr -x user.note m/a/s/kv
}

kvc_main "$@"
