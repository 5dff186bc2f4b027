#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A full store: ENOSPC at the write, the request whole or not at all, nothing
# that was accepted is lost, and a later fsync does not run out.
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
KVC_MOUNT_ARGS=(-o dram=64M,nvme=1G store)

# fill NAME: MiB after MiB with O_DIRECT (each one request) until ENOSPC
fill() {
	py "$1" <<'E'
buf = mmap.mmap(-1, 1 << 20)
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
n = os.fstat(fd).st_size >> 20
for i in range(n, 4096):
    buf[:] = struct.pack('<Q', i) * 131072
    try:
        k = os.pwritev(fd, [buf], i << 20)
    except OSError as e:
        eq('ENOSPC', name_of(e.errno), 'the write that does not fit')
        break
    if not eq(1 << 20, k, 'a request is whole or not at all'):
        break
else:
    fail('4 GiB fit into 1 GiB')
eq(i << 20, os.fstat(fd).st_size, 'the refused request changed nothing')
eq('0', outcome(os.fsync, fd), 'fsync does not run out')
eq('0', outcome(os.close, fd), 'nor close')
E
}
filled() { # NAME
	py "$1" <<'E'
size = os.stat(sys.argv[1]).st_size
with open(sys.argv[1], 'rb') as f:
    for i in range(size >> 20):
        if f.read(1 << 20) != struct.pack('<Q', i) * 131072:
            fail('MiB %d of %s' % (i, sys.argv[1]))
            break
true(size > 0, 'something fitted')
E
}

t_fill_with_a_plain_file() {
	kvc_ns m/a "$GBIG"
	ks make m/a/s B:512
	fill m/big
	local mib=$(($(size m/big) >> 20))
	echo "     $mib MiB fitted"
	[ $mib -ge 700 ] || bad "only $mib MiB fitted into 1 GiB"
	expect_match '^[0-9]$|^[0-9][0-9]$' "$(df --output=avail -m m | tail -1 | tr -d ' ')" "MiB available when full"
	filled m/big
	kcheck check m/a/s B:512
}

t_everything_else_when_full() {
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
size = os.fstat(fd).st_size
s, n = Spec('B:4096'), 0
for t in range(512, 4096, 16):
    r = outcome(os.pwrite, fd, s.block(t // 16), t * 65536)
    if r != '0':
        eq('ENOSPC', r, 'append to a sequence')
        break
    n += 16
eq(size + n * 65536, os.fstat(fd).st_size, 'size of the sequence')
eq('0', outcome(os.fsync, fd), 'fsync')
os.close(fd)
eq(str(512 + n), xattr('m/a/s'), 'T: what was accepted')
check('m/a/s', 'B:4096', tokens=512 + n, ids=False)
fd = os.open('m/more', os.O_CREAT | os.O_WRONLY)
r = outcome(lambda: [os.write(fd, bytes(8 << 20)) for _ in range(200)])
eq('ENOSPC', r, 'a buffered writer')
eq('0', outcome(os.fsync, fd), 'fsync after it')
fd = os.open('m/alloc', os.O_CREAT | os.O_WRONLY)
eq('ENOSPC', outcome(fallocate, fd, 0, 0, 1 << 30), 'fallocate')
eq(0, os.fstat(fd).st_size, 'it changed nothing')
for what, f in (('cp', lambda: subprocess.run(['cp', '-r', 'm/a/s', 'm/a/f'], check=True, stderr=subprocess.DEVNULL)),
                ('stat', lambda: os.stat('m/big')), ('read', lambda: slurp('m/a/s/tokens')),
                ('rename', lambda: os.rename('m/alloc', 'm/alloc2')), ('unlink', lambda: os.unlink('m/more'))):
    try:
        f()
    except (OSError, subprocess.CalledProcessError) as e:
        fail('%s in a full store: %s' % (what, e))
E
}

t_readable_after_a_mount() {
	local t
	t=$(T m/a/s)
	kvc_remount
	filled m/big
	expect_eq "$t" "$(T m/a/s)" "T"
	kcheck check m/a/s B:4096 "$t" noids
	kcheck check m/a/f B:4096 "$t" noids
}

t_readable_after_kill9() {
	py <<'E'
os.fsync(os.open('m/big', os.O_RDONLY))
E
	kvc_kill9
	kvc_again
	filled m/big
}

t_space_comes_back() {
	rm m/big
	fill m/again
	[ "$(size m/again)" -ge $((500 << 20)) ] || bad "only $(($(size m/again) >> 20)) MiB after a removal"
	filled m/again
	rm m/again
	kcheck check m/a/s B:4096 "$(T m/a/s)" noids
}

# Unnamed cached blocks give way: they count as free.
t_cached_blocks_make_room() {
	rm -rf m/a/s m/a/f
	expect_ok fallocate -l 600M m/alloc
	fill m/big
	[ "$(size m/big)" -ge $((100 << 20)) ] || bad "cached blocks stood in the way: $(($(size m/big) >> 20)) MiB"
	filled m/big
}

t_without_a_store() {
	rm -rf m/*
	kvc_umount
	kvc_mount -o dram=64M none || { bad "mount"; return; }
	fill m/big
	local mib=$(($(size m/big) >> 20))
	[ $mib -ge 32 ] && [ $mib -le 64 ] || bad "$mib MiB fitted into a DRAM tier of 64"
	filled m/big
	kvc_ns m/a "$GBIG"
	rm m/big
	expect_ok ks make m/a/s B:256
	kcheck check m/a/s B:256
}

kvc_main "$@"
