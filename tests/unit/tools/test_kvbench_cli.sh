#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kvbench's command line: exit codes, the JSON of what this version does not have, nothing left behind.
set -euo pipefail
bench=${KVC_BIN_DIR:?}/kvbench
dir=$(mktemp -d "${TMPDIR:-/tmp}/kvc-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
failed=0

# expect RC ARGS...: the exit code
expect() {
	local want=$1 rc=0
	shift
	"$bench" "$@" >"$dir/out" 2>"$dir/err" || rc=$?
	if [ "$rc" != "$want" ]; then
		echo "kvbench $*: exit $rc, not $want"
		failed=1
	fi
}

# said FILE TEXT
said() {
	if ! grep -qF -- "$2" "$dir/$1"; then
		echo "not in $1: $2"
		cat "$dir/$1"
		failed=1
	fi
}

expect 0 --help
said out 'usage: kvbench'
expect 0 --version
said out 'kvbench '
expect 2
expect 2 nosuch
said err 'nosuch: no such benchmark'
expect 2 --runs 4 alloc
expect 2 --nosuch alloc
expect 0 attn
said out 'P13 attn_cpu not measured (not in this version)'

expect 0 --json attn codec
python3 - "$dir/out" <<'PY'
import json, sys
figures = json.load(open(sys.argv[1]))
assert sorted(f["id"] for f in figures) == ["P12", "P13"], figures
for f in figures:
    assert set(f) >= {"id", "name", "value", "unit", "peer", "peer_value", "ratio", "goal", "met"}
    assert f["met"] is False and f["value"] is None and f["why"]
PY

# A small real run: a line with its peer, and no file afterwards.
mkdir "$dir/scratch"
expect 0 nvme --size 32M --dir "$dir/scratch"
said out 'P3 restore_cold '
said out 'peer='
expect 0 map session --size 32M --dir "$dir/scratch"
said out 'P2 map_fresh '
said out 'P2 map_churned '
said out 'P1 read_session '
said out ' match_64x8k '
said out ' append_commit_64 '
expect 1 nvme --size 32M --dir "$dir/nosuch"
if [ -n "$(ls -A "$dir/scratch")" ]; then
	echo "left behind: $(ls "$dir/scratch")"
	failed=1
fi
exit $failed
