#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sequences of three times the DRAM tier, read back in random order by four
# readers: every byte is right, and the DRAM tier never holds more than it has.
# KVC_TEST_DRAM_MIB: size of the DRAM tier (default 128; from 2048 on the high
# watermark is checked as well).
. "$(dirname "$0")/../lib/mount.sh"

need_store
KVC_FRESH=0
MIB=${KVC_TEST_DRAM_MIB:-128}
KVC_MOUNT_ARGS=(-o "dram=${MIB}M,nvme=$((MIB * 4 / 1024 + 1))G" store)
SEQS=$((MIB * 3 / 8)) # of 8 MiB each

sampler() {
	"$PY" -S - "$MIB" >samples <<'E' &
from kvseq import *
size, high, n, over, worst = int(sys.argv[1]) << 20, 0, 0, 0, 0
while not os.path.exists('stop'):
    rows = [l.split() for l in slurp('m/.kvc/tiers').decode().splitlines()]
    row = next(dict(zip(rows[0], r)) for r in rows[1:] if r[0] == 'dram')
    used = int(row['used'])
    worst, n = max(worst, used), n + 1
    over += used > int(row['size']) * 9 // 10 + (96 << 20)
    if used > int(row['size']):
        high += 1
    if n == 3:
        spit('sampling', b'')
    select.select([], [], [], 0.01)
print(n, high, over, worst)
E
	SAMPLER=$!
	# Not before it samples: on a busy machine what is to be watched may be over before it has begun.
	py <<'E'
poll_until(lambda: os.path.exists('sampling'), 'the sampler samples')
E
}

sampled() {
	touch stop
	wait $SAMPLER
	rm stop sampling
	read -r n beyond over worst <samples
	echo "     $n samples, at most $((worst >> 20)) of $MIB MiB"
	[ "${n:-0}" -ge 3 ] || bad "too few samples: ${n:-none}"
	expect_eq 0 "$beyond" "samples with more used than the tier has"
	[ "$MIB" -lt 2048 ] || [ $((over * 100)) -le "$n" ] || bad "$over of $n samples above the high mark + 96 MiB"
}

t_write_three_times_dram() {
	kvc_ns m/a "$GBIG"
	sampler
	py $SEQS <<'E'
for i in range(int(sys.argv[1])):
    make('m/a/s%d' % i, 'B%d:128' % i, 'tk')
E
	sampled
	local nvme=0 dram=0 i
	for ((i = 0; i < SEQS; i++)); do
		expect_eq 8 "$(status a/s$i blocks)" "blocks of s$i"
		dram=$((dram + $(status a/s$i tier.dram))) nvme=$((nvme + $(status a/s$i tier.nvme)))
	done
	echo "     $dram blocks in dram, $nvme in nvme"
	[ $dram -le "$MIB" ] || bad "$dram MiB of blocks said to be in a dram tier of $MIB MiB"
	[ $nvme -ge $((SEQS * 8 - MIB)) ] || bad "only $nvme of $((SEQS * 8)) blocks are in nvme"
	[ $((dram + nvme)) -ge $((SEQS * 8)) ] || bad "$((SEQS * 8 - dram - nvme)) blocks are nowhere"
}

t_read_back_by_four() {
	sampler
	py $SEQS <<'E'
n = int(sys.argv[1])
def reader(k):
    order = list(range(n))
    random.Random(k).shuffle(order)
    for i in order:
        bad = compare('m/a/s%d' % i, 'B%d:128' % i)
        if bad:
            print('reader %d: s%d: %s' % (k, i, bad), flush=True)
            return 1
    return 0
pids = []
for k in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(reader(k))
    pids.append(pid)
for pid in pids:
    eq(0, os.waitpid(pid, 0)[1], 'a reader')
E
	sampled
	[ "$(counter nvme_read_bytes)" -ge $((MIB << 20)) ] || bad "nvme_read_bytes $(counter nvme_read_bytes)"
}

t_random_pieces_by_four() {
	sampler
	py $SEQS <<'E'
n = int(sys.argv[1])
def reader(k):
    r = random.Random(100 + k)
    fds = {}
    for _ in range(150):
        i, t = r.randrange(n), r.randrange(128)
        fd = fds.setdefault(i, None) or fds.__setitem__(i, os.open('m/a/s%d/kv' % i, os.O_RDONLY)) or fds[i]
        s = Spec('B%d:%d' % (i, t + 1))
        if os.pread(fd, 65536, t * 65536) != s.rows(t, 1, 0):
            print('reader %d: token %d of s%d' % (k, t, i), flush=True)
            return 1
    return 0
pids = []
for k in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(reader(k))
    pids.append(pid)
for pid in pids:
    eq(0, os.waitpid(pid, 0)[1], 'a reader')
E
	sampled
}

