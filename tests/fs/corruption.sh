#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A flipped bit in the data files is never returned as data: EIO for a named
# file, without a byte of the block; a miss for a cached block.
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
KVC_MOUNT_ARGS=(-o dram=64M,nvme=1G store)

# flip SPEC TOKEN: every copy of that token's row in the store gets one bit flipped
flip() {
	py "$STORE" "$1" "$2" <<'E'
root, spec, token = sys.argv[1], Spec(sys.argv[2]), int(sys.argv[3])
row = spec.rows(token, 1, 0)
found = 0
for d, _, files in os.walk(root):
    for f in files:
        p = os.path.join(d, f)
        fd = os.open(p, os.O_RDWR)
        size, off, step = os.fstat(fd).st_size, 0, 16 << 20
        while off < size:
            data = os.pread(fd, step + len(row), off)
            at = data.find(row)
            if at >= 0 and at < step:
                os.pwrite(fd, bytes([data[at + 5] ^ 16]), off + at + 5)
                found += 1
            off += step
        os.close(fd)
true(found, 'the bytes of token %d are not in the store: nothing was tested' % token)
E
}

t_named_and_cached() {
	kvc_ns m/a "$GBIG"
	ks make m/a/named N:128
	ks make m/a/fine F:128
	ks make m/a/gone C:128
	rm -r m/a/gone
	py <<'E'
spit('m/plain', b''.join(struct.pack('<Q', i) * 8 for i in range(40_000)))
E
	kvc_umount
	flip N:128 40
	flip C:128 40
	kvc_again
	local before
	before=$(awk '$1 ~ /error|checksum|corrupt/ { n += $2 } END { print n + 0 }' m/.kvc/stat)
	expect_errno EIO cat m/a/named/kv
	expect_errno EIO dd if=m/a/named/kv of=/dev/null bs=64K skip=32 count=1 status=none
	expect_errno EIO dd if=m/a/named/kv of=/dev/null bs=64K skip=47 count=1 iflag=direct status=none
	py <<'E'
s = Spec('N:128')
fd = os.open('m/a/named/kv', os.O_RDONLY)
for b in range(8):
    if b != 2:
        eq(s.block(b), os.pread(fd, 1 << 20, b << 20), 'block %d, undamaged' % b)
err('EIO', 'block 2', os.pread, fd, 10, (2 << 20) + 1000)
err('EIO', 'block 2 again', os.pread, fd, 10, (2 << 20) + 1000)
# Attached, it has a name: the read that finds the damage gets EIO and no byte. From then on it is a miss.
err('EIO', 'a damaged block that was cached', probe, 'm/a', 'C:128')
n, right = probe('m/a', 'C:128')
true(right and n <= 32, 'a damaged cached block is a miss: %d tokens, right: %s' % (n, right))
check('m/a/fine', 'F:128')
hits('m/a', 'F:128', 128)
E
	[ "$(awk '$1 ~ /error|checksum|corrupt/ { n += $2 } END { print n + 0 }' m/.kvc/stat)" -gt "$before" ] ||
		bad "no counter of .kvc/stat tells of it"
	grep -qi 'checksum\|corrupt' "$KVC_LOG" || bad "the log does not tell of it: $(tail -3 "$KVC_LOG")"
}

t_a_copy_shares_the_damage_and_nothing_else() {
	expect_ok cp -r m/a/fine m/a/fork
	kcheck check m/a/fork F:128
	expect_ok rm -r m/a/named
	ks make m/a/named N:128
	kcheck check m/a/named N:128
}

t_plain() {
	py <<'E'
want = b''.join(struct.pack('<Q', i) * 8 for i in range(40_000))
eq(want, slurp('m/plain'), 'before')
E
	kvc_umount
	py "$STORE" <<'E'
row, found = struct.pack('<Q', 20_000) * 8, 0
for d, _, files in os.walk(sys.argv[1]):
    for f in files:
        p = os.path.join(d, f)
        fd = os.open(p, os.O_RDWR)
        for off in range(0, os.fstat(fd).st_size, 16 << 20):
            data = os.pread(fd, (16 << 20) + 64, off)
            at = data.find(row)
            if 0 <= at < 16 << 20:
                os.pwrite(fd, b'\xee', off + at + 3)
                found += 1
true(found, 'nothing was damaged')
E
	kvc_again
	expect_errno EIO cat m/plain
	py <<'E'
want = b''.join(struct.pack('<Q', i) * 8 for i in range(40_000))
fd = os.open('m/plain', os.O_RDONLY)
eq(want[:65536], os.pread(fd, 65536, 0), 'an undamaged block')
err('EIO', 'the damaged block', os.pread, fd, 10, 20_000 * 64)
fd = os.open('m/plain', os.O_WRONLY)
base = 20_000 * 64 // 65536 * 65536
os.pwrite(fd, want[base:base + 65536], base)
os.fsync(fd)
eq(want, slurp('m/plain'), 'written again whole')
E
}

kvc_main "$@"
