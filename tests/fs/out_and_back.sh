#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UAPI section 4, row "out and back": a whole namespace copied out, removed,
# copied back, and copied back once more over itself and over another one.
. "$(dirname "$0")/../lib/mount.sh"

# cp reads a directory in inode order. A filesystem that did not give .geometry
# the lowest number would have it copied late; then it is copied by itself first.
cp_back() { # FROM TO
	local first
	first=$(find "$1" -printf '%i %P\n' | grep -v '^[0-9]* $' | sort -n | head -1 | cut -d' ' -f2)
	if [ "$first" != .geometry ] && [ ! -e "$2" ]; then
		mkdir "$2" && cp -a "$1/.geometry" "$2/" || return 1
	fi
	if [ -e "$2" ]; then cp -a "$1/." "$2/"; else cp -a "$1" "$2"; fi
}

out_cp() { cp -a m/a out/n; }
back_cp() { cp_back out/n m/a; }
out_tar() { tar --xattrs -C m/a -cf out/n.tar .; }
back_tar() { mkdir -p m/a && tar --xattrs -C m/a -xf out/n.tar; }
out_rsync() { rsync -aX m/a/ out/n/; }
back_rsync() { rsync -aX out/n/ m/a/; }

round_trip() { # TOOL
	need_xattrs_outside
	ks makens m/a
	kcheck checkns m/a
	expect_ok "out_$1"
	[ -d out/n ] && KVC_NOTE="outside" kcheck checkns out/n noindex
	[ ! -d out/n ] || kvc_kv_first out/n
	rm -rf m/a || bad "rm -rf of the namespace"
	expect_absent m/a
	kvc_drop
	expect_ok "back_$1"
	KVC_NOTE="back with $1" kcheck checkns m/a
	expect_ok "back_$1"
	KVC_NOTE="back over itself with $1" kcheck checkns m/a
	kvc_drop
	[ -d out/n ] && find out/n -type f -exec touch -d @1000000000.123456789 {} +
	expect_ok "back_$1"
	KVC_NOTE="and once more" kcheck checkns m/a
	# another generation of every sequence in place, then the old one over it
	ks makens m/a 2
	find m/a -name kv -exec touch -d 2022-02-02 {} +
	find m/a -name tokens -exec touch -d 2022-02-02 {} +
	expect_ok "back_$1"
	KVC_NOTE="over other sessions with $1" kcheck checkns m/a
	for s in A2:100 B2:64 g-h-D2:70; do
		KVC_NOTE="poison after $1" kcheck probe m/a $s
	done
}

t_cp_a() { round_trip cp; }
t_tar_xattrs() { round_trip tar; }
t_rsync_aX() { round_trip rsync; }

t_cp_a_inside_the_mount() {
	ks makens m/a
	expect_ok cp -a m/a m/b
	kcheck checkns m/b
	expect_ok diff -r m/a m/b
	expect_ok cp -a m/a/. m/b/
	kcheck checkns m/b
	rm -rf m/a
	kcheck checkns m/b
}

t_rsync_is_idempotent() {
	need_xattrs_outside
	ks makens m/a
	expect_ok rsync -aX m/a/ out/n/
	expect_eq "" "$(rsync -aXi m/a/ out/n/)" "a second rsync out"
	expect_ok rsync -aX out/n/ m/b/
	expect_eq "" "$(rsync -aXi out/n/ m/b/)" "a second rsync in"
	expect_ok rsync -aX m/a/A/ m/a/R/
	kcheck check m/a/R A:100
}

