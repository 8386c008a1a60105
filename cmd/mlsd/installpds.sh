#!/usr/bin/env bash
# Installs a PDS (@atproto/pds) for tests, and the Node that it needs (22 or newer), and prints the
# folder: node_modules/.bin/node is that Node. The first run compiles SQLite if there is no binary of
# it: minutes. The folder is kept. Without Node, or without the package, a line that begins with SKIPPED
# says so.
set -euo pipefail
cd "$(dirname "$0")/testdata/pds"

version=$(sed -n 's/.*"@atproto\/pds": "\(.*\)".*/\1/p' package.json)
packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/pds-$version
mkdir -p "$packages"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED a real PDS: node or npm is not installed"
	exit 0
fi

# install compiles SQLite for the Node of the package, with the headers that come with it.
install() {
	cd "$packages"
	npm ci --ignore-scripts --silent --no-audit --no-fund
	npm rebuild node --silent
	local headers
	headers=$(echo node_modules/node/node_modules/node-*/include)
	PATH=$PWD/node_modules/.bin:$PATH npm_config_nodedir=$PWD/${headers%/include} npm rebuild better-sqlite3 --silent
	node_modules/.bin/node -e 'require("better-sqlite3")(":memory:")'
}

if ! cmp --silent package-lock.json "$packages/installed"; then
	cp package*.json "$packages"
	export packages
	export -f install
	if ! timeout 1800 bash -euo pipefail -c install >&2; then
		echo "SKIPPED a real PDS: @atproto/pds cannot be installed"
		exit 0
	fi
	cp "$packages/package-lock.json" "$packages/installed"
fi
echo "$packages"
