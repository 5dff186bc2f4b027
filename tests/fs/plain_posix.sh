#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plain files and directories behave as on ext4.
. "$(dirname "$0")/../lib/mount.sh"

KVC_FRESH=0
as() { local u=$1 g=$2; shift 2; setpriv --reuid "$u" --regid "$g" --clear-groups "$@"; }
fresh() { rm -rf m/p; mkdir m/p; chmod 755 "$KVC_TMP"; }

t_random_writes_and_truncates() {
	fresh
	py "$KVC_SCALE" <<'E'
r = random.Random(11)
fd = os.open('m/p/f', os.O_CREAT | os.O_RDWR)
model = bytearray()
for i in range(400 * int(sys.argv[1])):
    op = r.randrange(10)
    if op < 6:
        o = r.randrange(700000)
        c = r.randbytes(r.choice((1, 17, 4096, 5000, 65536, 70001)))
        os.pwrite(fd, c, o)
        if o > len(model):
            model += bytes(o - len(model))
        model[o:o + len(c)] = c
    elif op < 8:
        n = r.randrange(900000)
        os.ftruncate(fd, n)
        model = model[:n] + bytes(max(0, n - len(model)))
    elif op == 8:
        os.fsync(fd)
    else:
        o = r.randrange(900000)
        if not eq(bytes(model[o:o + 30000]), os.pread(fd, 30000, o), 'operation %d, read at %d' % (i, o)):
            break
    eq(len(model), os.fstat(fd).st_size, 'size after operation %d' % i)
eq(bytes(model), slurp('m/p/f'), 'at the end')
E
}

t_truncated_bytes_do_not_come_back() {
	fresh
	py <<'E'
for size, cut in ((5000, 100), (70000, 65000), (200000, 1), (65536, 65535), (300, 7)):
    spit('m/p/f', b'\xaa' * size)
    os.truncate('m/p/f', cut)
    os.truncate('m/p/f', size)
    eq(b'\xaa' * cut + bytes(size - cut), slurp('m/p/f'), '%d cut to %d and grown' % (size, cut))
    spit('m/p/f', b'\xaa' * size)
    fd = os.open('m/p/f', os.O_RDWR)
    os.fsync(fd)
    os.ftruncate(fd, cut)
    os.pwrite(fd, b'x', size)
    eq(b'\xaa' * cut + bytes(size - cut) + b'x', slurp('m/p/f'), '%d cut to %d, written behind' % (size, cut))
    os.close(fd)
E
}

t_sparse() {
	fresh
	py <<'E'
fd = os.open('m/p/f', os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b'end', 10 << 20)
eq((10 << 20) + 3, os.fstat(fd).st_size, 'size')
eq(bytes(100000), os.pread(fd, 100000, 5 << 20), 'a hole reads as zeros')
os.pwrite(fd, b'mid', 3000000)
eq(bytes(10) + b'mid' + bytes(10), os.pread(fd, 23, 2999990), 'around a small write')
true(os.fstat(fd).st_blocks * 512 < 1 << 20, 'a hole is not allocated: %d blocks' % os.fstat(fd).st_blocks)
os.ftruncate(fd, 240 << 30)
eq(240 << 30, os.fstat(fd).st_size, 'a sparse file of 240 GiB')
os.pwrite(fd, b'far', 239 << 30)
eq(b'far', os.pread(fd, 3, 239 << 30), 'far out')
E
}

t_append() {
	fresh
	py <<'E'
a = os.open('m/p/f', os.O_CREAT | os.O_WRONLY | os.O_APPEND)
b = os.open('m/p/f', os.O_WRONLY | os.O_APPEND)
want = b''
for i in range(300):
    c = b'%d,' % i
    os.write(a if i % 2 else b, c)
    want += c
eq(want, slurp('m/p/f'), 'two appenders')
E
	for i in $(seq 200); do echo "$i" >>m/p/g & done
	wait $(jobs -p | grep -vx "$KVC_PID")
	expect_eq 200 "$(sort -n m/p/g | uniq | wc -l)" "200 processes append a line each"
}

