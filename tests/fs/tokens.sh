#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, rows "write tokens" and "tokens to zero": ids may be written
# in any way that a tool writes, and never come to stand for bytes that other
# ids produced.
. "$(dirname "$0")/../lib/mount.sh"

t_rewrite_and_append() {
	ks make m/a/s Y:64
	ks ids Y:64 >m/a/s/tokens
	kcheck check m/a/s Y:64
	kcheck probe m/a Y:64 64
	ks ids Y:100 >m/a/s/tokens
	expect_eq 64 "$(T m/a/s)" "T after more ids than tokens"
	expect_eq 100 "$(nids m/a/s/tokens)" "ids"
	ks ids Y:128 | tail -c 112 >>m/a/s/tokens
	ks ids Y:128 >out/want
	expect_same out/want m/a/s/tokens
	ks kv Y:128 | tail -c 32768 >>m/a/s/kv
	kcheck check m/a/s Y:128
	kcheck probe m/a Y:128 128
}

t_odd_sizes() {
	mkdir m/a/s m/a/p
	ks ids Y:64 | dd of=m/a/s/tokens bs=10 status=none || bad "dd bs=10"
	ks ids Y:64 >out/want
	expect_same out/want m/a/s/tokens
	py <<'E'
data = Spec('Y:64').idbytes()
with open('m/a/p/tokens', 'wb', buffering=7) as f:
    f.write(data)
eq(data, slurp('m/a/p/tokens'), 'buffered in sevens')
fd = os.open('m/a/p/tokens', os.O_WRONLY | os.O_APPEND)
for c in b'abcde':
    os.write(fd, bytes([c]))
os.close(fd)
eq(data + b'abcd', slurp('m/a/p/tokens')[:260], 'byte by byte at the end')
E
	ks kv Y:64 >m/a/s/kv
	kcheck probe m/a Y:64 64
}

t_part_of_an_id_does_not_count() {
	ks make m/a/src Y:64
	mkdir m/a/s
	ks ids Y:64 | head -c 255 >m/a/s/tokens
	expect_eq 32 "$(cached m/a/s)" "63 whole ids match one block"
}

t_behind_the_end_is_EINVAL() {
	ks make m/a/s Y:64
	py <<'E'
fd = os.open('m/a/s/tokens', os.O_WRONLY)
for off in (257, 260, 4096, 1 << 40):
    err('EINVAL', 'pwrite at %d of 256' % off, os.pwrite, fd, b'abcd', off)
eq('0', outcome(os.pwrite, fd, b'abcd', 256), 'at the end')
os.close(fd)
eq(Spec('Y:64').idbytes() + b'abcd', slurp('m/a/s/tokens'), 'contents')
E
	expect_errno EINVAL dd if=/dev/zero of=m/a/s/tokens bs=4 count=1 seek=100 conv=notrunc status=none
}

t_other_ids_over_committed_bytes() {
	ks make m/a/s Y:64
	ks ids Z:64 >m/a/s/tokens
	ks ids Z:64 >out/want
	expect_same out/want m/a/s/tokens
	kcheck check m/a/s Y:64 noids
	kcheck probe m/a Z:64 0
	kcheck probe m/a Y:64
	ks ids Y:64 >m/a/s/tokens
	kcheck probe m/a Y:64 64
	kcheck probe m/a Z:64 0
}

t_agreeing_as_far_as_they_agree() {
	ks make m/a/s Y:96
	ks ids Y:40,Z:56 >m/a/s/tokens
	kcheck probe m/a Y:40,Z:56 32
	py <<'E'
fd = os.open('m/a/s/tokens', os.O_WRONLY)
os.pwrite(fd, Spec('Y:96').idbytes()[160:], 160)
os.close(fd)
hits('m/a', 'Y:96', 96, 'ids put right in place')
hits('m/a', 'Y:40,Z:56', 32, 'the wrong ones')
E
}

t_overwrite_in_place() {
	ks make m/a/s Y:64
	printf abcd | dd of=m/a/s/tokens bs=4 seek=40 conv=notrunc status=none
	py <<'E'
ids = Spec('Y:64').idbytes()
eq(ids[:160] + b'abcd' + ids[164:], slurp('m/a/s/tokens'), 'one id changed')
E
	kcheck check m/a/s Y:64 noids
	kcheck probe m/a Y:64
}

t_ids_ahead_of_the_bytes_may_change() {
	ks make m/a/s Y:64
	ks ids Y:128 >m/a/s/tokens
	ks ids Y:64,Z:64 >m/a/s/tokens
	py <<'E'
fd = os.open('m/a/s/kv', os.O_WRONLY)
Spec('Y:64,Z:64').put(fd, 64)
os.close(fd)
check('m/a/s', 'Y:64,Z:64')
hits('m/a', 'Y:64,Z:64', 128)
hits('m/a', 'Y:128', 64)
E
}

