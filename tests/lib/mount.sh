# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of tests/fs: a mount in a temporary directory, checks
# that say what differed, and a clean end whatever happens.
#
#	. "$(dirname "$0")/../lib/mount.sh"
#	t_something() { expect_eq 4 "$(stat -c %s m/f)" "size of f"; }
#	kvc_main "$@"
#
# kvc_main mounts on ./m (inside the temporary directory, which is the working
# directory), runs every t_* function in the order of the file, or only those
# named as arguments, and exits 0, 1, or 77 for "cannot run here".
#
# Environment:
#	KVC_BIN_DIR	where kvcachefs, kvctl and kvreplay are (default: PATH)
#	KVC_MOUNT_CMD	run as "CMD OPTIONS SOURCE MOUNTPOINT" instead of kvcachefs;
#			must return when the mount answers and leave its pid in
#			$KVC_PID_FILE
#	KVC_DROP_CMD	run with the mount point instead of "kvctl drop"
#	KVC_TEST_SOURCE	"store": mount a store on disk instead of a volatile one
#	KVC_TEST_OPTS	more mount options, appended
#	KVC_TEST_SCALE	multiplies counts (default 1)

KVC_LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KVC_SELF=$(readlink -f "$0")
KVC_SCRIPT=$(basename "$0")
KVC_FAILS=0
KVC_CASE=setup
KVC_PIDS=()
KVC_MOUNT_ARGS=() # what kvc_main gives kvc_mount; a script may set it
KVC_SCALE=$(awk -v s="${KVC_TEST_SCALE:-1}" 'BEGIN { print s < 1 ? 1 : int(s) }')
PY=$(python3 -c 'import sys; print(sys.executable)')
export LC_ALL=C PYTHONPATH=$KVC_LIB PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=0:exitcode=66}

# Geometries. G: 16 KiB blocks of 32 tokens. G16: 8 KiB blocks of 16 tokens.
# GODD: 4608-byte blocks, not a multiple of a page. GOPQ, GMLA, GNHD: the other layouts.
G='layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=32 layout=hnd'
G16='layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=16 layout=hnd'
GODD='layers=3 kv_heads=1 head_dim=24 dtype=bf16 block_tokens=16 layout=hnd'
GNHD='layers=4 kv_heads=2 head_dim=16 dtype=f32 block_tokens=16 layout=nhd'
GMLA='layers=3 latent_dim=96 dtype=bf16 block_tokens=32 layout=mla'
GFP8='layers=4 kv_heads=2 head_dim=64 dtype=fp8_e4m3 block_tokens=16 layout=hnd k_scale=0.5 v_scale=0.25'
GOPQ='layers=2 token_bytes=1000 block_tokens=16 layout=opaque'
GBIG='layers=1 token_bytes=65536 block_tokens=16 layout=opaque'

declare -A KVC_ERRNO=(
	[EPERM]='Operation not permitted' [ENOENT]='No such file or directory'
	[EIO]='Input/output error' [EAGAIN]='Resource temporarily unavailable'
	[EACCES]='Permission denied' [EBUSY]='Device or resource busy'
	[EEXIST]='File exists' [EXDEV]='Invalid cross-device link' [ENODEV]='No such device'
	[ENOTDIR]='Not a directory' [EISDIR]='Is a directory' [EINVAL]='Invalid argument'
	[EFBIG]='File too large' [ENOSPC]='No space left on device' [EROFS]='Read-only file system'
	[ENAMETOOLONG]='File name too long' [ENOTEMPTY]='Directory not empty'
	[ENODATA]='No data available' [ENOMEM]='Cannot allocate memory'
	[EOPNOTSUPP]='Operation not supported')

# ---- ends -----------------------------------------------------------------

skip() {
	echo "SKIP $KVC_SCRIPT: $*"
	exit 77
}

_cleanup() {
	local rc=$? p
	trap '' INT TERM
	cd /
	for p in $(jobs -p); do
		case " ${KVC_PIDS[*]} " in *" $p "*) ;; *) kill "$p" 2>/dev/null ;; esac
	done
	if [ -n "${KVC_TMP:-}" ]; then
		while read -r p; do
			_umount "$p" 2>/dev/null || umount -l "$p" 2>/dev/null
		done < <(awk -v d="$KVC_TMP/" 'index($2, d) == 1 { print $2 }' /proc/mounts)
	fi
	for p in "${KVC_PIDS[@]}"; do
		[ -n "$p" ] || continue
		kvc_wait_for 5 eval "! kill -0 $p 2>/dev/null" || kill -9 "$p" 2>/dev/null
		wait "$p" 2>/dev/null
	done
	[ -n "${KVC_TMP:-}" ] && rm -rf --one-file-system "$KVC_TMP"
	exit "$rc"
}

