#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libkvcmap: programs that know nothing of sessions map the blocks, and see what they would see anyhow.
. "$(dirname "$0")/../lib/mount.sh"

[ -z "${KVC_SANITIZE:-}" ] || { echo "SKIP kvcmap.sh: a sanitizer's library cannot be preloaded into python"; exit 77; }
LIB=$(readlink -f "${KVC_BIN_DIR:-/}/../lib/libkvcmap.so")
[ -f "$LIB" ] || { echo "SKIP kvcmap.sh: libkvcmap is not built"; exit 77; }

# 64 KiB blocks of 32 tokens: whole pages.
# Memory is small and something lies below it, so that others' writes push out what nobody pins.
KVC_MOUNT_ARGS=(-o dram=64M,nvme=1G store)
GSES='layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd'

sc() { "$KVC_BIN_DIR/session_client" "$1" m "${@:2}"; }
mapped() { # python with the library, and with what the cases share
	{
		cat <<'E'
from kvseq import *
libc = ctypes.CDLL(None, use_errno=True)
for f in (libc.mmap, libc.mremap):
    f.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
FAILED = ctypes.c_void_p(-1).value
BLOCK = 65536
def pins():
    return sum(int(l.split()[2]) for l in open('m/.kvc/sessions').readlines()[1:])
def sessions():
    return len(open('m/.kvc/sessions').readlines()) - 1
def others():                               # 4 times as much as there is memory
    data = random.Random(1).randbytes(64 * BLOCK)
    for i in range(64):
        os.makedirs('m/a/o%d' % i, exist_ok=True)
        spit('m/a/o%d/tokens' % i, struct.pack('<2048I', *range(i << 20, (i << 20) + 2048)))
        spit('m/a/o%d/kv' % i, data)
def fds():
    return {int(f) for f in os.listdir('/proc/self/fd')}
def show():
    fd = os.open('m/a/s/kv', os.O_RDONLY)
    v = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    return v
def hidden():                               # the library's socket and lease
    ours = {n for n in fds() if n > 900}
    eq(2, len(ours), 'a socket and a lease')
    return ours
def mapc(fd, size, off=0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ):
    a = libc.mmap(None, size, prot, flags, fd, off)
    if a == FAILED:
        fail('mmap: errno %d' % ctypes.get_errno())
    return a
def at(a, n):
    return ctypes.string_at(a, n)
E
		cat
		echo 'done()'
	} | LD_PRELOAD=$LIB "$PY" -S - || bad "python, exit $?"
}

t_same_bytes_without_the_page_cache() {
	sc fill a/s 1 1000 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
    fd = os.open('m/a/s/kv', os.O_RDONLY)
    with mmap.mmap(fd, 0, flags, mmap.PROT_READ) as v:
        os.close(fd)
        eq(31, pins(), 'whole blocks are pinned')
        eq(want, v[:], 'bytes')
    eq(0, pins(), 'afterwards')
E
}

t_many_runs() {
	# Two sequences that grow by turns lie between each other.
	local i
	for i in 64 128 192 256 320 384 448 512; do
		sc fill a/s 1 $i >/dev/null
		sc fill a/t 2 $i >/dev/null
	done
	mapped <<'E'
for name in 'st':
    want = slurp('m/a/%s/kv' % name)
    fd = os.open('m/a/%s/kv' % name, os.O_RDONLY)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as v:
        eq(16, pins(), 'pins of ' + name)
        eq(want, v[:], 'bytes of ' + name)
E
}

t_any_part() {
	sc fill a/s 1 1000 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
fd = os.open('m/a/s/kv', os.O_RDONLY)
r = random.Random(5)
for i in range(200):
    off = r.randrange(len(want)) // 4096 * 4096
    size = r.randrange(1, len(want) - off + 1)
    if i % 5 == 0:
        size += 20 * 4096                   # past the end
    a = mapc(fd, size, off, r.choice([mmap.MAP_SHARED, mmap.MAP_PRIVATE]))
    n = min(size, len(want) - off)
    eq(want[off:off + n], at(a, n), 'part %d +%d' % (off, size))
    eq(0, libc.munmap(a, size), 'munmap')
    eq(0, pins(), 'pins after %d +%d' % (off, size))
E
}

t_unmapped_piece_by_piece() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
fd = os.open('m/a/s/kv', os.O_RDONLY)
a = mapc(fd, 20 * BLOCK)
eq(20, pins(), 'all')
eq(0, libc.munmap(a + 5 * BLOCK, 5 * BLOCK), 'a hole')
eq(want[:5 * BLOCK], at(a, 5 * BLOCK), 'before it')
eq(want[10 * BLOCK:], at(a + 10 * BLOCK, 10 * BLOCK), 'behind it')
eq(20, pins(), 'still')
other = mmap.mmap(-1, 1 << 20)
eq(0, libc.munmap(a, 5 * BLOCK), 'the head')
eq(0, libc.munmap(a + 9 * BLOCK, 11 * BLOCK + 100), 'the rest, and a bit of the hole')
eq(0, pins(), 'none is left')
E
}

