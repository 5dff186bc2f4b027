#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 2: the order of listings and the ranges of inode numbers, which
# decide in what order cp, rm and tar meet the files.
. "$(dirname "$0")/../lib/mount.sh"

# made in the least convenient order
populate() {
	rm -rf m/b; mkdir -p m/b/zdir m/b/adir
	echo "$G" >m/b/.geometry
	export GEO=$G
	for d in zdir adir; do
		ks ids Y:64 >m/b/$d/tokens
		echo x >m/b/$d/a-plain-file
		ks kv Y:64 >m/b/$d/kv
		echo x >m/b/$d/zz
		mkdir m/b/$d/sub
		ks ids Y:64 >m/b/$d/tokens.bak
		ks kv Y:64 >m/b/$d/kv.bak
	done
}

t_order() {
	populate
	expect_eq .geometry "$(ls -AU m/b | head -1)" ".geometry first"
	for d in zdir adir; do
		expect_eq 'kv tokens' "$(ls -U m/b/$d | grep -x 'kv\|tokens' | xargs)" "kv before tokens in $d"
	done
	expect_eq '. ..' "$(ls -aU m/b | sort | head -2 | xargs)" "dots are listed"
}

t_inode_ranges() {
	populate
	local k
	py <<'E'
import re
def kind(path):
    n = os.path.basename(path)
    if os.path.isdir(path):
        return 4
    if n == '.geometry':
        return 0
    if n == 'kv' or n.startswith(('kv.', '.kv.')) or n == 'kv~':
        return 2
    if n == 'tokens' or n.startswith(('tokens.', '.tokens.')) or n == 'tokens~':
        return 3
    return 1
found = {}
for d, dirs, files in os.walk('m/b'):
    for f in dirs + files:
        p = os.path.join(d, f)
        found.setdefault(kind(p), []).append((os.lstat(p).st_ino, p))
names = ('.geometry', 'plain', 'KV', 'ids', 'directories')
for a in range(4):
    hi, lo = max(found[a]), min(found[a + 1])
    true(hi[0] < lo[0], '%s (%d) is not below %s (%d)' % (hi[1], hi[0], lo[1], lo[0]))
inos = [i for l in found.values() for i, _ in l]
eq(len(inos), len(set(inos)), 'each inode number once')
for d, dirs, files in os.walk('m/b'):
    with os.scandir(d) as it:
        for e in it:
            eq(os.lstat(e.path).st_ino, e.inode(), 'd_ino of ' + e.path)
            eq(os.path.isdir(e.path), e.is_dir(follow_symlinks=False), 'd_type of ' + e.path)
E
}

t_fixed_for_life() {
	populate
	py <<'E'
i = os.stat('m/b/zdir/kv.bak').st_ino
os.unlink('m/b/zdir/kv')
os.rename('m/b/zdir/kv.bak', 'm/b/zdir/kv')
eq(i, os.stat('m/b/zdir/kv').st_ino, 'renamed to kv')
spit('m/b/zdir/kv', b'')
eq(i, os.stat('m/b/zdir/kv').st_ino, 'rewritten')
g = os.stat('m/b/.geometry').st_ino
os.rename('m/b', 'm/c')
eq((i, g), (os.stat('m/c/zdir/kv').st_ino, os.stat('m/c/.geometry').st_ino), 'the namespace renamed')
os.rename('m/c', 'm/b')
E
}

t_only_what_was_made_is_listed() {
	ks make m/a/s Y:64 k
	expect_eq kv "$(ls -A m/a/s)" "kv alone"
	ks make m/a/t Y:64 t
	expect_eq tokens "$(ls -A m/a/t)" "tokens alone"
	expect_errno ENOENT cat m/a/t/kv
	expect_errno ENOENT cat m/a/s/tokens
}

t_big_directories() {
	py <<'E'
want = set()
for i in range(3000):
    n = 'f%05d-%s' % (i, 'x' * (i % 60))
    os.close(os.open('m/a/' + n, os.O_CREAT | os.O_WRONLY))
    want.add(n)
got = os.listdir('m/a')
eq(len(got), len(set(got)), 'no name twice')
eq(want | {'.geometry'}, set(got), 'every name')
with os.scandir('m/a') as it:
    seen = []
    for e in it:
        seen.append(e.name)
        if e.name != '.geometry':
            os.unlink('m/a/' + e.name)
eq(want | {'.geometry'}, set(seen), 'every name while they are removed')
eq(['.geometry'], os.listdir('m/a'), 'nothing is left')
E
}

kvc_main "$@"
