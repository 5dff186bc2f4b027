#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# With a store everything survives a clean unmount and mount, and a kill -9 up
# to the last fsync.
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
KVC_MOUNT_ARGS=(-o dram=64M,nvme=1G store)

# Several sizes of plain files, links, a fifo, modes, times, attributes.
make_plain() {
	py <<'E'
os.makedirs('m/plain/deep/er')
r = random.Random(1)
for i, n in enumerate((0, 1, 100, 4095, 4096, 4097, 65536, 65537, 3_000_000)):
    spit('m/plain/f%d' % i, r.randbytes(n))
fd = os.open('m/plain/sparse', os.O_CREAT | os.O_WRONLY)
os.pwrite(fd, b'far', 5_000_000)
os.ftruncate(fd, 9_000_000)
os.close(fd)
os.link('m/plain/f2', 'm/plain/deep/hard')
os.symlink('../f3', 'm/plain/deep/soft')
os.mkfifo('m/plain/fifo', 0o620)
os.chmod('m/plain/f4', 0o4711)
os.chown('m/plain/f5', 1234, 4321)
os.setxattr('m/plain/f6', 'user.x', bytes(range(256)))
os.setxattr('m/plain/deep', 'user.kvc.priority', b'80')
os.setxattr('m/plain/deep', 'user.y', b'')
spit('m/plain/n' + 'n' * 250, b'long')
for p in ('m/plain/f7', 'm/plain/deep', 'm/plain/deep/soft'):
    os.utime(p, ns=(STAMP, STAMP + 1), follow_symlinks=False)
E
}

# A description of everything in the mount, to compare before and after.
describe() {
	(cd m && find . -printf '%p %y %i %m %n %U %G %s %T@ %C@ %l\n' | sort)
	(cd m && find . -type f -print0 | sort -z | xargs -0 md5sum)
	(cd m && find . ! -type l -print0 | sort -z | xargs -0 getfattr -d -m - -e hex 2>/dev/null)
}

ns_all() {
	kvc_ns m/a "$G"
	ks makens m/a
	mkdir m/a/salted; setfattr -n user.kvc.salt -v s m/a/salted
	ks make m/a/salted/x X:70
	cp -r m/a/A m/a/fork
	ks make m/a/gone Q:96; rm -r m/a/gone
	mkdir m/a/att; touch m/a/att/kv; ks ids A:100 >m/a/att/tokens
	rm -rf m/odd; kvc_ns m/odd "$GODD fingerprint=odd"
	ks make m/odd/s O:50
	export GEO=$G
}

ns_check() {
	kcheck checkns m/a
	kcheck check m/a/fork A:100
	kcheck check m/a/salted/x X:70
	kcheck probe m/a/salted X:70 64
	kcheck probe m/a X:70 0
	expect_eq 96 "$(cached m/a/att)" "cached_tokens of an attached sequence"
	kcheck check m/a/att A:96 noids
	expect_eq 3 "$(status a/fork shared_blocks)" "shared_blocks of the fork"
	GEO=$GODD kcheck check m/odd/s O:50
	GEO=$GODD kcheck probe m/odd O:50 48
}

# A record of the directory may be durable before that of the sequence: then kv is
# gone, and what comes next must not come to stand under the ids that were its own.
t_kv_leaves_before_a_crash() {
	local how
	rm -rf m/a; kvc_ns m/a
	mkdir -p m/other
	for how in 'rm m/a/s/kv' 'mv m/a/s/kv m/a/s/kv.old' 'mkdir m/a/t; mv m/a/s/kv m/a/t/kv'; do
		rm -rf m/a/s m/a/t; kvc_drop
		ks make m/a/s Y:64
		sync m/a/s/kv m/a/s/tokens m/a
		kvc_umount
		kvc_mount -o dram=64M,commit=600 store || bad "no mount"
		eval "$how"
		: >m/other/f
		sync m/other/f
		kvc_kill9
		kvc_mount -o dram=64M store || bad "no mount after $how"
		expect_absent m/a/s/kv
		expect_eq 64 "$(nids m/a/s/tokens)" "ids after $how"
		expect_eq 0 "$(T m/a/s)" "T after $how"
		py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
write_all(fd, Spec('Z:64').kv(), 0)
os.fsync(fd)
os.close(fd)
E
		rm -rf m/a/s/kv.old m/a/t; kvc_drop
		KVC_NOTE="new bytes after $how" kcheck probe m/a Y:64 0
		ks ids Z:64 >m/a/s/tokens
		KVC_NOTE="and their ids" kcheck probe m/a Z:64 64
		kvc_remount
		kcheck check m/a/s Z:64
	done
	rm -rf m/a m/other
}

t_clean_unmount_and_mount() {
	make_plain
	ns_all
	describe >before
	kvc_remount
	describe >after
	cmp -s before after || bad "differs after unmount and mount:"$'\n'"$(diff before after | head -20)"
	ns_check
	kcheck probe m/a Q:96 96
	kvc_remount
	ns_check
}

