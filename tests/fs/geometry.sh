#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 3: when a file called .geometry makes its directory a namespace,
# what it then shows, and how it is refused.
. "$(dirname "$0")/../lib/mount.sh"

is_ns() { grep -q '^block_bytes=' "$1/.geometry" 2>/dev/null; }
want_ns() { is_ns "$1" || bad "$2: $1 did not become a namespace: $(cat "$1/.geometry" 2>&1)"; }
want_plain() { is_ns "$1" && bad "$2: $1 became a namespace"; return 0; }
# A directory is a namespace when ids written into it answer cached_tokens.
works() {
	mkdir -p "$1/probe" && printf abcd >"$1/probe/tokens"
	expect_eq 0 "$(cached "$1/probe")" "$2: tokens below $1 are ids"
	rm -rf "$1/probe"
}
dir() { rm -rf "m/$1"; mkdir "m/$1"; cd "m/$1" || exit 1; }
up() { cd "$KVC_TMP" || exit 1; }

t_ways_to_write() {
	dir echo; echo "$G" >.geometry; up; want_ns m/echo echo; works m/echo echo
	dir lines; tr ' ' '\n' <<<"$G" >.geometry; up; want_ns m/lines "one key per line"
	dir nonl; printf %s "$G" >.geometry; up; want_ns m/nonl "no newline at the end"
	dir one; echo "$G" | dd of=.geometry bs=1 status=none; up; want_ns m/one "dd bs=1"
	dir tee; echo "$G" | tee .geometry >/dev/null; up; want_ns m/tee tee
	dir teea; echo "$G" | tee -a .geometry >/dev/null; up; want_ns m/teea "tee -a"
	dir redir; { echo layers=4 kv_heads=2 head_dim=16; echo dtype=f16 layout=hnd; } >.geometry; up
	want_ns m/redir "two echos into one redirection"
	dir mv; echo "$G" >g.tmp; mv g.tmp .geometry; up; want_ns m/mv "written aside and renamed"
	works m/mv "renamed"
	dir cp; cp ../echo/.geometry .geometry; up; want_ns m/cp "cp of another, computed lines and all"
	dir cpa; cp -a ../echo/.geometry .; up; want_ns m/cpa "cp -a of another"
	expect_same m/echo/.geometry m/cp/.geometry
	expect_same m/cp/.geometry m/cpa/.geometry
	dir defaults; echo layers=4 kv_heads=2 head_dim=16 dtype=f16 layout=hnd >.geometry; up
	expect_match 'block_bytes=32768' "$(cat m/defaults/.geometry)" "64 tokens by default"
}

t_incomplete_then_complete() {
	dir inc; echo layers=4 kv_heads=2 >.geometry; up
	want_plain m/inc "incomplete"
	expect_eq 'layers=4 kv_heads=2' "$(cat m/inc/.geometry)" "an incomplete file is kept as written"
	mkdir m/inc/s; echo hello >m/inc/s/tokens
	expect_eq hello "$(cat m/inc/s/tokens)" "tokens is a plain file without a namespace"
	rm m/inc/s/tokens
	echo head_dim=16 dtype=f16 layout=hnd >>m/inc/.geometry
	want_ns m/inc "completed by appending"
	works m/inc "completed"
	mkdir m/empty; : >m/empty/.geometry
	expect_eq 0 "$(size m/empty/.geometry)" "an empty one stays"
}

