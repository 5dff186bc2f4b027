#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sessions on a real mount: what a client sees, what POSIX readers see of it, what it cannot do, and
# what is left when it dies.
. "$(dirname "$0")/../lib/mount.sh"

# 64 KiB blocks of 32 tokens: whole pages, so that libkvcmap shows them.
GSES='layers=4 kv_heads=4 head_dim=32 dtype=f16 block_tokens=32 layout=hnd'

sc() { "$KVC_BIN_DIR/session_client" "$1" m "${@:2}"; }
bg() { exec "$KVC_BIN_DIR/session_client" "$1" m "${@:2}"; } # to be killed by its own pid
scheck() { local out; out=$(sc "$@" 2>&1) || bad "session_client $*: exit $?: $out"; echo "$out"; }
sessions() { tail -n +2 m/.kvc/sessions | wc -l; }
pinned() { tier dram pinned; }

# run NAME COMMAND PATH ARGS...: a client that waits for a byte on its input; its output is out/NAME.
run() {
	local name=$1
	shift
	mkfifo "out/$name.in"
	bg "$@" <"out/$name.in" >"out/$name" 2>&1 &
	CLIENT=$!
	KVC_PIDS+=("$CLIENT")
	exec {CLIENT_IN}>"out/$name.in"
	kvc_wait_for 20 grep -q ready "out/$name" || bad "$name does not get ready: $(cat "out/$name")"
}
told() { # NAME: go on, and end. A byte, since a daemon started meanwhile has the pipe open, too.
	(trap '' PIPE; echo >&"$CLIENT_IN") 2>/dev/null
	exec {CLIENT_IN}>&-
	wait "$CLIENT"
}

t_posix_readers_see_a_session() {
	scheck fill a/s 1 1000 >out/1
	expect_eq "cached 0" "$(head -1 out/1)" "nothing was cached"
	expect_eq 1000 "$(T m/a/s)" "T"
	expect_eq 1000 "$(nids m/a/s/tokens)" "ids"
	expect_eq $((32 * 65536)) "$(size m/a/s/kv)" "st_size: the tail counts whole"
	sc dump a/s 1 >out/dump
	head -c $((31 * 65536)) m/a/s/kv >out/kv
	expect_same out/dump out/kv
	scheck check a/s 1 >out/2
	expect_match "blocks 32" "$(cat out/2)" "all of it is mapped"
}

t_many_are_mapped_at_once() {
	local i
	for i in 0 1 2 3 4; do scheck fill "a/s$i" $((i + 1)) $((i * 100 + 32)) >/dev/null; done
	expect_eq "blocks $((1 + 5 + 8 + 11 + 14))" "$(scheck many a 5)" "blocks in all views"
	expect_eq 0 "$(pinned)" "nothing stays pinned"
}

# A reader has the file's pages cached; every commit shows.
t_commits_invalidate_the_page_cache() {
	scheck fill a/s 2 64 >/dev/null
	py <<'E'
fd = os.open('m/a/s/kv', os.O_RDONLY)
os.pread(fd, 1 << 20, 0)
import subprocess
exe = os.environ['KVC_BIN_DIR'] + '/session_client'
for t in (70, 96, 97, 160, 1000):
    before = os.pread(fd, 1 << 20, 0)
    subprocess.run([exe, 'fill', 'm', 'a/s', '2', str(t), '7'], check=True, stdout=subprocess.DEVNULL)
    want = subprocess.run([exe, 'dump', 'm', 'a/s', '2'], check=True, stdout=subprocess.PIPE).stdout
    eq(want, os.pread(fd, len(want), 0), 'whole blocks at %d tokens' % t)
E
}

t_what_posix_wrote_is_mapped() {
	scheck fill a/s 1 640 >/dev/null
	sc dump a/s 1 >out/dump
	mkdir m/a/p
	cat out/dump >m/a/p/kv
	scheck check a/p 1 >out/1
	expect_match "blocks 20" "$(cat out/1)" "blocks of the file"
}