t_goes_on_after_a_mount() {
	cp -r m/a/A m/a/more
	kvc_remount
	py <<'E'
s = Spec('A:128')
fd = os.open('m/a/more/kv', os.O_WRONLY)
err('EPERM', 'sealed is sealed after a mount', os.pwrite, fd, b'x', 0)
s.put(fd, 100)
os.close(fd)
spit('m/a/more/tokens', s.idbytes())
check('m/a/more', s)
make('m/a/new', 'N:200')
i = os.stat('m/plain/f1').st_ino
spit('m/plain/new', b'new')
true(os.stat('m/plain/new').st_ino != i, 'inode numbers are not given twice')
E
	kvc_remount
	kcheck check m/a/more A:128
	kcheck check m/a/new N:200
	kcheck check m/a/A A:100
	rm -r m/a/more m/a/new m/plain/new
}

t_open_tail_and_uncommitted_bytes_after_unmount() {
	py <<'E'
os.mkdir('m/a/tail')
fd = os.open('m/a/tail/kv', os.O_CREAT | os.O_WRONLY)
Spec('T:50').put(fd)
os.close(fd)
eq('32', xattr('m/a/tail'), 'T')
E
	ks ids T:50 >m/a/tail/tokens
	kvc_remount
	py <<'E'
eq('32', xattr('m/a/tail'), 'T after the mount')
eq(Spec('T:50').kv()[:geo().block_bytes], slurp('m/a/tail/kv')[:geo().block_bytes], 'the sealed block')
set_tokens('m/a/tail', 50)
check('m/a/tail', 'T:50', 'the tail can be committed after a mount')
shutil.rmtree('m/a/tail')
E
}

t_fsync_and_kill9() {
	py <<'E'
def durable(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
make('m/a/k1', 'K:100')
os.setxattr('m/a/k1/kv', 'user.note', b'kept')
for f in ('kv', 'tokens'):
    durable('m/a/k1/' + f)
durable('m/a/k1'); durable('m/a')
os.mkdir('m/kill')
r = random.Random(4)
fd = os.open('m/kill/f', os.O_CREAT | os.O_RDWR)
os.pwrite(fd, r.randbytes(1_000_000), 0)
os.fsync(fd)
for i in range(20):
    os.pwrite(fd, b'%020d' % i, i * 40_000)
    os.fsync(fd)
os.rename('m/kill/f', 'm/kill/g')
os.fsync(fd)
durable('m/kill'); durable('m')
# after the last fsync: may be there or not, in parts or whole
os.pwrite(fd, b'late', 999_000)
spit('m/kill/late', b'x' * 100_000)
E
	kvc_kill9
	kvc_again
	py <<'E'
check('m/a/k1', 'K:100', 'a committed and fsynced sequence')
eq('kept', xattr('m/a/k1/kv', 'user.note'), 'its attribute')
hits('m/a', 'K:100', 96)
r = random.Random(4)
want = bytearray(r.randbytes(1_000_000))
for i in range(20):
    want[i * 40_000:i * 40_000 + 20] = b'%020d' % i
got = bytearray(slurp('m/kill/g'))
if got[999_000:999_004] == b'late':
    got[999_000:999_004] = want[999_000:999_004]
eq(bytes(want), bytes(got), 'fsynced bytes')
true(not os.path.exists('m/kill/f'), 'the rename')
if os.path.exists('m/kill/late'):
    true(set(slurp('m/kill/late')) <= {0, ord('x')}, 'no foreign bytes')
E
	ns_check
	rm -rf m/kill m/a/k1
}

# Rewriting in place: after a crash the file is the old one or the new one.
t_rewrite_in_place_and_kill9() {
	local i
	for i in 1 2 3; do
		py <<'E'
spit('m/old-or-new', b'A' * 500_000)
fd = os.open('m/old-or-new', os.O_RDONLY)
os.fsync(fd)
os.fsync(os.open('m', os.O_RDONLY))
fd = os.open('m/old-or-new', os.O_WRONLY | os.O_TRUNC)
os.write(fd, b'B' * 300_000)
E
		kvc_kill9
		kvc_again
		py <<'E'
got = slurp('m/old-or-new')
true(got in (b'A' * 500_000, b'B' * 300_000), 'neither old nor new: %d bytes, %r...' % (len(got), got[:10]))
E
	done
}

t_deleted_stays_deleted() {
	rm -rf m/plain m/a m/odd m/old-or-new
	kvc_remount
	expect_eq "" "$(ls -A m)" "listing after removing everything"
	kvc_drop
	local used
	used=$(tier nvme used)
	[ "${used:-x}" -le 4194304 ] || bad "nvme used $used after removing everything"
}

t_background_daemon() {
	kvc_umount
	expect_ok "$KVCACHEFS" -o "$KVC_OPTS" "$KVC_SOURCE" "$MNT"
	_answers || bad "the command returned before the mount answers"
	KVC_PID=$(pgrep -f "$KVC_SOURCE $MNT" | head -1)
	KVC_PIDS=("$KVC_PID")
	echo works >m/f
	umount "$MNT" || bad "umount"
	kvc_wait_for 30 _gone || bad "the daemon lives on after umount"
	kvc_again
	expect_eq works "$(cat m/f)" "written through the background daemon"
	kill -TERM "$KVC_PID"
	kvc_wait_for 30 _gone || bad "the daemon lives on after SIGTERM"
	mountpoint -q "$MNT" && bad "still mounted after SIGTERM"
	kvc_again
	expect_eq works "$(cat m/f)" "after SIGTERM"
}

kvc_main "$@"
