#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libkvcmap: programs that know nothing of sessions map the blocks, and see what they would see anyhow.
. "$(dirname "$0")/../lib/mount.sh"

[ -z "${KVC_SANITIZE:-}" ] || { echo "SKIP kvcmap.sh: a sanitizer's library cannot be preloaded into python"; exit 77; }
LIB=$(readlink -f "${KVC_BIN_DIR:-/}/../lib/libkvcmap.so")
[ -f "$LIB" ] || { echo "SKIP kvcmap.sh: libkvcmap is not built"; exit 77; }

# 64 KiB blocks of 32 tokens: whole pages.
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

# The daemon goes: what is mapped stays, what is mapped then fails as it does without the library.
t_the_daemon_dies() {
	sc fill a/s 1 640 >/dev/null
	cat >out/py <<'E'
import os, mmap, sys, hashlib
fd = os.open('m/a/s/kv', os.O_RDONLY)
want = hashlib.sha256(os.pread(fd, 1 << 22, 0)).digest()
v = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
print('ready', flush=True)
sys.stdin.read()
print('right' if hashlib.sha256(v).digest() == want else 'wrong')
v.close()
try:
    mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
except OSError as e:
    print('fails')
E
	mkfifo out/in
	LD_PRELOAD=$LIB "$PY" -S out/py <out/in >out/said 2>&1 &
	local pid=$!
	KVC_PIDS+=("$pid")
	exec {fd}>out/in
	kvc_wait_for 20 grep -q ready out/said
	kvc_kill9
	exec {fd}>&-
	wait $pid
	expect_match 'ready.right' "$(cat out/said)" "what was mapped"
	kvc_again
}

kvc_ns() {
	export GEO=${2:-$GSES}
	mkdir -p "$1" && printf '%s\n' "$GEO" >"$1/.geometry"
}
kvc_main "$@"
