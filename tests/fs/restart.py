# SPDX-License-Identifier: Apache-2.0
"""DRAM outlives the daemon: what is there after kill -9 or a clean end, how long, and for whom.

    restart.py [CASE...]
"""
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
os.environ['GEO'] = 'layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd'
import kvseq                                        # noqa: E402
from kvmount import Mount, keepers, wait_for        # noqa: E402

OPTS = 'dram=64M,nvme=1G'
FILE = 24 << 20
SPEC = 'A:1000'


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
    finally:
        os.kill(old, signal.SIGCONT)
    wait_for(lambda: old not in keepers(m.source), 10, 'the old keeper ends')


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
