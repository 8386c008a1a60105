#!/usr/bin/env bash
# Builds the Swift client and runs its tests, also against a real server, `mlsd-dev`.
#
# Without Swift, and without a Debian 13 root that has it, a line that begins with SKIPPED says so:
# see toolchain.sh. Without Node, or without the packages of the TypeScript client, one says that the lies were not told.
# The service that lies is a program of that client. The first run makes the root and compiles everything: 5 minutes. Later runs
# compile what has changed.
#
#   check.sh           what .ci/nightly runs
#   check.sh --long    the same with ten seeds for each test of faults, 1,000 messages in all of them, 10,000 in a bundle
#                      of history, and 50 families
set -euo pipefail
cd "$(dirname "$0")"

runs=2 dev_runs=1 dev_messages=300 history=1000 families=1
if [[ ${1-} == --long ]]; then runs=10 dev_runs=5 dev_messages=1000 history=10000 families=50; fi

status=0
./toolchain.sh swift --version || status=$?
if [[ $status -eq 75 ]]; then exit 0; fi
[[ $status -eq 0 ]] || exit "$status"

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

# start starts a server as a file of the folder, and sets url to its address, which it prints.
start() {
	local out=$folder/$1
	"${@:2}" >"$out" 2>"$out.log" &
	servers+=($!)
	url=
	for _ in $(seq 600); do
		url=$(sed -nE 's/^(mlsd-dev|liar) on //p' "$out")
		if [[ -n $url ]] || ! kill -0 "${servers[-1]}" 2>/dev/null; then break; fi
		sleep 0.1
	done
	if [[ -z $url ]]; then
		echo "$2 has not started:" >&2
		cat "$out.log" >&2
		exit 1
	fi
}

./toolchain.sh swift build --build-tests
go build -o "$folder/mlsd-dev" ../../cmd/mlsd-dev
CGO_ENABLED=0 go build -o .build/mlsgo ../../clientsim/agents/mlsgo # it runs inside the root too

start network "$folder/mlsd-dev" --listen 127.0.0.1:0 --services 3
network=$url
start one "$folder/mlsd-dev" --listen 127.0.0.1:0
one=$url liar=
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED the lies to the Swift client: node or npm is not installed"
elif ! (cd ../typescript && npm ci --silent --no-audit --no-fund); then
	echo "SKIPPED the lies to the Swift client: the packages of the TypeScript client cannot be downloaded"
else
	(cd ../typescript && npm run --silent compile)
	build=$PWD/../typescript/build/test/support
	export TEST_SERVER=$one
	start liar node --experimental-websocket --import "$build/register.js" "$build/liar-server.js"
	liar=$url
fi
if ! ./toolchain.sh env MLSD_DEV_URL="$one" MLSD_LIAR_URL="$liar" MLSD_NETWORK_URL="$network" MLSD_AGENT="$PWD/.build/mlsgo" MLSD_SWIFT_RUNS=$runs MLSD_SWIFT_DEV_RUNS=$dev_runs \
	MLSD_SWIFT_DEV_MESSAGES=$dev_messages MLSD_SWIFT_HISTORY=$history MLSD_SWIFT_FAMILIES=$families swift test --skip-build; then
	tail -50 "$folder"/*.log
	exit 1
fi

# The page for app developers, in a folder that toolchain.sh can see. What was compiled is kept.
guide=$PWD/.build/guide
mkdir -p "$guide/chat"
find "$guide/chat" -mindepth 1 -maxdepth 1 ! -name .build -exec rm -rf {} +
(cd ../.. && go run ./internal/guide -folder "$guide" -server "$one" -timeout 5m \
	-shell "$PWD/clients/swift/toolchain.sh stdbuf -oL bash" docs/clients/SWIFT.md)
