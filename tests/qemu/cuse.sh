#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The character device for real: Debian's kernel under qemu, with the programs of this build, a busybox
# and what cuse_init does there. Its lines come back over the serial console; every name below must
# come with an "ok".
# The machine is emulated: some hosts have a /dev/kvm in which nothing starts.
set -u

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BIN=${KVC_BIN_DIR:?}
KERNEL=$(dirname "$BIN")/qemu/kernel
EXPECTED="no_kernel not_root not_a_mount not_its_root start name_taken closed_to_others cat cat_as_user
	open_and_write match map append_commit fork_truncate others refused read malformed
	root_rights user_rights owner no_group handed_on killed beside_a_waiting_one demote poll
	daemon_death umount not_let_in let_in end start_again end_again umount_again quiet_log"
SECONDS_MAX=450
MEMORY=512
[ -z "${KVC_SANITIZE:-}" ] || MEMORY=1024

skip() { echo "SKIP cuse.sh: $*"; exit 77; }
fail() { echo "FAIL cuse.sh: $*"; exit 1; }

for tool in qemu-system-x86_64 busybox cpio; do
	command -v $tool >/dev/null || skip "no $tool (tools/install-deps qemu)"
done
# Another build of this tree may have it already.
for dir in "${KVC_SOURCE_DIR:-$HERE/../..}"/build*/qemu/kernel; do
	[ ! -e "$dir/cuse.ko" ] || KERNEL=$dir
done
why=$(bash "$HERE/kernel.sh" "$KERNEL" 2>&1) || skip "$why"

TMP=$(mktemp -d "${TMPDIR:-/tmp}/kvc-cuse.XXXXXX") || exit 1
trap 'rm -rf "$TMP"' EXIT
trap 'exit 143' TERM INT
ROOT=$TMP/root

# put FILE: with every library that it needs, each where it is here
put() {
	local lib
	cp -L "$1" "$ROOT/bin/" || return 1
	ldd "$1" 2>/dev/null | grep -o '/[^ )]*' | while read -r lib; do
		[ -e "$ROOT$lib" ] || { mkdir -p "$ROOT$(dirname "$lib")" && cp -L "$lib" "$ROOT$lib"; }
	done
}

make_root() {
	local program gcc_s
	mkdir -p "$ROOT/bin" && cp "$HERE/cuse_init" "$ROOT/init" && chmod 755 "$ROOT/init" || return 1
	cp "$KERNEL/fuse.ko" "$KERNEL/cuse.ko" "$ROOT/" || return 1
	for program in "$(command -v busybox)" "$BIN/kvcachefs" "$BIN/kvctl" "$BIN/cuse_client"; do
		put "$program" || return 1
	done
	# The C library loads it by itself, at the end of threads.
	gcc_s=$(ldconfig -p | awk '$1 == "libgcc_s.so.1" && /x86-64/ { print $NF; exit }')
	mkdir -p "$ROOT$(dirname "$gcc_s")" && cp -L "$gcc_s" "$ROOT$gcc_s" || return 1
	(cd "$ROOT" && find . | cpio -o -H newc -R 0:0 --quiet) | gzip -1 >"$TMP/initramfs"
}

make_root || fail "cannot make the guest's files"
timeout -k 5 $SECONDS_MAX qemu-system-x86_64 -accel tcg -smp 2 -m $MEMORY -nodefaults \
	-no-user-config -display none -monitor none -no-reboot -serial "file:$TMP/console" \
	-kernel "$KERNEL/vmlinuz" -initrd "$TMP/initramfs" \
	-append "console=ttyS0 quiet loglevel=1 panic=-1" </dev/null >"$TMP/qemu" 2>&1
status=$?

tr -d '\r' <"$TMP/console" | grep -o 'kvc: .*' >"$TMP/lines"
bad=''
for name in $EXPECTED; do
	[ "$(grep -cx "kvc: ok $name" "$TMP/lines")" = 1 ] || bad+=" $name"
done
if [ $status = 0 ] && [ -z "$bad" ] && ! grep -q '^kvc: not ok' "$TMP/lines" && grep -qx 'kvc: end' "$TMP/lines"; then
	echo "$(grep -c '^kvc: ok' "$TMP/lines") checks in $SECONDS s"
	exit 0
fi
cat "$TMP/qemu" "$TMP/lines"
grep -qx 'kvc: end' "$TMP/lines" || tail -n 40 "$TMP/console"
fail "qemu ended with $status; no ok for:$bad"