# A pause for polling loops only: nothing ever waits a fixed time.
_pause() { read -rt 0.02 -u "$KVC_PAUSE_FD"; }

# kvc_wait_for SECONDS COMMAND...: until it succeeds, or fail at the deadline.
kvc_wait_for() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -le $end ] || return 1
		_pause
	done
	return 0
}

kvc_setup() {
	[ -e /dev/fuse ] || skip "/dev/fuse is missing"
	[ "$(id -u)" = 0 ] || [ -u "$(command -v fusermount3)" ] || skip "neither root nor a setuid fusermount3"
	KVC_TMP=$(mktemp -d "${TMPDIR:-/tmp}/kvc-${KVC_SCRIPT%.*}.XXXXXX") || exit 1
	mkfifo "$KVC_TMP/.pause"
	exec {KVC_PAUSE_FD}<>"$KVC_TMP/.pause"
	trap _cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	MNT=$KVC_TMP/m STORE=$KVC_TMP/store OUT=$KVC_TMP/out
	export KVC_PID_FILE=$KVC_TMP/pid
	KVC_LOG=$KVC_TMP/log
	mkdir -p "$MNT" "$OUT"
	cd "$KVC_TMP" || exit 1
	if [ -z "${KVC_MOUNT_CMD:-}" ]; then
		KVCACHEFS=$(_bin kvcachefs) || skip "kvcachefs is not built"
		KVCTL=$(_bin kvctl) KVREPLAY=$(_bin kvreplay)
	fi
}

_bin() {
	if [ -n "${KVC_BIN_DIR:-}" ]; then
		local d
		for d in "$KVC_BIN_DIR" "$KVC_BIN_DIR/fs" "$KVC_BIN_DIR/tools"; do
			[ -f "$d/$1" ] && [ -x "$d/$1" ] && { echo "$d/$1"; return; }
		done
		return 1
	fi
	command -v "$1"
}

need_store() { [ -z "${KVC_MOUNT_CMD:-}" ] || skip "needs kvcachefs itself, not KVC_MOUNT_CMD"; }

# ---- mounting -------------------------------------------------------------

_answers() { mountpoint -q "$MNT" && stat "$MNT" >/dev/null 2>&1; }
_up_or_dead() { _answers || ! kill -0 "$KVC_PID" 2>/dev/null; }

# kvc_mount [-o OPTIONS] [SOURCE]: 0 when the mount answers; SOURCE store is $STORE. A mount that comes
# up is remembered, so that kvc_remount repeats it.
kvc_mount() {
	local opts=dram=256M source=none
	[ "${KVC_TEST_SOURCE:-}" = store ] && { source=$STORE; opts=dram=128M,nvme=2G; }
	[ "${1:-}" = -o ] && { opts=$2; shift 2; }
	[ "$(id -u)" = 0 ] && opts=$opts,allow_other
	[ -n "${1:-}" ] && source=$1
	[ "$source" = store ] && source=$STORE
	[ -n "${KVC_TEST_OPTS:-}" ] && opts=$opts,$KVC_TEST_OPTS
	_mount "$opts" "$source"
}

_mount() {
	KVC_OPTS=$1 KVC_SOURCE=$2
	if [ -n "${KVC_MOUNT_CMD:-}" ]; then
		rm -f "$KVC_PID_FILE"
		$KVC_MOUNT_CMD "$KVC_OPTS" "$KVC_SOURCE" "$MNT" >>"$KVC_LOG" 2>&1 || return 1
		kvc_wait_for 10 test -s "$KVC_PID_FILE" || return 1
		KVC_PID=$(cat "$KVC_PID_FILE")
	else
		"$KVCACHEFS" -f -o "$KVC_OPTS" "$KVC_SOURCE" "$MNT" >>"$KVC_LOG" 2>&1 {KVC_PAUSE_FD}>&- &
		KVC_PID=$!
	fi
	KVC_PIDS=("$KVC_PID")
	kvc_wait_for "${KVC_MOUNT_DEADLINE:-60}" _up_or_dead
	_answers
}

