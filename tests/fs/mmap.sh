#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, row "mmap", and that cached readers see what writers did.
. "$(dirname "$0")/../lib/mount.sh"

t_read_only_maps() {
	ks make m/a/s Y:128
	py <<'E'
want = Spec('Y:128').kv()
fd = os.open('m/a/s/kv', os.O_RDONLY)
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
    with mmap.mmap(fd, 0, flags, mmap.PROT_READ) as v:
        eq(want, v[:], 'mapped, flags %d' % flags)
with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as v:
    v[:5] = b'mine!'
    eq(b'mine!', v[:5], 'a private change')
eq(want, slurp('m/a/s/kv'), 'stays private')
fd = os.open('m/a/s/tokens', os.O_RDONLY)
with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as v:
    eq(Spec('Y:128').idbytes(), v[:], 'tokens')
E
}

t_writable_kv_is_ENODEV() {
	ks make m/a/s Y:128
	py <<'E'
fd = os.open('m/a/s/kv', os.O_RDWR)
err('ENODEV', 'MAP_SHARED, read and write', mmap.mmap, fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
err('ENODEV', 'MAP_SHARED, read only', mmap.mmap, fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
fd = os.open('m/a/s/kv', os.O_RDONLY)
err('EACCES', 'writable from a read-only descriptor', mmap.mmap, fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
E
}

t_readers_see_direct_writes() {
	py <<'E'
g, r = geo(), random.Random(3)
os.mkdir('m/a/s')
w = os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY)
size = 4 * g.block_bytes
model = bytearray(size)
os.pwrite(w, bytes(size), 0)
rd = os.open('m/a/s/kv', os.O_RDONLY)
view = mmap.mmap(rd, size, mmap.MAP_SHARED, mmap.PROT_READ)
eq(bytes(model), view[:], 'first touch')
for i in range(1500):
    o = r.randrange(size - 1)
    c = r.randbytes(r.randrange(1, min(9000, size - o) + 1))
    os.pwrite(w, c, o)
    model[o:o + len(c)] = c
    a = r.randrange(size - 1)
    b = min(size, a + r.randrange(1, 9000))
    if os.pread(rd, b - a, a) != model[a:b] or view[a:b] != model[a:b]:
        fail('write %d: stale bytes at %d' % (i, a))
        break
eq(bytes(model), view[:], 'at the end')
eq(bytes(model), slurp('m/a/s/kv'), 'a new reader')
E
}

t_readers_see_cuts_and_growth() {
	ks make m/a/s Y:128
	py <<'E'
rd = os.open('m/a/s/kv', os.O_RDONLY)
eq(Spec('Y:128').kv(), os.pread(rd, 1 << 20, 0), 'before')
set_tokens('m/a/s', 64)
eq(Spec('Y:64').kv(), os.pread(rd, 1 << 20, 0), 'after the cut')
s = Spec('Y:64,Z:64')
w = os.open('m/a/s/kv', os.O_WRONLY)
s.put(w, 64)
eq(s.kv(), os.pread(rd, 1 << 20, 0), 'after growing again')
eq(s.kv(), slurp('m/a/s/kv'), 'a new reader')
os.ftruncate(w, 0)
eq(b'', os.pread(rd, 10, 0), 'cut to zero')
Spec('Q:64').put(w)
eq(Spec('Q:64').kv(), os.pread(rd, 1 << 20, 0), 'written anew')
E
}

t_attached_and_copied_bytes_are_seen() {
	ks make m/a/src Y:64
	ks make m/a/other Z:64
	py <<'E'
os.mkdir('m/a/s')
os.close(os.open('m/a/s/kv', os.O_CREAT | os.O_WRONLY))
rd = os.open('m/a/s/kv', os.O_RDONLY)
eq(b'', os.pread(rd, 10, 0), 'empty')
spit('m/a/s/tokens', Spec('Y:64').idbytes())
# these come through the other file: a cached reader is told, not asked
poll_until(lambda: os.pread(rd, 1 << 20, 0) == Spec('Y:64').kv(), 'attached bytes are seen')
os.truncate('m/a/s/tokens', 0)
poll_until(lambda: os.pread(rd, 10, 0) == b'', 'detached bytes are gone', 5)
subprocess.run(['cp', 'm/a/other/kv', 'm/a/s/kv'], check=True)
eq(Spec('Z:64').kv(), os.pread(rd, 1 << 20, 0), 'copied over')
spit('m/a/s/tokens', Spec('Z:64').idbytes())
spit('m/a/s/kv', Spec('Y:64').kv())
eq(Spec('Y:64').kv(), os.pread(rd, 1 << 20, 0), 'written over')
E
}

t_view_outlives_rename_and_unlink() {
	ks make m/a/s Y:128
	py <<'E'
want = Spec('Y:128').kv()
rd = os.open('m/a/s/kv', os.O_RDONLY)
view = mmap.mmap(rd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
os.close(rd)
os.rename('m/a/s', 'm/a/t')
eq(want[:20000], view[:20000], 'after rename')
shutil.rmtree('m/a/t')
eq(want, view[:], 'after unlink')
E
}

t_many_pages() {
	rm -rf m/a; kvc_ns m/a "$GBIG"
	ks make m/a/s B:256
	py <<'E'
s = Spec('B:256')
fd = os.open('m/a/s/kv', os.O_RDONLY)
view = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
order = list(range(len(view) // 4096))
random.Random(1).shuffle(order)
for p in order:
    t, c = divmod(p * 4096, 65536)
    if view[p * 4096:p * 4096 + 8] != s.chain()[t]:
        fail('page %d' % p)
        break
E
}

kvc_main "$@"