t_mremap() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
fd = os.open('m/a/s/kv', os.O_RDONLY)
a = mapc(fd, 4 * BLOCK)
os.close(fd)
eq(4, pins(), 'a part')
b = libc.mremap(a, 4 * BLOCK, 20 * BLOCK, 1)
eq(True, b != FAILED, 'grows')
eq(want, at(b, 20 * BLOCK), 'grown')
eq(20, pins(), 'pins, grown')
eq(b, libc.mremap(b, 20 * BLOCK, 2 * BLOCK, 0), 'shrinks in place')
eq(want[:2 * BLOCK], at(b, 2 * BLOCK), 'shrunk')
eq(FAILED, libc.mremap(b, 2 * BLOCK, 20 * BLOCK, 0), 'does not grow in place')
libc.munmap(b, 2 * BLOCK)
eq(0, pins(), 'none is left')
v = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
v.resize(1 << 20)
v[1 << 19] = 7
E
}

t_fixed_over_it() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
fd = os.open('m/a/s/kv', os.O_RDONLY)
a = mapc(fd, 20 * BLOCK)
eq(20, pins(), 'pinned')
b = libc.mmap(a, 20 * BLOCK, 3, 0x32, -1, 0)
eq(a, b, 'MAP_FIXED anonymous memory over it')
eq(bytes(100), at(b, 100), 'zeros')
eq(0, pins(), 'nothing is pinned any more')
E
}

t_a_private_change() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
want = slurp('m/a/s/kv')
fd = os.open('m/a/s/kv', os.O_RDONLY)
a, b = mapc(fd, 20 * BLOCK), mapc(fd, 20 * BLOCK, 0, mmap.MAP_PRIVATE)
eq(-1, libc.mprotect(a, 4096, 3), 'shared: not writable')
eq(0, libc.mprotect(b, 4096, 3), 'private: writable')
ctypes.memmove(b, b'mine', 4)
eq(b'mine' + want[4:], at(b, len(want)), 'changed here')
eq(want, at(a, len(want)), 'and nowhere else')
eq(want, slurp('m/a/s/kv'), 'nor in the file')
E
}

t_what_is_none_of_it() {
	kvc_ns m/odd "$GODD"
	GEO=$GODD ks make m/odd/s Y:128
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
def same(path, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED):
    want = slurp(path)
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, flags, prot) as v:
        eq(0, pins(), 'pins for ' + path)
        eq(want, v[:], path)
    os.close(fd)