# O_NONBLOCK: the bytes, or EAGAIN and a prefetch that makes them come.
t_nonblocking_reads() {
	py $SEQS <<'E'
n, again = int(sys.argv[1]), 0
for i in random.Random(5).sample(range(n), min(n, 12)):
    want = Spec('B%d:16' % i).kv()
    fd = os.open('m/a/s%d/kv' % i, os.O_RDONLY | os.O_NONBLOCK)
    got = bytearray() # the first bytes may come alone: the kernel asks for 1 MiB in several requests
    def read():
        global again
        try:
            got.extend(os.pread(fd, len(want) - len(got), len(got)))
        except BlockingIOError:
            again += 1
        return len(got) == len(want)
    poll_until(read, 's%d comes after EAGAIN' % i)
    eq(want, bytes(got), 's%d, read without blocking' % i)
    os.close(fd)
E
}

# Named pins: at most 80 % of the tier in all, EBUSY beyond (the kernel hides EAGAIN of setxattr).
t_pins_are_budgeted() {
	py $SEQS "$MIB" <<'E'
n, mib, pinned = int(sys.argv[1]), int(sys.argv[2]), []
for i in range(n):
    r = outcome(os.setxattr, 'm/a/s%d' % i, 'user.kvc.pin', b'dram')
    if r != '0':
        eq('EBUSY', r, 'pin %d of 8 MiB in %d MiB' % (i, mib))
        eq('none', xattr('m/a/s%d' % i, 'user.kvc.pin'), 'the refused one')
        break
    pinned.append(i)
true(pinned and len(pinned) * 8 <= mib * 8 // 10, '%d sequences of 8 MiB were pinned in %d MiB' % (len(pinned), mib))
for i in range(n):
    bad = compare('m/a/s%d' % i, 'B%d:128' % i)
    if bad:
        fail('s%d beside pins: %s' % (i, bad))
        break
# What is pinned is in DRAM whatever was read meanwhile, and a demotion asked for leaves it there.
def in_dram(i):
    return int(dict(w.split('=') for w in xattr('m/a/s%d' % i, 'user.kvc.residency').split())['dram'])
for i in pinned:
    eq(8, in_dram(i), 'blocks of pinned s%d in DRAM after the pressure' % i)
E
	expect_ok "$KVCTL" demote --wait m/a/s0
	expect_match 'dram=8' "$(getfattr --only-values -n user.kvc.residency m/a/s0)" "pinned s0 after a demotion"
	kvc_remount -o dram=${MIB}M
	py <<'E'
poll_until(lambda: 'dram=8' in xattr('m/a/s0', 'user.kvc.residency'), 'pinned s0 comes back up after a mount')
for d in os.listdir('m/a'):
    if d.startswith('s') and xattr('m/a/' + d, 'user.kvc.pin') == 'dram':
        os.setxattr('m/a/' + d, 'user.kvc.pin', b'none')
E
	expect_ok "$KVCTL" demote --wait m/a/s0
	expect_match 'dram=0' "$(getfattr --only-values -n user.kvc.residency m/a/s0)" "s0 let go"
}

# Metadata and small files answer while the readers wait for the disk.
t_plain_files_in_the_same_tiers() {
	sampler
	py "$MIB" <<'E'
n = int(sys.argv[1]) * 2 // 8
for i in range(n):
    spit('m/p%d' % i, random.Random(i).randbytes(8 << 20))
for i in random.Random(0).sample(range(n), n):
    if not eq(random.Random(i).randbytes(8 << 20), slurp('m/p%d' % i), 'plain file %d' % i):
        break
for i in range(n):
    os.unlink('m/p%d' % i)
E
	sampled
	kcheck check m/a/s0 B0:128
}

t_prefix_hits_of_what_was_demoted() {
	kcheck probe m/a B0:128 128
	kcheck probe m/a B1:128 128
	cp -r m/a/s2 m/a/fork
	rm -r m/a/s2
	kcheck check m/a/fork B2:128
}

t_after_a_mount() {
	kvc_remount
	py $SEQS <<'E'
for i in random.Random(9).sample(range(int(sys.argv[1])), 6):
    if i != 2:
        check('m/a/s%d' % i, 'B%d:128' % i)
E
}

kvc_main "$@"
