# SPDX-License-Identifier: Apache-2.0
"""Clients killed at random points, a thousand in all: their pins, reservations and whatever else the daemon
had for them are gone, and nobody else has noticed.

    session_kills.py [CLIENTS]      (under a sanitizer a tenth, unless said)
"""
import os
import random
import re
import select
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
from kvmount import Mount, find_binary, scale, skip, wait_for  # noqa: E402

SEQS = 8
WAVE = 20               # clients at a time
WARM = 60               # clients after which the daemon has grown what it keeps
MAX_THREADS = 64 + 32   # who serves sessions, and who serves files and everything else
SLACK_RSS = 8 << 20     # a thread's stack and arena are some 100 KiB
CLIENT = find_binary('session_client')


def sanitized():
    with open(find_binary('kvcachefs'), 'rb') as f:
        return bool(re.search(rb'__(asan|tsan|ubsan)_', f.read()))


def client(*args):
    return subprocess.run([CLIENT, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True).stdout


def stat(m, name):
    with open(m + '/.kvc/stat') as f:
        return next(int(line.split()[1]) for line in f if line.split()[0] == name)


def pinned(m):
    with open(m + '/.kvc/tiers') as f:
        lines = [line.split() for line in f]
    return int(next(line for line in lines if line[0] == 'dram')[lines[0].index('pinned')])


def sessions(m):
    with open(m + '/.kvc/sessions') as f:
        return [int(line.split()[0]) for line in f.read().splitlines()[1:]]


def daemon_has(pid):
    """Descriptors, arenas, threads, private memory."""
    with open('/proc/%d/maps' % pid) as f:
        arenas = f.read().count('kvc-arena')
    with open('/proc/%d/status' % pid) as f:
        fields = dict(line.split(':', 1) for line in f)
    return len(os.listdir('/proc/%d/fd' % pid)), arenas, int(fields['Threads']), int(fields['RssAnon'].split()[0]) << 10


class Storm:
    """Clients in waves; each is killed at its own moment."""

    def __init__(self, m, seed):
        self.m, self.rng, self.nr, self.early = m, random.Random(seed), 0, 0
        self.said = []

    def wave(self, nr):
        live = []
        start = time.monotonic()
        for slot in range(nr):
            p = subprocess.Popen([CLIENT, 'storm', self.m, 'ns', str(self.nr), str(slot), self.m],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            live.append((start + self.rng.random() ** 2 * 0.6, p))
            self.nr += 1
        for when, p in sorted(live, key=lambda x: x[0]):
            select.select([], [], [], max(0, when - time.monotonic()))
            p.kill()
            self.said.append(p.communicate()[1])
            assert p.returncode == -9, 'a client ended before it was killed (%d): %s' % (p.returncode, self.said[-1])
        assert not any(self.said), [s for s in self.said if s][:3]

    def run(self, nr, each):
        for at in range(0, nr, WAVE):
            self.wave(min(WAVE, nr - at))
            each()


class PosixReader(threading.Thread):
    """Somebody who knows nothing of sessions reads the same sequences all the while."""

    def __init__(self, m):
        super().__init__()
        self.m, self.stop, self.rounds, self.wrong = m, threading.Event(), 0, None
        self.want = [self.read(i) for i in range(SEQS)]

    def read(self, i):
        with open('%s/ns/s%d/kv' % (self.m, i), 'rb', buffering=0) as f:
            return f.readall()

    def run(self):
        while not self.stop.is_set():
            i = self.rounds % SEQS
            if self.read(i) != self.want[i]:
                self.wrong = i
                return
            self.rounds += 1


def forget(m):
    """What the clients have named, and the cache of it."""
    for name in os.listdir(m + '/ns'):
        if name.startswith(('mine', 'fork')):
            shutil.rmtree('%s/ns/%s' % (m, name))
    fd = os.open(m + '/.kvc/control', os.O_RDWR)
    os.write(fd, b'drop\n')
    said = os.read(fd, 4096)
    os.close(fd)
    assert said.startswith(b'ok'), said


def check_gone(m, holder, books):
    wait_for(lambda: sessions(m) == [holder], 20, 'the sessions of the dead are gone')
    wait_for(lambda: pinned(m) == books['pinned'], 20, 'their pins are gone')
    forget(m)
    for name in ('named_bytes_now', 'inodes_now'):
        wait_for(lambda: stat(m, name) == books[name], 20, '%s is as before' % name)


def run(mount, clients, lean):
    m = mount.path
    os.mkdir(m + '/ns')
    with open(m + '/ns/.geometry', 'w') as f:
        f.write('layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd\n')
    for i in range(SEQS):
        client('fill', m, 'ns/s%d' % i, i + 1, 200 + i * 50)
    reader = PosixReader(m)
    holder = subprocess.Popen([CLIENT, 'keep', m, 'ns', str(SEQS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    try:
        assert holder.stdout.readline() == 'ready\n'
        forget(m)
        books = {'pinned': pinned(m)}
        for name in ('named_bytes_now', 'inodes_now'):
            books[name] = stat(m, name)
        assert books['pinned'], 'the one who stays has pins'
        reader.start()
        storm = Storm(m, int(os.environ.get('KVC_TEST_SEED', '1')))
        others_live = lambda: (holder.poll() is None and not reader.wrong) or sys.exit('somebody else was disturbed')
        storm.run(WARM, others_live)
        check_gone(m, holder.pid, books)
        before = daemon_has(mount.pid)
        storm.run(clients - WARM, others_live)
        check_gone(m, holder.pid, books)
        after = daemon_has(mount.pid)
    finally:
        reader.stop.set()
        if reader.ident:
            reader.join()
        said = holder.communicate('\n')[0] if holder.poll() is None else holder.stdout.read()
    assert holder.returncode == 0, 'who stays failed (%d): %s' % (holder.returncode, said)
    assert reader.wrong is None and reader.rounds > SEQS, (reader.wrong, reader.rounds)
    print('%d clients, %d rounds of who stays, %d of POSIX reads; descriptors, arenas, threads, memory %s -> %s'
          % (storm.nr, int(said.split()[-1]), reader.rounds, before, after))
    assert int(said.split()[-1]) > 0
    assert after[0] <= before[0] + 4, 'descriptors leak: %d, then %d' % (before[0], after[0])
    assert after[1] == before[1] == 1, 'arenas leak: %d, then %d' % (before[1], after[1])
    assert after[2] <= MAX_THREADS, '%d threads' % after[2]
    assert not lean or after[3] <= before[3] + SLACK_RSS, 'memory leaks: %d, then %d' % (before[3], after[3])
    wait_for(lambda: pinned(m) == 0 and not sessions(m), 20, 'nothing is left')
    for i in range(SEQS):
        client('check', m, 'ns/s%d' % i, i + 1)


if not CLIENT:
    skip('session_client is not built')
SAN = sanitized()
CLIENTS = int(sys.argv[1]) if sys.argv[1:] else max(WARM + WAVE, scale(1000) // (10 if SAN else 1))
with Mount(opts='dram=256M,nvme=1G', source='store', needs_store=True) as it:
    run(it, CLIENTS, not SAN)