t_a_prefix_is_shared() {
	scheck fill a/s 3 640 >/dev/null
	scheck fill a/t 3 1000 50 >out/1
	expect_eq "cached 640" "$(head -1 out/1)" "leading blocks of another sequence"
	scheck check a/t 3 >/dev/null
	expect_eq 20 "$(status a/t shared_blocks)" "shared blocks"
}

t_token_by_token() {
	scheck fill a/s 4 200 1 >/dev/null
	scheck check a/s 4 >/dev/null
	expect_eq 200 "$(T m/a/s)" "T"
}

t_forks_and_cuts() {
	scheck fill a/s 5 1000 >/dev/null
	scheck fork a/s a/f >/dev/null
	scheck fork a/s a/g 500 >/dev/null
	expect_eq 1000 "$(T m/a/f)" "all of it"
	expect_eq 500 "$(T m/a/g)" "a part"
	expect_eq "tokens 100" "$(scheck truncate a/s 100)" "cut"
	scheck check a/s 5 >/dev/null
	scheck check a/f 5 >/dev/null
	scheck check a/g 5 >/dev/null
	scheck fill a/g 5 700 9 >/dev/null
	scheck check a/g 5 >/dev/null
	expect_fail sc fork a/s a/f
}

t_only_what_may_be_written_can_be_pinned() {
	scheck fill a/s 1 1000 >/dev/null
	sc register a/s m/a/s/kv >out/1 2>&1
	grep -q 'Operation not permitted\|Cannot allocate' out/1 && return
	expect_eq "writer 0" "$(sed -n 1p out/1)" "a writer's view as a fixed buffer"
	expect_eq "reader -14" "$(sed -n 2p out/1)" "a reader's view: read-only mappings are EFAULT"
	expect_eq "mmap -14" "$(sed -n 3p out/1)" "the mount's mapping: EFAULT"
}

t_what_a_session_holds_dies_with_it() {
	local before=$(pinned)
	scheck fill a/s 1 1000 >/dev/null
	expect_eq 0 "$(sessions)" "sessions"
	run hold hold a/s 100
	expect_eq 1 "$(sessions)" "sessions"
	[ "$(pinned)" -gt "$before" ] || bad "nothing is pinned by a view"
	kill -9 "$CLIENT"
	kvc_wait_for 10 eval '[ "$(sessions)" = 0 ]' || bad "the session outlives its client"
	expect_eq "$before" "$(pinned)" "pinned bytes afterwards"
	told hold
	scheck fill a/s 1 1200 >/dev/null
	scheck check a/s 1 >/dev/null
}

as_nobody() { "$PY" -S -c 'import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.execv(sys.argv[1], sys.argv[1:])' "$KVC_BIN_DIR/session_client" "$1" m "${@:2}"; }

t_another_user() {
	[ "$(id -u)" = 0 ] || return 0
	chmod 711 "$KVC_TMP"
	# Sanitizers need /proc/self/exe; some builds lie where others may not look.
	[ "$(as_nobody open a/none 2>&1)" = "open -2" ] || { echo "another_user: cannot run as another user: $(as_nobody open a/none 2>&1)"; return; }
	scheck fill a/s 1 1000 >/dev/null
	as_nobody attack a/s memfd >out/1 2>&1 || bad "a reader: $(cat out/1)"
	grep -q '^tried 0' out/1 && as_nobody attack a/s kvc >out/1 2>&1
	expect_match '^write_open -13' "$(cat out/1)" "open for writing"
	expect_match 'mprotect -13' "$(cat out/1)" "mprotect of a view"
	expect_match 'tried [1-9][0-9]* opened 0 mapped 0' "$(cat out/1)" "writing to descriptors"
	chmod 700 m/a
	expect_eq "open -13" "$(as_nobody open a/s 2>&1)" "a namespace that one may not enter"
	chmod 755 m/a
	expect_eq "open 0" "$(as_nobody open a/s 2>&1)" "and one that one may"
	chmod 600 m/a/s/kv
	expect_eq "open -13" "$(as_nobody open a/s 2>&1)" "a file that one may not read"
	scheck check a/s 1 >/dev/null
}

