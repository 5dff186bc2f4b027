# SPDX-License-Identifier: Apache-2.0
"""A session ends, its client lives: what that has mapped and reserved is nobody else's before its lease ends.
And what bounds what a client may have.

    session_ends.py [t_NAME ...]
"""
import errno
import mmap
import os
import random
import resource
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
from kvmount import Mount, scale, skip, wait_for    # noqa: E402
from kvrpc import *                                 # noqa: E402,F403

GEOMETRY = 'layers=2 kv_heads=2 head_dim=64 dtype=f16 block_tokens=16 layout=hnd\n'
STRIDE, BT = 16384, 16
DRAM = 64 << 20


def make_ns(m, name='ns', geometry=GEOMETRY):
    os.mkdir(m + '/' + name)
    with open(m + '/' + name + '/.geometry', 'w') as f:
        f.write(geometry)


def write_seq(m, path, blocks, seed):
    data = random.Random(seed).randbytes(blocks * STRIDE)
    os.mkdir(m + '/' + path)
    with open(m + '/' + path + '/kv', 'wb') as f:
        f.write(data)
    return data


def read(path):
    with open(path, 'rb') as f:
        return f.read()


def pinned(m):
    with open(m + '/.kvc/tiers') as f:
        return [int(line.split()[5]) for line in f if line.startswith('dram ')][0]


def counter(m, name):
    with open(m + '/.kvc/stat') as f:
        return dict(line.split() for line in f).get(name, '0')


class Client:
    """Maps a sequence and has a room, both of which it looks at whatever becomes of its session."""

    def __init__(self, m):
        self.m = m
        self.s = s = Session(socket_of(m), flags=HELLO_LEASE)
        assert s.flags == HELLO_LEASE, s.flags
        self.lease, = s.hello_fds
        self.data = write_seq(m, 'ns/a', 64, 1)
        self.pools = {}
        result, nr, self.view = s.map(s.open('ns/a'))
        assert (result, nr) == (0, 64), (result, nr)
        self.handle = s.open('ns/w', CREATE | WRITE)
        result, _, nr, self.room = s.append(self.handle, 16 * BT)
        assert (result, nr) == (0, 16), (result, nr)
        self.fill(0x11)
        assert s.commit(self.handle, BT + 8, range(BT + 8)) == 0
        self.pinned = 80 * STRIDE
        assert pinned(m) == self.pinned, pinned(m)

    def memory(self, number):
        if number not in self.pools:
            _, files = self.s.pool(number)
            self.pools[number] = mmap.mmap(files[0][0], files[0][2])
            for fd, _, _ in files:
                os.close(fd)
        return self.pools[number]

    def fill(self, byte, first=0):
        """The room from its block @first on."""
        at = 0
        for number, nr, off in self.room:
            for i in range(nr):
                if at >= first:
                    self.memory(number)[off + i * STRIDE:off + (i + 1) * STRIDE] = bytes([byte]) * STRIDE
                at += 1

    def seen(self):
        return b''.join(self.memory(number)[off:off + nr * STRIDE] for number, nr, off in self.view)

    def is_over(self, how):
        self.seen()
        how(self.s)
        try:
            assert self.s.socket.recv(65536) == b''
        except ConnectionError:
            pass

    def let_go(self):
        os.close(self.lease)
        for memory in self.pools.values():
            memory.close()


