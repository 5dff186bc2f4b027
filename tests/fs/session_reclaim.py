# SPDX-License-Identifier: Apache-2.0
"""Mapping against reclaim: clients map, verify every byte of and unmap sequences that together do not fit
into DRAM, while writers push four times its size through. No wrong byte, no view that tears, nobody
who waits longer than reclaim takes, and nothing pinned at the end."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
from kvmount import Mount, find_binary, scale, skip, wait_for  # noqa: E402

DRAM = 64 << 20
BLOCK = 65536           # of 32 tokens
SEQS = 32               # of 64 blocks: twice DRAM
TOKENS = 64 * 32
CLIENT = find_binary('session_client')


def client(*args, **kw):
    return subprocess.run([CLIENT, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True, **kw).stdout


def pinned(m):
    lines = [line.split() for line in open(m + '/.kvc/tiers')]
    row = next(line for line in lines if line[0] == 'dram')
    return int(row[lines[0].index('pinned')])


def counter(m, name):
    return next(int(line.split()[1]) for line in open(m + '/.kvc/stat') if line.split()[0] == name)


def start_readers(m, nr):
    readers = [subprocess.Popen([CLIENT, 'readers', m, 'ns', str(SEQS)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(nr)]
    for r in readers:
        assert r.stdout.readline() == 'ready\n'
    return readers


def push(m, readers):
    """Four times DRAM, half of it fitting into one sequence each, by libkvc and by write(2)."""
    size = 128 * BLOCK
    for i in range(scale(4) * DRAM // size):
        for r in readers:
            assert r.poll() is None, 'a reader ended: ' + r.stdout.read()
        if i % 2:
            client('fill', m, 'ns/w%d' % i, 1000 + i, 128 * 32, 1024)
        else:
            os.mkdir('%s/ns/w%d' % (m, i))
            with open('%s/ns/w%d/kv' % (m, i), 'wb') as f:
                f.write(os.urandom(size))
        if i >= 8:                              # names hold NVMe: let the oldest go
            for name in ('kv', 'tokens'):
                path = '%s/ns/w%d/%s' % (m, i - 8, name)
                if os.path.exists(path):
                    os.unlink(path)


def run(m):
    os.mkdir(m + '/ns')
    with open(m + '/ns/.geometry', 'w') as f:
        f.write('layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd\n')
    for i in range(SEQS):
        client('fill', m, 'ns/s%d' % i, i + 1, TOKENS)
    readers = start_readers(m, 2)
    try:
        push(m, readers)
        said = []
        for r in readers:
            said.append(r.communicate()[0].split())
            assert r.returncode == 0, 'a reader failed (%d): %s' % (r.returncode, said[-1])
    finally:
        for r in readers:
            r.kill()
            r.wait()
    for rounds, longest in ((int(s[1]), int(s[3])) for s in said):
        print('maps %d, the longest %d ms' % (rounds, longest))
        assert rounds > 10 and longest < 10000
    for i in range(SEQS):
        client('check', m, 'ns/s%d' % i, i + 1)
    assert counter(m, 'evicted_dram') + counter(m, 'demoted') > 500, 'nothing had to make room'
    wait_for(lambda: pinned(m) == 0, 10, 'pins go')


if not CLIENT:
    skip('session_client is not built')
with Mount(opts='dram=64M,nvme=1G', source='store', needs_store=True) as mount:
    run(mount.path)
