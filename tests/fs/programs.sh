#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What unmodified programs do to a mounted directory: trees of small files, and
# the patterns of the cache directories of inference engines, one function each.
. "$(dirname "$0")/../lib/mount.sh"

KVC_FRESH=0
[ "${KVC_TEST_SOURCE:-}" = store ] || KVC_MOUNT_ARGS=(-o dram=768M)

t_cp_a_of_a_tree_diff_and_tar() {
	local src=/usr/include
	[ -d $src ] || src=/etc
	expect_ok cp -a $src m/inc
	expect_ok diff -r --no-dereference $src m/inc
	expect_ok tar -C m -cf m/inc.tar inc
	mkdir m/un
	expect_ok tar -C m/un -xf m/inc.tar
	expect_ok diff -r --no-dereference $src m/un/inc
	expect_eq "$(cd $src && find . | sort | md5sum)" "$(cd m/un/inc && find . | sort | md5sum)" "names"
	expect_eq "$(cd $src && find . -type f -printf '%p %m %s %Ts\n' | sort | md5sum)" \
		"$(cd m/inc && find . -type f -printf '%p %m %s %Ts\n' | sort | md5sum)" "modes, sizes, times"
	expect_ok rm -rf m/inc m/un m/inc.tar
	expect_eq "" "$(ls -A m)" "nothing is left"
}

t_rsync_and_find() {
	local src=/usr/include/linux
	[ -d $src ] || src=/etc
	expect_ok rsync -a $src/ m/r/
	expect_eq "" "$(rsync -ai $src/ m/r/)" "a second rsync has nothing to do"
	expect_ok rsync -a --checksum --delete $src/ m/r/
	expect_eq "$(cd $src && grep -rl define . | sort | md5sum)" "$(cd m/r && grep -rl define . | sort | md5sum)" "grep -r"
	expect_ok find m/r -type f -exec sed -i '1s/^//' {} +
	expect_ok diff -r $src m/r
	rm -rf m/r
}

t_git() {
	command -v git >/dev/null || return 0
	export HOME=$KVC_TMP GIT_CONFIG_NOSYSTEM=1
	git init -q m/repo && cd m/repo || { bad "git init"; return; }
	git config user.email a@b; git config user.name a
	for i in $(seq 30); do echo "$i" >f$i; done
	expect_ok git add .
	expect_ok git commit -qm one
	expect_ok git mv f1 g1
	expect_ok git commit -qam two
	expect_ok git gc -q
	expect_ok git fsck --strict
	expect_eq "" "$(git status --porcelain)" "status"
	cd "$KVC_TMP"
	expect_ok git clone -q m/repo m/clone
	rm -rf m/repo m/clone
}

t_sqlite() {
	py <<'E'
import sqlite3
for mode in ('delete', 'wal'):
    db = sqlite3.connect('m/db.' + mode)
    db.execute('pragma journal_mode=' + mode)
    db.execute('create table t (k integer primary key, v blob)')
    for i in range(20):
        with db:
            db.executemany('insert into t (v) values (?)', [(os.urandom(900),)] * 50)
    with db:
        db.execute('delete from t where k % 3 = 0')
    db.execute('vacuum')
    eq('ok', db.execute('pragma integrity_check').fetchone()[0], mode)
    other = sqlite3.connect('m/db.' + mode)
    eq(667, other.execute('select count(*) from t').fetchone()[0], mode + ': another connection')
    db.close()
    other.close()
E
}

# O_TRUNC in place, stdio writes of 4 KiB and large ones, no fsync, close ignored.
t_llama_cpp_slot_save() {
	py <<'E'
data = os.urandom(3_000_000)
for n in (len(data), 100_000, 2_500_000):
    with open('m/slot.bin', 'wb', buffering=4096) as f:
        for i in range(0, 40000, 700):
            f.write(data[i:min(i + 700, 40000)])
        f.write(data[40000:n])
    with open('m/slot.bin', 'rb', buffering=4096) as f:
        eq(data[:n], b''.join(iter(lambda: f.read(5000), b'')), 'slot of %d' % n)
    eq(n, os.path.getsize('m/slot.bin'), 'size')
E
}

