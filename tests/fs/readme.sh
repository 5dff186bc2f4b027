#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# README.md does what it says: its blocks marked "sh tour" run in order, in one
# shell, and what each prints is what the block "text tour" behind it shows,
# dates, owners and widths apart. Its other facts are checked one by one.
. "$(dirname "$0")/../lib/mount.sh"

need_store
kvc_setup
README=$KVC_LIB/../../README.md
for tool in setfattr getfattr flock column sha256sum fusermount3; do
	command -v $tool >/dev/null || skip "no $tool"
done
PATH=$(dirname "$KVCACHEFS"):$(dirname "${KVCTL:-/}"):$PATH
umask 022

# Dates, times, owners, runs of blanks, and the line of a mount that waits for the one before.
plain() {
	sed -E '/^kvcachefs: .*in use; waiting/d
		s/20[0-9]{2}-[0-9T:.-]+Z/TIME/
		s/^([-dl][-rwx]{9}) +([0-9]+) [^ ]+ +[^ ]+/\1 \2 OWNER/
		s/[A-Z][a-z]{2} +[0-9]+ [0-9:]{4,5} /DATE /
		s/ +/ /g' "$1"
}

# split: N.sh and N.want for the tour's blocks, engine.py for the program.
split() {
	awk -v out="$OUT" '
		/^```/ && file != "" { close(file); file = ""; next }
		$0 == "```sh tour" { file = sprintf("%s/%02d.sh", out, ++nr) }
		$0 == "```text tour" { file = sprintf("%s/%02d.want", out, nr) }
		$0 == "```python engine.py" { file = "tour/engine.py" }
		/^```/ { next }
		file != "" { print > file }' "$README"
}

t_tour() {
	local block rc
	mkdir tour
	split
	[ "$(ls "$OUT"/*.sh | wc -l)" -ge 12 ] || bad "README.md has only $(ls "$OUT"/*.sh | wc -l) blocks of a tour"
	[ "$(wc -l <tour/engine.py)" -ge 20 ] || bad "README.md has no engine.py"
	{
		echo 'set -e; cd tour'
		for block in "$OUT"/*.sh; do
			echo "exec >${block%.sh}.got 2>&1"
			cat "$block"
		done
	} >"$OUT/all"
	bash "$OUT/all" >"$OUT/rest" 2>&1 </dev/null {KVC_PAUSE_FD}>&-
	rc=$?
	for block in "$OUT"/*.sh; do
		block=${block%.sh}
		[ -e "$block.got" ] || break
		[ -e "$block.want" ] || : >"$block.want"
		diff -u <(plain "$block.want") <(plain "$block.got") >"$block.diff" ||
			bad "README.md shows other output for:"$'\n'"$(cat "$block.sh" "$block.diff")"
	done
	[ $rc = 0 ] || bad "the tour ended with $rc at:"$'\n'"$(cat "$block.sh" "$block.got")"
}

# What the tour's text says and its output does not show.
t_claims() {
	kvc_mount -o dram=128M,nvme=256M "$KVC_TMP/claims" || { bad "no mount"; return; }
	expect_ok kvctl ns create m/ns --layers 4 --kv-heads 2 --head-dim 64 --dtype bf16 --block-tokens 16
	py <<'E'
import array
def put_ids(ids):
    with open('m/ns/s/tokens', 'wb') as f:
        array.array('I', ids).tofile(f)
os.mkdir('m/ns/s')
put_ids(range(500))
kv = os.open('m/ns/s/kv', os.O_RDWR | os.O_CREAT, 0o644)
for i in range(32):
    os.pwrite(kv, bytes([i]) * 32768, i * 32768)
os.setxattr('m/ns/s', 'user.kvc.tokens', b'500')
# decoding: the last block's new tokens, their ids, then how many there are
for n in range(501, 515):
    os.pwrite(kv, bytes([n % 256]) * 32768, 31 * 32768 if n <= 512 else 32 * 32768)
    with open('m/ns/s/tokens', 'ab') as f:
        array.array('I', [n]).tofile(f)
    os.setxattr('m/ns/s', 'user.kvc.tokens', b'%d' % n)
eq(b'514', os.getxattr('m/ns/s', 'user.kvc.tokens'), 'T after decoding')
err('EPERM', 'a sealed block is immutable', os.pwrite, kv, b'x', 0)
os.setxattr('m/ns/s', 'user.kvc.tokens', b'100')
eq(100 * 4, os.path.getsize('m/ns/s/tokens'), 'ids after a cut')
os.pwrite(kv, b'x', 6 * 32768)
os.close(kv)
# bytes: where the layout says they are
geo = dict(l.strip().split('=') for l in open('m/ns/.geometry'))
eq(2 * 4 * 2 * 64 * 2, int(geo['token_bytes']), 'token_bytes')
eq(16 * int(geo['token_bytes']) // 4, int(geo['slice_bytes']), 'slice_bytes')
E
	expect_ok bash -c 'echo high=95 >m/.kvc/config'
	expect_errno EPERM bash -c 'echo dram=1G >m/.kvc/config'
	expect_eq "" "$(ls -A m | grep kvc)" ".kvc is not listed"
	kvc_umount
}

# The geometries shown can be pasted as they are, and their namespaces outlast the file.
t_geometries() {
	local ns bytes
	kvc_mount || { bad "no mount"; return; }
	awk '/^```/ { on = 0 } on { print } $0 == "```sh geometry" { on = 1 }' "$README" >"$OUT/geometry"
	ln -sfn m mnt
	expect_ok bash -e "$OUT/geometry"
	rm mnt
	for ns in heads:131072 latent:70272 own:4096; do
		bytes=${ns#*:} ns=${ns%:*}
		expect_eq "$bytes" "$(sed -n 's/^token_bytes=//p' "m/$ns/.geometry")" "token_bytes of $ns"
		grep -q '^block_bytes=' "m/$ns/.geometry" || bad "no block_bytes in $ns"
	done
	rm m/heads/.geometry
	mkdir m/heads/s
	: >m/heads/s/tokens
	expect_eq 0 "$(T m/heads/s)" "T in a namespace whose .geometry was removed"
	kvc_umount
}

# What README.md says of links.
t_links() {
	kvc_mount || { bad "no mount"; return; }
	kvc_ns m/ns "$G16"
	mkdir m/ns/s
	: >m/ns/s/kv
	: >m/ns/s/tokens
	expect_errno EPERM ln m/ns/s/kv m/ns/s/other
	expect_errno EPERM ln m/ns/s/tokens m/ns/s/other
	expect_errno EPERM ln -s other m/ns/s/kv.x
	expect_errno EPERM ln -s other m/ns/s/tokens.x
	: >m/ns/s/notes
	expect_errno EXDEV ln m/ns/s/notes m/ns/s/kv.y
	expect_ok ln -s kv m/ns/s/other
	expect_ok cat m/ns/s/other
	kvc_umount
}

# Every option of the table is known: taken, or refused as not in this version.
t_options() {
	local opt out
	for opt in write.nvme=through high=95,low=50 evict=lru commit=2 hugepages=off numa=none pinned=0 hbm=off \
		codec.nvme=raw noatime; do
		kvc_mount -o "dram=64M,$opt" || { bad "option $opt: no mount"; return; }
		kvc_umount
	done
	for opt in pinned=1G hbm=auto remote=redis://h:1 remote_key=/k codec.nvme=int8 write.remote=back \
		write.hbm=back; do
		out=$("$KVCACHEFS" -o "dram=64M,$opt" none "$MNT" 2>&1) && bad "option $opt was taken"
		expect_match 'this version does not have it yet' "$out" "option $opt"
	done
}

# Every control file, kvctl command and attribute that exists is in README.md.
t_complete() {
	local name
	kvc_mount || { bad "no mount"; return; }
	for name in $(ls m/.kvc); do
		grep -q "^| \`$name[\`/]" "$README" || bad "README.md does not name .kvc/$name"
	done
	for name in $(kvctl --help | awk '/^  [a-z]/ { print $1 == "ns" ? "ns_" $2 : $1 }'); do
		grep -qE "^\| \`kvctl ${name/_/ }|^\| \`kvctl ttl.*\`$name\`" "$README" || bad "README.md does not name kvctl ${name/_/ }"
		grep -qE "^\.(B|BR) (.*\b)?${name/_/ }\b" "$KVC_LIB/../../tools/man/kvctl.1" || bad "kvctl.1 does not name ${name/_/ }"
	done
	kvc_umount
}

# cmake --install puts the programs and their pages where README.md says; mount(8) starts one of them.
t_install() {
	local build=${KVC_BIN_DIR:-/none}/.. name
	command -v cmake >/dev/null || return 0
	[ -e "$build/cmake_install.cmake" ] && [ -x "$build/bin/kvbench" ] && [ -x "$KVCTL" ] && [ -x "$KVREPLAY" ] || return 0
	if ! cmake --install "$build" --prefix "$KVC_TMP/inst" >"$OUT/install" 2>&1; then
		grep -q 'cannot find' "$OUT/install" && { echo "     only a part of the tree is built: not installed"; return 0; }
		bad "cmake --install: $(tail -5 "$OUT/install")"
	fi
	for name in bin/kvcachefs bin/kvctl bin/kvreplay bin/kvbench share/man/man1/kvctl.1 \
		share/man/man1/kvreplay.1 bin/kvdecode share/man/man1/kvdecode.1 share/man/man1/kvbench.1 share/man/man8/kvcachefs.8; do
		[ -e "inst/$name" ] || bad "cmake --install made no $name"
	done
	[ "$(id -u)" = 0 ] || return 0
	expect_ok mount -t fuse "$KVC_TMP/inst/bin/kvcachefs#$STORE" "$MNT" -o dram=64M,nvme=64M,nofail,noatime
	expect_eq fuse.kvcachefs "$(stat -f -c %T "$MNT" >/dev/null && awk -v d="$MNT" '$2 == d { print $3 }' /proc/mounts)" "type"
	expect_match '^kvcachefs .* uapi 1$' "$(cat m/.kvc/version)" "version"
	expect_ok umount "$MNT"
	expect_ok flock "$STORE" true
}

for KVC_CASE in ${*:-$(_cases)}; do
	before=$KVC_FAILS
	"$KVC_CASE"
	cd "$KVC_TMP" || exit 1
	[ $KVC_FAILS = "$before" ] && echo "ok   $KVC_SCRIPT: $KVC_CASE"
done
kvc_end
