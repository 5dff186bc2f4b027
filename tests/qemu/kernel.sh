#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes DIR/vmlinuz, DIR/fuse.ko and DIR/cuse.ko from Debian's kernel package, once; installs nothing and
# needs no root.
#
#	kernel.sh DIR
#
# Says on stderr why it cannot.
set -euo pipefail

dir=$1
[ ! -e "$dir/cuse.ko" ] || exit 0

fail() { echo "$*" >&2; exit 1; }

[ "$(uname -m)" = x86_64 ] || fail "no kernel for a $(uname -m) machine"
command -v dpkg-deb >/dev/null || fail "no apt to get a kernel with"
mkdir -p "$(dirname "$dir")"
tmp=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

# The package that linux-image-amd64 stands for today.
package() {
	apt-cache depends linux-image-amd64 2>/dev/null |
		awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9].*-amd64$/ { print $2; exit }'
}

download() {
	local name
	name=$(package)
	[ -n "$name" ] && timeout 120 apt-get -qq download "$name" >log 2>&1
}

# Lists of packages may be missing or old; root can renew them.
download || { [ "$(id -u)" = 0 ] && timeout 120 apt-get -qq update >log 2>&1 && download; } ||
	fail "no kernel package to be had: $(tail -n 1 log 2>/dev/null || echo 'none is known')"
dpkg-deb -x ./*.deb unpacked

# unpack NAME: a module, as it is or compressed
unpack() {
	local file
	file=$(find unpacked -name "$1.ko*" | head -n 1)
	case $file in
	*.ko) cp "$file" "made/$1.ko" ;;
	*.xz) xz -dc "$file" >"made/$1.ko" ;;
	*.zst) zstd -qdc "$file" >"made/$1.ko" ;;
	*) fail "the kernel package has no module $1" ;;
	esac
}

mkdir made
cp unpacked/boot/vmlinuz-* made/vmlinuz
unpack fuse
unpack cuse
# Another test may have made it meanwhile.
mv -T made "$dir" 2>/dev/null || [ -e "$dir/cuse.ko" ]