# O_EXCL|O_DIRECT temporary, one write of a whole block, rename, O_DIRECT readv,
# a CRC in a user attribute, access() by the thousand, unlink on a read error.
t_vllm_fs_tier() {
	py <<'E'
import zlib
size = 768 * 1024
os.makedirs('m/vllm/ab')
buf = mmap.mmap(-1, size)
blocks = {}
for i in range(12):
    buf[:] = random.Random(i).randbytes(size)
    name = 'm/vllm/ab/%016x.bin' % i
    fd = os.open(name + '.tmp', os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o644)
    eq(size, os.writev(fd, [buf]), 'one write')
    os.setxattr(name + '.tmp', 'user.crc', b'%d' % zlib.crc32(buf))
    os.close(fd)
    os.rename(name + '.tmp', name)
    blocks[name] = bytes(buf)
hits_ = [os.access('m/vllm/ab/%016x.bin' % i, os.R_OK) for i in range(2000)]
eq([True] * 12 + [False] * 1988, hits_, 'access')
for name, want in blocks.items():
    fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
    half = size // 2
    a, b = mmap.mmap(-1, half), mmap.mmap(-1, half)
    eq(size, os.readv(fd, [a, b]), 'readv')
    eq(want, a[:] + b[:], name)
    eq(b'%d' % zlib.crc32(want), os.getxattr(name, 'user.crc'), 'crc')
    os.close(fd)
    os.unlink(name)
eq([], os.listdir('m/vllm/ab'), 'all removed')
E
}

# local_disk: in place, whole reads; fs: one shared .tmp name and rename; GDS
# fallback: ftruncate and a writable shared mapping, after a look at /proc/mounts.
t_lmcache() {
	py <<'E'
import threading
os.mkdir('m/lmc')
data = os.urandom(2 << 20)
for _ in range(2):
    with open('m/lmc/chunk.pt', 'wb') as f:
        f.write(data)
    with open('m/lmc/chunk.pt', 'rb') as f:
        b = bytearray(len(data))
        eq(len(data), f.readinto(b), 'read count')
    eq(data, bytes(b), 'local_disk')
specs = {i: bytes([i]) * 300000 for i in range(8)}
def writer(i):
    for _ in range(10):
        t = 'm/lmc/k%d.tmp' % (i % 2)
        with open(t, 'wb') as f:
            f.write(specs[i])
        try:
            os.rename(t, 'm/lmc/k%d' % (i % 2))
        except FileNotFoundError:
            pass
ts = [threading.Thread(target=writer, args=(i,)) for i in range(8)]
[t.start() for t in ts]
[t.join() for t in ts]
for k in (0, 1):
    if os.path.exists('m/lmc/k%d' % k):
        true(os.path.getsize('m/lmc/k%d' % k) <= 300000, 'size of a raced file')
mounts = [l.split() for l in open('/proc/mounts')]
true(any(m[1] == os.path.realpath('m') for m in mounts), 'in /proc/mounts')
fd = os.open('m/lmc/gds', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, len(data))
v = mmap.mmap(fd, len(data), mmap.MAP_SHARED)
v[:] = data
v.close()
os.close(fd)
eq(data, slurp('m/lmc/gds'), 'stored by mapping')
E
}

# Temporary and rename, scandir of the whole directory per lookup, statvfs
# before a write, mtime order; the NIXL variant writes O_DIRECT at the final name.
t_sglang_hicache() {
	py <<'E'
os.mkdir('m/sgl')
for i in range(60):
    s = os.statvfs('m/sgl')
    true(s.f_bavail * s.f_frsize > 300000, 'statvfs')
    with open('m/sgl/p%d.tmp' % i, 'wb') as f:
        f.write(bytes([i]) * 65536)
    os.replace('m/sgl/p%d.tmp' % i, 'm/sgl/p%d' % i)
    os.utime('m/sgl/p%d' % i, ns=(STAMP, STAMP + (i * 37 % 60) * 1000))
    with os.scandir('m/sgl') as it:
        true('p%d' % i in {e.name for e in it}, 'found by scandir')
order = sorted(os.listdir('m/sgl'), key=lambda n: os.stat('m/sgl/' + n).st_mtime_ns)
eq(sorted(range(60), key=lambda i: i * 37 % 60), [int(n[1:]) for n in order], 'order by mtime')
b = mmap.mmap(-1, 1 << 20)
b[:] = os.urandom(1 << 20)
fd = os.open('m/sgl/nixl', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
for off in range(0, 1 << 20, 262144):
    os.pwritev(fd, [memoryview(b)[off:off + 262144]], off)
eq(b[:], slurp('m/sgl/nixl'), 'O_DIRECT in place')
E
}

# statvfs, atime moved with utimensat(NOW, OMIT), rm, rmdir.
t_llm_d_evictor() {
	py <<'E'
os.makedirs('m/llmd/a/b')
for i in range(20):
    spit('m/llmd/a/b/f%d' % i, bytes(100000))
    os.utime('m/llmd/a/b/f%d' % i, ns=(STAMP + i, STAMP))
class Ts(ctypes.Structure):
    _fields_ = [('s', ctypes.c_long), ('ns', ctypes.c_long)]
now_omit = (Ts * 2)(Ts(0, (1 << 30) - 1), Ts(0, (1 << 30) - 2))
for i in (3, 4):
    check_rc(ctypes.CDLL(None, use_errno=True).utimensat(-100, b'm/llmd/a/b/f%d' % i, now_omit, 0))
    st = os.stat('m/llmd/a/b/f%d' % i)
    eq(STAMP, st.st_mtime_ns, 'mtime is omitted')
    true(abs(st.st_atime_ns - time.time_ns()) < 10**10, 'atime is now')
names = sorted(os.listdir('m/llmd/a/b'), key=lambda n: os.stat('m/llmd/a/b/' + n).st_atime_ns)
eq({'f3', 'f4'}, set(names[-2:]), 'atime order')
before = os.statvfs('m').f_bavail
for n in names:
    os.unlink('m/llmd/a/b/' + n)
poll_until(lambda: os.statvfs('m').f_bavail >= before + 400, 'statvfs moves after unlink', 10)
os.rmdir('m/llmd/a/b')
os.rmdir('m/llmd/a')
E
}

# fallocate, O_DIRECT by F_SETFL, I/O on a file that was unlinked at once.
t_dynamo_kvbm() {
	py <<'E'
fd = os.open('m/kvbm', os.O_CREAT | os.O_RDWR)
os.unlink('m/kvbm')
fallocate(fd, 0, 0, 16 << 20)
fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
b, c = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, 1 << 20)
for i in (7, 0, 15, 3):
    b[:] = bytes([i + 1]) * (1 << 20)
    os.pwritev(fd, [b], i << 20)
for i in (3, 0, 7, 15):
    os.preadv(fd, [c], i << 20)
    eq(bytes([i + 1]) * 100, c[:50] + c[-50:], 'block %d' % i)
os.preadv(fd, [c], 1 << 20)
eq(bytes(1 << 20), c[:], 'reserved, not written')
E
}

