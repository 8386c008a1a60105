#!/usr/bin/env bash
# Installs a PDS (@atproto/pds) for tests, and prints its folder. The first run compiles SQLite if there
# is no binary of it: minutes. The folder is kept. Without Node, or without the package, a line that
# begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/testdata/pds"

packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/pds
mkdir -p "$packages"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED a real PDS: node or npm is not installed"
	exit 0
fi
if ! cmp --silent package-lock.json "$packages/installed"; then
	cp package*.json "$packages"
	if ! timeout 600 npm ci --prefix "$packages" --silent --no-audit --no-fund >&2; then
		echo "SKIPPED a real PDS: @atproto/pds cannot be installed"
		exit 0
	fi
	cp "$packages/package-lock.json" "$packages/installed"
fi
echo "$packages"
