#!/usr/bin/env bash
# Runs two nodes of mlsd behind each proxy of docs/operating/PROXIES.md, with the configurations of this
# folder. A proxy that is not installed is Debian's package, unpacked into a folder that is kept.
# Without one of them, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../../.."

packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/proxies
programs='' libraries=''

# unpack PROXY PACKAGE… gets the packages without installing them, so that no service starts.
unpack() {
	local folder=$packages/$1
	[[ ! -e $folder/unpacked ]] || return 0
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	rm -rf "$folder"
	mkdir -p "$folder"
	(cd "$folder" && timeout 120 apt-get -qq download "${@:2}") || return 1
	for package in "$folder"/*.deb; do dpkg -x "$package" "$folder" || return 1; done
	touch "$folder/unpacked"
}

# proxy PROXY PACKAGE… finds a proxy and adds it to programs.
proxy() {
	local program
	if ! program=$(PATH=$PATH:/usr/sbin command -v "$1"); then
		if ! unpack "$@" >/dev/null 2>&1; then
			echo "SKIPPED $1: it is not installed, and Debian's package cannot be fetched"
			return
		fi
		program=$packages/$1/usr/sbin/$1
		[[ -e $program ]] || program=$packages/$1/usr/bin/$1
		libraries+=:$packages/$1/usr/lib/$(uname -m)-linux-gnu
	fi
	programs+="$1=$program "
}

proxy nginx nginx
proxy haproxy haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
proxy caddy caddy
[[ -n $programs ]] || exit 0
LD_LIBRARY_PATH=${libraries#:}:${LD_LIBRARY_PATH-} MLSD_TEST_PROXIES=$programs \
	go test -count=1 -parallel 4 -v -run TestProxies ./cmd/mlsd
