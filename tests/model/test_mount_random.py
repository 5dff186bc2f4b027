# SPDX-License-Identifier: Apache-2.0
"""Random operations on plain files of a mount and on a directory of the local
filesystem: results, errno, contents and attributes must be the same.

    test_mount_random.py [SEED [OPERATIONS]]

The seed is printed; KVC_TEST_SCALE multiplies the number of operations.
Without a seed, one that is new each time is drawn.
"""
import errno
import os
import random
import shutil
import stat
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
import kvseq                                        # noqa: E402
from kvmount import Mount, scale                    # noqa: E402

NAMES = ['a', 'b', 'c', 'd', 'e', 'kv', 'tokens', 'long' * 60]
SIZES = (0, 1, 10, 511, 4096, 4097, 65535, 65536, 65537, 200_000)


class Side:
    """One of the two filesystems: open descriptors and the operations."""

    def __init__(self, root):
        self.root = root
        self.fds = {}

    def at(self, path):
        return self.root + '/' + path

    def open(self, slot, path, flags, mode):
        self.close(slot)
        self.fds[slot] = os.open(self.at(path), flags, mode)

    def close(self, slot):
        fd = self.fds.pop(slot, None)
        if fd is not None:
            os.close(fd)

    def fd(self, slot):
        if slot not in self.fds:
            raise OSError(errno.EBADF, 'closed')
        return self.fds[slot]

    def is_dir(self, slot):
        return stat.S_ISDIR(os.fstat(self.fd(slot)).st_mode)

    def pwrite(self, slot, data, off):
        return os.pwrite(self.fd(slot), data, off)

    def write(self, slot, data):
        return os.write(self.fd(slot), data)

    def pread(self, slot, n, off):
        return os.pread(self.fd(slot), n, off)

    def ftruncate(self, slot, n):
        os.ftruncate(self.fd(slot), n)

    def fsync(self, slot):
        os.fsync(self.fd(slot))

    def fallocate(self, slot, keep, off, n):
        kvseq.fallocate(self.fd(slot), keep, off, n)

    def seek_end(self, slot):
        if self.is_dir(slot):
            return 'directory'
        return os.lseek(self.fd(slot), 0, os.SEEK_END)

    def copy_range(self, a, b, n, so, do):
        copied = 0
        while copied < n:
            k = os.copy_file_range(self.fd(a), self.fd(b), n - copied, so + copied, do + copied)
            if not k:
                break
            copied += k
        return copied

    def map_store(self, slot, off, data):
        size = os.fstat(self.fd(slot)).st_size
        if self.is_dir(slot) or off + len(data) > size:
            return 'short'
        with kvseq.mmap.mmap(self.fd(slot), size) as v:
            v[off:off + len(data)] = data
            v.flush()

    def map_read(self, slot):
        size = os.fstat(self.fd(slot)).st_size
        if not size or self.is_dir(slot):
            return b''
        with kvseq.mmap.mmap(self.fd(slot), size, prot=kvseq.mmap.PROT_READ) as v:
            return v[:]

    def fstat(self, slot):
        return self.attributes(os.fstat(self.fd(slot)))

    def slurp(self, path):
        return kvseq.slurp(self.at(path))

    def stat(self, path):
        return self.attributes(os.lstat(self.at(path)))

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def unlink(self, path):
        os.unlink(self.at(path))

    def rename(self, a, b, flags):
        kvseq.renameat2(self.at(a), self.at(b), flags)

    def link(self, a, b):
        os.link(self.at(a), self.at(b), follow_symlinks=False)

    def symlink(self, target, path):
        os.symlink(target, self.at(path))

    def readlink(self, path):
        return os.readlink(self.at(path))

    def truncate(self, path, n):
        os.truncate(self.at(path), n)

    def chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def utime(self, path, a, m):
        os.utime(self.at(path), ns=(a, m))

    def listdir(self, path):
        return sorted(os.listdir(self.at(path)))

    def setxattr(self, path, name, value, flags):
        os.setxattr(self.at(path), name, value, flags)

    def getxattr(self, path, name):
        return os.getxattr(self.at(path), name)

    def removexattr(self, path, name):
        os.removexattr(self.at(path), name)

    def listxattr(self, path):
        return sorted(os.listxattr(self.at(path)))

    @staticmethod
    def attributes(st):
        kind = stat.S_IFMT(st.st_mode)
        size = st.st_size if kind != stat.S_IFDIR else None
        return kind, stat.S_IMODE(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, size

    def tree(self):
        """Everything reachable: path, attributes, contents, user attributes."""
        out = {}
        for d, dirs, files in os.walk(self.root):
            for n in dirs + files:
                p = os.path.join(d, n)
                rel = os.path.relpath(p, self.root)
                st = os.lstat(p)
                what = [self.attributes(st)]
                if stat.S_ISREG(st.st_mode):
                    what.append(kvseq.slurp(p))
                elif stat.S_ISLNK(st.st_mode):
                    what.append(os.readlink(p))
                if not stat.S_ISLNK(st.st_mode):
                    what.append([(x, os.getxattr(p, x)) for x in sorted(os.listxattr(p))])
                out[rel] = what
        return out


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def path(self):
        r = self.r
        return '/'.join(r.choice(NAMES[:5] if r.random() < .9 else NAMES) for _ in range(r.choice((1, 1, 2, 2, 3))))

    def size(self):
        r = self.r
        return r.choice(SIZES) if r.random() < .5 else r.randrange(300_000)

    def data(self):
        n = min(self.size(), 150_000)
        return self.r.randbytes(n)

    def operation(self):
        r = self.r
        slot = r.randrange(5)
        pick = r.random()
        if pick < .14:
            flags = r.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
            for f, p in ((os.O_CREAT, .7), (os.O_TRUNC, .15), (os.O_EXCL, .1), (os.O_APPEND, .1), (os.O_NOFOLLOW, .1)):
                if r.random() < p:
                    flags |= f
            return 'open', slot, self.path(), flags, r.choice((0o644, 0o600, 0o777))
        if pick < .30:
            return 'pwrite', slot, self.data(), self.size()
        if pick < .34:
            return 'write', slot, self.data()
        if pick < .44:
            return 'pread', slot, self.size(), self.size()
        return r.choice((
            lambda: ('ftruncate', slot, self.size()), lambda: ('fsync', slot), lambda: ('close', slot),
            lambda: ('fallocate', slot, r.randrange(2), self.size(), self.size()),
            lambda: ('seek_end', slot), lambda: ('fstat', slot),
            lambda: ('copy_range', slot, r.randrange(5), self.size(), self.size(), self.size()),
            lambda: ('map_store', slot, self.size(), r.randbytes(r.randrange(1, 9000))),
            lambda: ('map_read', slot),
            lambda: ('slurp', self.path()), lambda: ('slurp', self.path()), lambda: ('stat', self.path()),
            lambda: ('mkdir', self.path(), r.choice((0o755, 0o700))), lambda: ('mkdir', self.path(), 0o755),
            lambda: ('rmdir', self.path()), lambda: ('unlink', self.path()),
            lambda: ('rename', self.path(), self.path(), r.choice((0, 0, 0, 1, 2))),
            lambda: ('rename', self.path(), self.path(), 0),
            lambda: ('link', self.path(), self.path()),
            lambda: ('symlink', self.path(), self.path()), lambda: ('readlink', self.path()),
            lambda: ('truncate', self.path(), self.size()),
            lambda: ('chmod', self.path(), r.choice((0o644, 0o400, 0o4755, 0o1777))),
            lambda: ('utime', self.path(), r.randrange(1 << 60), r.randrange(1 << 60)),
            lambda: ('listdir', '.'), lambda: ('listdir', self.path()),
            lambda: ('setxattr', self.path(), 'user.' + r.choice('xyz'), r.randbytes(r.randrange(300)), r.choice((0, 0, 1, 2))),
            lambda: ('getxattr', self.path(), 'user.' + r.choice('xyz')),
            lambda: ('removexattr', self.path(), 'user.' + r.choice('xyz')),
            lambda: ('listxattr', self.path()),
        ))()


def result(side, op):
    try:
        return getattr(side, op[0])(*op[1:])
    except OSError as e:
        return kvseq.name_of(e.errno)


def say(op):
    return '%s(%s)' % (op[0], ', '.join(kvseq.short(a)[:80] for a in op[1:]))


def overlapping(op, sides):
    """copy_range within one file: POSIX leaves overlaps open."""
    if op[0] != 'copy_range':
        return False
    fds = sides[1].fds
    if op[1] not in fds or op[2] not in fds:
        return False
    a, b = os.fstat(fds[op[1]]), os.fstat(fds[op[2]])
    return a.st_ino == b.st_ino


def compare_trees(sides, when):
    a, b = (s.tree() for s in sides)
    bad = 0
    for p in sorted(set(a) | set(b)):
        if a.get(p) != b.get(p) and bad < 5:
            bad += 1
            print('%s: %s differs: mount %s, reference %s' %
                  (when, p, kvseq.short(a.get(p)), kvseq.short(b.get(p))))
    return not bad


def run(seed, count, mount, local):
    g, sides = Generator(seed), (Side(mount), Side(local))
    history, same = [], True
    for i in range(count):
        op = g.operation()
        if overlapping(op, sides):
            continue
        got, want = (result(s, op) for s in sides)
        history.append('%6d %s = %s' % (i, say(op), kvseq.short(want)[:60]))
        if got != want:
            print('operation %d: %s: mount %s, reference %s' % (i, say(op), kvseq.short(got), kvseq.short(want)))
            same = False
        elif i % 500 == 499:
            same = compare_trees(sides, 'after operation %d' % i)
        if not same:
            print('the operations before it:\n' + '\n'.join(history[-25:]))
            break
    for s in sides:
        for slot in list(s.fds):
            s.close(slot)
    return same and compare_trees(sides, 'at the end')


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(1 << 32)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else scale(6000)
    print('seed %d, %d operations' % (seed, count), flush=True)
    local = tempfile.mkdtemp(prefix='kvc-reference.')
    try:
        with Mount(opts='dram=512M') as m:
            os.umask(0o022)
            os.mkdir(m.path + '/t', 0o755)
            os.chmod(local, 0o755)
            ok = run(seed, count, m.path + '/t', local)
    finally:
        shutil.rmtree(local, ignore_errors=True)
    sys.exit(0 if ok else 1)


if __name__ == '__main__':
    main()