t_rename_over() {
	fresh
	py <<'E'
spit('m/p/a', b'A'); spit('m/p/b', b'B')
fd = os.open('m/p/b', os.O_RDONLY)
ino = os.stat('m/p/a').st_ino
os.rename('m/p/a', 'm/p/b')
eq((b'A', ino), (slurp('m/p/b'), os.stat('m/p/b').st_ino), 'renamed over')
eq(b'B', os.pread(fd, 9, 0), 'the old one lives while open')
eq(0, os.fstat(fd).st_nlink, 'without a name')
true(not os.path.exists('m/p/a'), 'the source is gone')
os.mkdir('m/p/d'); os.mkdir('m/p/e'); spit('m/p/d/x', b'')
err('ENOTEMPTY', 'over a directory with entries', os.rename, 'm/p/e', 'm/p/d')
err('EISDIR', 'file over directory', os.rename, 'm/p/b', 'm/p/d')
err('ENOTDIR', 'directory over file', os.rename, 'm/p/d', 'm/p/b')
err('EINVAL', 'into itself', os.rename, 'm/p/d', 'm/p/d/z')
os.rename('m/p/d', 'm/p/e')
eq(['x'], os.listdir('m/p/e'), 'over an empty directory')
err('EEXIST', 'NOREPLACE', renameat2, 'm/p/b', 'm/p/e', NOREPLACE)
spit('m/p/c', b'C')
renameat2('m/p/b', 'm/p/c', EXCHANGE)
eq((b'C', b'A'), (slurp('m/p/b'), slurp('m/p/c')), 'exchanged')
renameat2('m/p/b', 'm/p/e', EXCHANGE)
true(os.path.isdir('m/p/b') and slurp('m/p/e') == b'C', 'a file exchanged with a directory')
n = os.stat('m/p').st_nlink
os.mkdir('m/p/q'); eq(n + 1, os.stat('m/p').st_nlink, 'nlink of a directory grows')
os.rename('m/p/q', 'm/p/b/q'); eq(n, os.stat('m/p').st_nlink, 'and moves')
E
}

# A name replaced by rename is seen old or new, always.
t_rename_over_is_atomic() {
	fresh
	py <<'E'
want = [bytes([i]) * 9000 for i in range(2)]
spit('m/p/f', want[0])
pid = os.fork()
if pid == 0:
    for i in range(600):
        spit('m/p/t', want[i % 2])
        os.rename('m/p/t', 'm/p/f')
    os._exit(0)
n = 0
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    got = slurp('m/p/f')
    n += 1
    if got not in want:
        fail('read %d: neither of the two, %d bytes' % (n, len(got)))
        os.waitpid(pid, 0)
        break
true(n > 10, 'too few reads: %d' % n)
E
}

t_hard_links() {
	fresh
	py <<'E'
spit('m/p/a', b'one')
os.mkdir('m/p/d')
os.link('m/p/a', 'm/p/d/b')
st = os.stat('m/p/a')
eq((2, st.st_ino), (st.st_nlink, os.stat('m/p/d/b').st_ino), 'nlink and inode')
spit('m/p/d/b', b'two')
eq(b'two', slurp('m/p/a'), 'one file')
c = st.st_ctime_ns
os.unlink('m/p/a')
eq(1, os.stat('m/p/d/b').st_nlink, 'nlink after unlink')
true(os.stat('m/p/d/b').st_ctime_ns > c, 'ctime moves')
err('EEXIST', 'link over a name', os.link, 'm/p/d/b', 'm/p/d')
err('EPERM', 'link of a directory', os.link, 'm/p/d', 'm/p/d2')
os.link('m/p/d/b', 'm/p/x')
os.rename('m/p/d/b', 'm/p/x')
true(os.path.exists('m/p/d/b') and os.path.exists('m/p/x'), 'rename between two links of one file does nothing')
E
}

