#!/usr/bin/env bash
# Follows the account events of a real PDS (@atproto/pds), and prints how long each takes to have its
# effect. The first run installs the PDS, and compiles SQLite if there is no binary of it: minutes.
# The folder is kept. Without Node, or without the package, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/pds
mkdir -p "$packages"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED account events of a real PDS: node or npm is not installed"
	exit 0
fi
if ! cmp --silent cmd/mlsd/testdata/pds/package-lock.json "$packages/installed"; then
	cp cmd/mlsd/testdata/pds/package*.json "$packages"
	if ! timeout 600 npm ci --prefix "$packages" --silent --no-audit --no-fund; then
		echo "SKIPPED account events of a real PDS: @atproto/pds cannot be installed"
		exit 0
	fi
	cp "$packages/package-lock.json" "$packages/installed"
fi
MLSD_TEST_PDS=$packages go test -count=1 -v -run TestAccountsOfAPDS ./cmd/mlsd