same('m/odd/s/kv')                          # blocks are no multiple of a page
same('m/a/s/tokens')
same('m/a/s/kv', mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)
os.mkdir('out/x')
spit('out/x/kv', bytes(range(256)) * 64)
same('out/x/kv')
fd = os.open('m/a/s/kv', os.O_RDWR)
err('ENODEV', 'from a descriptor for writing', mmap.mmap, fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
err('ENODEV', 'no fd', mmap.mmap, os.open('m', os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
E
}

# A child sees its parent's mapping, also when the parent has gone, and maps on its own.
t_fork() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
fd = os.open('m/a/s/kv', os.O_RDONLY)
v = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
r, w = os.pipe()
r2, w2 = os.pipe()
if os.fork() == 0:
    os.close(w)
    if os.fork():
        os._exit(0)
    os.close(r2)
    own = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    os.write(w2, b'%d\n' % pins())
    os.read(r, 1)                           # until the parent has unmapped its own
    os.write(w2, b'%d %d %d' % (v[:] == want, own[:] == want, pins()))
    own.close()
    v.close()
    os._exit(0)
os.close(w2)
os.wait()
eq(b'40\n', os.read(r2, 100), 'pins of both')
v.close()
eq(20, pins(), 'pins of the child')
os.close(w)
eq(b'1 1 20', os.read(r2, 100), 'what the child saw')
E
}

t_threads() {
	sc fill a/s 1 640 >/dev/null
	sc fill a/t 2 640 >/dev/null
	mapped <<'E'
import threading
want = {n: slurp('m/a/%s/kv' % n) for n in 'st'}
wrong = []
def work(n):
    for i in range(30):
        fd = os.open('m/a/%s/kv' % n, os.O_RDONLY)
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as v:
            if v[:] != want[n]:
                wrong.append(n)
        os.close(fd)
t = [threading.Thread(target=work, args=('st'[i % 2],)) for i in range(4)]
[x.start() for x in t]
[x.join() for x in t]
eq([], wrong, 'wrong bytes')
eq(0, pins(), 'pins')
E
}

# A program of others, whose mapping shows in the pins while it runs.
t_fio() {
	command -v fio >/dev/null || return 0
	sc fill a/s 1 1920 >/dev/null
	fio --name=x --readonly --ioengine=mmap --rw=read --bs=64k --filename=m/a/s/kv --size=3840k \
		--time_based --runtime=20 --output=out/fio >/dev/null 2>&1 &
	local plain=$!
	KVC_PIDS+=("$plain")
	LD_PRELOAD=$LIB fio --name=x --readonly --ioengine=mmap --rw=read --bs=64k --filename=m/a/s/kv \
		--size=3840k --time_based --runtime=20 --output=out/fio2 >/dev/null 2>&1 &
	local preloaded=$!
	KVC_PIDS+=("$preloaded")
	kvc_wait_for 20 eval "[ \"\$(awk 'NR > 1 { n += \$3 } END { print n }' m/.kvc/sessions)\" = 60 ]" ||
		bad "fio maps no blocks: $(cat m/.kvc/sessions)"
	kill -INT $plain $preloaded
	wait $plain $preloaded
	expect_match 'READ: bw=' "$(cat out/fio2)" "fio with the library"
}

# A program that closes what it did not open does not close what pins its mapping.
t_all_descriptors_closed() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
ways = {
    'one by one': lambda: [libc.close(i) for i in range(3, 1024)],
    'os.closerange': lambda: os.closerange(3, 1 << 20),
    'close_range': lambda: libc.close_range(3, ctypes.c_uint(~0), 0),
    'closefrom': lambda: libc.closefrom(3),
}
want = slurp('m/a/s/kv')
v = show()
ours = hidden()
for name, way in ways.items():
    mine = os.dup2(1, min(ours) - 1), os.dup2(1, max(ours) + 1), os.dup2(1, 7)
    way()
    eq(ours, fds() & (ours | set(mine)), name + ': only ours are left')
    eq((1, 20), (sessions(), pins()), name)
    with show() as again:
        eq((1, 20), (sessions(), pins()), name + ': the same session serves')
eq(-1, libc.close(min(ours)), 'nothing is there')
eq(errno.EBADF, ctypes.get_errno(), 'nothing is there: why')
others()
eq(True, v[:] == want, 'bytes, after others have written')
v.close()
eq(0, pins(), 'afterwards')
E
}

# Children that close everything before they go on: as daemons do, and before exec.
t_a_daemon_is_made() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
v = show()
subprocess.run(['true'], close_fds=True, check=True)
eq('0\n', subprocess.run(['sh', '-c', 'ls -l /proc/self/fd | grep -c socket'], close_fds=False,
                         stdout=subprocess.PIPE, text=True, env={}).stdout, 'nothing comes past exec')
eq(20, pins(), 'not for this one')
r, w = os.pipe()
done_r, done_w = os.pipe()
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.dup2(r, 5)
    os.dup2(done_w, 6)
    libc.close_range(7, ctypes.c_uint(~0), 0)
    os.read(5, 1)                           # until others have written
    os.write(6, b'right' if v[:] == want else b'wrong')
    v.close()
    os.write(6, b' gone')
    os.read(5, 1)
    os._exit(0)
os.wait()
middle = os.fork()
if middle == 0:
    os._exit(0)                             # a child that has nothing to do with it
os.waitpid(middle, 0)
eq(20, pins(), 'children come and go')
others()
os.write(w, b'x')
eq(b'right', os.read(done_r, 5), 'what the daemon sees')
eq(b' gone', os.read(done_r, 5), 'it unmaps')
eq(20, pins(), "its parent's are its parent's")
eq(True, v[:] == want, 'bytes')
os.write(w, b'x')
v.close()
eq(0, pins(), 'afterwards')
E
}

# The parent goes, the child that closed everything stays and is the last to look.
t_the_parent_goes() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
want = slurp('m/a/s/kv')
r, w = os.pipe()
if os.fork() == 0:
    v = show()
    if os.fork():
        os._exit(0)
    os.dup2(w, 3)
    libc.close_range(4, ctypes.c_uint(~0), 0)
    others()
    seen = pins(), v[:] == want
    v.close()
    poll_until(lambda: pins() == 0, 'pins go with the last mapping')
    os.write(3, b'%d %d' % seen)
    os._exit(0)
os.close(w)
os.wait()
eq(b'20 1', os.read(r, 100), 'the last to look')
E
}