_umount() { if [ "$(id -u)" = 0 ]; then umount "$1"; else fusermount3 -u "$1"; fi; }
_gone() { ! kill -0 "$KVC_PID" 2>/dev/null; }

# kvc_umount: leaves cleanly, waits for the daemon, checks how it ended.
kvc_umount() {
	local rc=0
	kvc_wait_for 10 _umount "$MNT" 2>/dev/null || { bad "umount: $(umount "$MNT" 2>&1)"; umount -l "$MNT"; }
	kvc_wait_for 60 _gone || { bad "the daemon lives on after umount"; kill -9 "$KVC_PID"; }
	if [ -z "${KVC_MOUNT_CMD:-}" ]; then
		wait "$KVC_PID" 2>/dev/null
		rc=$?
		[ $rc = 0 ] || { bad "the daemon exited with $rc"; tail -30 "$KVC_LOG"; }
	fi
	KVC_PIDS=()
	return $rc
}

kvc_kill9() {
	kill -9 "$KVC_PID"
	kvc_wait_for 10 _gone
	wait "$KVC_PID" 2>/dev/null
	KVC_PIDS=()
	umount -l "$MNT" 2>/dev/null
	kvc_wait_for 10 eval '! mountpoint -q "$MNT"'
}

kvc_again() { _mount "$KVC_OPTS" "$KVC_SOURCE" || { bad "the second mount failed"; tail -30 "$KVC_LOG"; exit 1; }; }
kvc_remount() { kvc_umount; kvc_again; }

# kvc_drop: empty the unnamed prefix cache.
kvc_drop() {
	if [ -n "${KVC_DROP_CMD:-}" ]; then $KVC_DROP_CMD "$MNT"; else "$KVCTL" drop "$MNT" >/dev/null; fi ||
		bad "dropping the prefix cache failed"
}

# ---- checks ---------------------------------------------------------------

bad() {
	KVC_FAILS=$((KVC_FAILS + 1))
	echo "FAIL $KVC_SCRIPT: $KVC_CASE: $*"
}

expect_eq() { # WANT GOT WHAT
	[ "$1" = "$2" ] || bad "$3: expected '$1', got '$2'"
}

expect_ok() { # COMMAND...
	local out rc
	out=$("$@" 2>&1)
	rc=$?
	[ $rc = 0 ] || bad "'$*' exited with $rc: $(echo "$out" | tail -12)"
	return $rc
}

expect_fail() { # COMMAND...
	"$@" >/dev/null 2>&1 && bad "'$*' succeeded"
	return 0
}

expect_errno() { # ERRNO COMMAND...
	local want=$1 out
	shift
	if out=$("$@" 2>&1 >/dev/null); then
		bad "'$*' succeeded, expected $want"
	elif [[ $out != *"${KVC_ERRNO[$want]:?}"* ]]; then
		bad "'$*': expected $want, got: $(echo "$out" | tail -3)"
	fi
}

expect_match() { # PATTERN TEXT WHAT
	[[ $2 =~ $1 ]] || bad "$3: '$2' does not match '$1'"
}

expect_same() { # FILE FILE
	cmp "$1" "$2" >/dev/null 2>&1 || bad "$(cmp "$1" "$2" 2>&1 | tail -1)"
}

expect_absent() { [ ! -e "$1" ] && [ ! -L "$1" ] || bad "$1 is still there"; }

# The library's commands: ks make|check|probe|..., see kvseq.py.
ks() { "$PY" -S "$KVC_LIB/kvseq.py" "$@"; }
kcheck() { # as ks, but a failure is counted
	local out
	out=$(ks "$@" 2>&1) || bad "$* ${KVC_NOTE:-}"$'\n'"$out"
}

# py [ARGS] <<'E': python with everything of kvseq.py; its failures are counted.
py() {
	local out rc
	out=$({ echo 'from kvseq import *'; cat; echo; echo 'done()'; } | "$PY" -S - "$@" 2>&1)
	rc=$?
	[ $rc = 0 ] || bad "python, exit $rc"$'\n'"$out"
	return $rc
}

