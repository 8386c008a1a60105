#!/usr/bin/env bash
# Builds the Swift client and runs its tests, also against a real server, `mlsd-dev`.
#
# Without Swift, and without a Debian 13 root that has it, a line that begins with SKIPPED says so:
# see toolchain.sh. The first run makes the root and compiles everything: 5 minutes. Later runs
# compile what has changed.
#
#   check.sh           what .ci/nightly runs
#   check.sh --long    the same with ten seeds for each test of faults, 1,000 messages in all of them, and 10,000 in a
#                      bundle of history
set -euo pipefail
cd "$(dirname "$0")"

runs=2 dev_runs=1 dev_messages=300 history=1000
if [[ ${1-} == --long ]]; then runs=10 dev_runs=5 dev_messages=1000 history=10000; fi

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

# start starts mlsd-dev, and sets url to its address.
start() {
	local out=$folder/$1
	"$folder/mlsd-dev" --listen 127.0.0.1:0 "${@:2}" >"$out" 2>"$out.log" &
	servers+=($!)
	url=
	for _ in $(seq 600); do
		url=$(sed -n 's/^mlsd-dev on //p' "$out")
		if [[ -n $url ]] || ! kill -0 "${servers[-1]}" 2>/dev/null; then break; fi
		sleep 0.1
	done
	if [[ -z $url ]]; then
		echo "mlsd-dev has not started:" >&2
		cat "$out.log" >&2
		exit 1
	fi
}

./toolchain.sh swift build --build-tests
go build -o "$folder/mlsd-dev" ../../cmd/mlsd-dev
CGO_ENABLED=0 go build -o .build/mlsgo ../../clientsim/agents/mlsgo # it runs inside the root too

start network --services 3
network=$url
start one
if ! ./toolchain.sh env MLSD_DEV_URL="$url" MLSD_NETWORK_URL="$network" MLSD_AGENT="$PWD/.build/mlsgo" MLSD_SWIFT_RUNS=$runs MLSD_SWIFT_DEV_RUNS=$dev_runs \
	MLSD_SWIFT_DEV_MESSAGES=$dev_messages MLSD_SWIFT_HISTORY=$history swift test --skip-build; then
	tail -50 "$folder/one.log" "$folder/network.log"
	exit 1
fi

# The page for app developers, in a folder that toolchain.sh can see. What was compiled is kept.
guide=$PWD/.build/guide
mkdir -p "$guide/chat"
find "$guide/chat" -mindepth 1 -maxdepth 1 ! -name .build -exec rm -rf {} +
(cd ../.. && go run ./internal/guide -folder "$guide" -server "$url" -timeout 5m \
	-shell "$PWD/clients/swift/toolchain.sh stdbuf -oL bash" docs/clients/SWIFT.md)