# The program's own descriptor on a number of ours: nothing is said there, and nothing is lost.
t_a_number_is_taken() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
import socket
want = slurp('m/a/s/kv')
v = show()
ours = hidden()
a, b = socket.socketpair()
b.setblocking(False)
for i, n in enumerate(sorted(ours)):
    eq(n, os.dup2(a.fileno(), n) if i else libc.dup3(a.fileno(), n, 0), 'it has the number')
    eq(True, os.path.samestat(os.fstat(n), os.fstat(a.fileno())), 'and is there')
eq(20, pins(), 'pins')
with show() as again:
    eq((1, 20), (sessions(), pins()), 'the same session')
others()
eq(True, v[:] == want, 'bytes')
v.close()
eq(0, pins(), 'afterwards')
err('EAGAIN', "a word of ours in the program's socket", b.recv, 100)
for n in ours:
    os.close(n)
E
}

# The same, past the C library.
t_the_kernel_is_asked() {
	"$PY" -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120)) < 0)' ||
		{ echo "skip kvcmap.sh: no io_uring: programs that bypass libc lose their pins"; return 0; }
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
import socket
want = slurp('m/a/s/kv')
v, part = show(), show()
ours = hidden()
a, b = socket.socketpair()
b.setblocking(False)
fd = os.dup(a.fileno())
for n in ours:
    eq(n, libc.syscall(292, fd, n, 0), 'dup3')
eq((1, 20), (sessions(), pins()), 'the session lives')
part.close()
eq((1, 20), (sessions(), pins()), 'nobody can tell it anything')
new = show()
eq((2, 40), (sessions(), pins()), 'a new one for what comes')
others()
eq(True, v[:] == want and new[:] == want, 'bytes')
v.close()
poll_until(lambda: (sessions(), pins()) == (1, 20), 'it ends with its last mapping')
new.close()
eq(0, pins(), 'afterwards')
err('EAGAIN', "a word of ours in the program's socket", b.recv, 100)
eq(True, all(os.path.samestat(os.fstat(n), os.fstat(fd)) for n in ours), "the program's are open")
E
}

# No room for descriptors: the page cache's mapping, and the session of others is none the worse.
t_few_descriptors() {
	sc fill a/s 1 640 >/dev/null
	mapped <<'E'
import resource
want = slurp('m/a/s/kv')
others()                                    # all of the memory's files are there
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
v = show()
eq((1, 20), (sessions(), pins()), 'with 48')
for room in (34, 20, 8, 4, 3, 2):      # open() and python's mmap() need two
    taken = []
    try:
        while True:
            taken.append(os.dup(1))
    except OSError:
        pass
    for n in taken[-room:]:
        os.close(n)
    again = show()
    for n in taken[:-room]:
        os.close(n)
    eq(True, again[:] == want, 'bytes with room for %d' % room)
    again.close()
    eq((1, 20), (sessions(), pins()), 'afterwards, with room for %d' % room)
others()
eq(True, v[:] == want, 'bytes')
v.close()
eq(0, pins(), 'none is left')
E
}

# The daemon goes, and the next one comes: what is mapped stays, and nobody writes there. What is mapped
# meanwhile is as without the library.
t_the_daemon_dies() {
	sc fill a/s 1 640 >/dev/null
	cat >out/py <<'E'
import os, mmap, sys, hashlib
fd = os.open('m/a/s/kv', os.O_RDONLY)
want = hashlib.sha256(os.pread(fd, 1 << 22, 0)).digest()
v = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
os.closerange(fd + 1, 1 << 20)
print('ready', flush=True)
for line in sys.stdin:
    print('right' if hashlib.sha256(v).digest() == want else 'wrong', flush=True)
    if line == 'end\n':
        break
    try:
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as e:
        pass
    print('on', flush=True)
v.close()
E
	mkfifo out/in
	LD_PRELOAD=$LIB "$PY" -S out/py <out/in >out/said 2>&1 &
	local pid=$! fd
	exec {fd}>out/in
	kvc_wait_for 20 grep -q ready out/said
	kvc_kill9
	echo map >&$fd
	kvc_wait_for 20 grep -q on out/said || bad "hangs without a daemon: $(cat out/said)"
	kvc_again
	KVC_PIDS+=("$pid")
	mapped <<<'others()'
	echo end >&$fd
	exec {fd}>&-
	wait $pid
	expect_eq "ready right on right" "$(echo $(cat out/said))" "what was mapped"
}

kvc_ns() {
	export GEO=${2:-$GSES}
	mkdir -p "$1" && printf '%s\n' "$GEO" >"$1/.geometry"
}
kvc_main "$@"