t_to_zero() {
	ks make m/a/s Y:64
	: >m/a/s/tokens
	expect_eq 0 "$(size m/a/s/tokens)" "ids"
	kcheck check m/a/s Y:64 noids
	ks ids Z:64 >>m/a/s/tokens
	kcheck probe m/a Z:64 0
	truncate -s 0 m/a/s/tokens
	ks ids Y:64 >>m/a/s/tokens
	kcheck check m/a/s Y:64
	kcheck probe m/a Y:64 64
}

t_attached_is_detached_with_its_ids() {
	local how
	ks make m/a/src Y:64
	for how in ': >m/a/s/tokens' 'truncate -s 0 m/a/s/tokens' 'rm m/a/s/tokens' 'ks ids Z:64 >m/a/t.tmp; mkdir -p m/a/q; ks ids Z:64 >m/a/q/tokens; mv m/a/q/tokens m/a/s/tokens; rm m/a/t.tmp'; do
		rm -rf m/a/s m/a/q; mkdir m/a/s
		touch m/a/s/kv
		ks ids Y:64 >m/a/s/tokens
		expect_eq 64 "$(cached m/a/s)" "attached"
		expect_eq 32768 "$(size m/a/s/kv)" "attached bytes"
		eval "$how"
		expect_eq 0 "$(T m/a/s)" "T after $how"
		expect_eq 0 "$(size m/a/s/kv)" "size after $how"
		expect_eq 0 "$(cached m/a/s)" "cached_tokens after $how"
	done
	kcheck check m/a/src Y:64
}

t_more_ids_attach_more() {
	ks make m/a/src Y:128
	mkdir m/a/s; touch m/a/s/kv
	ks ids Y:40 >m/a/s/tokens
	expect_eq 32 "$(cached m/a/s)" "40 ids"
	ks ids Y:128 | tail -c +161 >>m/a/s/tokens
	expect_eq 128 "$(cached m/a/s)" "128 ids"
	kcheck check m/a/s Y:128
}

t_attached_then_continued() {
	ks make m/a/src Y:64
	mkdir m/a/s; touch m/a/s/kv
	ks ids Y:64,R:64 >m/a/s/tokens
	expect_eq 64 "$(cached m/a/s)" "attached"
	py <<'E'
s = Spec('Y:64,R:64')
fd = os.open('m/a/s/kv', os.O_WRONLY)
err('EPERM', 'attached blocks are sealed', os.pwrite, fd, b'x', 0)
s.put(fd, 64)
os.close(fd)
check('m/a/s', s)
hits('m/a', s, 128)
check('m/a/src', 'Y:64')
E
	expect_eq 64 "$(cached m/a/s)" "cached_tokens tells what was attached"
}

t_unlinked_tokens() {
	ks make m/a/s Y:64
	rm m/a/s/tokens
	kcheck check m/a/s Y:64 noids
	expect_eq kv "$(ls m/a/s)" "listing"
	ks ids Y:64 >m/a/s/tokens
	kcheck check m/a/s Y:64
	kcheck probe m/a Y:64 64
}

t_renamed_over() {
	ks make m/a/s Y:64
	ks ids Z:64 >m/a/s/tokens.new
	mv m/a/s/tokens.new m/a/s/tokens
	ks ids Z:64 >out/want
	expect_same out/want m/a/s/tokens
	kcheck check m/a/s Y:64 noids
	kcheck probe m/a Z:64 0
	ks ids Y:64 >m/a/s/tokens.new
	mv m/a/s/tokens.new m/a/s/tokens
	kcheck check m/a/s Y:64
	kcheck probe m/a Y:64 64
}

t_created_beside_copied_blocks_shows_their_ids() {
	ks make m/a/s Y:100
	mkdir m/a/k
	cp m/a/s/kv m/a/k/kv
	touch m/a/k/tokens
	expect_same m/a/s/tokens m/a/k/tokens
	kcheck check m/a/k Y:100
}

t_read_while_open() {
	py <<'E'
os.mkdir('m/a/s')
fd = os.open('m/a/s/tokens', os.O_CREAT | os.O_RDWR)
os.write(fd, b'abcdefgh')
eq(b'abcdefgh', os.pread(fd, 100, 0), 'the writer reads')
eq(b'abcdefgh', slurp('m/a/s/tokens'), 'another reads')
r = os.open('m/a/s/tokens', os.O_RDONLY)
os.read(r, 100)
os.pwrite(fd, b'XY', 2)
eq(b'abXYefgh', os.pread(r, 100, 0), 'a cached reader sees the overwrite')
E
}

kvc_main "$@"
