#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kvctl's and kvreplay's command lines, without a mount: exit codes, help of every command, and what
# is said about what this version has not.
set -euo pipefail
ctl=${KVC_BIN_DIR:?}/kvctl
replay=$KVC_BIN_DIR/kvreplay
dir=$(mktemp -d "${TMPDIR:-/tmp}/kvc-cli.XXXXXX")
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/d"
cd "$dir/d"
failed=0

# expect RC PROGRAM ARGS...: the exit code; what is wanted of it is then said by "said".
expect() {
	local want=$1 rc=0
	shift
	last="${*##*/}"
	"$@" >"$dir/out" 2>"$dir/err" || rc=$?
	if [ "$rc" != "$want" ]; then
		echo "$last: exit $rc, not $want: $(cat "$dir/out" "$dir/err")"
		failed=1
	fi
}

# said out|err TEXT, quiet out|err TEXT
said() {
	if ! grep -qF -- "$2" "$dir/$1"; then
		echo "$last: not in $1: $2: $(cat "$dir/$1")"
		failed=1
	fi
}

quiet() {
	if grep -qF -- "$2" "$dir/$1"; then
		echo "$last: in $1: $2: $(cat "$dir/$1")"
		failed=1
	fi
}

# Every command that --help lists has a help of its own, in three ways, and a version.
"$ctl" --help | sed -n 's/^  \([a-z]*\)\( create\| show\|\) .*/\1\2/p' >"$dir/commands"
if [ "$(wc -l <"$dir/commands")" -lt 18 ]; then
	echo "kvctl --help lists $(wc -l <"$dir/commands") commands"
	failed=1
fi
while read -r -a words; do
	expect 0 "$ctl" "${words[@]}" --help
	said out "kvctl ${words[*]}"
	cp "$dir/out" "$dir/help"
	expect 0 "$ctl" "${words[@]}" -h
	cmp "$dir/out" "$dir/help" || failed=1
	expect 0 "$ctl" help "${words[@]}"
	cmp "$dir/out" "$dir/help" || failed=1
	expect 0 "$ctl" "${words[@]}" --version
	said out 'kvctl '
	expect 2 "$ctl" "${words[@]}" --nosuch
done <"$dir/commands"
expect 0 "$ctl" help
said out 'commands:'
expect 0 "$ctl" help --help
expect 2 "$ctl" help nosuch
expect 2 "$ctl"
expect 2 "$ctl" nosuch
said err 'no such command'
expect 2 "$ctl" ns
expect 0 "$ctl" ns --help
said out 'usage: kvctl ns '
quiet out prefetch
for later in ttl export import scrub top; do
	expect 0 "$ctl" $later --help
	said out 'not in this version'
	expect 2 "$ctl" $later x
	said err 'not in this version'
done

# Values that the interface has and this version has not; values that nothing has.
expect 2 "$ctl" pin d hbm
said err 'not in this version'
expect 2 "$ctl" prefetch --to hbm d
said err 'not in this version'
expect 2 "$ctl" demote --to dram d
said err 'not in this version'
expect 2 "$ctl" demote --to remote d
said err 'not in this version'
expect 2 "$ctl" drop --tier hbm d
said err 'not in this version'
expect 2 "$ctl" demote --to gold d
said err 'no tier'
for command in pin prefetch demote drop; do
	expect 0 "$ctl" $command --help
	quiet out hbm
	quiet out remote
done
expect 2 "$ctl" fork --tokens 0 a b
said err '--tokens: a number from 1'
expect 2 "$ctl" state d sleeping
said err 'is not allowed'

# Paths: what is missing is missing, and what is on no mount says so.
for command in 'stat' 'ls' 'prefetch' 'demote' 'drop' 'state' 'pin' 'priority' 'du' 'ns show'; do
	# shellcheck disable=SC2086	# two words
	expect 1 "$ctl" $command nosuch
	said err 'No such file or directory'
done
for command in 'stat' 'ls' 'prefetch' 'demote' 'drop'; do
	expect 1 "$ctl" $command .
	said err 'not on a kvcachefs mount'
done

# ns create: options are named beside the keys, all that is missing at once.
expect 2 "$ctl" ns create ns
said err '--layers, --kv-heads, --head-dim, --dtype (layers, kv_heads, head_dim, dtype): missing for layout hnd'
said err '--token-bytes for layout opaque'
expect 2 "$ctl" ns create ns --layout opaque --layers 3
said err '--token-bytes (token_bytes): missing for layout opaque'
quiet err latent
expect 2 "$ctl" ns create ns --layers 0
said err '--layers: a number from 1'
expect 1 "$ctl" ns create ns --layers 2 --kv-heads 1 --head-dim 8 --dtype f16
said err 'not on a kvcachefs mount'
quiet err written
if [ -e ns ]; then
	echo "ns create made a directory on no mount"
	failed=1
fi

expect 2 "$replay" --synth --mount . --virtual
said err 'only one of --mount, --virtual'
expect 2 "$replay" --synth
said err 'name one of --mount, --virtual'
expect 2 "$replay" --synth --virtual --limit 0
said err '--limit: a number from 1'
expect 0 "$replay" --synth --virtual --limit 5
said out 'requests               5'
quiet err requests
exit $failed
