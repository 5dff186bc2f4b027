# SPDX-License-Identifier: Apache-2.0
"""Cycles of kill -9 under a mixed load: what was acknowledged is there.

    kill9_cycles.py [CYCLES [SEED]]     (or KVC_TEST_CYCLES; default 5)

Workers write to the mount and log, outside it, each operation before it begins
and again once fsync has acknowledged it. The daemon is killed after a random
number of acknowledgements. After each mount every acknowledged state must be
found, or that of the one operation that was under way; a sequence never shows
bytes that are not those of its ids. All goes on from what was found, and from
what the daemon left in DRAM.
"""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
os.environ['GEO'] = 'layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=16 layout=hnd'
import kvseq                                        # noqa: E402
from kvmount import Mount, wait_for                 # noqa: E402

RECORD = 8192
SLOTS = 24


def sync_path(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def payload(key, version, size):
    return random.Random('%s/%d' % (key, version)).randbytes(size)


class Log:
    """What a worker did; outlives the daemon, not the machine."""

    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def begin(self, key, state):
        os.write(self.fd, (json.dumps(['B', key, state]) + '\n').encode())

    def ack(self, key, state):
        os.write(self.fd, (json.dumps(['A', key, state]) + '\n').encode())


def read_log(path, acked):
    """Fold a log into acked; returns what was begun and not acknowledged."""
    begun = {}
    if os.path.exists(path):
        for line in open(path):
            kind, key, state = json.loads(line)
            if kind == 'B':
                begun[key] = state
            else:
                acked[key] = state
                begun.pop(key, None)
    return begun


# ---- workers: each gets (directory, log, random, what is acknowledged) ------

def records(d, log, r, have):
    """Overwrites records in place in one file and fsyncs each."""
    fd = os.open(d + '/records', os.O_RDWR | os.O_CREAT)
    os.fsync(fd)
    sync_path(d)
    while True:
        slots = r.sample(range(SLOTS), r.choice((1, 1, 3)))
        for k in slots:
            v = have.get('rec%d' % k, 0) + 1
            log.begin('rec%d' % k, v)
            have['rec%d' % k] = v
            os.pwrite(fd, payload('rec%d' % k, v, RECORD), k * RECORD)
        os.fsync(fd)
        for k in slots:
            log.ack('rec%d' % k, have['rec%d' % k])


def renamed(d, log, r, have):
    """Replaces files by write, fsync, rename, fsync of the directory; removes some."""
    while True:
        key = 'ren%d' % r.randrange(12)
        v = abs(have.get(key, 0)) + 1
        path = d + '/' + key
        if have.get(key, 0) > 0 and r.random() < .2:
            log.begin(key, -v)
            os.unlink(path)
            sync_path(d)
            have[key] = -v
            log.ack(key, -v)
            continue
        log.begin(key, v)
        with open(path + '.tmp', 'wb') as f:
            f.write(payload(key, v, 1 + v * 7919 % 300_000))
            f.flush()
            os.fsync(f.fileno())
        os.rename(path + '.tmp', path)
        sync_path(d)
        have[key] = v
        log.ack(key, v)


def rewritten(d, log, r, have):
    """Rewrites files after O_TRUNC: old or new as of the last close or fsync."""
    while True:
        key = 'rew%d' % r.randrange(6)
        v = have.get(key, 0) + 1
        log.begin(key, v)
        fd = os.open(d + '/' + key, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.write(fd, payload(key, v, 1 + v * 104_729 % 200_000))
        os.fsync(fd)
        os.close(fd)
        sync_path(d)
        have[key] = v
        log.ack(key, v)


def spec_of(key, state):
    """state: [generation, tokens, parent generation's prefix]"""
    return '%s.%d:%d' % (key, state[0], state[1])


def sequences(d, log, r, have):
    """Makes, extends, forks and removes sequences; fsync of both files and the directory."""
    while True:
        n = r.randrange(10)
        key = 'seq%d' % n
        path = d + '/' + key
        old = have.get(key)
        if old and old[1] and r.random() < .15:
            log.begin(key, [old[0] + 1, 0])
            shutil.rmtree(path)
            sync_path(d)
            have[key] = [old[0] + 1, 0]
        elif old and old[1] and r.random() < .6:
            new = [old[0], old[1] + r.randrange(1, 60)]
            log.begin(key, new)
            s = kvseq.Spec(spec_of(key, new))
            fd = os.open(path + '/kv', os.O_WRONLY)
            s.put(fd, old[1])
            kvseq.set_tokens(path + '/kv', new[1])
            os.fsync(fd)
            os.close(fd)
            fd = os.open(path + '/tokens', os.O_WRONLY)
            os.pwrite(fd, s.idbytes()[4 * old[1]:], 4 * old[1])
            os.fsync(fd)
            os.close(fd)
            have[key] = new
        else:
            if old and old[1]:
                continue
            new = [(old[0] if old else 0) + 1, r.randrange(1, 200)]
            log.begin(key, new)
            kvseq.make(path, spec_of(key, new), r.choice(('kt', 'tk')))
            for f in ('/kv', '/tokens', ''):
                sync_path(path + f)
            sync_path(d)
            have[key] = new
        log.ack(key, have[key])
        if r.random() < .2 and have[key][1]:
            fork = key + '.fork'
            state = have.get(fork) or [0, 0, key]
            if not state[1]:
                new = [have[key][0], have[key][1], key]
                log.begin(fork, new)
                subprocess.run(['cp', '-r', path, d + '/' + fork], check=True, stderr=subprocess.DEVNULL)
                for f in ('/kv', '/tokens', ''):
                    sync_path(d + '/' + fork + f)
                sync_path(d)
                have[fork] = new
                log.ack(fork, new)


def noise(d, log, r, have):
    """Never acknowledged: only has to leave the others and the mount alone."""
    while True:
        p = '%s/n%d' % (d, r.randrange(20))
        op = r.randrange(6)
        if op < 3:
            fd = os.open(p, os.O_CREAT | os.O_WRONLY)
            os.pwrite(fd, r.randbytes(r.randrange(1, 400_000)), r.randrange(1 << 20))
            os.close(fd)
        elif op == 3 and os.path.exists(p):
            os.truncate(p, r.randrange(1 << 20))
        elif op == 4 and os.path.exists(p):
            os.rename(p, '%s/n%d' % (d, r.randrange(20)))
        elif os.path.exists(p):
            os.unlink(p)


WORKERS = {'records': records, 'renamed': renamed, 'rewritten': rewritten, 'sequences': sequences, 'noise': noise}


def is_gone(mount):
    """The daemon of this mount has been killed, or is about to be gone within two seconds."""
    def dead():
        try:
            os.stat(mount + '/.kvc/version')
        except OSError as e:
            return e.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return False
    try:
        wait_for(dead, 2, 'the mount is gone')
    except TimeoutError:
        return False
    return True


def spawn(mount, logs, seed, acked):
    pids = []
    for name, fn in WORKERS.items():
        d = '%s/%s' % (mount, 'ns/' + name if name == 'sequences' else name)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                fn(d, Log('%s/%s' % (logs, name)), random.Random('%s/%s' % (seed, name)), dict(acked[name]))
            except (OSError, subprocess.CalledProcessError) as e:
                code = getattr(e, 'errno', None)
                expected = isinstance(e, subprocess.CalledProcessError) or kvseq.name_of(code or 0) in (
                    'ENOTCONN', 'ECONNABORTED')
                # A read that was under way when the daemon went ends with EIO.
                expected = expected or (code == errno.EIO and is_gone(mount))
                if not expected:
                    print('worker %s: %r' % (name, e), flush=True)
                os._exit(0 if expected else 1)
            os._exit(0)
        pids.append(pid)
    return pids


# ---- what must be found after a mount --------------------------------------

class Verifier:
    def __init__(self, mount, acked, begun):
        self.mount, self.acked, self.begun = mount, acked, begun
        self.bad = []

    def fail(self, text):
        self.bad.append(text)

    def records(self, d, acked, begun):
        """Each 4 KiB of a record is of the acknowledged version or the one under way."""
        try:
            data = kvseq.slurp(d + '/records')
        except FileNotFoundError:
            data = b''
            if acked:
                self.fail('records is gone')
        for key, v in sorted(set(acked.items()) | set(begun.items())):
            k = int(key[3:])
            got = data[k * RECORD:(k + 1) * RECORD]
            allowed = [payload(key, x, RECORD) for x in {acked.get(key), begun.get(key)} - {None}]
            if key not in acked:
                allowed += [b'', bytes(RECORD)]
            for o in range(0, RECORD, 4096):
                if got[o:o + 4096] not in [a[o:o + 4096] for a in allowed]:
                    self.fail('record %d: bytes of no version that may be there (acknowledged %s, under way %s)' %
                              (k, acked.get(key), begun.get(key)))
                    break
        self.settle(d + '/records', acked, begun)

    def settle(self, path, acked, begun):
        """A record that was under way may be old or new, each half for itself: write it anew, so that
        the next cycle starts from one version."""
        if not begun or not os.path.exists(path):
            return
        fd = os.open(path, os.O_WRONLY)
        for key, v in begun.items():
            os.pwrite(fd, payload(key, v, RECORD), int(key[3:]) * RECORD)
            acked[key] = v
        os.fsync(fd)
        os.close(fd)

    def whole(self, d, acked, begun, size):
        """Files that are one version, whole: v > 0; or absent: v <= 0."""
        for key in sorted(set(acked) | set(begun)):
            allowed = {acked.get(key, 0), begun.get(key, acked.get(key, 0))}
            path = d + '/' + key
            got = kvseq.slurp(path) if os.path.exists(path) else None
            found = [v for v in allowed
                     if (v > 0 and got == payload(key, v, size(v))) or (v <= 0 and got is None) or
                     (v == 0 and got == b'')]
            if not found:
                self.fail('%s: %s, versions that may be there: %s' %
                          (key, 'missing' if got is None else '%d bytes' % len(got), sorted(allowed)))
            acked[key] = (found or [max(allowed, key=abs)])[0]

    def sequences(self, d, acked, begun):
        for key in sorted(set(acked) | set(begun)):
            old, new = acked.get(key), begun.get(key)
            base = (old or new)[2] if len(old or new) > 2 else key
            states = [s for s in (old, new) if s]
            path = d + '/' + key
            if not os.path.exists(path):
                if key in acked and old[1] and not new:
                    self.fail('%s is gone' % key)
                if new and new[1] and old and old[1]:
                    self.fail('%s is gone while it was extended' % key)
                acked[key] = [max(s[0] for s in states), 0] + ([base] if base != key else [])
                continue
            done = [s for s in states if s[1] and not kvseq.compare(path, spec_of(base, s))]
            if done:
                acked[key] = done[-1]
                continue
            if not new:
                self.fail('%s: acknowledged %s: %s' % (key, old, kvseq.compare(path, spec_of(base, old))
                                                       if old[1] else 'it was removed'))
            self.partial(path, key, base, old, new)
            shutil.rmtree(path)
            sync_path(d)
            acked[key] = [max(s[0] for s in states), 0] + ([base] if base != key else [])

    def partial(self, path, key, base, old, new):
        """In the middle of an operation: what is committed is right nevertheless."""
        s = new if new and new[1] else old
        if not s or not s[1] or not os.path.exists(path + '/kv'):
            return
        spec = kvseq.Spec(spec_of(base, s))
        t = int(kvseq.xattr(path + '/kv')) if kvseq.xattr(path + '/kv').isdigit() else 0
        if old and new and old[1] and new[1] and t < old[1]:
            self.fail('%s: T = %d, acknowledged %d' % (key, t, old[1]))
        n = min(t, len(spec)) // spec.g.block_tokens * spec.g.block_bytes
        if kvseq.slurp(path + '/kv')[:n] != spec.kv()[:n]:
            self.fail('%s: committed bytes are not those of its ids (T = %d)' % (key, t))
        if os.path.exists(path + '/tokens'):
            ids = kvseq.slurp(path + '/tokens')
            if ids != spec.idbytes()[:len(ids)]:
                self.fail('%s: ids that nobody wrote' % key)

    def index(self, ns, acked):
        """Prefix hits attach the right bytes, for some of the sequences."""
        for key, s in sorted(acked.items())[:4]:
            if s[1]:
                n, right = kvseq.probe(ns, spec_of(s[2] if len(s) > 2 else key, s))
                if not right:
                    self.fail('POISON under the ids of %s (%d tokens)' % (key, n))

    def run(self):
        m, a, b = self.mount, self.acked, self.begun
        self.records(m + '/records', a['records'], b['records'])
        self.whole(m + '/renamed', a['renamed'], b['renamed'], lambda v: 1 + v * 7919 % 300_000)
        self.whole(m + '/rewritten', a['rewritten'], b['rewritten'], lambda v: 1 + v * 104_729 % 200_000)
        self.sequences(m + '/ns/sequences', a['sequences'], b['sequences'])
        self.index(m + '/ns', a['sequences'])
        for d, dirs, files in os.walk(m):
            for f in files:
                try:
                    kvseq.slurp(os.path.join(d, f))
                except FileNotFoundError:
                    pass
        return self.bad


def acks(logs):
    n = 0
    for name in WORKERS:
        if os.path.exists(logs + '/' + name):
            with open(logs + '/' + name, 'rb') as f:
                n += f.read().count(b'["A"')
    return n


def restored(mount):
    """Blocks that were in DRAM when the mount came up."""
    with open(mount + '/.kvc/stat') as f:
        return next(int(line.split()[1]) for line in f if line.startswith('restored_dram '))


def cycle(m, logs, seed, acked, r):
    for name in WORKERS:
        if os.path.exists(logs + '/' + name):
            os.unlink(logs + '/' + name)
    pids = spawn(m.path, logs, seed, acked)
    want = r.randrange(5, 150)
    codes = []
    try:
        wait_for(lambda: acks(logs) >= want or not m.alive(), 60, '%d acknowledgements' % want)
        bad = [] if m.alive() else ['the daemon died by itself']
    finally:
        m.kill9(lambda: codes.extend(os.waitpid(p, 0)[1] for p in pids))
    if any(codes):
        bad.append('a worker failed before the kill')
    n = acks(logs)
    m.start()
    warm = restored(m.path)
    begun = {name: read_log(logs + '/' + name, acked[name]) for name in WORKERS}
    return n, warm, bad + Verifier(m.path, acked, begun).run()


def main():
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ.get('KVC_TEST_CYCLES', '5'))
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print('seed %d, %d cycles' % (seed, cycles), flush=True)
    r = random.Random(seed)
    acked = {name: {} for name in WORKERS}
    with Mount(opts='dram=64M,nvme=1G', source='store', needs_store=True) as m:
        logs = m.dir + '/logs'
        os.mkdir(logs)
        os.mkdir(m.path + '/ns')
        kvseq.spit(m.path + '/ns/.geometry', (os.environ['GEO'] + '\n').encode())
        for name in WORKERS:
            d = m.path + '/' + ('ns/' + name if name == 'sequences' else name)
            os.mkdir(d)
            sync_path(d)
        sync_path(m.path + '/ns')
        sync_path(m.path)
        total = 0
        for c in range(cycles):
            n, warm, bad = cycle(m, logs, '%d/%d' % (seed, c), acked, r)
            total += warm
            print('cycle %d: %d acknowledged, %d blocks still in DRAM, %s' % (c, n, warm, 'ok' if not bad else '%d WRONG' % len(bad)), flush=True)
            for b in bad[:10]:
                print('    ' + b, flush=True)
            if bad:
                print(m.log_tail())
                sys.exit(1)
        if not total:
            print('DRAM never outlived the daemon')
            sys.exit(1)


if __name__ == '__main__':
    main()