t_symlinks() {
	fresh
	py <<'E'
for target in ('x', '/etc/passwd', 'a/' * 100 + 'b', 'y' * 4095):
    os.symlink(target, 'm/p/l')
    eq(target, os.readlink('m/p/l'), 'target')
    eq(len(target), os.lstat('m/p/l').st_size, 'st_size')
    os.unlink('m/p/l')
err('ENAMETOOLONG', 'a target of 4096', os.symlink, 'y' * 4096, 'm/p/l')
os.mkdir('m/p/d'); spit('m/p/d/f', b'through')
os.symlink('d', 'm/p/dl')
eq(b'through', slurp('m/p/dl/f'), 'through a link to a directory')
os.symlink('loop', 'm/p/loop')
err('ELOOP', 'a loop', os.stat, 'm/p/loop')
err('ENOTDIR', 'rmdir of a link', os.rmdir, 'm/p/dl')
E
}

t_modes_and_owners() {
	[ "$(id -u)" = 0 ] || return 0
	fresh
	chmod 777 m/p
	as 1001 1002 touch m/p/f; expect_eq '1001 1002' "$(stat -c '%u %g' m/p/f)" "owner of a new file"
	as 1001 1002 mkdir m/p/d; expect_eq '1001 1002' "$(stat -c '%u %g' m/p/d)" "owner of a new directory"
	as 1001 1002 ln -s x m/p/l; expect_eq '1001 1002' "$(stat -c '%u %g' m/p/l)" "owner of a symlink"
	as 1001 1002 mkfifo m/p/q; expect_eq '1001 1002' "$(stat -c '%u %g' m/p/q)" "owner of a fifo"
	echo secret >m/p/s; chmod 640 m/p/s; chown 1001:1005 m/p/s
	expect_ok as 1001 1 cat m/p/s
	expect_ok as 2000 1005 cat m/p/s
	expect_errno EACCES as 2000 2000 cat m/p/s
	expect_errno EACCES as 2000 1005 bash -c 'dd if=/dev/zero of=m/p/s count=1 status=none'
	expect_errno EPERM as 2000 2000 chmod 777 m/p/s
	expect_errno EPERM as 1001 1001 chown 0 m/p/s
	expect_ok setpriv --reuid 1001 --regid 1001 --groups 1001,1007 chgrp 1007 m/p/s
	chmod 755 m/p
	expect_errno EACCES as 2000 2000 touch m/p/new
	expect_errno EACCES as 2000 2000 rm -f m/p/s
	chmod 1777 m/p
	expect_errno EPERM as 2000 2000 rm -f m/p/s
	expect_ok as 1001 1001 rm m/p/s
	chmod 711 m/p; echo x >m/p/k
	expect_ok as 2000 2000 cat m/p/k
	expect_errno EACCES as 2000 2000 ls m/p
	(umask 077; touch m/p/u; expect_eq 600 "$(stat -c %a m/p/u)" "umask")
	chmod 7777 m/p/u; expect_eq 7777 "$(stat -c %a m/p/u)" "all bits"
}

t_setgid_and_setuid() {
	[ "$(id -u)" = 0 ] || return 0
	fresh
	mkdir m/p/g; chown 0:1234 m/p/g; chmod 2777 m/p/g
	as 1001 1002 touch m/p/g/f; expect_eq 1234 "$(stat -c %g m/p/g/f)" "group of a setgid directory"
	as 1001 1002 mkdir m/p/g/d; expect_eq '1234 2755' "$(stat -c '%g %a' m/p/g/d)" "a directory inherits the bit"
	as 1001 1002 touch m/p/s 2>/dev/null || { touch m/p/s; chown 1001:1002 m/p/s; }
	chmod 6755 m/p/s; chmod o+w m/p/s
	as 2000 2000 bash -c 'echo x >>m/p/s'
	expect_eq 757 "$(stat -c %a m/p/s)" "a write by another clears setuid and setgid"
	chmod 6777 m/p/s; chown 1003:1003 m/p/s
	expect_eq 777 "$(stat -c %a m/p/s)" "chown clears setuid and setgid"
	chmod 6777 m/p/s
	as 2000 2000 truncate -s 0 m/p/s
	expect_eq 777 "$(stat -c %a m/p/s)" "truncate by another clears them"
}

