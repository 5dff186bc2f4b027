#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The README's C example: taken from there, compiled as its reader would, against what is installed, and run.
. "$(dirname "$0")/../lib/mount.sh"

[ -z "${KVC_SANITIZE:-}" ] || { echo "SKIP session_example.sh: a sanitizer's library wants a program built with it"; exit 77; }
command -v pkg-config >/dev/null && command -v cc >/dev/null || { echo "SKIP session_example.sh: no cc or no pkg-config"; exit 77; }
SRC=out/session.c

t_compiles_and_runs() {
	local libdir header
	sed -n '/^```c session.c$/,/^```$/{//!p}' "$KVC_SOURCE_DIR/README.md" >"$SRC"
	expect_ok cmake --install "$KVC_BIN_DIR/.." --prefix "$PWD/out/usr"
	libdir=$(dirname "$(find out/usr -name libkvc.so.1)")
	[ -f "$libdir/pkgconfig/kvc.pc" ] || { bad "no kvc.pc beside libkvc"; return; }
	export PKG_CONFIG_PATH=$PWD/$libdir/pkgconfig
	expect_ok cc -Wall -Werror "$SRC" -o out/session $(pkg-config --cflags --libs kvc) -Wl,-rpath,"$PWD/$libdir"
	expect_ok diff out/session.c <(tail -n +2 "$KVC_SOURCE_DIR/tools/examples/session.c")
	kvc_ns m/ns 'layers=4 kv_heads=2 head_dim=32 dtype=f16 block_tokens=64 layout=hnd'
	expect_match '^0 of 200 tokens cached, 0 blocks' "$(out/session m ns/first)" "nothing is cached"
	expect_match '^192 of 200 tokens cached, 3 blocks' "$(out/session m ns/second)" "whole blocks are"
	expect_eq 200 "$(T m/ns/second)" "tokens"
	[ "$(wc -l <"$SRC")" -le 30 ] || bad "longer than thirty lines"
	expect_same m/ns/first/kv m/ns/second/kv
	expect_ok cc -Wall -Werror -std=c11 -fsyntax-only -include kvc_ioctl.h $(pkg-config --cflags kvc) "$SRC"
	for header in kvc.h kvc_ioctl.h; do
		expect_ok cc -Wall -Werror -x c++ -fsyntax-only $(pkg-config --cflags kvc) - <<<"#include <$header>"
	done
}

kvc_main "$@"
