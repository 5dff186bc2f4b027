#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 7: the errno of each refusal, and that a refused request changed
# nothing. ENOSPC is in full_store.sh.
. "$(dirname "$0")/../lib/mount.sh"

as() { local u=$1; shift; setpriv --reuid "$u" --regid "$u" --clear-groups "$@"; }

t_EINVAL() {
	ks make m/a/s Y:64
	expect_errno EINVAL dd if=/dev/zero of=m/a/s/tokens bs=4 count=1 seek=65 conv=notrunc status=none
	expect_errno EINVAL setfattr -n user.kvc.tokens -v 65 m/a/s
	expect_errno EINVAL truncate -s 100 m/a/s/kv
	mkdir m/bad
	expect_errno EINVAL bash -c 'echo layers=none | dd of=m/bad/.geometry status=none'
	kcheck check m/a/s Y:64
}

t_EBUSY_and_ENOTEMPTY() {
	ks make m/a/t/s Y:64
	expect_errno EBUSY setfattr -n user.kvc.salt -v x m/a/t
	mkdir m/full; touch m/full/x
	echo "$G" >m/full/.geometry
	py "$G" <<'E'
fd = os.open('m/full/.geometry', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.write(fd, sys.argv[1].encode())
err('ENOTEMPTY', 'close', os.close, fd)
E
}

t_EPERM() {
	ks make m/a/s Y:64
	expect_errno EPERM dd if=/dev/zero of=m/a/s/kv bs=1 count=1 conv=notrunc status=none
	expect_errno EPERM ln m/a/s/kv m/a/s/kv.l
	expect_errno EPERM dd if=/dev/zero of=m/.kvc/version bs=1 count=1 conv=notrunc status=none
	expect_errno EPERM touch m/.kvc/x
	kcheck check m/a/s Y:64
}

t_EACCES() {
	[ "$(id -u)" = 0 ] || return 0
	chmod 755 "$KVC_TMP"
	ks make m/a/s Y:64
	chmod 600 m/a/s/kv; chmod 644 m/a/s/tokens; chmod 755 m/a/s
	expect_errno EACCES as 65534 cat m/a/s/kv
	expect_ok as 65534 cat m/a/s/tokens
	expect_errno EACCES as 65534 dd if=/dev/zero of=m/a/s/tokens bs=4 count=1 conv=notrunc status=none
	expect_errno EACCES as 65534 touch m/a/s/x
	expect_errno EACCES as 65534 rm -f m/a/s/kv
	expect_fail as 65534 setfattr -n user.kvc.tokens -v 1 m/a/s
	expect_fail as 65534 setfattr -n user.kvc.salt -v x m/a
	expect_errno EPERM as 65534 chmod 777 m/a/s/kv
	expect_errno EPERM as 65534 chown 65534 m/a/s/kv
	kcheck check m/a/s Y:64
	chmod 777 m/a
	as 65534 mkdir m/a/own && as 65534 cp m/a/s/tokens m/a/own/tokens || bad "a user's own sequence"
	expect_eq '65534 65534' "$(stat -c '%u %g' m/a/own/tokens)" "owner"
	chmod 777 m/a/s
	expect_errno EACCES as 65534 setfattr -n user.kvc.tokens -v 1 m/a/s
	kcheck check m/a/s Y:64
	[ -n "${KVCTL:-}" ] || return 0
	chmod 644 m/a/s/kv
	expect_ok as 65534 "$KVCTL" fork m/a/s m/a/f1
	chmod 600 m/a/s/tokens
	expect_fail as 65534 "$KVCTL" fork m/a/s m/a/f2
	expect_absent m/a/f2
}

t_names() {
	py <<'E'
long = 'n' * 256
err('ENAMETOOLONG', 'create', spit, 'm/a/' + long, b'')
err('ENAMETOOLONG', 'mkdir', os.mkdir, 'm/a/' + long)
err('ENAMETOOLONG', 'lookup', os.stat, 'm/' + long)
os.mkdir('m/a/' + 'n' * 255)
make('m/a/' + 'n' * 255, 'Y:64')
check('m/a/' + 'n' * 255, 'Y:64')
spit('m/a/kv.' + 'x' * 252, b'1')
err('ENAMETOOLONG', 'rename', os.rename, 'm/a/' + 'n' * 255, 'm/a/' + long)
err('ENAMETOOLONG', 'kv name', spit, 'm/a/kv.' + 'x' * 253, b'1')
E
}

# A request that reaches into sealed bytes or beyond changes nothing at all.
t_whole_or_nothing() {
	ks make m/a/s Y:64
	py <<'E'
g = geo()
fd = os.open('m/a/s/kv', os.O_RDWR)
err('EPERM', 'from sealed into open', os.pwrite, fd, b'z' * (3 * g.block_bytes), g.block_bytes)
eq(2 * g.block_bytes, os.fstat(fd).st_size, 'st_size')
check('m/a/s', 'Y:64')
t = os.open('m/a/s/tokens', os.O_RDWR)
err('EINVAL', 'ids behind the end', os.pwrite, t, bytes(400), 300)
eq(256, os.fstat(t).st_size, 'ids')
E
}

t_EOPNOTSUPP_and_others() {
	ks make m/a/s Y:64
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
for mode in (3, 16, 17):
    err('EOPNOTSUPP', 'fallocate mode %d' % mode, fallocate, fd, mode, 0, 4096)
err('EISDIR', 'open a directory for writing', os.open, 'm/a/s', os.O_WRONLY)
err('ENOTDIR', 'a file as a directory', os.stat, 'm/a/s/kv/x')
err('EEXIST', 'O_EXCL', os.open, 'm/a/s/kv', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
err('EBADF', 'write on a reader', os.write, os.open('m/a/s/kv', os.O_RDONLY), b'x')
err('EINVAL', 'negative truncate', os.ftruncate, fd, -1)
check('m/a/s', 'Y:64')
E
}

kvc_main "$@"