t_computed_lines() {
	local g d
	for g in "$G" "$G16" "$GODD" "$GNHD" "$GMLA" "$GFP8" "$GOPQ"; do
		d=m/v; rm -rf $d; kvc_ns $d "$g"
		py $d <<'E'
g, d = geo(), sys.argv[1]
shown = dict(w.split('=', 1) for w in slurp(d + '/.geometry').decode().split())
for k, v in (w.split('=', 1) for w in g.text.split()):
    eq(v, shown.get(k), 'given line ' + k)
eq(str(g.token_bytes), shown.get('token_bytes'), 'token_bytes of ' + g.text)
eq(str(g.block_bytes), shown.get('block_bytes'), 'block_bytes of ' + g.text)
eq(str(g.stride), shown.get('block_stride'), 'block_stride of ' + g.text)
if not g.opaque:
    eq(str(g.block_bytes // g.layers), shown.get('slice_bytes'), 'slice_bytes of ' + g.text)
n = 2 * g.block_tokens + 3
make(d + '/s', 'V:%d' % n)
check(d + '/s', 'V:%d' % n)
hits(d, 'V:%d' % n, 2 * g.block_tokens)
E
	done
}

t_bad_keys_get_EINVAL_at_the_write() {
	py <<'E'
base = 'layers=4 kv_heads=2 head_dim=16 dtype=f16 block_tokens=32 layout=hnd'
def attempt(text, size=None):
    shutil.rmtree('m/b', ignore_errors=True)
    os.mkdir('m/b')
    fd = os.open('m/b/.geometry', os.O_CREAT | os.O_WRONLY)
    r = outcome(os.write, fd, text.encode())
    c = outcome(os.close, fd)
    return r, c
for text in (base + ' color=blue\n', 'nonsense\n', base.replace('layers=4', 'layers=0') + '\n',
             base.replace('layers=4', 'layers=four') + '\n', base.replace('layers=4', 'layers=-4') + '\n',
             base.replace('layers=4', 'layers=4x') + '\n', base.replace('layers=4', 'layers=') + '\n',
             base.replace('f16', 'int7') + '\n', base.replace('=32', '=48') + '\n',
             base.replace('=32', '=8') + '\n', base.replace('=32', '=512') + '\n',
             base.replace('hnd', 'dnh') + '\n', base.replace('layers=4', 'layers=99999999999999999999') + '\n',
             base + ' fingerprint=' + 'x' * 257 + '\n'):
    r, c = attempt(text)
    eq('EINVAL', r, 'write of %r' % text[:100])
    true(b'block_bytes' not in slurp('m/b/.geometry'), 'no namespace after %r' % text[:100])
r, c = attempt(base + ' fingerprint=' + 'x' * 256 + '\n')
eq(('0', '0'), (r, c), 'a fingerprint of 256 bytes')
r, c = attempt(base + ' color=blue')
eq('EINVAL', r if r != '0' else c, 'a bad last word without newline, at the write or the close')
r, c = attempt(base + '\n' + '\n' * 4097)
true((r, c) != ('0', '0') and b'block_bytes' not in slurp('m/b/.geometry'), 'more than 4 KiB is refused')
# each request changes nothing when it fails
shutil.rmtree('m/b'); os.mkdir('m/b')
fd = os.open('m/b/.geometry', os.O_CREAT | os.O_WRONLY)
os.write(fd, b'layers=4 ')
err('EINVAL', 'second write', os.write, fd, b'color=blue\n')
os.close(fd)
eq(b'layers=4 ', slurp('m/b/.geometry'), 'the refused request left nothing')
E
}

# A block takes at most a quarter of DRAM; a namespace that came with the store fails at the access, at once.
t_blocks_larger_than_dram() {
	local large='layers=1 token_bytes=524288 block_tokens=64 layout=opaque' start=$SECONDS
	kvc_umount
	kvc_mount -o dram=64M,nvme=1G store || { bad "no mount"; return; }
	mkdir m/l m/k
	expect_errno EINVAL bash -c "echo ${large/64 /256 } >m/l/.geometry"
	expect_errno EINVAL bash -c "echo ${large} >m/l/.geometry"
	expect_match 'too large' "$(tail -3 "$KVC_LOG")" "the log says why"
	expect_ok bash -c "echo ${large/64 /16 } >m/l/.geometry"
	kvc_umount
	kvc_mount -o dram=256M store || { bad "no mount"; return; }
	expect_ok bash -c "echo ${large/64 /128 } >m/k/.geometry"
	kvc_umount
	kvc_mount -o dram=32M store || { bad "no mount"; return; }
	mkdir m/k/s
	expect_errno ENOMEM dd if=/dev/zero of=m/k/s/kv bs=1M count=1 status=none
	[ $((SECONDS - start)) -lt 10 ] || bad "waited for room that cannot be"
	kvc_umount
	kvc_mount || bad "no mount"
}

t_computed_lines_must_agree() {
	py "$G" <<'E'
def attempt(name, more):
    os.mkdir('m/' + name)
    fd = os.open('m/%s/.geometry' % name, os.O_CREAT | os.O_WRONLY)
    r = outcome(os.write, fd, (sys.argv[1] + '\n' + more).encode())
    c = outcome(os.close, fd)
    return c if r == '0' else r
eq('EINVAL', attempt('d1', 'block_bytes=4096\n'), 'wrong block_bytes')
eq('EINVAL', attempt('d2', 'token_bytes=17\n'), 'wrong token_bytes')
eq('EINVAL', attempt('d3', 'block_stride=4096\n'), 'wrong block_stride')
for d in ('d1', 'd2', 'd3'):
    true(not os.path.isdir('m/%s/t' % d) and outcome(os.mkdir, 'm/%s/t' % d) == '0', d)
    spit('m/%s/t/tokens' % d, b'abcd')
    true(xattr('m/%s/t' % d, CACHED) != '0', d + ' became a namespace')
eq('0', attempt('ok', 'block_bytes=16384\ntoken_bytes=512\n'), 'agreeing lines')
E
	want_ns m/ok "agreeing computed lines"
}

t_directory_with_files_gets_ENOTEMPTY() {
	py "$G" <<'E'
g = (sys.argv[1] + '\n').encode()
os.makedirs('m/f/sub/deep')
def attempt():
    fd = os.open('m/f/.geometry', os.O_CREAT | os.O_WRONLY)
    r = outcome(os.write, fd, g)
    c = outcome(os.close, fd)
    return c if r == '0' else r
spit('m/f/sub/deep/file', b'x')
eq('ENOTEMPTY', attempt(), 'a file two levels below')
os.unlink('m/f/.geometry')
os.unlink('m/f/sub/deep/file')
eq('0', attempt(), 'directories alone')
true(b'block_bytes' in slurp('m/f/.geometry'), 'a namespace above directories')
spit('m/f/sub/deep/tokens', b'abcd')
eq('0', xattr('m/f/sub/deep', CACHED), 'directories from before hold sequences')
E
	mkdir m/f2; echo x >m/f2/other; echo "$G" >m/f2/g.tmp
	expect_fail mv m/f2/g.tmp m/f2/.geometry
	want_plain m/f2 "renamed beside another file"
}

t_equal_may_come_again() {
	ks make m/a/s Y:70
	echo "$G" >m/a/.geometry; want_ns m/a "written again"
	expect_ok cp m/a/.geometry out/g
	expect_ok cp out/g m/a/.geometry
	expect_ok sed -i s/layers=4/layers=4/ m/a/.geometry
	echo "$G" >m/a/g.tmp; expect_ok mv m/a/g.tmp m/a/.geometry
	want_ns m/a "equal ones"
	expect_eq '.geometry s' "$(ls -A m/a | xargs)" "sed and mv left nothing behind"
	kcheck check m/a/s Y:70
}

t_different_only_while_empty() {
	local other=${G/=32/=64}
	echo "$other" >m/a/.geometry
	expect_match block_bytes=32768 "$(cat m/a/.geometry)" "replaced while empty"
	expect_ok sed -i -e '/_bytes=/d' -e /block_stride=/d -e s/block_tokens=64/block_tokens=16/ m/a/.geometry
	expect_match block_bytes=8192 "$(cat m/a/.geometry)" "sed -i while empty"
	echo "$G" >out/g; expect_ok cp out/g m/a/.geometry
	expect_match block_bytes=16384 "$(cat m/a/.geometry)" "cp while empty"
	ks make m/a/d/s Y:70
	py "$other" <<'E'
old = slurp('m/a/.geometry')
fd = os.open('m/a/.geometry', os.O_WRONLY | os.O_TRUNC)
r = outcome(os.write, fd, (sys.argv[1] + '\n').encode())
c = outcome(os.close, fd)
eq('EPERM', c if r == '0' else r, 'a different one over sequences')
eq(old, slurp('m/a/.geometry'), 'the geometry in force is shown')
spit('m/a/g.tmp', (sys.argv[1] + '\n').encode())
err('EPERM', 'rename of a different one', os.rename, 'm/a/g.tmp', 'm/a/.geometry')
eq(old, slurp('m/a/.geometry'), 'after the rename')
if os.path.exists('m/a/g.tmp'):
    os.unlink('m/a/g.tmp')
E
	kcheck check m/a/d/s Y:70
	rm -rf m/a/d
	echo "$other" >m/a/.geometry
	expect_match block_bytes=32768 "$(cat m/a/.geometry)" "replaced once empty again"
}

t_fingerprint_is_part_of_it() {
	ks make m/a/s Y:70
	py <<'E'
fd = os.open('m/a/.geometry', os.O_WRONLY | os.O_APPEND)
r = outcome(os.write, fd, b'fingerprint=other\n')
c = outcome(os.close, fd)
eq('EPERM', c if r == '0' else r, 'another fingerprint over sequences')
true(b'fingerprint' not in slurp('m/a/.geometry'), 'not taken')
E
	kcheck check m/a/s Y:70
}

t_unlinked_stays_in_force() {
	ks make m/a/s Y:70
	expect_ok rm m/a/.geometry
	expect_absent m/a/.geometry
	works m/a "without the file"
	kcheck check m/a/s Y:70
	echo "$G" >m/a/.geometry
	want_ns m/a "an equal one back"
	rm -rf m/a; mkdir m/a
	echo hello >m/a/kv
	expect_eq hello "$(cat m/a/kv)" "gone with the directory"
}

t_nested() {
	mkdir -p m/a/n
	py "$G" <<'E'
def attempt(text):
    fd = os.open('m/a/n/.geometry', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    r = outcome(os.write, fd, text.encode())
    c = outcome(os.close, fd)
    return c if r == '0' else r
g = sys.argv[1]
eq('0', attempt(g + '\n'), 'an equal one below')
eq('EPERM', attempt(g.replace('=32', '=64') + '\n'), 'a different one below')
E
	rm -f m/a/n/.geometry
	works m/a/n nested
	ks make m/a/s Y:64; mkdir m/a/n/s; ks ids Y:64 >m/a/n/s/tokens
	expect_eq 64 "$(cached m/a/n/s)" "one namespace, sharing across directories"
}

kvc_main "$@"
