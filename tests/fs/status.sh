#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The control files of UAPI section 2 and the status of section 6.
. "$(dirname "$0")/../lib/mount.sh"

t_reachable_and_not_listed() {
	expect_ok test -d m/.kvc
	expect_eq "" "$(ls -a m | grep kvc)" "the root's listing"
	expect_eq "" "$(find m -name .kvc -o -path '*/.kvc/*')" "find"
	for f in version stat metrics tiers sequences config status; do
		[ -e "m/.kvc/$f" ] || bad ".kvc/$f is not there"
		ls m/.kvc | grep -qx $f || bad ".kvc/$f is not listed in .kvc"
	done
	expect_errno ENOENT cat m/.kvc/nonsense
	expect_ok cat m/.kvc/version m/.kvc/stat m/.kvc/metrics m/.kvc/tiers m/.kvc/sequences m/.kvc/config
	expect_absent m/a/.kvc
}

t_formats() {
	ks make m/a/s Y:100
	py <<'E'
import re
def lines(name):
    t = slurp('m/.kvc/' + name).decode()
    true(t.endswith('\n'), name + ' ends with a newline')
    return t.splitlines()
v = lines('version')
true(len(v) == 1 and re.fullmatch(r'kvcachefs \S+ uapi \d+', v[0]), 'version: %s' % v)
names = []
for l in lines('stat'):
    if not true(re.fullmatch(r'[A-Za-z0-9_.:]+ \d+', l), 'stat: %r' % l):
        break
    names.append(l.split()[0])
eq(len(names), len(set(names)), 'stat: names once each')
for n in ('hit_tokens', 'lookup_tokens', 'dram_read_bytes', 'dram_write_bytes', 'stall_us'):
    true(n in names, 'stat has no ' + n)
t = lines('tiers')
eq('name size used free blocks pinned codec reads read_bytes writes write_bytes errors'.split(), t[0].split(), 'tiers: header')
true(len(t) >= 2, 'tiers: no line')
for l in t[1:]:
    row = dict(zip(t[0].split(), l.split()))
    eq(12, len(l.split()), 'tiers: fields of %r' % l)
    eq(int(row['size']), int(row['used']) + int(row['free']), 'tiers: size = used + free of ' + row['name'])
    true(int(row['pinned']) <= int(row['size']), 'tiers: pinned of ' + row['name'])
true(any(l.startswith('dram ') for l in t), 'tiers: dram')
for l in lines('config'):
    if not true(re.fullmatch(r'[A-Za-z0-9_.]+=.*', l), 'config: %r' % l):
        break
typed = set()
for l in lines('metrics'):
    if l.startswith('# TYPE '):
        n = l.split()[2]
        true(n not in typed, 'metrics: two TYPE lines for ' + n)
        typed.add(n)
    elif not l.startswith('#') and l:
        if not true(re.fullmatch(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^}]*\})? -?[0-9.eE+-]+( \d+)?', l), 'metrics: %r' % l):
            break
q = lines('sequences')
eq('path tokens blocks state dram nvme hbm remote last_use'.split(), q[0].split(), 'sequences: header')
eq(2, len(q), 'sequences: lines')
row = dict(zip(q[0].split(), q[1].split()))
eq(('a/s', '100', '4', 'idle'), (row['path'].lstrip('/'), row['tokens'], row['blocks'], row['state']), 'sequences: the line')
E
}

t_names_are_escaped() {
	py <<'E'
for name in ('with space', 'new\nline', 'back\\slash', 'tab\t', 'ünïcode'):
    make('m/a/' + name, 'Y:64')
q = slurp('m/.kvc/sequences').decode(errors='replace').splitlines()
eq(6, len(q), 'a line per sequence')
for l in q[1:]:
    eq(9, len(l.split()), 'fields of %r' % l)
text = '\n'.join(q)
for want in (r'with\040space', r'new\012line', r'back\134slash', r'tab\011'):
    true(want in text, 'no %s in sequences' % want)
for name in ('with space', 'new\nline'):
    true(b'tokens: 64\n' in slurp('m/.kvc/status/a/' + name), 'status of %r' % name)
E
}