T() { getfattr --only-values -n user.kvc.tokens "$1" 2>/dev/null || echo none; }
cached() { getfattr --only-values -n user.kvc.cached_tokens "$1" 2>/dev/null || echo none; }
xget() { getfattr --only-values -n "$2" "$1" 2>/dev/null || echo none; }
setT() { setfattr -n user.kvc.tokens -v "$2" "$1"; }
size() { stat -c %s "$1" 2>&1; }
nids() { echo $(($(stat -c %s "$1" 2>/dev/null || echo -4) / 4)); }
put() { printf %s "$2" >"$1"; }
status() { sed -n "s/^$2: //p" "m/.kvc/status/$1" 2>/dev/null; }
counter() { awk -v n="$1" '$1 == n { print $2 }' m/.kvc/stat; }
tier() { # NAME COLUMN
	awk -v n="$1" -v c="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == c) k = i } $1 == n { print $k }' m/.kvc/tiers
}

# kvc_ns DIR [GEOMETRY]: an empty namespace; GEO is set for the library.
kvc_ns() {
	export GEO=${2:-$G}
	mkdir -p "$1" && printf '%s\n' "$GEO" >"$1/.geometry" ||
		bad "cannot make the namespace $1"
	grep -q '^block_bytes=' "$1/.geometry" || bad "$1 did not become a namespace"
}

# Scripts that copy sequences out need somewhere that keeps user attributes.
need_xattrs_outside() {
	touch "$KVC_TMP/x" && setfattr -n user.kvc.tokens -v 1 "$KVC_TMP/x" 2>/dev/null ||
		skip "the temporary directory keeps no user xattrs"
	rm -f "$KVC_TMP/x"
}

# cp and others go by inode numbers, and what they copy first decides what is found afterwards (UAPI
# section 4: loose ids). Below DIR, outside the mount, give every kv a lower one than its tokens has.
kvc_kv_first() { # DIR
	local kv dir low high
	while read -r kv; do
		dir=${kv%/kv}
		[ -e "$dir/tokens" ] || continue
		[ "$(stat -c %i "$kv")" -gt "$(stat -c %i "$dir/tokens")" ] || continue
		low=$dir/.low high=$dir/.high
		touch -r "$dir" "$KVC_TMP/mtime"
		touch "$low" "$high"
		[ "$(stat -c %i "$low")" -lt "$(stat -c %i "$high")" ] || { low=$dir/.high high=$dir/.low; }
		cp -a "$kv" "$low" && cp -a "$dir/tokens" "$high" && mv "$low" "$kv" && mv "$high" "$dir/tokens"
		touch -r "$KVC_TMP/mtime" "$dir"
	done < <(find "$1" -name kv)
}

# A fresh mount for every script, a fresh namespace m/a for every case.
KVC_FRESH=1
kvc_run_case() {
	local before=$KVC_FAILS begin=$SECONDS
	KVC_CASE=${1#t_}
	cd "$KVC_TMP" || exit 1
	if [ $KVC_FRESH = 1 ]; then
		rm -rf m/* m/.[!.]* out 2>/dev/null
		mkdir -p out
		kvc_drop
		kvc_ns m/a
	fi
	"$1"
	if ! _answers; then
		bad "the mount does not answer any more"
		tail -30 "$KVC_LOG"
		exit 1
	fi
	[ $KVC_FAILS = "$before" ] && echo "ok   $KVC_SCRIPT: $KVC_CASE ($((SECONDS - begin)) s)"
}

# The t_* functions in the order in which the script has them.
_cases() { grep -o '^t_[A-Za-z0-9_]*' "$KVC_SELF" | awk '!seen[$0]++'; }

kvc_main() {
	local c
	kvc_setup
	kvc_mount "${KVC_MOUNT_ARGS[@]}" || { echo "FAIL $KVC_SCRIPT: the mount did not come up"; tail -20 "$KVC_LOG"; exit 1; }
	for c in ${*:-$(_cases)}; do
		kvc_run_case "$c"
	done
	cd "$KVC_TMP" || exit 1
	KVC_CASE=end
	mountpoint -q "$MNT" && kvc_umount
	kvc_end
}

kvc_end() {
	[ $KVC_FAILS = 0 ] || echo "$KVC_SCRIPT: $KVC_FAILS failures"
	[ $KVC_FAILS = 0 ]
	exit
}
