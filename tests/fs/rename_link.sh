#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, rows "rename", "link, symlink", and the borders of section 2.
. "$(dirname "$0")/../lib/mount.sh"

t_mv_of_a_sequence() {
	ks make m/a/s Y:100
	local i=$(stat -c %i m/a/s/kv)
	expect_ok mv m/a/s m/a/t
	expect_absent m/a/s
	kcheck check m/a/t Y:100
	expect_eq "$i" "$(stat -c %i m/a/t/kv)" "inode of kv"
	mkdir -p m/a/g/sub
	expect_ok mv m/a/t m/a/g/sub/
	expect_ok mv m/a/g m/a/h
	kcheck check m/a/h/sub/t Y:100
	kcheck probe m/a Y:100 96
}

t_mv_while_open() {
	py <<'E'
s = Spec('Y:128')
os.mkdir('m/a/s')
fd = os.open('m/a/s/kv', os.O_CREAT | os.O_RDWR)
s.put(fd, 0, 64)
os.rename('m/a/s', 'm/a/t')
s.put(fd, 64)
os.close(fd)
spit('m/a/t/tokens', s.idbytes())
check('m/a/t', s)
E
}

t_mv_out_and_back() {
	need_xattrs_outside
	ks make m/a/s Y:100
	for place in out m; do
		expect_ok mv m/a/s $place/s
		expect_absent m/a/s
		kcheck check $place/s Y:100
		expect_ok mv $place/s m/a/s
		kcheck check m/a/s Y:100
	done
	kcheck probe m/a Y:100 96
}

t_mv_to_another_namespace_and_salt() {
	kvc_ns m/b "$G fingerprint=b"
	mkdir m/a/t; setfattr -n user.kvc.salt -v t m/a/t
	ks make m/a/s Y:100
	expect_ok mv m/a/s m/b/s; kcheck check m/b/s Y:100
	expect_ok mv m/b/s m/a/t/s; kcheck check m/a/t/s Y:100
	expect_ok mv m/a/t/s m/a/s; kcheck check m/a/s Y:100
	kcheck probe m/a/t Y:100
	kcheck probe m/b Y:100
}

t_EXDEV() {
	kvc_ns m/b "$G fingerprint=b"
	mkdir m/plain m/a/t; setfattr -n user.kvc.salt -v t m/a/t
	ks make m/a/s Y:100; ks make m/b/s Z:64
	echo x >m/a/s/note; echo x >m/plain/note
	py <<'E'
def no(a, b):
    err('EXDEV', 'rename %s %s' % (a, b), os.rename, 'm/' + a, 'm/' + b)
no('a/s', 'b/t')
no('a/s', 'plain/s')
no('a/s', 'a/t/s')
no('plain', 'a/plain')
no('a/s/kv', 'b/s/kv')
no('a/s/kv', 'plain/kv')
no('a/s/kv', 'a/t/kv')
no('plain/note', 'a/note')
no('a/s/note', 'plain/x')
no('a/s/kv', 'a/s/other')
no('a/s/kv', 'a/s/tokens.x')
no('a/s/tokens', 'a/s/kv.x')
no('a/s/tokens', 'a/s/data')
no('a/s/note', 'a/s/kv.new')
no('a/s/note', 'a/s/tokens.new')
no('b', 'a/b')
err('EXDEV', 'link across the border', os.link, 'm/a/s/note', 'm/plain/l')
err('EXDEV', 'link into a namespace', os.link, 'm/plain/note', 'm/a/s/l')
true(outcome(os.link, 'm/a/s/note', 'm/a/s/kv.l') in ('EXDEV', 'EPERM'), 'link of a plain file to a KV name')
check('m/a/s', 'Y:100')
check('m/b/s', 'Z:64')
E
}

t_namespace_moves_as_a_whole() {
	ks makens m/a
	mkdir m/dir
	expect_ok mv m/a m/dir/b
	kcheck checkns m/dir/b
	expect_ok mv m/dir/b m/a
	kcheck checkns m/a
}

t_files_by_name() {
	ks make m/a/s Y:100
	expect_ok mv m/a/s/kv m/a/s/kv.old
	expect_eq 100 "$(T m/a/s/kv.old)" "T goes along"
	ks ids Y:100 >out/ids
	expect_same out/ids m/a/s/tokens
	expect_eq 0 "$(T m/a/s)" "T of what is left"
	expect_ok mv m/a/s/kv.old m/a/s/kv
	kcheck check m/a/s Y:100
	mkdir m/a/w
	expect_ok mv m/a/s/kv m/a/w/kv
	touch m/a/w/tokens
	kcheck check m/a/w Y:100
	expect_ok mv m/a/s/tokens m/a/w/tokens
	kcheck check m/a/w Y:100
	expect_eq none "$(T m/a/s)" "nothing is left when neither name is"
	kcheck probe m/a Y:100 96
}

t_renamed_over() {
	ks make m/a/s Y:64
	ks make m/a/w Z:100
	cp m/a/w/kv m/a/s/kv.new
	expect_ok mv m/a/s/kv.new m/a/s/kv
	expect_eq 100 "$(T m/a/s)" "T of the new kv"
	expect_same m/a/w/kv m/a/s/kv
	kcheck probe m/a Y:64
	kcheck probe m/a Z:100 96
	cp m/a/w/tokens m/a/s/tokens.new
	expect_ok mv m/a/s/tokens.new m/a/s/tokens
	kcheck check m/a/s Z:100
}

