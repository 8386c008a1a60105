#!/usr/bin/env bash
# Tests the TypeScript client: generates and compiles it, packs it, and runs its tests with mlsd-dev.
#
#   check.sh          15 messages in each row of the fault matrix
#   check.sh --long   1,000 messages in each row, 10,000 in a bundle of history, more kills and seeds, and 200 groups
#                     with a member who proposes badly, and 100 small families
#   check.sh --month  the month of a family at its full size (test/family.test.ts), 10 times, and nothing else
#
# Without Node, or without its packages, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")"

case ${1-} in
"") ;;
--long) export TEST_MESSAGES=1000 TEST_KILLS=40 TEST_STARTS=500 TEST_SEEDS=1000 TEST_HISTORY=10000 TEST_BAD_PROPOSALS=200 TEST_PEOPLE=50 TEST_FAMILIES=100 ;;
--month) export TEST_MONTH=1 TEST_FAMILIES=10 ;;
*) echo "usage: check.sh [--long | --month]" >&2; exit 2 ;;
esac

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED the TypeScript client: node or npm is not installed"
	exit 0
elif ! npm ci --silent --no-audit --no-fund; then
	echo "SKIPPED the TypeScript client: its packages cannot be downloaded"
	exit 0
fi

folder=$(mktemp -d)
servers=()
finish() {
	for server in "${servers[@]}"; do
		kill "$server" 2>/dev/null || true
		wait "$server" || true
	done
	rm -rf "$folder"
}
trap finish EXIT

# start starts mlsd-dev, whose output goes to a file of the folder.
start() {
	local out=$folder/$1
	"$folder/mlsd-dev" --listen 127.0.0.1:0 "${@:2}" >"$out" 2>"$out.log" &
	servers+=($!)
	until grep -q "^mlsd-dev on " "$out"; do
		if ! kill -0 "${servers[-1]}" 2>/dev/null; then
			cat "$out.log"
			exit 1
		fi
		sleep 0.1
	done
}

(cd ../.. && go build -o "$folder/" ./cmd/mlsd ./cmd/mlsd-dev)
start one
TEST_SERVER=$(sed -n 's/^mlsd-dev on //p' "$folder/one")
start network --services 3
TEST_NETWORK=$(sed -n 's/^mlsd-dev on //p' "$folder/network")
TEST_BINARY=$folder/mlsd
TEST_PDS=$(../../cmd/mlsd/installpds.sh)
if [[ $TEST_PDS == SKIPPED* ]]; then
	echo "$TEST_PDS"
	TEST_PDS=
fi
export TEST_SERVER TEST_NETWORK TEST_BINARY TEST_PDS
if [[ ${1-} == --month ]]; then
	npm run compile --silent
	node --experimental-websocket --import ./build/test/support/register.js --test --test-force-exit build/test/family.test.js
	exit 0
fi
npm test --silent

# The pages for app developers: the first packs and installs the client, the second has more apps, the third
# tests the first one's app with a server that it starts itself. npm has all their packages since its first run.
export npm_config_prefer_offline=true npm_config_audit=false npm_config_fund=false
port=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close() })')
cd ../..
go run ./internal/guide -folder "$folder/guide" -server "$TEST_SERVER" docs/clients/TYPESCRIPT.md docs/clients/RECIPES.md
MLSD=http://127.0.0.1:$port go run ./internal/guide -folder "$folder/guide" -server "http://127.0.0.1:$port" docs/clients/TESTING.md
