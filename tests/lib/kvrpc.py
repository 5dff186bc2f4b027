# SPDX-License-Identifier: Apache-2.0
"""The programming interface spoken byte by byte (fs/uapi/kvc_ioctl.h), to say what no library would.

    s = Session(socket_of(mount)); h = s.open('ns/alice', CREATE | WRITE)
    s.append(h, 100); s.commit(h, 40, ids); s.map(h)

Calls return what the daemon says: the result of the command (0 or -errno) first.
"""
import array
import fcntl
import mmap
import os
import socket
import struct

HELLO, OPEN, CLOSE, MATCH, MAP, UNMAP, APPEND, COMMIT, FORK, TRUNCATE, PREFETCH, STATE, QUERY, ADMIT, POOL = range(1, 16)
CREATE, WRITE, EXCL = 1, 2, 4
ATTACH = NOWAIT = 1
MAGIC, ABI, ALL = 0x4b564342, 1, 2 ** 64 - 1
HEAD, CMD = 24, 96
HELLO_EVENTS, HELLO_LEASE = 1, 2


def socket_of(mount):
    with open(mount + '/.kvc/config') as f:
        return [line.split('=', 1)[1] for line in f.read().splitlines() if line.startswith('socket=')][0]


def sessions(mount):
    with open(mount + '/.kvc/sessions') as f:
        lines = f.read().splitlines()
    assert lines[0] == 'pid uid pins mapped_bytes since', lines[0]
    return [list(map(int, line.split())) for line in lines[1:]]


def command(op, handle=0, body=b'', flags=0, reserved=0):
    return struct.pack('<HHiIIQ', op, flags, 0, handle, reserved, 7) + body.ljust(72, b'\0')


def batch(cmds, sequence, magic=MAGIC, abi=ABI, flags=0, nr=None, size=None):
    body = b''.join(cmds)
    return struct.pack('<IHHIIQ', magic, abi, flags, len(cmds) if nr is None else nr,
                       HEAD + len(body) if size is None else size, sequence) + body


def results(reply, nr):
    out = []
    for i in range(nr):
        op, _, result, handle, _, cookie = struct.unpack_from('<HHiIIQ', reply, HEAD + CMD * i)
        assert cookie == 7, (op, cookie)
        out.append((result, handle, reply[HEAD + CMD * i + 24:HEAD + CMD * (i + 1)]))
    return out


class Calls:
    """What sessions and ioctls have in common; they differ in call() and in where data lie."""

    def one(self, op, handle=0, body=b''):
        return self.call([command(op, handle, body)])[0]

    def open(self, path, flags=0):
        result, handle, body = self.one(OPEN, 0, self.put(path.encode()) + struct.pack('<I', flags))
        self.opened = struct.unpack('<IIIIIIQQQIIQ', body[:64])
        return handle if not result else result

    def close(self, handle):
        return self.one(CLOSE, handle)[0]

    def match(self, handle, ids, flags=0):
        result, _, body = self.one(MATCH, handle, self.put_ids(ids) + struct.pack('<I', flags))
        return result, struct.unpack_from('<I', body, 12)[0]

    def append(self, handle, tokens):
        result, _, body = self.one(APPEND, handle, struct.pack('<IIQQ', tokens, 0, 0, 0) + self.room())
        _, _, first, nr, _, used = struct.unpack_from('<IIQQII', body)
        return result, first, nr, self.extents(used) if not result else []

    def commit(self, handle, tokens, ids=(), durable=0):
        body = struct.pack('<II', tokens, 0) + self.put_ids(ids) + struct.pack('<II', durable, 0)
        return self.one(COMMIT, handle, body)[0]

    def map(self, handle, first=0, nr=ALL, flags=0):
        body = struct.pack('<QQ', first, nr) + self.room() + struct.pack('<II', flags, 0)
        result, _, body = self.one(MAP, handle, body)
        _, nr, _, used = struct.unpack_from('<QQII', body)
        return result, nr, self.extents(used) if not result else []

    def unmap(self, handle, first=0, nr=ALL):
        return self.one(UNMAP, handle, struct.pack('<QQ', first, nr))[0]

    def query(self, handle):
        result, _, body = self.one(QUERY, handle)
        return result, struct.unpack_from('<8I', body)


class Session(Calls):
    def __init__(self, path, arena=1 << 20, flags=0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.sequence = 0
        self.fds = []
        result, _, body = self.one(HELLO, 0, struct.pack('<IIQQII', ABI, flags, arena, 0, 0, 0))
        assert result == 0, result
        _, self.flags, size, self.generation, self.slots, _ = struct.unpack_from('<IIQQII', body)
        self.arena_fd, *self.hello_fds = self.fds
        self.fds = []
        self.arena = mmap.mmap(self.arena_fd, size)
        self.base = self.slots * 8

    def call(self, cmds, **head):
        self.sequence += 1
        self.socket.send(batch(cmds, self.sequence, **head))
        reply, more, _, _ = self.socket.recvmsg(65536, 4096)
        if not reply:
            raise EOFError
        for _, _, data in more:
            fds = array.array('i')
            fds.frombytes(data[:len(data) // 4 * 4])
            self.fds += fds
        return results(reply, len(cmds))

    def put(self, data, at=0):
        self.arena[self.base + at:self.base + at + len(data)] = data
        return struct.pack('<II', self.base + at, len(data))

    def put_ids(self, ids):
        return self.put(struct.pack('<%dI' % len(ids), *ids), 4096)

    def room(self):
        return struct.pack('<II', self.base + (512 << 10), 65536)

    def extents(self, used):
        at = self.base + (512 << 10)
        return [struct.unpack_from('<IIQ', self.arena, at + i) for i in range(0, used, 16)]

    def word(self, slot):
        return struct.unpack_from('<Q', self.arena, slot * 8)[0]

    def pool(self, first=0):
        result, _, body = self.one(POOL, 0, struct.pack('<I', first))
        _, nr, _, writable, size, present = struct.unpack_from('<IIIIQI', body)
        fds, self.fds = self.fds, []
        here = [i for i in range(nr) if present >> i & 1]
        assert len(here) == len(fds), (here, fds)
        return result, [(fd, writable >> i & 1, size) for i, fd in zip(here, fds)]

    def bytes_of(self, extents, stride):
        """What lies where the extents say."""
        out = b''
        for number, nr, off in extents:
            result, files = self.pool(number)
            assert result == 0, result
            with mmap.mmap(files[0][0], files[0][2], prot=mmap.PROT_READ) as m:
                out += m[off:off + nr * stride]
            for fd, _, _ in files:
                os.close(fd)
        return out


class Ioctl(Calls):
    """Over an open file; data lie behind the one command."""

    def __init__(self, fd):
        self.fd = fd

    def call(self, cmds):
        data = bytearray(batch(cmds, 0, size=HEAD + CMD * len(cmds) + len(self.data)) + self.data)
        number = 3 << 30 | len(data) << 16 | ord('k') << 8 | 0x56
        fcntl.ioctl(self.fd, number, data)
        self.reply = bytes(data[HEAD + CMD * len(cmds):])
        self.data = b''
        return results(bytes(data), len(cmds))

    data = b''

    def put(self, data, at=0):
        self.data = data
        return struct.pack('<II', 0, len(data))

    def put_ids(self, ids):
        return self.put(struct.pack('<%dI' % len(ids), *ids))

    def room(self):
        self.data = bytes(4096)
        return struct.pack('<II', 0, 4096)

    def extents(self, used):
        return [struct.unpack_from('<IIQ', self.reply, i) for i in range(0, used, 16)]