t_backups() {
	ks make m/a/s Y:64
	ks make m/a/w Z:100
	expect_ok cp -b m/a/w/kv m/a/w/tokens m/a/s/
	expect_eq 'kv kv~ tokens tokens~' "$(ls m/a/s | xargs)" "cp -b keeps backups"
	kcheck check m/a/s Z:100
	ks kv Y:64 >out/kv
	expect_same out/kv "m/a/s/kv~"
	expect_ok cp -b m/a/w/kv m/a/w/tokens m/a/s/
}

t_neither_name_left() {
	ks make m/a/s Y:64
	mv m/a/s/kv m/a/s/kv.x; mv m/a/s/tokens m/a/s/tokens.x
	expect_eq none "$(T m/a/s)" "T of a directory without either"
	touch m/a/s/kv
	expect_eq 0 "$(T m/a/s)" "a new kv begins anew"
	expect_eq 0 "$(size m/a/s/kv)" "empty"
	touch m/a/s/tokens
	expect_eq 0 "$(size m/a/s/tokens)" "no ids either"
}

t_exchange() {
	ks make m/a/s Y:100; ks make m/a/w Z:64
	echo 1 >m/a/p; echo 2 >m/a/q
	py <<'E'
err('EINVAL', 'exchange of kv', renameat2, 'm/a/s/kv', 'm/a/w/kv', EXCHANGE)
err('EINVAL', 'exchange of tokens', renameat2, 'm/a/s/tokens', 'm/a/w/tokens', EXCHANGE)
check('m/a/s', 'Y:100')
renameat2('m/a/s', 'm/a/w', EXCHANGE)
check('m/a/s', 'Z:64', 'exchanged directories')
check('m/a/w', 'Y:100', 'exchanged directories')
err('ENOENT', 'exchange with nothing', renameat2, 'm/a/s', 'm/a/none', EXCHANGE)
err('EEXIST', 'NOREPLACE over a sequence', renameat2, 'm/a/s', 'm/a/w', NOREPLACE)
err('EEXIST', 'NOREPLACE over kv', renameat2, 'm/a/s/kv', 'm/a/w/kv', NOREPLACE)
renameat2('m/a/w', 'm/a/v', NOREPLACE)
check('m/a/v', 'Y:100', 'NOREPLACE to a free name')
os.mkdir('m/one'); os.mkdir('m/two')
spit('m/one/f', b'1'); spit('m/two/f', b'2')
renameat2('m/one/f', 'm/two/f', EXCHANGE)
eq((b'2', b'1'), (slurp('m/one/f'), slurp('m/two/f')), 'exchange of plain files')
E
}

t_links_are_refused() {
	ks make m/a/s Y:64
	mkdir m/a/e
	expect_errno EPERM ln m/a/s/kv m/a/s/kv.link
	expect_errno EPERM ln m/a/s/tokens m/a/s/tokens.link
	expect_errno EPERM ln m/a/s/kv m/a/e/kv
	expect_errno EPERM ln -s ../s/kv m/a/e/kv
	expect_errno EPERM ln -s ../s/tokens m/a/e/tokens
	expect_errno EPERM ln -s x m/a/e/kv.tmp
	expect_ok ln -s s m/a/latest
	kcheck check m/a/latest Y:64
	expect_ok ln -s kv m/a/s/current
	expect_same m/a/s/kv m/a/s/current
	expect_fail cp -al m/a/s m/a/hard
	kcheck check m/a/s Y:64
}

t_errors_of_rename() {
	ks make m/a/s Y:64; ks make m/a/w Z:64
	py <<'E'
err('ENOTEMPTY', 'over a sequence', os.rename, 'm/a/s', 'm/a/w')
err('ENOTDIR', 'a directory over a file', os.rename, 'm/a/s', 'm/a/w/kv')
err('EISDIR', 'a file over a directory', os.rename, 'm/a/s/kv', 'm/a/w')
err('ENOENT', 'nothing', os.rename, 'm/a/none', 'm/a/x')
err('EINVAL', 'into itself', os.rename, 'm/a/s', 'm/a/s/x')
os.rename('m/a/s', 'm/a/s')
check('m/a/s', 'Y:64')
os.mkdir('m/a/empty')
os.rename('m/a/s', 'm/a/empty')
check('m/a/empty', 'Y:64', 'over an empty directory')
E
}

# A reader sees the old file or the new one, never none and never a mixture.
t_rename_over_is_atomic() {
	py <<'E'
specs = ['R%d:40' % i for i in range(2)]
want = {Spec(s).kv() for s in specs}
for i, s in enumerate(specs):
    make('m/a/src%d' % i, s)
os.mkdir('m/a/s')
shutil.copy('m/a/src0/kv', 'm/a/s/kv')
shutil.copystat('m/a/src0/kv', 'm/a/s/kv')
pid = os.fork()
if pid == 0:
    for i in range(100):
        fd = os.open('m/a/s/kv.new', os.O_CREAT | os.O_WRONLY)
        Spec(specs[i % 2]).put(fd)
        os.close(fd)
        set_tokens('m/a/s/kv.new', 40)
        os.rename('m/a/s/kv.new', 'm/a/s/kv')
    os._exit(0)
n = 0
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    got = slurp('m/a/s/kv')
    n += 1
    if got not in want:
        fail('read %d: neither of the two, %d bytes' % (n, len(got)))
        os.waitpid(pid, 0)
        break
true(n > 10, 'too few reads: %d' % n)
E
}

kvc_main "$@"