def push(m, store):
    """More than DRAM holds; without a store only what is free. Returns what must be there then."""
    blocks, want = 64, {}
    for i in range(4 * DRAM // (blocks * STRIDE) if store else DRAM * 3 // 4 // (blocks * STRIDE)):
        path = 'ns/b%d' % i
        want[path] = write_seq(m, path, blocks, 100 + i)
    return want


def ended(m, how, store=False):
    c = Client(m)
    c.is_over(how)
    wait_for(lambda: sessions(m) == [[os.getpid(), os.getuid(), 80, c.pinned] + sessions(m)[0][4:]], 10, 'it holds on')
    assert pinned(m) == c.pinned, pinned(m)
    # The sequence is free: others append to it, and share nothing with who was here before.
    other = Session(socket_of(m))
    h = other.open('ns/w', WRITE)
    tokens = b'\x11' * 2 * STRIDE
    wait_for(lambda: other.append(h, 8)[0] == 0, 10, 'somebody else may append')
    assert other.commit(h, 2 * BT, range(8)) == 0
    other.socket.close()
    half = read(m + '/ns/w/kv')
    assert len(half) == 2 * STRIDE and half[:STRIDE] == tokens[:STRIDE]
    os.unlink(m + '/ns/a/kv')
    want = push(m, store)
    c.fill(0x55, 1)                 # the first one is sealed
    want['ns/w'] = half
    for _ in range(2):
        assert c.seen() == c.data, 'what a client has mapped has become something else'
        for path, data in want.items():
            assert read(m + '/' + path + '/kv') == data, 'a client that is late has written to ' + path
        with open('/proc/sys/vm/drop_caches', 'w') if not os.getuid() else open(os.devnull, 'w') as f:
            f.write('3')
    assert pinned(m) == c.pinned, pinned(m)
    c.let_go()
    wait_for(lambda: not sessions(m) and pinned(m) == 0, 10, 'the lease has ended')


def t_client_hangs_up(m):
    ended(m, lambda s: s.socket.shutdown(socket.SHUT_RDWR))


def t_protocol_broken(m):
    ended(m, lambda s: s.socket.send(b'x'))


def t_replies_not_taken(m):
    def stuck(s):
        cmds = [command(QUERY, 1)] * 600
        try:
            while True:
                s.sequence += 1
                s.socket.send(batch(cmds, s.sequence))
        except ConnectionError:
            assert counter(m, 'error_rpc_reply_stuck') != '0'
        try:
            while s.socket.recv(65536):
                pass
        except ConnectionError:
            pass
    ended(m, stuck)


def t_store_client_hangs_up(m):
    ended(m, lambda s: s.socket.shutdown(socket.SHUT_RDWR), True)


def t_killed(m):
    """Who is not there any more holds nothing, be it for a moment; a child that has its memory does."""
    for child in (False, True):
        ready, go = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go[1])
            Client(m)
            if child and os.fork() == 0:
                os.read(go[0], 1)
                os._exit(0)
            os.write(ready[1], b'x')
            signal.pause()
        os.read(ready[0], 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if child:
            wait_for(lambda: len(sessions(m)) == 1, 10, 'the session has ended')
            assert pinned(m) == 80 * STRIDE, pinned(m)
        os.close(go[1])
        wait_for(lambda: not sessions(m) and pinned(m) == 0, 10, 'nothing is held')
        for name in ('a/kv', 'a/tokens', 'w/kv', 'w/tokens'):
            if os.path.exists(m + '/ns/' + name):
                os.unlink(m + '/ns/' + name)
        os.rmdir(m + '/ns/a')
        os.rmdir(m + '/ns/w')
        for fd in ready + (go[0],):
            os.close(fd)


def t_nothing_to_hold(m):
    """A lease alone keeps no session."""
    s = Session(socket_of(m), flags=HELLO_LEASE)
    s.open('ns/n', CREATE | WRITE)
    s.socket.close()
    wait_for(lambda: not sessions(m), 10, 'the session is gone')
    os.close(s.hello_fds[0])


def t_only_writers_write(m):
    """Descriptors for writing come with a handle for writing, not with the right to open one."""
    write_seq(m, 'ns/a', 4, 1)
    s = Session(socket_of(m))
    h = s.open('ns/a')
    assert s.map(h)[0] == 0
    for writable, flags in ((0, WRITE), (1, 0)):
        _, files = s.pool(0)
        assert files
        for fd, says, size in files:
            assert says == writable, (says, writable)
            try:
                mmap.mmap(fd, size).close()
                assert writable, 'who only reads can write'
            except PermissionError:
                assert not writable
            os.close(fd)
        if flags:
            assert s.close(s.open('ns/a', flags)) == 0
    s.socket.close()


def t_maps_are_bounded(m):
    """Of blocks that are pinned already as well: the daemon remembers each."""
    make_ns(m, 'tiny', 'layers=1 token_bytes=16 block_tokens=256 layout=opaque\n')
    os.mkdir(m + '/tiny/s')
    with open(m + '/tiny/s/kv', 'wb') as f:
        f.write(os.urandom(4096 * 4000))
    s = Session(socket_of(m))
    h = s.open('tiny/s')
    one = command(MAP, h, struct.pack('<QQ', 0, ALL) + s.room() + struct.pack('<II', 0, 0))
    got = []
    while len(got) < 3000 and -errno.EAGAIN not in got:
        got += [result for result, _, _ in s.call([one] * 100)]
    assert set(got) == {0, -errno.EAGAIN} and got.count(0) < 1100, (set(got), got.count(0))
    assert counter(m, 'error_rpc_map_many') != '0'
    assert s.unmap(h) == 0
    assert s.map(h)[0] == 0
    s.socket.close()
    wait_for(lambda: not sessions(m) and pinned(m) == 0, 10, 'nothing is held')


def t_sessions_in_all(m):
    """One too many is told so."""
    most = 4096
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < most + 500:
        skip('needs %d descriptors' % (most + 500))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    path, silent = socket_of(m), []
    for _ in range(most):
        silent.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        silent[-1].connect(path)
    try:
        Session(path)
        raise AssertionError('there are more sessions than there may be')
    except AssertionError as e:
        assert e.args[0] == -errno.EUSERS, e.args
    for s in silent:
        s.close()
    wait_for(lambda: not sessions(m), 20, 'they are gone')
    Session(path).socket.close()


def main():
    tests = [f for name, f in sorted(globals().items()) if name.startswith('t_')]
    for test in [f for f in tests if not sys.argv[1:] or f.__name__ in sys.argv[1:]]:
        store = test.__name__.startswith('t_store')
        with Mount(opts='dram=64M' + (',nvme=1G' if store else ''), source='store' if store else 'none',
                   needs_store=store) as mount:
            make_ns(mount.path)
            test(mount.path)
        print('ok', test.__name__, flush=True)


main()