t_times() {
	fresh
	py <<'E'
ns = 1_234_567_890_987_654_321
def st(f='m/p/f'):
    return os.stat(f)
spit('m/p/f', b'x')
os.utime('m/p/f', ns=(ns, ns + 5))
eq((ns, ns + 5), (st().st_atime_ns, st().st_mtime_ns), 'nanoseconds are kept')
os.utime('m/p/f', ns=(-5_000_000_001, -1))
eq((-5_000_000_001, -1), (st().st_atime_ns, st().st_mtime_ns), 'before 1970')
def moves(what, fn, m=True, c=True, f='m/p/f'):
    os.utime(f, ns=(ns, ns))
    c0 = st(f).st_ctime_ns
    fn()
    eq(m, st(f).st_mtime_ns != ns, what + ': mtime moves')
    eq(c, st(f).st_ctime_ns > c0, what + ': ctime moves')
moves('write', lambda: spit('m/p/f', b'yy', os.O_WRONLY))
moves('truncate', lambda: os.truncate('m/p/f', 1))
moves('chmod', lambda: os.chmod('m/p/f', 0o600), m=False)
moves('setxattr', lambda: os.setxattr('m/p/f', 'user.x', b'1'), m=False)
moves('read', lambda: slurp('m/p/f'), m=False, c=False)
os.mkdir('m/p/d')
moves('create in it', lambda: spit('m/p/d/x', b''), f='m/p/d')
moves('rename in it', lambda: os.rename('m/p/d/x', 'm/p/d/y'), f='m/p/d')
moves('unlink in it', lambda: os.unlink('m/p/d/y'), f='m/p/d')
moves('mkdir in it', lambda: os.mkdir('m/p/d/z'), f='m/p/d')
moves('rename of it', lambda: None, m=False, c=False, f='m/p/d')
now = time.time_ns()
spit('m/p/new', b'')
s = os.stat('m/p/new')
true(abs(s.st_mtime_ns - now) < 5_000_000_000, 'a new file is from now')
a = os.stat('m/p/f').st_atime_ns
os.utime('m/p/f', ns=(ns, os.stat('m/p/f').st_mtime_ns))
os.close(os.open('m/p/f', os.O_RDONLY))
slurp('m/p/f')
# the kernel may show its cached attributes for a moment
poll_until(lambda: os.stat('m/p/f').st_atime_ns > ns, 'atime moves at an open and read', 3)
E
	touch -a -d 2001-01-01T00:00:00Z m/p/f; expect_eq 978307200 "$(stat -c %X m/p/f)" "touch -a"
	touch -r m/p/f m/p/new; expect_eq 978307200 "$(stat -c %X m/p/new)" "touch -r"
}

t_xattrs() {
	fresh
	py <<'E'
spit('m/p/f', b'')
for p in ('m/p/f', 'm/p'):
    err('ENODATA', 'get of none', os.getxattr, p, 'user.a')
    os.setxattr(p, 'user.a', b'1', os.XATTR_CREATE)
    err('EEXIST', 'CREATE', os.setxattr, p, 'user.a', b'2', os.XATTR_CREATE)
    os.setxattr(p, 'user.a', b'', os.XATTR_REPLACE)
    eq(b'', os.getxattr(p, 'user.a'), 'empty value')
    err('ENODATA', 'REPLACE', os.setxattr, p, 'user.b', b'2', os.XATTR_REPLACE)
    os.setxattr(p, 'user.b', bytes(range(256)) * 10)
    eq(bytes(range(256)) * 10, os.getxattr(p, 'user.b'), 'binary value')
    eq(['user.a', 'user.b'], sorted(os.listxattr(p)), 'list')
    os.removexattr(p, 'user.a')
    err('ENODATA', 'remove of none', os.removexattr, p, 'user.a')
    eq(['user.b'], os.listxattr(p), 'list after remove')
os.setxattr('m/p/f', 'user.b', b'')
for i in range(100):
    os.setxattr('m/p/f', 'user.many%d' % i, b'%d' % i)
eq(101, len(os.listxattr('m/p/f')), 'a hundred')
os.rename('m/p/f', 'm/p/g')
eq(b'42', os.getxattr('m/p/g', 'user.many42'), 'they move with the file')
true(outcome(os.setxattr, 'm/p/g', 'user.' + 'n' * 251, b'') != '0', 'a name of 256 bytes')
E
}

