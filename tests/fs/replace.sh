#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One session copied over another, by every tool and in both orders. However it
# ends, bytes never come to stand under ids that did not produce them; when it
# ends well, bytes, T and ids are the new session's.
. "$(dirname "$0")/../lib/mount.sh"

WAYS=${WAYS:-cp_kv_first cp_ids_first cp_remove cp_dir tar_kv_first tar_ids_first tar_overwrite rsync rsync_inplace
	rsync_delay rsync_backup rsync_whole cat_kv_first cat_ids_first copytree dd_kv_first engine rename_both}

# The new session, Z:100, outside the mount; k: kv was made first, t: tokens first.
prepare_outside() {
	need_xattrs_outside
	mkdir -p out/t
	ks make m/a/X Z:100
	cp -a m/a/X out/k
	kvc_kv_first out/k
	cp -a out/k/tokens out/t/tokens
	cp -a out/k/kv out/t/kv
	touch -d 2020-02-02 out/k/* out/t/*
	tar --xattrs -C out/k -cf out/k.tar kv tokens
	tar --xattrs -C out/k -cf out/t.tar tokens kv
}

# What is there before: m/a/X in the state named.
state_fresh() { mkdir m/a/X; }
state_own() { ks make m/a/X Y:128; }
state_short() { ks make m/a/X Y:20; }
state_longer() { ks make m/a/X Y:300; }
state_same() { ks make m/a/X Z:100; }
state_sharing() { ks make m/a/X Z:64,Y:64; }
state_older() { ks make m/a/X Z:100; setT m/a/X 40; }
state_warm() { ks make m/a/src Z:100; mkdir m/a/X; }
state_attached() { ks make m/a/src Y:64; mkdir m/a/X; ks ids Y:128 >m/a/X/tokens; touch m/a/X/kv; }
state_attached_whole() { ks make m/a/src Y:128; mkdir m/a/X; ks ids Y:128 >m/a/X/tokens; touch m/a/X/kv; }
state_attached_continued() {
	ks make m/a/src Y:64
	mkdir m/a/X
	ks ids Y:64,W:64 >m/a/X/tokens
	touch m/a/X/kv
	ks kv Y:64,W:64 | dd of=m/a/X/kv bs=16384 skip=2 seek=2 conv=notrunc status=none
}
state_new_kv_old_ids() { ks make m/a/X Y:128; ks kv W:100 >m/a/X/kv; }
state_new_ids_old_kv() { ks make m/a/X Y:128; ks ids W:128 >m/a/X/tokens; }
state_half_a_kv() { ks make m/a/X Y:128; ks kv Z:100 | head -c 20000 >m/a/X/kv; }
state_no_ids() { ks make m/a/X Y:128 k; }
state_ids_only() { mkdir m/a/X; ks ids Y:128 >m/a/X/tokens; }

way_cp_kv_first() { cp -a out/k/kv m/a/X/ && cp -a out/k/tokens m/a/X/; }
way_cp_ids_first() { cp -a out/k/tokens m/a/X/ && cp -a out/k/kv m/a/X/; }
way_cp_remove() { cp -a --remove-destination out/k/kv out/k/tokens m/a/X/; }
way_cp_dir() { cp -a out/k/. m/a/X/; }
way_tar_kv_first() { tar --xattrs -C m/a/X -xf out/k.tar; }
way_tar_ids_first() { tar --xattrs -C m/a/X -xf out/t.tar; }
way_tar_overwrite() { tar --xattrs --overwrite -C m/a/X -xf out/k.tar; }
way_rsync() { rsync -aX out/k/ m/a/X/; }
way_rsync_inplace() { rsync -aX --inplace out/k/ m/a/X/; }
way_rsync_delay() { rsync -aX --delay-updates out/k/ m/a/X/; }
way_rsync_backup() { rsync -aX -b out/k/ m/a/X/; }
way_rsync_whole() { rsync -aXW out/t/ m/a/X/; }
way_cat_kv_first() { cat out/k/kv >m/a/X/kv && setT m/a/X 100 && cat out/k/tokens >m/a/X/tokens; }
way_cat_ids_first() { cat out/k/tokens >m/a/X/tokens; cat out/k/kv >m/a/X/kv && setT m/a/X 100; }
way_copytree() { "$PY" -c "import shutil; shutil.copytree('out/k', 'm/a/X', dirs_exist_ok=True)"; }
way_dd_kv_first() { dd if=out/k/kv of=m/a/X/kv bs=3000 status=none && setT m/a/X/kv 100 && dd if=out/k/tokens of=m/a/X/tokens bs=64 status=none; }
way_engine() { rm -f m/a/X/kv m/a/X/tokens; ks make m/a/X Z:100 tk; }
way_rename_both() {
	cp -a out/k/kv m/a/X/kv.new && cp -a out/k/tokens m/a/X/tokens.new &&
		mv m/a/X/kv.new m/a/X/kv && mv m/a/X/tokens.new m/a/X/tokens
}

# Nothing poisoned under any ids that were ever near; Z is right if it should be.
verdict() { # STATE WAY RC
	py "$@" <<'E'
state, way, rc = sys.argv[1], sys.argv[2], int(sys.argv[3])
what = '%s over %s' % (way, state)
sealed = state not in ('fresh', 'warm', 'ids_only')
if way == 'rsync_inplace' and sealed:
    pass                                # EPERM over sealed blocks is the contract
elif way == 'tar_overwrite':
    eq(0, rc, what + ': exit status')   # it sets attributes before it truncates: T is lost
    check('m/a/X', 'Z:100', what, t=False)
else:
    eq(0, rc, what + ': exit status')
    check('m/a/X', 'Z:100', what)
for spec in ('Y:128', 'W:128', 'Z:100', 'Y:300', 'Z:64,Y:64', 'Y:64,W:64'):
    hits('m/a', spec, None, what)
# kv first, over ids that belonged to the bytes before: shared. Otherwise nobody
# can tell these ids from those of the next copy, and nothing is.
paired = state not in ('attached', 'attached_whole', 'new_ids_old_kv')
if rc == 0 and paired and way in ('cp_kv_first', 'cp_remove', 'cp_dir', 'tar_kv_first', 'cat_kv_first',
                       'dd_kv_first', 'engine', 'rename_both'):
    hits('m/a', 'Z:100', 96, what)
E
}

over() { # STATE [WAYS]
	local way rc
	prepare_outside
	for way in ${2:-$WAYS}; do
		rm -rf m/a/X m/a/src
		kvc_drop
		"state_$1"
		"way_$way" >out/err 2>&1
		rc=$?
		verdict "$1" "$way" $rc || tail -2 out/err
	done
}

t_over_fresh() { over fresh; }
t_over_own() { over own; }
t_over_short() { over short; }
t_over_longer() { over longer; }
t_over_same() { over same; }
t_over_sharing() { over sharing; }
t_over_older() { over older; }
t_over_warm() { over warm; }
t_over_attached() { over attached; }
t_over_attached_whole() { over attached_whole; }
t_over_attached_continued() { over attached_continued; }
# Ids written first over bytes that have none (never told, or loose) say what
# those bytes are, and bytes written under waiting ids are theirs: after an
# interrupted copy the contract asks to repeat it or to remove the sequence.
KV_FIRST='cp_kv_first cp_remove tar_kv_first tar_overwrite rsync rsync_inplace rsync_delay rsync_backup
	cat_kv_first dd_kv_first engine rename_both'
IDS_FIRST='cp_ids_first tar_ids_first cat_ids_first engine'
t_over_interrupted_kv_first() { over new_kv_old_ids "$KV_FIRST"; }
t_over_half_a_kv() { over half_a_kv "$KV_FIRST"; }
t_over_no_ids() { over no_ids "$KV_FIRST"; }
t_over_interrupted_ids_first() { over new_ids_old_kv; }
t_over_ids_only() { over ids_only "$IDS_FIRST"; }

# Whole copies one after the other, ids first each time: bytes that came under
# loose ids do not take those of the copy after the next.
t_ids_first_again_and_again() {
	local how first seed
	for seed in A B C; do
		ks ids $seed:64 >out/$seed.ids
		ks kv $seed:64 >out/$seed.kv
	done
	for how in 'cp out/$seed.ids m/a/X/tokens; cp out/$seed.kv m/a/X/kv' \
		'cp out/$seed.ids m/a/X/tokens.n; mv m/a/X/tokens.n m/a/X/tokens; cp out/$seed.kv m/a/X/kv.n; mv m/a/X/kv.n m/a/X/kv' \
		'rm -f m/a/X/tokens; cp out/$seed.ids m/a/X/tokens; rm -f m/a/X/kv; cp out/$seed.kv m/a/X/kv' \
		'dd if=out/$seed.ids of=m/a/X/tokens conv=notrunc status=none; cp out/$seed.kv m/a/X/kv'; do
		for first in 'true' 'touch m/a/X/kv' 'ks make m/a/X A:64'; do
			rm -rf m/a/X; kvc_drop
			mkdir m/a/X
			eval "$first"
			for seed in A B C A; do
				eval "$how"
				expect_same out/$seed.kv m/a/X/kv
				expect_same out/$seed.ids m/a/X/tokens
				KVC_NOTE="$how after $first" kcheck probe m/a A:64
				KVC_NOTE="$how after $first" kcheck probe m/a B:64
				KVC_NOTE="$how after $first" kcheck probe m/a C:64
			done
		done
	done
}

# Each way in which kv can go makes the ids loose.
t_loose_ids() {
	local how
	ks ids Y:64 >out/y
	ks ids Z:64 >out/z
	for how in ': >m/a/s/kv; ks kv Z:64 >>m/a/s/kv' 'ks kv Z:64 >m/a/s/kv' \
		'truncate -s 0 m/a/s/kv; ks kv Z:64 >m/a/s/kv' 'rm m/a/s/kv; ks kv Z:64 >m/a/s/kv' \
		'ks kv Z:64 >m/a/s/kv.n; mv m/a/s/kv.n m/a/s/kv' \
		'mv m/a/s/kv m/a/s/kv.old; ks kv Z:64 >m/a/s/kv; rm m/a/s/kv.old' \
		'mkdir m/a/w; mv m/a/s/kv m/a/w/kv; ks kv Z:64 >m/a/s/kv; rm -r m/a/w'; do
		rm -rf m/a/s; kvc_drop
		ks make m/a/s Y:64
		eval "$how"
		cmp out/y m/a/s/tokens || bad "the ids are not shown after $how"
		expect_eq 64 "$(T m/a/s)" "T after $how"
		KVC_NOTE=$how kcheck probe m/a Y:64
		KVC_NOTE=$how kcheck probe m/a Z:64 0
		tail -c 64 out/y >>m/a/s/tokens
		KVC_NOTE="appended ids, $how" kcheck probe m/a Y:64
		cat out/z >m/a/s/tokens
		KVC_NOTE=$how kcheck check m/a/s Z:64
		KVC_NOTE=$how kcheck probe m/a Z:64 64
	done
}

t_offset_zero_over_loose_ids_drops_them() {
	ks make m/a/s Y:64
	ks kv Z:64 >m/a/s/kv
	py <<'E'
fd = os.open('m/a/s/tokens', os.O_WRONLY)
ids = Spec('Z:64').idbytes()
os.pwrite(fd, ids[:40], 0)
eq(40, os.fstat(fd).st_size, 'only the new ones are there')
os.pwrite(fd, ids[40:], 40)
os.close(fd)
check('m/a/s', 'Z:64')
hits('m/a', 'Z:64', 64)
E
}

t_loose_ids_are_copied() {
	ks make m/a/s Y:64
	ks kv Z:64 >m/a/s/kv
	cp -r m/a/s m/a/f
	expect_same m/a/s/tokens m/a/f/tokens
	kcheck probe m/a Z:64
	kcheck probe m/a Y:64
}

# Only kv is refreshed by rsync, because tokens has the same size and time.
t_rsync_refreshes_kv_alone() {
	ks make m/a/s Y:128
	need_xattrs_outside
	rsync -aX m/a/s/ out/r
	ks kv W:128 >m/a/s/kv
	ks ids Y:128 >m/a/s/tokens
	touch -d 2021-01-01 m/a/s/kv
	touch -r out/r/tokens m/a/s/tokens
	expect_ok rsync -aX out/r/ m/a/s/
	expect_ok rsync -aX out/r/ m/a/s/
	kcheck check m/a/s Y:128
	kcheck probe m/a Y:128
	kcheck probe m/a W:128
}

# An older, longer copy comes back over a sequence that was cut meanwhile.
t_cut_then_restored() {
	need_xattrs_outside
	ks make m/a/s Y:128
	touch -d 2021-01-01 m/a/s/*
	rsync -aX m/a/s/ out/r
	setT m/a/s 110
	expect_ok rsync -aX out/r/ m/a/s/
	kcheck check m/a/s Y:128
	kcheck probe m/a Y:128
}

kvc_main "$@"
