# SPDX-License-Identifier: Apache-2.0
"""DRAM outlives the daemon: what is there after kill -9 or a clean end, how long, and for whom.

    restart.py [CASE...]
"""
import os
import random
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
os.environ['GEO'] = 'layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd'
import kvrpc                                        # noqa: E402
import kvseq                                        # noqa: E402
from kvmount import Mount, find_binary, keepers, scale, skip, wait_for  # noqa: E402

OPTS = 'dram=64M,nvme=1G'
FILE = 24 << 20
SPEC = 'A:1000'
BLOCK, BLOCK_TOKENS = 65536, 32     # of GEO
SEQS = 8                            # of 16 blocks, which clients keep
CLIENT = find_binary('session_client')


def tier(m, name, column):
    lines = [line.split() for line in open(m.path + '/.kvc/tiers')]
    return int(next(line for line in lines if line[0] == name)[lines[0].index(column)])


def counter(m, name):
    return next(int(line.split()[1]) for line in open(m.path + '/.kvc/stat') if line.split()[0] == name)


def sync_tree(path):
    for d, _, files in os.walk(path):
        for name in files + ['.']:
            fd = os.open(os.path.join(d, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def fill(m):
    """A plain file and a sequence, durable and in DRAM. Returns the file's bytes."""
    data = os.urandom(FILE)
    kvseq.spit(m.path + '/plain', data)
    os.mkdir(m.path + '/ns')
    kvseq.spit(m.path + '/ns/.geometry', (os.environ['GEO'] + '\n').encode())
    kvseq.make(m.path + '/ns/s', SPEC)
    sync_tree(m.path + '/ns')
    fd = os.open(m.path + '/plain', os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return data


def verify(m, data):
    assert kvseq.slurp(m.path + '/plain') == data, 'the plain file has other bytes'
    assert not kvseq.compare(m.path + '/ns/s', SPEC), kvseq.compare(m.path + '/ns/s', SPEC)


def warm(m, data, blocks):
    """Everything is in DRAM again, and reading it asks nobody."""
    assert tier(m, 'dram', 'blocks') == blocks, (tier(m, 'dram', 'blocks'), blocks)
    assert counter(m, 'restored_dram') == blocks, counter(m, 'restored_dram')
    verify(m, data)
    assert tier(m, 'nvme', 'reads') == 0, 'bytes came from NVMe'


def cold(m, data):
    assert tier(m, 'dram', 'blocks') == 0 and counter(m, 'restored_dram') == 0
    verify(m, data)
    assert tier(m, 'nvme', 'reads') > 0


def no_keeper(m):
    wait_for(lambda: not keepers(m.source), 10, 'the keeper ends')


def restart(m, opts=None):
    m.kill9()
    if opts:
        m.set_opts(opts)
    m.start()


def t_killed(m):
    data = fill(m)
    blocks = tier(m, 'dram', 'blocks')
    assert blocks * 65536 > FILE
    for _ in range(3):              # also what was restored once
        restart(m)
        warm(m, data, blocks)
    assert len(keepers(m.source)) == 1


def t_killed_while_taking_over(m):
    """A daemon that dies before it serves leaves everything to the next."""
    data = fill(m)
    blocks = tier(m, 'dram', 'blocks')
    r = random.Random(int(os.environ.get('KVC_TEST_SEED', '0')))
    m.kill9()
    for _ in range(scale(25)):
        p = subprocess.Popen([m.binary, '-f', '-o', m.opts, m.source, m.path], stdin=subprocess.DEVNULL,
                             stdout=m.log, stderr=m.log)
        try:
            p.wait(r.random() * .1)
        except subprocess.TimeoutExpired:
            p.kill()
        assert p.wait() == -signal.SIGKILL, 'the daemon ended by itself'
        subprocess.run(['umount', '-l', m.path], stderr=subprocess.DEVNULL)
    m.start()
    warm(m, data, blocks)


def t_mount_that_fails(m):
    """What is there is not lost to a mount that cannot be made."""
    data = fill(m)
    blocks = tier(m, 'dram', 'blocks')
    m.kill9()
    for opts in ('socket=/nowhere/s', 'fsname=x,rootcontext=none'):     # after and before there is a mount
        got = subprocess.run([m.binary, '-f', '-o', m.opts + ',' + opts, m.source, m.path],
                             stderr=subprocess.PIPE, text=True)
        assert got.returncode == 1 and ('mount' in got.stderr or 'socket' in got.stderr), got
    m.start()
    warm(m, data, blocks)


def t_clean_end(m):
    data = fill(m)
    m.umount()
    no_keeper(m)
    assert not os.path.exists(m.source + '/keeper.socket')
    m.start()
    cold(m, data)


def t_clean_end_with_linger(m):
    m.umount()
    m.set_opts(OPTS + ',linger=600')
    m.start()
    data = fill(m)
    blocks = tier(m, 'dram', 'blocks')
    m.umount()
    assert len(keepers(m.source)) == 1
    m.start()
    warm(m, data, blocks)
    m.umount()
    m.set_opts(OPTS + ',linger=0')  # takes what there is, leaves nothing
    m.start()
    warm(m, data, blocks)
    m.umount()
    no_keeper(m)


def t_no_linger(m):
    data = fill(m)
    m.umount()
    m.set_opts(OPTS + ',linger=0')
    m.start()
    assert not keepers(m.source)
    verify(m, data)
    restart(m)
    cold(m, data)


def t_linger_over(m):
    m.umount()
    m.set_opts(OPTS + ',linger=1')
    m.start()
    data = fill(m)
    m.kill9()
    no_keeper(m)
    m.start()
    cold(m, data)


def t_other_options(m):
    data = fill(m)
    for opts in ('dram=96M', 'dram=64M', 'dram=64M,hugepages=off'):
        restart(m, opts)
        cold(m, data)
        assert 'let go' in m.log_tail(3), m.log_tail(3)
    restart(m)
    warm(m, data, tier(m, 'dram', 'blocks'))


def t_keeper_killed(m):
    data = fill(m)
    os.kill(keepers(m.source)[0], signal.SIGKILL)
    wait_for(lambda: 'the keeper is gone' in m.log_tail(), 10, 'the daemon says that its keeper is gone')
    kvseq.spit(m.path + '/more', data[:1 << 20])
    verify(m, data)
    restart(m)
    cold(m, data)
    blocks = tier(m, 'dram', 'blocks')
    restart(m)                      # has one again
    warm(m, data, blocks)


def t_keeper_does_not_answer(m):
    data = fill(m)
    old = keepers(m.source)[0]
    m.kill9()
    os.kill(old, signal.SIGSTOP)
    try:
        m.start()
        cold(m, data)
        assert len(keepers(m.source)) == 2
        assert 'keeper.socket) did not answer within 5 s' in m.log_tail(), m.log_tail()
    finally:
        os.kill(old, signal.SIGCONT)
    wait_for(lambda: old not in keepers(m.source), 10, 'the old keeper ends')


def t_no_socket_there(m):
    """Something else that has its name is left alone, and named."""
    data = fill(m)
    m.umount()
    path = m.source + '/keeper.socket'
    for make, remove in ((os.mkdir, os.rmdir), (lambda p: kvseq.spit(p, b'mine'), os.unlink)):
        make(path)
        m.start()
        verify(m, data)
        assert not keepers(m.source)
        assert path + ' is no socket; remove it and mount again' in m.log_tail(), m.log_tail()
        m.umount()
        remove(path)
    m.start()
    assert keepers(m.source)


def t_store_removed(m):
    fill(m)
    m.kill9()
    assert keepers(m.source)
    shutil.rmtree(m.source)
    no_keeper(m)
    m.start()
    assert tier(m, 'dram', 'blocks') == 0


def t_keeper_holds_nothing_else(m):
    """Neither the store's lock nor the mount nor the terminal, and signals that end daemons leave it."""
    pid = keepers(m.source)[0]
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, sig)
    fds = [os.readlink('/proc/%d/fd/%s' % (pid, fd)) for fd in os.listdir('/proc/%d/fd' % pid)]
    for target in fds:
        assert target in ('/dev/null', 'anon_inode:inotify') or target.startswith('socket:') or \
            '/#' in target or target.startswith('/memfd:') or target == m.source + '/keeper.socket', fds
    assert os.readlink('/proc/%d/cwd' % pid) == '/'
    with open('/proc/%d/oom_score_adj' % pid) as f:
        assert f.read() == '1000\n'


# ---- clients ----------------------------------------------------------------

def client(*args):
    return subprocess.run([CLIENT, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True).stdout


class Keeper:
    """A client that keeps views and a room, and verifies all their bytes all the time."""

    def __init__(self, m):
        self.proc = subprocess.Popen([CLIENT, 'outlive', m.path, 'ns', str(SEQS)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.proc.stdout.readline() == self.state(0)

    def state(self, nr):
        return 'stale views %d calls %d of %d\n' % (nr, nr, SEQS)

    def ask(self, word):
        assert self.proc.poll() is None, 'the client ended with %d' % self.proc.returncode
        self.proc.stdin.write(word)
        self.proc.stdin.flush()
        return self.proc.stdout.readline() if word != 'e' else self.proc.communicate()[0]

    def is_stale(self):
        got = self.ask('s')
        assert got == self.state(SEQS), got

    def reconnect(self):
        got = self.ask('r')
        assert got == 'reconnect 0\n', got
        got = self.ask('s')
        assert got == self.state(0), got

    def end(self):
        got = self.ask('e')
        assert got == 'right\n' and self.proc.returncode == 0, (got, self.proc.returncode)

    def kill(self):
        self.proc.kill()
        self.proc.wait()


def namespace(m):
    if not CLIENT:
        skip('session_client is not built')
    os.mkdir(m.path + '/ns')
    kvseq.spit(m.path + '/ns/.geometry', (os.environ['GEO'] + '\n').encode())
    for i in range(SEQS):
        client('fill', m.path, 'ns/s%d' % i, i + 1, 16 * BLOCK_TOKENS, 16 * BLOCK_TOKENS, 1)


def push(m, times, clients=()):
    """That many times DRAM through it, by clients and by write(2)."""
    size = 64 * BLOCK
    for i in range(scale(times) * (64 << 20) // size):
        for c in clients:
            assert c.proc.poll() is None, 'a client ended'
        if i % 2:
            client('fill', m.path, 'ns/w', 1000 + i, size // BLOCK * BLOCK_TOKENS, 16 * BLOCK_TOKENS)
            for name in ('kv', 'tokens', ''):
                path = m.path + '/ns/w/' + name
                os.unlink(path) if name else os.rmdir(path)
        else:
            kvseq.spit(m.path + '/w', os.urandom(size))


def check_all(m):
    for i in range(SEQS):
        client('check', m.path, 'ns/s%d' % i, i + 1)


def nothing_held(m):
    wait_for(lambda: tier(m, 'dram', 'pinned') == 0, 20, 'nothing is held')


def t_client(m):
    """Its bytes stay valid, calls fail clearly, and it comes back to the same blocks."""
    namespace(m)
    c = Keeper(m)
    try:
        m.kill9()
        c.is_stale()
        m.start()
        assert tier(m, 'dram', 'pinned') >= (SEQS * 16 + 8) * BLOCK, tier(m, 'dram', 'pinned')
        push(m, 4, [c])
        assert tier(m, 'nvme', 'writes') > 1000 or scale(10) < 10
        c.is_stale()
        c.reconnect()
        push(m, 2, [c])
        c.reconnect()
        assert c.ask('a') == 'appended\n'      # the old room goes; the views have pins of their own
        wait_for(lambda: tier(m, 'dram', 'pinned') <= (SEQS * 16 + 1) * BLOCK, 20, 'the room comes back')
        push(m, 1, [c])
        c.end()
    finally:
        c.kill()
    nothing_held(m)
    check_all(m)


def t_client_over_clean_end(m):
    """The same where DRAM is kept over a clean end."""
    m.umount()
    m.set_opts(OPTS + ',linger=600')
    m.start()
    namespace(m)
    c = Keeper(m)
    try:
        m.umount()
        c.is_stale()
        m.start()
        assert tier(m, 'dram', 'pinned') >= (SEQS * 16 + 8) * BLOCK, tier(m, 'dram', 'pinned')
        push(m, 2, [c])
        c.reconnect()
        c.end()
    finally:
        c.kill()
    nothing_held(m)
    check_all(m)
    m.umount()
    m.set_opts(OPTS + ',linger=0')
    m.start()
    assert tier(m, 'dram', 'pinned') == 0


def t_client_over_many_daemons(m):
    namespace(m)
    c = Keeper(m)
    try:
        for again in (False, True, True, False, False, True):
            restart(m)
            c.is_stale()
            push(m, 1, [c])
            if again:
                c.reconnect()
        push(m, 1, [c])
        c.end()
    finally:
        c.kill()
    nothing_held(m)
    check_all(m)


def t_client_that_does_not_come_back(m):
    namespace(m)
    c, other = Keeper(m), Keeper(m)
    try:
        restart(m)
        held = tier(m, 'dram', 'pinned')
        push(m, 2, [c, other])
        c.kill()
        push(m, 1, [other])
        assert tier(m, 'dram', 'pinned') == held
        other.reconnect()
        other.end()
    finally:
        c.kill()
        other.kill()
    nothing_held(m)
    check_all(m)


def t_client_gone_while_there_is_no_daemon(m):
    namespace(m)
    c = Keeper(m)
    m.kill9(c.kill)
    m.start()
    assert tier(m, 'dram', 'pinned') == 0
    check_all(m)
    assert tier(m, 'nvme', 'reads') == 0


def t_client_of_other_memory(m):
    """Where nothing was taken over its views stay as they were, and stale."""
    namespace(m)
    c = Keeper(m)
    try:
        restart(m, 'dram=80M,nvme=1G')
        c.is_stale()
        assert c.ask('r') == 'reconnect 0\n'
        assert c.ask('s') == 'stale views %d calls 0 of %d\n' % (SEQS, SEQS)
        push(m, 1, [c])
        c.end()
    finally:
        c.kill()
    check_all(m)


def t_lease(m):
    """Memory is kept while somebody has the lease, be it a child."""
    namespace(m)
    s = kvrpc.Session(kvrpc.socket_of(m.path), flags=kvrpc.HELLO_LEASE)
    assert s.flags == kvrpc.HELLO_LEASE
    lease, = s.hello_fds
    child = os.dup(lease)
    assert s.append(s.open('ns/new', kvrpc.CREATE | kvrpc.WRITE), 3 * BLOCK_TOKENS)[0] == 0
    m.kill9()
    s.socket.close()
    os.close(lease)
    for _ in range(2):
        m.start()
        assert tier(m, 'dram', 'pinned') == 3 * BLOCK, tier(m, 'dram', 'pinned')
        m.kill9()
    m.start()
    os.close(child)
    nothing_held(m)


def leases_full(m):
    had = []
    while not had or had[-1].flags:
        s = kvrpc.Session(kvrpc.socket_of(m.path), flags=kvrpc.HELLO_LEASE)
        assert len(s.hello_fds) == (1 if s.flags else 0)
        s.socket.close()            # the daemon needs no descriptor for it but the lease's
        os.close(s.arena_fd)
        had.append(s)
    return had


def t_leases_full(m):
    """Who gets none for want of room at the keeper is told so; those that there are go on to protect."""
    m.umount()
    with open(m.dir + '/few', 'w') as f:
        f.write('#!/bin/sh\nulimit -n 1100 && exec "%s" "$@"\n' % m.binary)
    os.chmod(m.dir + '/few', 0o755)
    m.binary = m.dir + '/few'
    m.start()
    namespace(m)
    had = leases_full(m)
    assert len(had) == 549, len(had)    # half of them, but for the keeper's two
    assert 'the keeper has 548 leases and can have no more' in m.log_tail(), m.log_tail()
    assert kvrpc.Session(kvrpc.socket_of(m.path), flags=kvrpc.HELLO_LEASE).flags == 0
    assert m.log_tail().count('can have no more') == 1
    os.close(had[0].hello_fds[0])
    wait_for(lambda: kvrpc.Session(kvrpc.socket_of(m.path), flags=kvrpc.HELLO_LEASE).flags, 10, 'there is room again')
    restart(m)                          # those of an earlier daemon count
    assert len(leases_full(m)) < 5
    for s in had[1:-1]:
        os.close(s.hello_fds[0])
    check_all(m)


def t_clients_killed_with_the_daemon(m):
    """Killed at any point, with clients that do what they can and one that keeps: no wrong byte."""
    namespace(m)
    c = Keeper(m)
    storm, total = [], 0
    try:
        for i in range(scale(int(os.environ.get('KVC_TEST_CYCLES', '5')))):
            storm = [subprocess.Popen([CLIENT, 'storm', m.path, 'ns', str(100 * i + k), str(k), m.path],
                                      stderr=subprocess.DEVNULL) for k in range(3)]
            push(m, 1, [c])
            m.kill9()
            for p in storm:
                assert p.wait() != 3, 'a client saw wrong bytes'
            m.start()
            total += counter(m, 'restored_dram')
            c.reconnect()
            check_all(m)
        c.end()
    finally:
        c.kill()
        for p in storm:
            p.kill()
            p.wait()
    assert total
    nothing_held(m)


def main():
    cases = {n[2:]: f for n, f in globals().items() if n.startswith('t_')}
    for name in sys.argv[1:] or cases:
        with Mount(opts=OPTS, source='store', needs_store=True) as m:
            cases[name](m)
            if m.alive():
                m.umount()
        no_keeper(m)
        print('ok   %s' % name, flush=True)


if __name__ == '__main__':
    main()