t_statfs() {
	fresh
	py <<'E'
s = os.statvfs('m/p')
eq((4096, 255), (s.f_bsize, s.f_namemax), 'f_bsize, f_namemax')
true(0 < s.f_bavail <= s.f_bfree <= s.f_blocks, 'counts: %s' % (s,))
eq(4096, os.stat('m/p').st_blksize, 'st_blksize')
spit('m/p/f', os.urandom(8 << 20))
os.close(fd := os.open('m/p/f', os.O_RDONLY))
t = os.statvfs('m/p')
gone = (s.f_bavail - t.f_bavail) * s.f_frsize
true((8 << 20) <= gone <= (16 << 20), '8 MiB written, %d fewer free' % gone)
os.unlink('m/p/f')
poll_until(lambda: (s.f_bavail - os.statvfs('m/p').f_bavail) * s.f_frsize < 1 << 20, 'space comes back after unlink', 10)
E
	expect_ok df m/p
	expect_ok df -i m/p
}

t_fallocate() {
	fresh
	py <<'E'
fd = os.open('m/p/f', os.O_CREAT | os.O_RDWR)
fallocate(fd, 0, 0, 1 << 20)
eq(1 << 20, os.fstat(fd).st_size, 'grows')
true(os.fstat(fd).st_blocks * 512 >= 1 << 20, 'allocates')
eq(bytes(1 << 20), os.pread(fd, 1 << 20, 0), 'zeros')
fallocate(fd, 1, 0, 4 << 20)
eq(1 << 20, os.fstat(fd).st_size, 'KEEP_SIZE')
os.pwrite(fd, b'data', 100)
fallocate(fd, 0, 0, 2 << 20)
eq(b'data', os.pread(fd, 4, 100), 'keeps bytes')
os.posix_fallocate(fd, 5 << 20, 100)
eq((5 << 20) + 100, os.fstat(fd).st_size, 'posix_fallocate')
err('EINVAL', 'length 0', fallocate, fd, 0, 0, 0)
E
}

