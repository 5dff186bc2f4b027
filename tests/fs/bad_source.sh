#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What cannot be mounted is refused: a non-zero exit, one clear line, and not a
# byte of the source changed.
. "$(dirname "$0")/../lib/mount.sh"

need_store
kvc_setup
mkdir m2

# refused WORDS COMMAND...: fails, says all of WORDS on stderr, leaves no mount
refused() {
	local words=$1 w out rc
	shift
	out=$(timeout 60 "$@" 2>&1 >/dev/null)
	rc=$?
	[ $rc != 0 ] || bad "'$*' succeeded"
	[ $rc != 124 ] || bad "'$*' hangs"
	[ $rc -lt 128 ] || bad "'$*' died of a signal: $rc"
	for w in $words; do
		grep -qi -- "$w" <<<"$out" || bad "'$*' does not say '$w': $out"
	done
	[ "$(grep -c . <<<"$out")" -le 3 ] || bad "'$*' is not one clear line: $out"
	for w in "$MNT" "$KVC_TMP/m2"; do
		[ "$w" = "${KEEP:-}" ] || ! mountpoint -q "$w" || { bad "'$*' left a mount"; umount -l "$w"; }
	done
}
try() { refused "$1" "$KVCACHEFS" -o "$2" "$3" "$MNT"; }
fingerprint() { find "$1" -type f -print0 | sort -z | xargs -0 md5sum; }

t_options() {
	try nonsense nonsense=1 none
	try dram dram=abc none
	try dram dram=-5 none
	try dram dram= none
	try high high=101 none
	try high high=x none
	try evict evict=magic none
	try hugepages hugepages=perhaps none
	try codec codec.nvme=mp3 none
	try remote remote=redis://localhost none
	try hbm hbm=auto none
	try write write.nvme=sometimes none
	try lie dram=64M "$MNT"
	try lie dram=64M "$MNT/store"
	refused '' "$KVCACHEFS"
	refused '' "$KVCACHEFS" --nonsense "$MNT"
	expect_ok "$KVCACHEFS" --help
	expect_ok "$KVCACHEFS" --version
	expect_match '^kvcachefs [0-9]' "$("$KVCACHEFS" --version | head -1)" "--version"
	expect_match 'dram=' "$("$KVCACHEFS" --help)" "--help names the options"
}

t_mount_point() {
	refused "$KVC_TMP/none" "$KVCACHEFS" -o dram=64M none "$KVC_TMP/none"
	touch file
	refused "$KVC_TMP/file" "$KVCACHEFS" -o dram=64M none "$KVC_TMP/file"
	mountpoint -q "$KVC_TMP/file" && { bad "mounted over a file"; umount "$KVC_TMP/file"; }
}

t_not_writable() {
	mkdir ro
	mount -t tmpfs -o ro none ro || return
	try "ro/store" dram=64M,nvme=1G "$KVC_TMP/ro/store"
	try "ro" dram=64M,nvme=1G "$KVC_TMP/ro"
	umount ro
	echo text >plainfile
	try plainfile dram=64M,nvme=1G "$KVC_TMP/plainfile"
	expect_eq text "$(cat plainfile)" "a file that is no store"
	try nowhere dram=64M,nvme=1G "$KVC_TMP/nowhere/deep/store"
}

# Somebody's directory, not a store: neither formatted nor touched.
t_foreign_directory() {
	mkdir photos
	echo 1 >photos/a; echo 2 >photos/b
	fingerprint photos >before
	if kvc_mount -o dram=64M,nvme=1G "$KVC_TMP/photos"; then kvc_umount; fi
	expect_eq 1 "$(cat photos/a)" "a foreign file"
	expect_eq "$(cat before)" "$(fingerprint photos | grep 'photos/[ab]$')" "foreign files"
	rm -rf photos
}

# Never over another mount of ours, served or not: what would be hidden below?
t_mounted_already() {
	kvc_mount -o dram=64M none || { bad "mount"; return; }
	KEEP=$MNT refused "already" "$KVCACHEFS" -o dram=64M none "$MNT"
	stat "$MNT" >/dev/null # the kernel knows the directory for a while
	kill -9 "$KVC_PID"
	kvc_wait_for 10 _gone
	KEEP=$MNT refused "fusermount3 -uz $MNT" "$KVCACHEFS" -o dram=64M none "$MNT"
	expect_eq 1 "$(grep -c " $MNT fuse" /proc/mounts)" "mounts there"
	wait "$KVC_PID" 2>/dev/null
	KVC_PIDS=()
	umount -l "$MNT"
}

t_no_room() {
	mkdir small
	mount -t tmpfs -o size=32M none small || return
	try "small" dram=64M,nvme=1G "$KVC_TMP/small/store"
	umount small
}

t_in_use() {
	kvc_mount -o dram=64M,nvme=1G store || { bad "mount"; return; }
	echo one >m/f
	KEEP=$MNT refused "$STORE" "$KVCACHEFS" -o dram=64M "$STORE" "$KVC_TMP/m2"
	expect_eq one "$(cat m/f)" "the first mount works on"
	echo two >m/f
	KEEP=$MNT refused "" "$KVCACHEFS" -o dram=64M "$STORE" "$MNT"
	expect_eq two "$(cat m/f)" "and on"
	kvc_umount
	kvc_mount -o dram=64M store || bad "mount after the other left"
	expect_eq two "$(cat m/f)" "what it wrote"
	kvc_umount
}