t_status_of_a_sequence() {
	ks make m/a/s Y:100
	py <<'E'
want = ('name tokens ids blocks open_tail_tokens size shared_blocks exclusive_bytes state priority pins tier.hbm '
        'tier.dram tier.nvme tier.remote lossy_blocks prefetching last_use restore_ms recompute_ms advice').split()
def status(p):
    return dict(l.split(': ', 1) for l in slurp('m/.kvc/status/' + p).decode().splitlines())
s = status('a/s')
eq(want, list(s), 'keys')
for k, v in (('tokens', '100'), ('ids', '100'), ('blocks', '4'), ('open_tail_tokens', '4'), ('size', '65536'),
             ('shared_blocks', '0'), ('state', 'idle'), ('priority', '50'), ('tier.hbm', '0'), ('tier.remote', '0'),
             ('lossy_blocks', '0')):
    eq(v, s.get(k), k)
true(int(s['exclusive_bytes']) >= 3 * 16384, 'exclusive_bytes ' + s['exclusive_bytes'])
true(s['advice'] in ('resident', 'restore', 'recompute', 'wait'), 'advice ' + s['advice'])
import re
true(re.match(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d', s['last_use']) or s['last_use'] == 'unknown', 'last_use ' + s['last_use'])
subprocess.run(['cp', '-r', 'm/a/s', 'm/a/f'], check=True)
eq('3', status('a/f')['shared_blocks'], 'shared_blocks of a fork')
true(int(status('a/f')['exclusive_bytes']) <= 32768, 'exclusive_bytes of a fork')
shutil.rmtree('m/a/s')
eq('0', status('a/f')['shared_blocks'], 'shared_blocks when the other is gone')
err('ENOENT', 'status of nothing', slurp, 'm/.kvc/status/a/none')
E
	ls m/.kvc/status >/dev/null 2>&1 || bad "ls .kvc/status"
}

t_read_only() {
	py <<'E'
for p in ('version', 'stat', 'metrics', 'tiers', 'sequences'):
    p = 'm/.kvc/' + p
    before = slurp(p)[:20]
    true(outcome(spit, p, b'x') in ('EPERM', 'EACCES'), 'write to ' + p)
    err('EPERM', 'unlink ' + p, os.unlink, p)
    err('EPERM', 'rename ' + p, os.rename, p, p + '2')
    eq(before[:9], slurp(p)[:9], p)
err('EPERM', 'create in .kvc', spit, 'm/.kvc/new', b'x')
err('EPERM', 'mkdir in .kvc', os.mkdir, 'm/.kvc/dir')
err('EPERM', 'rmdir .kvc', os.rmdir, 'm/.kvc')
err('EPERM', 'rename of .kvc', os.rename, 'm/.kvc', 'm/kvc')
true(outcome(os.mkdir, 'm/.kvc') in ('EEXIST', 'EPERM'), 'mkdir .kvc')
os.mkdir('m/d')
true(outcome(os.rename, 'm/d', 'm/.kvc') != '0', 'rename over .kvc')
true(outcome(os.symlink, 'x', 'm/.kvc/l') != '0', 'symlink in .kvc')
E
	expect_ok rm -rf m/d
}

t_config_is_writable() {
	expect_match 'high=90' "$(cat m/.kvc/config)" "config shows the defaults in force"
	echo high=88 >m/.kvc/config || bad "writing high=88"
	expect_match 'high=88' "$(cat m/.kvc/config)" "config after the write"
	py <<'E'
def write(t):
    fd = os.open('m/.kvc/config', os.O_WRONLY)
    try:
        return outcome(os.write, fd, t)
    finally:
        outcome(os.close, fd)
for t in (b'high=101\n', b'high=x\n', b'low=99\n', b'high\n'):
    eq('EINVAL', write(t), 'config %r' % t)
true(write(b'nonsense=1\n') in ('EINVAL', 'EPERM'), 'an unknown option')
true(b'high=88' in slurp('m/.kvc/config'), 'unchanged by refused lines')
eq('0', write(b'high=90\n'), 'back')
true(write(b'dram=1G\n') != '0', 'dram cannot be changed while mounted')
E
}

t_only_what_the_caller_may_read() {
	[ "$(id -u)" = 0 ] || return 0
	ks make m/a/open Y:64; ks make m/a/closed Z:64
	chmod 755 "$KVC_TMP"; chmod 700 m/a/closed
	local seen
	seen=$(setpriv --reuid 65534 --regid 65534 --clear-groups cat m/.kvc/sequences)
	expect_match 'a/open' "$seen" "another user sees what he may read"
	[[ $seen != *a/closed* ]] || bad "another user sees a closed directory's sequence"
	expect_fail setpriv --reuid 65534 --regid 65534 --clear-groups cat m/.kvc/status/a/closed
}

t_counters_are_monotonic() {
	py <<'E'
def stat_():
    return {l.split()[0]: int(l.split()[1]) for l in slurp('m/.kvc/stat').decode().splitlines()}
a = stat_()
make('m/a/s', 'Y:200')
slurp('m/a/s/kv')
probe('m/a', 'Y:200')
shutil.rmtree('m/a/s')
b = stat_()
for k in a:
    if not k.endswith('_now'):
        true(b.get(k, -1) >= a[k], 'counter %s went from %d to %s' % (k, a[k], b.get(k)))
true(b['lookup_tokens'] > a['lookup_tokens'], 'lookup_tokens moves')
true(b['dram_write_bytes'] > a['dram_write_bytes'], 'dram_write_bytes moves')
E
}

t_while_much_changes() {
	py <<'E'
pid = os.fork()
if pid == 0:
    for i in range(60):
        make('m/a/n%d' % (i % 7), 'S%d:80' % i)
        if i % 3 == 0:
            shutil.rmtree('m/a/n%d' % (i % 7))
    os._exit(0)
n = 0
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    for f in ('stat', 'tiers', 'sequences', 'metrics', 'config'):
        true(slurp('m/.kvc/' + f).endswith(b'\n'), f + ' is whole')
    try:
        slurp('m/.kvc/status/a/n%d' % (n % 7))
    except OSError as e:
        true(e.errno == errno.ENOENT, str(e))
    n += 1
E
}

kvc_main "$@"
