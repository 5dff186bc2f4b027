# SPDX-License-Identifier: Apache-2.0
"""Token ids and KV bytes that can be recognised, and errno-exact file operations.

Every byte of a test sequence is a function of the ids up to its token, of the
plane it lies in and of a "flavour", so whoever reads a block back can tell
which ids it belongs to. A block served under ids that did not produce it is
the failure that all of these tests look for ("poison" below).

A sequence is described by a spec: segments SEED:COUNT[@START], joined by
commas, with an optional !FLAVOUR at the end (same ids, other bytes):
    Y:100           ids 0..99 of seed Y
    A:800,B:200     800 ids of A, then 200 of B
    Y:5,Q:1,Y:94@6  Y with its sixth id changed
The geometry is taken from the environment variable GEO.
"""
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import select
import shutil
import stat
import struct
import subprocess
import sys
import time

ELEM = {'f32': 4, 'f16': 2, 'bf16': 2, 'fp8_e4m3': 1, 'fp8_e5m2': 1}
TOKENS = 'user.kvc.tokens'
CACHED = 'user.kvc.cached_tokens'
RESIDENCY = 'user.kvc.residency'
SALT = 'user.kvc.salt'
NOREPLACE, EXCHANGE = 1, 2


class Geometry:
    """Layout arithmetic of UAPI section 3, from the text of a .geometry."""

    def __init__(self, text):
        kv = dict(w.split('=', 1) for w in text.split())
        self.text = text
        self.layout = kv['layout']
        self.layers = int(kv['layers'])
        self.block_tokens = int(kv.get('block_tokens', 64))
        if self.layout == 'opaque':
            self.row, self.planes = int(kv['token_bytes']), 1
        elif self.layout == 'mla':
            self.row = int(kv['latent_dim']) * ELEM[kv['dtype']]
            self.planes = self.layers
        else:
            heads, dim = int(kv['kv_heads']), int(kv['head_dim'])
            elem = ELEM[kv['dtype']]
            if self.layout == 'hnd':
                self.row, self.planes = dim * elem, 2 * self.layers * heads
            else:
                self.row, self.planes = heads * dim * elem, 2 * self.layers
        self.opaque = self.layout == 'opaque'
        self.token_bytes = self.row * self.planes
        self.block_bytes = self.token_bytes * self.block_tokens
        self.stride = -(-self.block_bytes // 4096) * 4096

    def blocks(self, tokens):
        return -(-tokens // self.block_tokens)

    def size(self, tokens):
        """st_size of a kv file whose T was set to tokens."""
        if self.opaque:
            return tokens * self.token_bytes
        return self.blocks(tokens) * self.block_bytes

    def pieces(self, first, last):
        """(offset, token, count) of each run of bytes of tokens [first, last)."""
        bt = self.block_tokens
        while first < last:
            b, r = divmod(first, bt)
            n = min(bt - r, last - first)
            if n == bt:
                yield b * self.block_bytes, first, None
            else:
                for p in range(self.planes):
                    yield b * self.block_bytes + (p * bt + r) * self.row, first, (p, n)
            first += n


def geo():
    return Geometry(os.environ['GEO'])


class Spec:
    def __init__(self, text, g=None):
        self.text = text
        self.g = g or (geo() if 'GEO' in os.environ else None)
        body, _, self.flavour = text.partition('!')
        self.ids = []
        for seg in body.split(','):
            seed, _, rest = seg.partition(':')
            count, _, start = rest.partition('@')
            start = int(start or 0)
            self.ids += [token_id(seed, i) for i in range(start, start + int(count))]
        self._chain = None

    def __len__(self):
        return len(self.ids)

    def idbytes(self, n=None):
        ids = self.ids[:n]
        return struct.pack('<%dI' % len(ids), *ids)

    def chain(self):
        if self._chain is None:
            h = hashlib.blake2b(self.flavour.encode(), digest_size=8).digest()
            self._chain = []
            for i in self.ids:
                h = hashlib.blake2b(h + struct.pack('<I', i), digest_size=8).digest()
                self._chain.append(h)
        return self._chain

    def rows(self, first, count, plane):
        g = self.g
        marks = [struct.pack('<Q', ((plane + 1) * 0x9E3779B97F4A7C15 + page) & (1 << 64) - 1)
                 for page in range(-(-g.row // 4096))]
        reps = min(256, -(-g.row // 16))
        return b''.join(b''.join((h + m) * reps for m in marks)[:g.row]
                        for h in self.chain()[first:first + count])

    def block(self, b, tokens=None):
        """Block b as it reads when tokens tokens are written: the rest is zero."""
        g, bt = self.g, self.g.block_tokens
        tokens = len(self) if tokens is None else tokens
        n = max(0, min(bt, tokens - b * bt))
        pad = b'' if g.opaque else bytes((bt - n) * g.row)
        return b''.join(self.rows(b * bt, n, p) + pad for p in range(g.planes))

    def kv(self, tokens=None):
        tokens = len(self) if tokens is None else tokens
        return b''.join(self.block(b, tokens) for b in range(self.g.blocks(tokens)))

    def blank(self, data, tokens):
        """data with the bytes of tokens >= tokens in the last block zeroed: those
        count as unwritten, what they read as is whatever was there."""
        g, bt = self.g, self.g.block_tokens
        r = tokens % bt
        if not r or g.opaque or len(data) != g.size(tokens):
            return data
        data, base = bytearray(data), tokens // bt * g.block_bytes
        for p in range(g.planes):
            data[base + (p * bt + r) * g.row:base + (p + 1) * bt * g.row] = bytes((bt - r) * g.row)
        return bytes(data)

    def put(self, fd, first=0, last=None):
        """pwrite exactly the bytes of tokens [first, last), nothing else."""
        last = len(self) if last is None else last
        for off, tok, part in self.g.pieces(first, last):
            data = (self.block(tok // self.g.block_tokens) if part is None
                    else self.rows(tok, part[1], part[0]))
            write_all(fd, data, off)


def token_id(seed, i):
    d = hashlib.blake2b(('%s/%d' % (seed, i)).encode(), digest_size=4).digest()
    return int.from_bytes(d, 'little') & 0x3fffffff


def write_all(fd, data, off):
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, off)
        view, off = view[n:], off + n


# ---- assertions -----------------------------------------------------------

failures = 0


def short(v):
    s = repr(v)
    return s if len(s) <= 160 else s[:150] + '... (%d long)' % len(v)


def fail(text):
    global failures
    failures += 1
    print('    differs:', text, flush=True)


def eq(want, got, what):
    if want != got:
        extra = ''
        if isinstance(want, bytes) and isinstance(got, bytes):
            at = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y),
                      min(len(want), len(got)))
            extra = ' (lengths %d, %d; first difference at byte %d)' % (len(want), len(got), at)
            want, got = want[at:at + 16], got[at:at + 16]
        fail('%s: expected %s, got %s%s' % (what, short(want), short(got), extra))
    return want == got


def true(cond, what):
    if not cond:
        fail(what)
    return cond


def name_of(code):
    return 'EOPNOTSUPP' if code == errno.EOPNOTSUPP else errno.errorcode.get(code, str(code))


def outcome(fn, *args, **kw):
    """'0' or the name of the errno."""
    try:
        fn(*args, **kw)
        return '0'
    except OSError as e:
        return name_of(e.errno)


def err(want, what, fn, *args, **kw):
    return eq(want, outcome(fn, *args, **kw), what)


def done():
    sys.stdout.flush()
    os._exit(1 if failures else 0)


# ---- system calls that python lacks ---------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def check_rc(rc, path=None):
    if rc < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), path)
    return rc


def renameat2(a, b, flags):
    check_rc(_libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags), a)


def fallocate(fd, mode, off, length):
    check_rc(_libc.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length)))