# One that is served is not waited for, by whatever name it was mounted.
t_in_use_by_a_relative_name() {
	local start=$SECONDS
	mkdir mr
	expect_ok "$KVCACHEFS" -o dram=32M,nvme=64M rel mr
	expect_match "$KVC_TMP/rel" "$(grep " $KVC_TMP/mr " /proc/mounts)" "the table of mounts has the whole path"
	refused "in use" "$KVCACHEFS" -o dram=32M rel m2
	[ $((SECONDS - start)) -lt 30 ] || bad "a store that is served is waited for"
	umount mr
	kvc_wait_for 30 flock -n rel true || bad "the daemon does not leave"
	rmdir mr
	rm -rf rel
}

# The mount is gone before its daemon has closed the store: the next one waits for it.
t_mount_again_at_once() {
	local i
	for i in 1 2 3 4; do
		expect_ok "$KVCACHEFS" -o dram=64M,nvme=1G "$STORE" "$MNT"
		head -c 32M /dev/urandom >m/again$i
		expect_ok fusermount3 -u "$MNT"
	done
	kvc_mount -o dram=64M store || bad "mount"
	expect_eq 4 "$(ls m | grep -c ^again)" "files"
	kvc_umount
}

# Damage to the superblock or to the journal is told and never repaired by
# forgetting: the files stay as they are, and undamaged ones mount again.
t_damaged_metadata() {
	local f off n=0 size out
	kvc_mount -o dram=64M,nvme=1G store || { bad "mount"; return; }
	kvc_ns m/a "$G"
	ks make m/a/s Y:100
	py <<'E'
for i in range(300):
    spit('m/f%d' % i, b'%d' % i)
for p in ['m/f%d' % i for i in range(300)] + ['m/a/s/kv', 'm/a/s/tokens', 'm/a/s', 'm/a/.geometry', 'm/a', 'm']:
    os.fsync(os.open(p, os.O_RDONLY))
E
	kvc_kill9
	kvc_mount -o dram=64M store || { bad "the undamaged store does not mount: $(tail -3 "$KVC_LOG")"; return; }
	kcheck check m/a/s Y:100
	kvc_kill9
	find "$STORE" -type f -size -300M -printf '%P\n' | grep -v '\.lock$\|^lock$' >files
	grep -q superblock files || bad "no superblock in the store: $(cat files)"
	grep -q journal files || bad "no journal in the store: $(cat files)"
	mkdir good
	while read -r f; do
		mkdir -p "good/$(dirname "$f")" && cp --sparse=always "$STORE/$f" "good/$f"
	done <files
	while read -r f; do
		size=$(size "good/$f")
		[ "$size" -gt 0 ] || continue
		# the first bytes, some in the middle of what is used, a cut
		for off in 0 9 100 4100 cut; do
			if [ $off = cut ]; then
				truncate -s $((size / 2)) "$STORE/$f"
			elif [ "$off" -lt "$size" ]; then
				"$PY" -S -c "import sys; f = open(sys.argv[1], 'r+b'); f.seek($off); b = f.read(1); f.seek($off); f.write(bytes([b[0] ^ 4]))" "$STORE/$f"
			else
				continue
			fi
			fingerprint "$STORE" >damaged
			n=$((n + 1))
			if out=$(timeout 60 "$KVCACHEFS" -o dram=64M "$STORE" "$MNT" 2>&1); then
				# allowed only if nothing is lost: the damage was in spare or repeated bytes
				KVC_NOTE="mounted with $f damaged at $off" kcheck check m/a/s Y:100
				expect_eq 300 "$(cat m/f[0-9]* 2>/dev/null | wc -c | awk '{ print ($1 == 790) ? 300 : $1 }')" "files, with $f damaged at $off"
				umount m
				kvc_wait_for 30 eval '! pgrep -f "$STORE $MNT" >/dev/null'
				[[ $f != *superblock* ]] || [ $off = cut ] || bad "a damaged superblock was accepted (byte $off)"
			else
				[ -n "$out" ] || bad "no line for $f damaged at $off"
				[ "$(grep -c . <<<"$out")" -le 3 ] || bad "$f at $off: not one clear line: $out"
				cmp -s damaged <(fingerprint "$STORE") || bad "a refused mount changed the store ($f at $off): $(diff damaged <(fingerprint "$STORE") | head -4)"
			fi
			# back to what it was, files that came or went included
			find "$STORE" -type f -size -300M -printf '%P\n' | grep -v '\.lock$\|^lock$' | grep -vxFf files |
				while read -r x; do rm "$STORE/$x"; done
			while read -r x; do cp --sparse=always "good/$x" "$STORE/$x"; done <files
		done
	done <files
	echo "     $n damages"
	kvc_mount -o dram=64M store || { bad "the undamaged store does not mount: $(tail -3 "$KVC_LOG")"; return; }
	kcheck check m/a/s Y:100
	expect_eq 299 "$(cat m/f299)" "a file"
	kvc_umount
}

t_a_missing_file() {
	local f
	find "$STORE" -type f -size -300M -printf '%P\n' | grep -v '\.lock$\|^lock$' >files
	while read -r f; do
		mv "$STORE/$f" hidden
		if timeout 60 "$KVCACHEFS" -o dram=64M "$STORE" "$MNT" 2>/dev/null; then
			KVC_NOTE="without $f" kcheck check m/a/s Y:100
			umount m
			kvc_wait_for 30 eval '! pgrep -f "$STORE $MNT" >/dev/null'
			[[ $f != *superblock* ]] || bad "mounted without its superblock"
		fi
		mv hidden "$STORE/$f"
	done <files
}

export GEO=$G
KVC_CASE=
for KVC_CASE in ${*:-$(_cases)}; do
	before=$KVC_FAILS
	cd "$KVC_TMP" || exit 1
	"$KVC_CASE"
	[ $KVC_FAILS = $before ] && echo "ok   $KVC_SCRIPT: ${KVC_CASE#t_}"
done
kvc_end
