#!/usr/bin/env bash
# Runs a command where Swift is: toolchain.sh COMMAND [ARGUMENT…], in the current directory, which is in
# this repository.
#
# If the machine has Swift 6, the command runs on it. Otherwise it runs in a Debian 13 root, which
# has Swift 6.0. The first run makes the root with debootstrap: 3.4 GB, some minutes, as root, in
# ${XDG_CACHE_HOME:-~/.cache}/mlsd/swift. Later runs use it again.
#
# Without Swift and without the root, the last line begins with SKIPPED and the status is 75.
set -euo pipefail

folder=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/swift
root=$folder/root
packages=swiftlang,ca-certificates,libc6-dev,libstdc++-14-dev,libcurl4-openssl-dev,libxml2-dev

# skip says why there is no Swift.
skip() {
	echo "SKIPPED the Swift client: $1" >&2
	exit 75
}

# mirror prints the address from which the machine's own packages come.
mirror() {
	apt-get indextargets --format '$(SITE)|$(ORIGIN)' 'Created-By: Packages' |
		sed -n 's/|Debian$//p' | head -1
}

# debootstrap_path prints where debootstrap is. If it is not installed, its package is unpacked
# beside the root: the machine itself is not changed.
debootstrap_path() {
	if command -v debootstrap; then
		return
	fi
	local unpacked=$folder/debootstrap
	if [[ ! -x $unpacked/usr/sbin/debootstrap ]]; then
		mkdir -p "$unpacked"
		(cd "$unpacked" && apt-get download --quiet=2 debootstrap && dpkg -x debootstrap_*.deb .) >&2 || return 1
	fi
	echo "$unpacked/usr/sbin/debootstrap"
}

# make_root makes the Debian root under another name first: a run that ends early leaves no half.
make_root() {
	local program log=$folder/debootstrap.log site
	[[ $(id -u) -eq 0 ]] || skip "Swift is not installed, and only root can make a Debian 13 root"
	command -v apt-get >/dev/null || skip "Swift is not installed, and this is not Debian"
	mkdir -p "$folder"
	site=$(mirror)
	[[ -n $site ]] || skip "Swift is not installed, and this machine has no source of Debian's packages"
	program=$(debootstrap_path) || skip "Swift is not installed, and debootstrap cannot be had"
	rm -rf "$root.part"
	echo "making a Debian 13 root with Swift in $root: some minutes, 3.4 GB" >&2
	if ! DEBOOTSTRAP_DIR=$(dirname "$program")/../share/debootstrap "$program" --variant=minbase \
		--include="$packages" trixie "$root.part" "$site" >"$log" 2>&1; then
		tail -5 "$log" >&2
		skip "Swift is not installed, and debootstrap failed: see $log"
	fi
	mv "$root.part" "$root"
}

if swift --version 2>/dev/null | grep -q 'Swift version [6-9]'; then
	exec "$@"
fi
[[ -L $root/usr/bin/swift ]] || make_root # a link that leads somewhere only inside the root
top=$(cd "$(dirname "$0")/../.." && pwd) # tests read documents of the repository
# The mounts are this command's own: they are gone when it ends.
# $0 is the root, $1 the repository, $2 the directory, the rest the command.
# shellcheck disable=SC2016
exec unshare --mount bash -c '
	set -e
	root=$0 top=$1 directory=$2
	shift 2
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mkdir -p "$root/$top"
	mount --bind "$top" "$root/$top"
	exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/bin:/bin \
		bash -c '\''cd "$0" && exec "$@"'\'' "$directory" "$@"
' "$root" "$top" "$PWD" "$@"