t_O_DIRECT_of_any_alignment() {
	fresh
	py <<'E'
r = random.Random(5)
fd = os.open('m/p/f', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
model = bytearray()
for i in range(120):
    o, n = r.randrange(300000), r.choice((1, 511, 512, 4096, 4097, 65536, 100003))
    c = r.randbytes(n)
    os.pwrite(fd, c, o)
    if o > len(model):
        model += bytes(o - len(model))
    model[o:o + n] = c
    o = r.randrange(len(model))
    b = bytearray(r.choice((1, 513, 4096, 70000)))
    n = os.preadv(fd, [b], o)
    if not eq(bytes(model[o:o + len(b)]), bytes(b[:n]), 'direct read at %d' % o):
        break
eq(bytes(model), slurp('m/p/f'), 'a buffered reader')
c = os.open('m/p/f', os.O_RDWR)
os.pwrite(c, b'buffered', 5000)
eq(b'buffered', os.pread(fd, 8, 5000), 'a direct reader after a buffered writer')
os.pwrite(fd, b'direct!!', 5000)
eq(b'direct!!', os.pread(c, 8, 5000), 'a buffered reader after a direct writer')
b = mmap.mmap(-1, 65536); b[:] = b'v' * 65536
eq(131072, os.pwritev(fd, [b, b], 4096), 'vectors')
eq(b'v' * 131072, os.pread(c, 131072, 4096), 'written by vectors')
f = os.open('m/p/g', os.O_CREAT | os.O_RDWR)
fcntl.fcntl(f, fcntl.F_SETFL, os.O_DIRECT)
os.pwrite(f, b'x' * 5000, 3)
eq(bytes(3) + b'x' * 5000, slurp('m/p/g'), 'F_SETFL O_DIRECT')
E
}

t_mmap() {
	fresh
	py <<'E'
spit('m/p/f', bytes(range(256)) * 1000)
fd = os.open('m/p/f', os.O_RDWR)
v = mmap.mmap(fd, 0)
eq(bytes(range(256)) * 1000, v[:], 'mapped')
v[70000:70005] = b'store'
v.flush()
eq(b'store', os.pread(fd, 5, 70000), 'a read sees a store')
os.pwrite(fd, b'write', 90000)
eq(b'write', v[90000:90005], 'the mapping sees a write')
os.close(fd)
v[5:9] = b'last'
v.close()
eq(b'last', slurp('m/p/f')[5:9], 'after close and unmap')
fd = os.open('m/p/g', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 1 << 20)
v = mmap.mmap(fd, 0)
for i in range(0, 1 << 20, 65536):
    v[i:i + 4] = struct.pack('<I', i)
v.flush()
os.fsync(fd)
eq([*range(0, 1 << 20, 65536)], [struct.unpack('<I', os.pread(fd, 4, i))[0] for i in range(0, 1 << 20, 65536)],
   'stores into a hole')
p = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
p[:4] = b'priv'
eq(bytes(4), os.pread(fd, 4, 0), 'private stays private')
E
}

t_open_and_unlinked() {
	fresh
	py <<'E'
fd = os.open('m/p/f', os.O_CREAT | os.O_RDWR)
os.write(fd, b'still here')
os.unlink('m/p/f')
eq(0, os.fstat(fd).st_nlink, 'nlink')
os.pwrite(fd, b'HERE', 6)
eq(b'still HERE', os.pread(fd, 100, 0), 'bytes')
fallocate(fd, 0, 0, 100000)
os.fsync(fd)
os.fchmod(fd, 0o600)
eq(0o600, os.fstat(fd).st_mode & 0o777, 'chmod')
spit('m/p/f', b'another')
eq(b'still HERE', os.pread(fd, 10, 0), 'not the new one')
os.close(fd)
d = os.open('m/p/d', os.O_RDONLY) if os.mkdir('m/p/d') is None else 0
os.rmdir('m/p/d')
err('ENOENT', 'create in a removed directory', os.open, 'x', os.O_CREAT | os.O_WRONLY, dir_fd=d)
E
}

t_names() {
	fresh
	py <<'E'
n = 'n' * 255
spit('m/p/' + n, b'1')
true(n in os.listdir('m/p'), 'a name of 255')
os.rename('m/p/' + n, 'm/p/' + 'm' * 255)
for fn, a in ((os.mkdir, ('m/p/' + n + 'x',)), (os.stat, ('m/p/' + n + 'x',)), (os.symlink, ('a', 'm/p/' + n + 'x')),
              (os.rename, ('m/p/' + 'm' * 255, 'm/p/' + n + 'x')), (os.link, ('m/p/' + 'm' * 255, 'm/p/' + n + 'x'))):
    err('ENAMETOOLONG', fn.__name__, fn, *a)
for n in ('with space', 'new\nline', '\x01\x7f', 'ünïcode', '-rf', '*', '...'):
    spit('m/p/' + n, n.encode())
    eq(n.encode(), slurp('m/p/' + n), repr(n))
    true(n in os.listdir('m/p'), 'listed: %r' % n)
os.close(os.open(b'm/p/\xff\xfe', os.O_CREAT | os.O_WRONLY))
true(b'\xff\xfe' in os.listdir(b'm/p'), 'bytes that are not UTF-8')
eq(True, outcome(spit, 'm/p/KV', b'') == '0' and not os.path.exists('m/p/Kv'), 'case matters')
E
}

t_many_names_and_concurrent_unlink() {
	fresh
	py "$KVC_SCALE" <<'E'
n = 2000 * int(sys.argv[1])
for i in range(n):
    os.close(os.open('m/p/f%d' % i, os.O_CREAT | os.O_WRONLY))
eq(n, len(os.listdir('m/p')), 'listed')
keep = {'f%d' % i for i in range(0, n, 3)}
pid = os.fork()
if pid == 0:
    for i in range(n):
        if i % 3:
            os.unlink('m/p/f%d' % i)
    os._exit(0)
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    got = os.listdir('m/p')
    if len(got) != len(set(got)) or not keep <= set(got):
        fail('a listing lost or doubled names that nobody touched')
        os.waitpid(pid, 0)
        break
eq(keep, set(os.listdir('m/p')), 'at the end')
d = os.open('m/p', os.O_RDONLY)
os.close(d)
E
}

t_copy_file_range() {
	fresh
	py <<'E'
data = os.urandom(3 << 20)
spit('m/p/a', data)
a = os.open('m/p/a', os.O_RDONLY)
def copy(name, n, so, do):
    b = os.open('m/p/' + name, os.O_CREAT | os.O_RDWR)
    done_ = 0
    while done_ < n:
        k = os.copy_file_range(a, b, n - done_, so + done_, do + done_)
        if k == 0:
            break
        done_ += k
    return b
b = copy('whole', len(data), 0, 0)
eq(data, slurp('m/p/whole'), 'whole')
os.pwrite(b, b'mine', 100)
eq(data[100:104], os.pread(a, 4, 100), 'the source is not the copy')
copy('part', 200000, 65536, 65536)
eq(bytes(65536) + data[65536:265536], slurp('m/p/part'), 'a part at equal offsets')
copy('odd', 100001, 777, 5)
eq(bytes(5) + data[777:100778], slurp('m/p/odd'), 'odd offsets')
copy('end', 1 << 22, 3 << 19, 0)
eq(data[3 << 19:], slurp('m/p/end'), 'past the end')
w = os.open('m/p/a', os.O_WRONLY)
os.pwrite(w, b'changed', 0)
eq(data[3 << 19:], slurp('m/p/end'), 'a copy is not its source')
eq(data[:7], slurp('m/p/whole')[:7], 'nor the whole one')
E
	cp m/p/whole m/p/c; expect_same m/p/whole m/p/c
	cp --sparse=always m/p/part m/p/s; expect_same m/p/part m/p/s
}

t_locks() {
	fresh
	py <<'E'
spit('m/p/f', b'0')
a, b = os.open('m/p/f', os.O_RDWR), os.open('m/p/f', os.O_RDWR)
fcntl.flock(a, fcntl.LOCK_EX)
err('EAGAIN', 'flock', fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.flock(a, fcntl.LOCK_UN)
fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(a, fcntl.LOCK_EX)
pid = os.fork()
if pid == 0:
    os._exit(0 if outcome(fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB) == 'EAGAIN' else 1)
eq(0, os.waitpid(pid, 0)[1], 'a record lock keeps another process out')
E
}

t_special_files() {
	fresh
	mkfifo m/p/q; [ -p m/p/q ] || bad "fifo"
	(echo through >m/p/q &) ; expect_eq through "$(cat m/p/q)" "a fifo works"
	py <<'E'
import socket
s = socket.socket(socket.AF_UNIX)
s.bind('m/p/s')
true(stat.S_ISSOCK(os.stat('m/p/s').st_mode), 'a socket')
E
	[ "$(id -u)" = 0 ] && mknod m/p/n c 1 3 && { [ -c m/p/n ] || bad "device node"; }
	expect_errno EISDIR cat m/p
	expect_errno ENOTDIR ls m/p/q/x
}

t_fsync_of_everything() {
	fresh
	py <<'E'
fd = os.open('m/p/f', os.O_CREAT | os.O_WRONLY)
os.write(fd, b'x' * 100000)
os.fsync(fd); os.fdatasync(fd)
d = os.open('m/p', os.O_RDONLY)
os.fsync(d)
os.sync()
E
}

t_a_tree() {
	fresh
	py <<'E'
p = 'm/p'
for i in range(60):
    p += '/d%d' % i
    os.mkdir(p)
spit(p + '/leaf', b'deep')
eq(b'deep', slurp(p + '/leaf'), '60 levels')
E
	expect_ok rm -r m/p/d0
	expect_absent m/p/d0
}

kvc_main "$@"