# A sparse file of 240 GB, flock, pwritev into it, fsync of the directory.
t_hf3fs_and_mooncake() {
	py <<'E'
os.mkdir('m/moon')
fd = os.open('m/moon/segment', os.O_CREAT | os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.ftruncate(fd, 240 * 10**9)
for i in range(30):
    off = i * 7_654_321_000
    os.pwritev(fd, [b'%08d' % i, bytes([i]) * 131072], off)
os.fsync(fd)
d = os.open('m/moon', os.O_RDONLY)
os.fsync(d)
for i in range(30):
    off = i * 7_654_321_000
    eq(b'%08d' % i + bytes([i]) * 131072, os.pread(fd, 131080, off), 'object %d' % i)
eq(240 * 10**9, os.fstat(fd).st_size, 'size')
true(os.fstat(fd).st_blocks * 512 < 64 << 20, 'sparse: %d blocks' % os.fstat(fd).st_blocks)
os.unlink('m/moon/segment')
E
}

# Large writev, seek to the end, a read-only shared mapping.
t_torch_save_and_safetensors() {
	py <<'E'
import io, json, zipfile
data = os.urandom(4 << 20)
fd = os.open('m/model.safetensors', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
head = json.dumps({'kv': {'dtype': 'F16', 'shape': [2 << 20], 'data_offsets': [0, len(data)]}}).encode()
want = struct.pack('<Q', len(head)) + head + data
left = [memoryview(want)[:8], memoryview(want)[8:8 + len(head)], memoryview(want)[8 + len(head):]]
while left:
    n = os.writev(fd, left)
    while left and n >= len(left[0]):
        n -= len(left.pop(0))
    if left:
        left[0] = left[0][n:]
os.close(fd)
with open('m/model.safetensors', 'rb') as f:
    eq(len(want), f.seek(0, os.SEEK_END), 'seek to the end')
    v = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    n = struct.unpack('<Q', v[:8])[0]
    eq('F16', json.loads(v[8:8 + n])['kv']['dtype'], 'header')
    eq(data, v[8 + n:], 'tensor')
with zipfile.ZipFile('m/model.pt', 'w', zipfile.ZIP_STORED) as z:
    z.writestr('archive/data.pkl', b'pickle')
    z.writestr('archive/data/0', data)
with zipfile.ZipFile('m/model.pt') as z:
    eq(None, z.testzip(), 'zip')
    eq(data, z.read('archive/data/0'), 'storage')
E
}

# A build: many small files, timestamps in order, an executable run from there.
t_compile_and_run() {
	command -v gcc >/dev/null || return 0
	mkdir -p m/build
	for i in 1 2 3; do echo "int f$i(void) { return $i; }" >m/build/f$i.c; done
	echo 'int f1(void), f2(void), f3(void); int main(void) { return f1() + f2() + f3() - 6; }' >m/build/main.c
	(cd m/build && gcc -c f1.c f2.c f3.c main.c && ar rcs libf.a f1.o f2.o f3.o && gcc -o prog main.o libf.a) ||
		bad "building on the mount"
	expect_ok m/build/prog
	rm -rf m/build
}

kvc_main "$@"
