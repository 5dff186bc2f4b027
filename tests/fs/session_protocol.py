# SPDX-License-Identifier: Apache-2.0
"""Sessions and ioctls on a real mount, spoken byte by byte: who breaks the protocol is dropped and
everybody else served on, who dies gives everything back, and who may not see memory does not.

    session_protocol.py [t_NAME ...]
"""
import errno
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
from kvmount import Mount, scale, skip, wait_for    # noqa: E402
from kvrpc import *                                 # noqa: E402,F403

GEOMETRY = 'layers=2 kv_heads=2 head_dim=64 dtype=f16 block_tokens=16 layout=hnd\n'
STRIDE = 16384
BT = 16


def make_ns(m, name, mode=0o755):
    os.mkdir(m + '/' + name)
    with open(m + '/' + name + '/.geometry', 'w') as f:
        f.write(GEOMETRY)
    os.chmod(m + '/' + name, mode)


def write_seq(m, path, blocks, seed=1):
    os.mkdir(m + '/' + path)
    data = random.Random(seed).randbytes(blocks * STRIDE)
    with open(m + '/' + path + '/tokens', 'wb') as f:
        f.write(struct.pack('<%dI' % (blocks * BT), *range(seed << 16, (seed << 16) + blocks * BT)))
    with open(m + '/' + path + '/kv', 'wb') as f:
        f.write(data)
    return data


def pinned(m):
    with open(m + '/.kvc/tiers') as f:
        return [int(line.split()[5]) for line in f if line.startswith('dram ')][0]


def alone(m):
    wait_for(lambda: not sessions(m), 10, 'no session is left')
    wait_for(lambda: pinned(m) == 0, 10, 'no pin is left')