# rsync makes symbolic links while .geometry is still under way.
t_symlinks_in_a_namespace() {
	need_xattrs_outside
	ks make m/a/g/s Y:100
	ln -s s m/a/g/latest
	for i in 1 2 3 4 5; do ln -s g/s m/a/l$i; done
	expect_ok rsync -aX m/a/ out/n/
	rm -rf m/a
	expect_ok rsync -aX out/n/ m/a/
	expect_eq s "$(readlink m/a/g/latest)" "the link"
	kcheck check m/a/g/s Y:100
	kcheck probe m/a Y:100 96
	rm -rf m/a out/n
	kvc_ns m/a "$G"
	ks make m/a/g/s Y:100; ln -s s m/a/g/latest; ln -s g/s m/a/l
	cp -a m/a out/n; out_tar; rm -rf m/a
	expect_ok cp_back out/n m/a
	kcheck check m/a/l Y:100
	rm -rf m/a
	expect_ok back_tar
	kcheck check m/a/l Y:100
}

# An archive of a copy on another filesystem, in sorted order.
t_tar_of_a_copy() {
	need_xattrs_outside
	ks makens m/a
	cp -a m/a out/n
	tar --sort=name --xattrs -C out/n -cf out/n.tar .
	mkdir m/b
	expect_ok tar --xattrs -C m/b -xf out/n.tar
	kcheck checkns m/b
}

t_other_layouts() {
	need_xattrs_outside
	local g
	for g in "$GODD" "$GOPQ" "$GMLA"; do
		rm -rf m/a out/n out/n.tar; kvc_drop
		kvc_ns m/a "$g"
		ks makens m/a
		expect_ok cp -a m/a out/n
		expect_ok out_tar
		rm -rf m/a; kvc_drop
		expect_ok cp_back out/n m/a
		KVC_NOTE="$g, cp" kcheck checkns m/a
		rm -rf m/a
		expect_ok back_tar
		KVC_NOTE="$g, tar" kcheck checkns m/a
	done
}

# Without attributes T comes back as whole blocks, the number of ids tells the true one.
t_without_xattrs() {
	ks make m/a/s Y:100
	cp -r m/a/s out/s
	rm -rf m/a/s
	cp -r out/s m/a/s
	expect_eq 128 "$(T m/a/s)" "T: whole blocks"
	expect_eq 100 "$(nids m/a/s/tokens)" "ids"
	expect_same out/s/kv m/a/s/kv
	setT m/a/s "$(nids m/a/s/tokens)"
	kcheck check m/a/s Y:100
	kcheck probe m/a Y:100 96
}

t_salts_are_not_copied() {
	need_xattrs_outside
	mkdir m/a/t; setfattr -n user.kvc.salt -v secret m/a/t
	ks make m/a/t/s Y:100
	cp -a m/a/t out/t
	expect_eq "" "$(getfattr -d -m - out/t 2>/dev/null | grep salt)" "no salt outside"
	rm -rf m/a/t
	cp -a out/t m/a/t
	kcheck check m/a/t/s Y:100
	kcheck probe m/a Y:100 96
}

t_python_copytree() {
	need_xattrs_outside
	ks makens m/a
	py <<'E'
shutil.copytree('m/a', 'out/n', symlinks=True)
shutil.rmtree('m/a')
os.mkdir('m/a')
shutil.copy2('out/n/.geometry', 'm/a/.geometry')
shutil.copytree('out/n', 'm/a', symlinks=True, dirs_exist_ok=True)
check_namespace('m/a', index=False, mtimes=False)   # it sets T after the times
shutil.copytree('m/a/A', 'm/a/C')
shutil.move('m/a/C', 'm/a/D')
shutil.move('m/a/D', 'out/D')
shutil.move('out/D', 'm/a/E')
check('m/a/E', 'A:100')
E
}

t_cpio() {
	command -v cpio >/dev/null || return 0
	ks makens m/a
	(cd m/a && find . -depth | cpio -o -H newc --quiet) >out/n.cpio || bad "cpio -o"
	mkdir m/b && cp m/a/.geometry m/b/
	(cd m/b && cpio -idu --quiet) <out/n.cpio || bad "cpio -i"
	expect_same m/a/A/kv m/b/A/kv
	expect_same m/a/A/tokens m/b/A/tokens
	kcheck probe m/b A:100
}

kvc_main "$@"
