#!/usr/bin/env bash
# Runs a command with MLSD_TEST_PGBOUNCER set to a real PgBouncer: the one that is installed, or else
# Debian's package, unpacked into a folder that is kept. Without either, a line that begins with
# SKIPPED says so, and the command runs without the variable.
set -euo pipefail

packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/pgbouncer
if [[ $EUID -eq 0 ]]; then # PgBouncer does not run as root, and other accounts may not enter root's home
	packages=/var/cache/mlsd/pgbouncer
fi

# unpack gets PgBouncer and the libraries that it needs, without installing them.
unpack() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	rm -rf "$packages"
	mkdir -p "$packages"
	(cd "$packages" && timeout 120 apt-get -qq download pgbouncer libc-ares2 libevent-2.1-7) || return 1
	for package in "$packages"/*.deb; do dpkg -x "$package" "$packages" || return 1; done
	touch "$packages/unpacked"
}

if ! program=$(PATH=$PATH:/usr/sbin command -v pgbouncer); then
	if [[ ! -e $packages/unpacked ]] && ! unpack >/dev/null 2>&1; then
		echo "SKIPPED PgBouncer: it is not installed, and Debian's package cannot be fetched"
		exec "$@"
	fi
	program=$packages/usr/sbin/pgbouncer
	LD_LIBRARY_PATH=$(dirname "$packages"/usr/lib/*/libevent-2.1.so.7)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	export LD_LIBRARY_PATH
fi
if ! "$program" --version; then
	echo "SKIPPED PgBouncer: $program does not run"
	exec "$@"
fi
MLSD_TEST_PGBOUNCER=$program exec "$@"