def as_user(uid, fn):
    """Run fn in a child as @uid; its return value is the exit status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            status = fn()
        except BaseException as e:
            print('child:', repr(e), flush=True)
        os._exit(status or 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- tests ----

def t_view_and_append(m):
    data = write_seq(m, 'ns/a', 8)
    s = Session(socket_of(m))
    h = s.open('ns/a', WRITE)
    assert s.word(s.opened[3]) == s.opened[11]
    result, nr, ext = s.map(h)
    assert (result, nr) == (0, 8), (result, nr)
    assert s.bytes_of(ext, STRIDE) == data
    result, first, nr, ext = s.append(h, 20)
    assert (result, first, nr) == (0, 8, 2)
    _, files = s.pool(ext[0][0])
    assert files[0][1], 'a client that may write gets a writable descriptor'
    with mmap.mmap(files[0][0], files[0][2]) as pool:
        pool[ext[0][2]:ext[0][2] + STRIDE] = b'\x5a' * STRIDE
    for fd, _, _ in files:
        os.close(fd)
    reader = os.open(m + '/ns/a/kv', os.O_RDONLY)
    assert os.pread(reader, 10, 8 * STRIDE) == b''
    assert s.commit(h, 9 * BT, range(900, 900 + BT), durable=1) == 0
    wait_for(lambda: os.pread(reader, STRIDE, 8 * STRIDE) == b'\x5a' * STRIDE, 5, 'readers see the commit')
    assert os.getxattr(m + '/ns/a/kv', 'user.kvc.tokens') == b'144'
    assert os.stat(m + '/ns/a/tokens').st_size == 4 * 9 * BT
    writer = os.open(m + '/ns/a/kv', os.O_WRONLY)
    try:
        os.pwrite(writer, b'x', 9 * STRIDE)
        raise AssertionError('written beside a client that appends')
    except OSError as e:
        assert e.errno == errno.EBUSY, e
    os.close(writer)
    os.close(reader)
    assert len(sessions(m)) == 1 and sessions(m)[0][:2] == [os.getpid(), os.getuid()]
    s.socket.close()
    alone(m)


def t_sequence_goes(m):
    data = write_seq(m, 'ns/a', 4)
    s = Session(socket_of(m))
    h = s.open('ns/a', WRITE)
    _, _, ext = s.map(h)
    s.append(h, 1)
    slot = s.opened[3]
    os.unlink(m + '/ns/a/kv')
    assert s.word(slot) == 0
    assert s.commit(h, 65) == -errno.ESTALE
    assert s.bytes_of(ext, STRIDE) == data, 'a mapped view is never torn'
    assert s.close(h) == 0
    s.socket.close()
    alone(m)


def broken(m, bytes_, before=True):
    """A client that sends @bytes_ is gone; its pins too."""
    s = Session(socket_of(m))
    if before:
        h = s.open('ns/a', WRITE)
        s.map(h)
        s.append(h, 50)
    try:
        s.socket.send(bytes_ if isinstance(bytes_, bytes) else bytes_(s))
    except OSError:
        pass
    try:
        reply = s.socket.recv(65536)
    except ConnectionError:
        reply = b''
    assert reply == b'', reply[:100]
    s.socket.close()


def t_protocol_breakers(m):
    write_seq(m, 'ns/a', 8)
    good = Session(socket_of(m))
    h = good.open('ns/a')
    query = [command(QUERY, 1)]
    for bad in (b'x', b'\0' * HEAD, os.urandom(1000), b'\0' * 65536, batch(query, 99),
                lambda s: batch(query, s.sequence), lambda s: batch(query, s.sequence + 2),
                lambda s: batch(query, s.sequence + 1, magic=1), lambda s: batch(query, s.sequence + 1, abi=2),
                lambda s: batch(query, s.sequence + 1, flags=4), lambda s: batch(query, s.sequence + 1, nr=2),
                lambda s: batch(query, s.sequence + 1, nr=0), lambda s: batch(query, s.sequence + 1, size=119),
                lambda s: batch(query, s.sequence + 1)[:-1], lambda s: batch(query, s.sequence + 1) + b'\0',
                lambda s: batch(query, s.sequence + 1, nr=2 ** 32 - 1)):
        broken(m, bad)
        assert good.query(h)[0] == 0, 'others are served on'
    k = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    k.connect(socket_of(m))
    k.send(batch(query, 1))
    assert k.recv(100) == b'', 'the first message is HELLO'
    k.close()
    good.socket.close()
    alone(m)
    with open(m + '/.kvc/stat') as f:
        counts = dict(line.split() for line in f)
    assert int(counts['error_rpc_malformed']) and int(counts['error_rpc_replayed'])


def t_garbage(m):
    write_seq(m, 'ns/a', 8)
    rng = random.Random(os.environ.get('KVC_TEST_SEED', '1'))
    for _ in range(scale(200)):
        s = Session(socket_of(m))
        try:
            for _ in range(20):
                ref = struct.pack('<II', rng.choice([0, s.base, 2 ** 20 - 8, 2 ** 32 - 1]), rng.choice([0, 4, 64, 2 ** 32 - 1]))
                body = bytearray(ref + rng.randbytes(64))
                for i in range(8, 72):
                    if rng.random() < 0.8:
                        body[i] = 0
                s.call([command(rng.randrange(2, 17), rng.randrange(4), bytes(body)) for _ in range(rng.randrange(1, 60))])
        except (EOFError, OSError):
            pass
        s.socket.close()
        for fd in s.fds:
            os.close(fd)
        os.close(s.arena_fd)
    alone(m)


def client_until_killed(m, name):
    rng = random.Random(os.getpid())
    s = Session(socket_of(m))
    h = s.open('ns/' + name, CREATE | WRITE)
    shared = s.open('ns/a')
    tokens = s.query(h)[1][0]
    while True:
        s.map(shared, rng.randrange(8), 1 + rng.randrange(4))
        result, _, _, _ = s.append(h, rng.randrange(1, 60))
        if result == 0:
            tokens += rng.randrange(1, 20)
            if s.commit(h, tokens) != 0:
                tokens = s.query(h)[1][0]
        if rng.random() < 0.2:
            s.unmap(shared)
        if tokens > 600:
            s.one(TRUNCATE, h, struct.pack('<II', 30, 0))
            tokens = 30


def t_killed_clients(m):
    data = write_seq(m, 'ns/a', 8)
    good = Session(socket_of(m))
    h = good.open('ns/a')
    _, _, ext = good.map(h)
    rng = random.Random(1)
    for _ in range(scale(int(os.environ.get('KVC_TEST_KILLS', '100'))) // 4 + 1):
        pids = []
        for i in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    client_until_killed(m, 'k%d' % i)
                finally:
                    os._exit(1)
            pids.append(pid)
        select.select([], [], [], rng.random() * 0.05)  # killed at a random point
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    wait_for(lambda: len(sessions(m)) == 1, 10, 'only the living session is left')
    assert good.bytes_of(ext, STRIDE) == data
    good.socket.close()
    alone(m)


def t_strangers(m):
    if os.getuid():
        skip('needs root to be two users')
    make_ns(m, 'private', 0o700)
    write_seq(m, 'private/a', 2)
    write_seq(m, 'ns/a', 2)

    def no_right():
        s = Session(socket_of(m))
        assert s.open('private/a') == -errno.EACCES
        assert s.open('ns/a', WRITE) == -errno.EACCES
        assert s.open('ns/b', CREATE) == -errno.EACCES
        h = s.open('ns/a')
        assert h > 0, h
        result, nr, ext = s.map(h)
        assert (result, nr) == (0, 2), (result, nr)
        result, files = s.pool(0)
        assert result == 0 and files
        for fd, writable, size in files:
            assert not writable
            for how in (lambda: mmap.mmap(fd, size), lambda: os.open('/proc/self/fd/%d' % fd, os.O_RDWR)):
                try:
                    how()
                    raise AssertionError('pool memory can be written')
                except PermissionError:
                    pass
        assert s.append(h, 1)[0] == -errno.EACCES
        return 0

    # the container of the socket must let others in, as /var/lib would
    os.chmod(os.path.dirname(m), 0o755)
    assert as_user(12345, no_right) == 0
    alone(m)


def two_users(m):
    if os.getuid():
        skip('needs root to be two users')
    os.chmod(os.path.dirname(m), 0o755)


def t_rights_are_lost(m):
    """A namespace that is closed to others: they keep what they have mapped and get nothing more, and
    nothing of it lies any more where they may look."""
    two_users(m)
    secret = write_seq(m, 'ns/a', 8)
    make_ns(m, 'open')
    write_seq(m, 'open/b', 2, 3)
    ready, closed = os.pipe(), os.pipe()

    def stranger():
        s = Session(socket_of(m))
        h, b = s.open('ns/a'), s.open('open/b')
        _, _, ext = s.map(h, 0, 1)
        assert s.bytes_of(ext, STRIDE) == secret[:STRIDE]
        _, files = s.pool(0)
        with mmap.mmap(files[0][0], files[0][2], prot=mmap.PROT_READ) as pool:
            os.write(ready[1], b'x')
            os.read(closed[0], 1)
            assert s.map(h)[0] == -errno.EACCES, s.map(h)
            assert s.map(h, 0, 1)[0] == -errno.EACCES
            assert s.open('ns/a') == -errno.EACCES
            assert pool[ext[0][2]:ext[0][2] + STRIDE] == secret[:STRIDE], 'what it has mapped it keeps'
            assert s.map(b)[:2] == (0, 2), 'others are as they were'
            for fd, _, size in s.pool(0)[1]:
                with mmap.mmap(fd, size, prot=mmap.PROT_READ) as all_of_it:
                    for i in range(1, 8):
                        part = secret[i * STRIDE:i * STRIDE + 64]
                        assert all_of_it.find(part) < 0, 'block %d is where a stranger may look' % i
        return 0

    pid = os.fork()
    if pid == 0:
        os._exit(as_user(12345, stranger))
    if select.select([ready[0]], [], [], 20)[0]:
        os.read(ready[0], 1)
    os.chmod(m + '/ns', 0o700)
    os.write(closed[1], b'x')
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in ready + closed:
        os.close(fd)
    s = Session(socket_of(m))
    result, nr, ext = s.map(s.open('ns/a'))
    assert (result, nr) == (0, 8), (result, nr)
    assert s.bytes_of(ext, STRIDE) == secret
    s.socket.close()
    alone(m)


def t_sessions_of_a_user(m):
    """One user has so many sessions and no more; others do not notice."""
    two_users(m)

    def greedy():
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
        have = [Session(socket_of(m)) for _ in range(256)]
        for _ in range(3):
            try:
                have.append(Session(socket_of(m)))
            except AssertionError as e:
                assert e.args[0] == -errno.EUSERS, e.args
        assert len(have) == 256, len(have)
        assert as_root_elsewhere()
        have.pop().socket.close()

        def again():
            try:
                return Session(socket_of(m))
            except AssertionError:
                return None
        wait_for(again, 10, 'there is room for one again')
        # who does not listen is hung up on
        ignored = []
        for _ in range(600):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(socket_of(m))
            ignored.append(s)
        wait_for(lambda: len(sessions(m)) <= 512 + 1, 10, 'connections are bounded')
        return 0

    ask, answer = os.pipe(), os.pipe()

    def as_root_elsewhere():
        os.write(ask[1], b'x')
        return os.read(answer[0], 1) == b'y'

    pid = os.fork()
    if pid == 0:
        os._exit(as_user(12345, greedy))
    if select.select([ask[0]], [], [], 60)[0]:
        os.read(ask[0], 1)
        Session(socket_of(m)).socket.close()
        os.write(answer[1], b'y')
    else:
        os.write(answer[1], b'n')
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in ask + answer:
        os.close(fd)
    alone(m)


def t_ioctl(m):
    write_seq(m, 'ns/a', 4)
    root = os.open(m, os.O_RDONLY)
    r = Ioctl(root)
    h = r.open('ns/b', CREATE | WRITE)
    assert h == 1, h
    assert r.append(h, 40)[0] == -errno.EOPNOTSUPP
    kv = os.open(m + '/ns/b/kv', os.O_RDWR)
    assert os.pwrite(kv, b'k' * (3 * STRIDE), 0) == 3 * STRIDE  # nothing is reserved that would keep it out
    assert r.commit(h, 49, range(49)) == -errno.EINVAL
    assert r.query(h)[1][:2] == (0, 0)
    assert r.commit(h, 33, range(33)) == 0
    assert Ioctl(kv).commit(0, 34, [33]) == -errno.EINVAL  # behind the end that was set
    assert Ioctl(kv).commit(0, 33, [33]) == 0
    os.close(kv)
    assert os.getxattr(m + '/ns/b/kv', 'user.kvc.tokens') == b'33'
    assert os.stat(m + '/ns/b/tokens').st_size == 4 * 34
    wait_for(lambda: len(sessions(m)) == 1, 30, 'what was opened by way of kv goes with it')
    kv = os.open(m + '/ns/a/kv', os.O_RDONLY)
    k = Ioctl(kv)
    assert k.query(0)[1][0] == 64
    assert k.map(0)[:2] == (0, 4)
    assert k.append(0, 1)[0] == -errno.EACCES
    assert k.one(POOL)[0] == -errno.EOPNOTSUPP
    assert len(sessions(m)) == 2
    for fd, want in ((os.open(m + '/ns', os.O_RDONLY), errno.ENOTTY), (os.open(m + '/.kvc/stat', os.O_RDONLY), errno.ENOTTY)):
        try:
            Ioctl(fd).query(0)
            raise AssertionError('an ioctl where there is none')
        except OSError as e:
            assert e.errno == want, e
        os.close(fd)
    os.close(kv)
    os.close(root)
    alone(m)


def t_lazy_unmount(m, mount):
    """The daemon ends cleanly though files with requests behind them are never released."""
    fd = os.open(m, os.O_RDONLY)
    r = Ioctl(fd)
    h = r.open('ns/b', CREATE | WRITE)
    with open(m + '/ns/b/kv', 'wb') as kv:
        kv.write(b'k' * (3 * STRIDE))
    assert r.commit(h, 48, range(33)) == 0
    s = Session(socket_of(m))
    s.append(s.open('ns/c', CREATE | WRITE), 10)
    os.kill(mount.pid, signal.SIGTERM)
    wait_for(lambda: not mount.alive(), 30, 'the daemon ends')
    assert not mount.proc or mount.proc.returncode == 0, mount.proc.returncode
    os.close(fd)
    mount.start()
    assert os.getxattr(m + '/ns/b/kv', 'user.kvc.tokens') == b'48'
    assert os.stat(m + '/ns/b/tokens').st_size == 4 * 33
    s.socket.close()


def t_restart(m, mount):
    write_seq(m, 'ns/a', 4)
    s = Session(socket_of(m))
    h = s.open('ns/a', WRITE)
    s.append(h, 30)
    assert s.commit(h, 70, range(6), durable=1) == 0
    mount.kill9()
    try:
        s.query(h)
        raise AssertionError('an answer from the dead')
    except (EOFError, OSError):
        pass
    mount.start()
    s = Session(socket_of(m))
    h = s.open('ns/a', WRITE)
    assert s.query(h)[1][0] == 70
    s.socket.close()


class Appender:
    """Appends tokens of recognisable bytes to one sequence of a namespace whose tokens are opaque."""

    TOKEN = 1024

    def __init__(self, s, path, key):
        self.s, self.path, self.key = s, path, key
        self.handle = s.open(path, CREATE | WRITE)
        assert self.handle > 0, self.handle
        self.tokens = self.durable = 0

    def token(self, t):
        return struct.pack('<II', self.key, t) * (self.TOKEN // 8)

    def step(self, rng, pools):
        n = rng.randrange(1, 40)
        result, first, _, ext = self.s.append(self.handle, n)
        if result:
            assert result in (-errno.EAGAIN, -errno.ENOSPC, -errno.ENOMEM), result
            return
        places = [(number, off + i * BT * self.TOKEN) for number, nr, off in ext for i in range(nr)]
        for t in range(self.tokens, self.tokens + n):
            number, off = places[t // BT - first]
            if number not in pools:
                _, files = self.s.pool(number)
                pools[number] = mmap.mmap(files[0][0], files[0][2])
                for fd, _, _ in files:
                    os.close(fd)
            at = off + t % BT * self.TOKEN
            pools[number][at:at + self.TOKEN] = self.token(t)
        # some are filled, but not committed yet
        n = rng.randrange(1, n + 1)
        durable = rng.random() < 0.1
        ids = range(self.tokens, self.tokens + n)
        assert self.s.commit(self.handle, self.tokens + n, ids, durable) == 0
        self.tokens += n
        if durable:
            self.durable = self.tokens

    def check(self, m):
        with open(m + '/' + self.path + '/kv', 'rb') as f:
            data = f.read()
        nr = int(os.getxattr(m + '/' + self.path + '/kv', 'user.kvc.tokens'))
        assert self.durable <= nr <= self.tokens, (self.durable, nr, self.tokens)
        for t in range(nr):
            assert data[t * self.TOKEN:(t + 1) * self.TOKEN] == self.token(t), (self.path, t, nr)
        self.tokens = nr


def fill_dram(m, name, size):
    def free():
        st = os.statvfs(m)
        return st.f_bavail * st.f_frsize

    before = free()
    with open(m + '/' + name, 'wb') as f:
        for _ in range(size >> 20):
            f.write(os.urandom(1 << 20))
    os.unlink(m + '/' + name)
    # a daemon that is killed must not find it again; its bytes go when the kernel has let go of it
    fd = os.open(m, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    wait_for(lambda: free() + (8 << 20) > before, 30, 'the space is back')


def t_appended_bytes(m, mount):
    """Commits in place under reclaim, commit intervals and a daemon that dies: right bytes, always."""
    os.mkdir(m + '/op')
    with open(m + '/op/.geometry', 'w') as f:
        f.write('layers=1 token_bytes=1024 block_tokens=16 layout=opaque\n')
    rng = random.Random(int(os.environ.get('KVC_TEST_SEED', '1')))
    for cycle in range(3):
        s, pools = Session(socket_of(m)), {}
        apps = [Appender(s, 'op/c%d.%d' % (cycle, i), cycle << 8 | i) for i in range(6)]
        for step in range(scale(300)):
            rng.choice(apps).step(rng, pools)
            if step % 60 == 59:
                fill_dram(m, 'bulk', 80 << 20)
            if step % 25 == 24:
                rng.choice(apps).check(m)
            if step % 40 == 39:
                victim = rng.choice(apps)
                assert s.close(victim.handle) == 0
                victim.handle = s.open(victim.path, WRITE)
        for app in apps:
            app.check(m)
        if cycle == 1:
            s.socket.close()
            fill_dram(m, 'bulk', 160 << 20)
            for app in apps:
                app.check(m)
        mount.kill9()
        mount.start()
        for app in apps:
            app.check(m)


def main():
    tests = [f for name, f in sorted(globals().items()) if name.startswith('t_')]
    wanted = [f for f in tests if not sys.argv[1:] or f.__name__ in sys.argv[1:]]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for test in wanted:
        store = test in (t_restart, t_appended_bytes, t_lazy_unmount)
        with Mount(opts='dram=64M' + (',nvme=256M' if store else ''), source='store' if store else 'none',
                   needs_store=store) as mount:
            make_ns(mount.path, 'ns')
            test(mount.path, mount) if store else test(mount.path)
        print('ok', test.__name__, flush=True)


main()