t_pins_have_a_budget() {
	local i
	for i in $(seq 0 39); do sc fill "a/s$i" $((i + 1)) 4096 >/dev/null 2>&1; done
	sc hoard a 40 >out/1 2>&1
	expect_match 'error -11' "$(cat out/1)" "EAGAIN beyond the budget: $(cat out/1)"
	[ "$(sed -n 's/mapped \([0-9]*\) .*/\1/p' out/1)" -le $((128 << 20)) ] || bad "more than half of DRAM: $(cat out/1)"
	expect_eq 0 "$(sessions)" "sessions"
}

on_a_store() { # DRAM NVME
	need_store
	kvc_umount
	rm -rf store # another case's
	kvc_mount -o "dram=$1,nvme=$2" store || { bad "no mount on a store"; kvc_end; }
	kvc_ns m/a
}

demote() { "$KVC_BIN_DIR/kvctl" demote "m/$1" --to nvme --wait >/dev/null || bad "demote $1"; }

t_a_prefetch_tells_its_end() {
	local before
	on_a_store 256M 1G
	scheck fill a/s 1 4096 >/dev/null
	demote a/s
	expect_eq 0 "$(status a/s tier.dram)" "blocks in memory"
	before=$(counter promoted)
	scheck prefetch a/s 1 >out/1
	expect_eq "before -11 wait 0 bytes right" "$(paste -sd ' ' out/1)" "what the client says"
	expect_eq 128 $(($(counter promoted) - before)) "blocks read"
}

t_an_earlier_deadline_overtakes() {
	local i before
	on_a_store 256M 1G
	for i in 0 1 2 3 4 5 6 7; do
		scheck fill "a/s$i" $((i + 1)) 8192 >/dev/null
		demote "a/s$i"
	done
	scheck fill a/urgent 9 256 >/dev/null
	demote a/urgent
	before=$(counter promoted)
	scheck overtake a 8 >out/1
	[ "$(sed 's/before //' out/1)" -lt 8 ] || bad "it waited for all that has time: $(cat out/1)"
	expect_eq $((8 * 256 + 8)) $(($(counter promoted) - before)) "blocks read"
}

t_the_daemon_dies() {
	scheck fill a/s 1 1000 >/dev/null
	run stale stale a/s 1
	kvc_kill9
	told stale
	expect_eq "check -116 tokens -116 bytes right" "$(grep -v ready out/stale | paste -sd ' ')" "after the daemon's death"
	kvc_again
}

t_a_daemon_that_comes_back() {
	on_a_store 128M 512M
	scheck fill a/s 1 1000 1000 1 >/dev/null
	run stale stale a/s 1 again
	kvc_kill9
	echo >&"$CLIENT_IN"
	kvc_wait_for 20 eval '[ "$(grep -c ready out/stale)" = 2 ]' || bad "$(cat out/stale)"
	kvc_again
	told stale || bad "exit $?"
	expect_eq "check -116 tokens -116 bytes right old 0 new right" \
		"$(grep -v ready out/stale | paste -sd ' ')" "what the client says"
	expect_eq 1000 "$(T m/a/s)" "tokens"
}

KVC_MOUNT_ARGS=(-o dram=256M)
kvc_ns() {
	export GEO=${2:-$GSES}
	mkdir -p "$1" && printf '%s\n' "$GEO" >"$1/.geometry"
}
[ -x "${KVC_BIN_DIR:-/}/session_client" ] || { echo "SKIP session.sh: session_client is not built"; exit 77; }
kvc_main "$@"