def xattr(path, name=TOKENS):
    """The value as text, or the errno's name."""
    try:
        return os.getxattr(path, name).decode()
    except OSError as e:
        return name_of(e.errno)


def slurp(path):
    with open(path, 'rb') as f:
        return f.read()


def spit(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    try:
        off, view = 0, memoryview(data)
        while view:
            n = os.write(fd, view)
            view = view[n:]
    finally:
        os.close(fd)


def poll_until(cond, what, seconds=20):
    """Wait for a condition; only for what the contract lets happen later."""
    end = time.monotonic() + seconds
    while not cond():
        if time.monotonic() > end:
            return fail('not within %d s: %s' % (seconds, what))
        select.select([], [], [], 0.01)
    return True


# ---- sequences ------------------------------------------------------------

def set_tokens(path, n):
    os.setxattr(path, TOKENS, str(n).encode())


def make(path, spec, order='kt', tokens=None):
    """Write a sequence the way an engine does: k = bytes and T, t = ids."""
    s = spec if isinstance(spec, Spec) else Spec(spec)
    n = len(s) if tokens is None else tokens
    os.makedirs(path, exist_ok=True)
    for what in order:
        if what == 't':
            spit(path + '/tokens', s.idbytes())
            continue
        fd = os.open(path + '/kv', os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        try:
            s.put(fd, 0, n)
        finally:
            os.close(fd)
        set_tokens(path + '/kv', n)


def compare(path, spec, tokens=None, ids=True, t=True):
    """What is wrong with a sequence, as a list of texts."""
    s = spec if isinstance(spec, Spec) else Spec(spec)
    n = len(s) if tokens is None else tokens
    bad = []
    try:
        want, got = s.kv(n), s.blank(slurp(path + '/kv'), n)
        if want != got:
            at = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y),
                      min(len(want), len(got)))
            bad.append('bytes differ at %d (sizes %d, %d)' % (at, len(want), len(got)))
        if os.stat(path + '/kv').st_size != len(want):
            bad.append('st_size %d, not %d' % (os.stat(path + '/kv').st_size, len(want)))
        if t and xattr(path + '/kv') != str(n):
            bad.append('T=%s, not %d' % (xattr(path + '/kv'), n))
        if ids:
            want, got = s.idbytes(), slurp(path + '/tokens')
            if want != got:
                bad.append('ids differ (%d expected, %d there)' % (len(want) // 4, len(got) // 4))
    except OSError as e:
        bad.append(str(e))
    return bad


def check(path, spec, what=None, **kw):
    for b in compare(path, spec, **kw):
        fail('%s: %s' % (what or path, b))


_probes = 0


def probe(ns, spec):
    """Ask the prefix index: (tokens attached, whether their bytes are right)."""
    global _probes
    _probes += 1
    s = spec if isinstance(spec, Spec) else Spec(spec)
    d = '%s/probe.%d.%d' % (ns, os.getpid(), _probes)
    os.mkdir(d)
    try:
        spit(d + '/tokens', s.idbytes())
        os.close(os.open(d + '/kv', os.O_CREAT | os.O_WRONLY, 0o644))
        n = int(xattr(d, CACHED))
        got = slurp(d + '/kv')
        return n, got == s.kv(n)
    finally:
        for f in ('kv', 'tokens'):
            if os.path.exists(d + '/' + f):
                os.unlink(d + '/' + f)
        os.rmdir(d)


def hits(ns, spec, want, what='prefix hit'):
    """Attached tokens must be want (None: any number) and never poisoned."""
    n, right = probe(ns, spec)
    if not right:
        fail('%s: POISON: bytes attached under %s are not theirs (%d tokens)' %
             (what, spec if isinstance(spec, str) else spec.text, n))
    if want is not None:
        eq(want, n, '%s of %s' % (what, spec if isinstance(spec, str) else spec.text))
    return n


# ---- whole namespaces -----------------------------------------------------

# name: (tokens, ids known). Nested, with tails, whole blocks only, less than a block.
MEMBERS = {'A': (100, True), 'B': (64, True), 'g/h/D': (70, True), 'g/S': (20, True), 'N': (96, False)}
PLAIN = {'A/sampler.json': b'{"t": 1}', 'g/README': b'notes\n' * 2000, 'g/empty': b'',
         'docs/big.bin': bytes(range(256)) * 1200}
STAMP = 1_000_000_000_123_456_789


def make_namespace(path, gen=''):
    """A populated namespace; the .geometry must be in place (see kvc_ns)."""
    for name, (n, ids) in MEMBERS.items():
        d = path + '/' + name
        make(d, '%s%s:%d' % (name.replace('/', '-'), gen, n), 'kt' if ids else 'k')
        os.utime(d + '/kv', ns=(STAMP, STAMP))
    for name, data in PLAIN.items():
        os.makedirs(os.path.dirname(path + '/' + name), exist_ok=True)
        spit(path + '/' + name, data + gen.encode())
        os.chmod(path + '/' + name, 0o640)
    os.setxattr(path + '/A/kv', 'user.note', b'hello')
    os.setxattr(path + '/A/sampler.json', 'user.crc', b'\x00\x01\xff')
    os.setxattr(path + '/A', 'user.kvc.priority', b'70')
    os.setxattr(path + '/g', 'user.kvc.priority', b'60')


def check_namespace(path, gen='', xattrs=True, mtimes=True, index=True):
    for name, (n, ids) in MEMBERS.items():
        d, spec = path + '/' + name, '%s%s:%d' % (name.replace('/', '-'), gen, n)
        check(d, spec, ids=ids)
        if os.path.isdir(d):
            extra = set(os.listdir(d)) - {'kv', 'tokens', 'sampler.json'}
            true(not extra, '%s: debris %s' % (name, sorted(extra)))
        if mtimes and os.path.exists(d + '/kv'):
            eq(STAMP, os.stat(d + '/kv').st_mtime_ns, name + ': mtime')
        if index and ids:
            bt = geo().block_tokens
            hits(path, spec, n // bt * bt, name + ': prefix hit')
    for name, data in PLAIN.items():
        if not os.path.exists(path + '/' + name):
            fail('%s is not there' % name)
            continue
        eq(data + gen.encode(), slurp(path + '/' + name), name)
        eq(0o640, os.stat(path + '/' + name).st_mode & 0o7777, name + ': mode')
    if xattrs:
        eq('hello', xattr(path + '/A/kv', 'user.note'), 'A/kv user.note')
        eq(b'\x00\x01\xff', os.getxattr(path + '/A/sampler.json', 'user.crc'), 'A/sampler.json user.crc')
        eq('70', xattr(path + '/A', 'user.kvc.priority'), 'A priority')
        eq('60', xattr(path + '/g', 'user.kvc.priority'), 'g priority')
    true(b'block_bytes=' in slurp(path + '/.geometry'), path + ' is not a namespace')


# ---- command line ---------------------------------------------------------

def cli_check(path, spec, *opts):
    kw = {}
    for o in opts:
        if o in ('noids', 'noT'):
            kw[{'noids': 'ids', 'noT': 't'}[o]] = False
        else:
            kw['tokens'] = int(o)
    check(path, spec, **kw)


def cli_make(path, spec, order='kt', tokens=None):
    make(path, spec, order, None if tokens is None else int(tokens))


def cli_checkns(path, *opts):
    gen = next((o[4:] for o in opts if o.startswith('gen=')), '')
    check_namespace(path, gen, *[o not in opts for o in ('noxattrs', 'nomtimes', 'noindex')])


COMMANDS = {
    'ids': lambda spec, n=None: sys.stdout.buffer.write(Spec(spec).idbytes(None if n is None else int(n))),
    'kv': lambda spec, n=None: sys.stdout.buffer.write(Spec(spec).kv(None if n is None else int(n))),
    'make': cli_make,
    'check': cli_check,
    'probe': lambda ns, spec, want=None: hits(ns, spec, None if want is None else int(want)),
    'cached': lambda ns, spec: print(probe(ns, spec)[0]),
    'makens': make_namespace,
    'checkns': cli_checkns,
}


def main(argv):
    if len(argv) < 2 or argv[1] not in COMMANDS:
        sys.exit('usage: kvseq.py %s ...' % '|'.join(COMMANDS))
    COMMANDS[argv[1]](*argv[2:])
    sys.stdout.flush()
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main(sys.argv)
