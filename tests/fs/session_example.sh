#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The README's C example: taken from there, compiled as its reader would, against what is installed, and run.
. "$(dirname "$0")/../lib/mount.sh"

[ -z "${KVC_SANITIZE:-}" ] || { echo "SKIP session_example.sh: a sanitizer's library wants a program built with it"; exit 77; }
command -v pkg-config >/dev/null && command -v cc >/dev/null || { echo "SKIP session_example.sh: no cc or no pkg-config"; exit 77; }
SRC=out/session.c
TOUR='layers=4 kv_heads=2 head_dim=64 dtype=bf16 block_tokens=16 layout=hnd'

# A sequence that has 100 of the tokens, where nobody has more: they keep their bytes, in the partial block too.
filled_from_the_first_token() {
	local cached
	kvc_ns m/own "$TOUR"
	py <<'E'
import array
os.mkdir('m/own/part')
with open('m/own/part/tokens', 'wb') as f:
    array.array('I', [1, 2, 3] + [0] * 97).tofile(f)
with open('m/own/part/kv', 'xb') as f:
    f.write(b'\7' * 7 * 32768)
    f.flush()
    os.setxattr('m/own/part', 'user.kvc.tokens', b'100')
E
	cached=$(out/session m own/part | sed -n 's/ of 200 .*//p')
	expect_eq 100 "$cached" "a sequence's own tokens, the partial block's too"
	py <<'E'
kv = open('m/own/part/kv', 'rb').read()
for t in range(200):
    for row in range(16):
        at = t // 16 * 32768 + (row * 16 + t % 16) * 128
        eq((b'\7' if t < 100 else b'*') * 128, kv[at:at + 128], f'token {t}, row {row}')
E
}

# The programs that need libkvc find it beside them, wherever that is.
t_installed_programs() {
	local name
	expect_ok cmake --install "$KVC_BIN_DIR/.." --prefix "$PWD/out/moved"
	mv out/moved "out/a b"
	for name in kvbench kvdecode kvctl kvreplay kvcachefs; do
		expect_match "^$name " "$(env -u LD_LIBRARY_PATH "out/a b/bin/$name" --version 2>&1)" "$name, installed"
	done
	for name in include/kvc.h include/kvc_ioctl.h share/man/man3/libkvc.3; do
		[ -e "out/a b/$name" ] || bad "cmake --install made no $name"
	done
}

t_compiles_and_runs() {
	local libdir header
	sed -n '/^```c session.c$/,/^```$/{//!p}' "$KVC_SOURCE_DIR/README.md" >"$SRC"
	expect_ok cmake --install "$KVC_BIN_DIR/.." --prefix "$PWD/out/usr"
	libdir=$(dirname "$(find out/usr -name libkvc.so.1)")
	[ -f "$libdir/pkgconfig/kvc.pc" ] || { bad "no kvc.pc beside libkvc"; return; }
	export PKG_CONFIG_PATH=$PWD/$libdir/pkgconfig
	expect_ok cc -Wall -Werror "$SRC" -o out/session $(pkg-config --cflags --libs kvc) -Wl,-rpath,"$PWD/$libdir"
	expect_ok diff out/session.c <(tail -n +2 "$KVC_SOURCE_DIR/tools/examples/session.c")
	kvc_ns m/ns "$TOUR"
	expect_match '^0 of 200 tokens cached, 0 blocks' "$(out/session m ns/first)" "nothing is cached"
	expect_match '^192 of 200 tokens cached, 12 blocks' "$(out/session m ns/second)" "whole blocks are"
	expect_eq 200 "$(T m/ns/second)" "tokens"
	[ "$(wc -l <"$SRC")" -le 30 ] || bad "longer than thirty lines"
	expect_same m/ns/first/kv m/ns/second/kv
	filled_from_the_first_token
	expect_ok cc -Wall -Werror -std=c11 -fsyntax-only -include kvc_ioctl.h $(pkg-config --cflags kvc) "$SRC"
	for header in kvc.h kvc_ioctl.h; do
		expect_ok cc -Wall -Werror -x c++ -fsyntax-only $(pkg-config --cflags kvc) - <<<"#include <$header>"
	done
}

kvc_main "$@"
