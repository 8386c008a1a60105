#!/usr/bin/env bash
# Compiles the web chat, and plays it in a real Chromium with a service that is killed on the way.
# SCREENSHOTS names a folder for pictures, and CHROMIUM another browser than /usr/bin/chromium.
#
# Without Node, its packages or Chromium, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")"

skip() {
	echo "SKIPPED the web chat: $1"
	exit 0
}

. ../../../.ci/browser.sh
install() {
	npm ci --silent --no-audit --no-fund || skip "its packages cannot be downloaded"
}

# The client's own check leaves it built.
client=../../typescript
if [[ ! -d $client/node_modules || ! -e $client/dist/index.js ||
	-n $(find "$client"/src "$client"/package-lock.json ../../../lexicons -newer $client/dist/index.js -print -quit) ]]; then
	pushd $client >/dev/null
	install
	npm run build --silent
	popd >/dev/null
fi
install
npm run build --silent
MLSD_BINARIES=$PWD/build
(cd ../../.. && go build -o "$MLSD_BINARIES/" ./cmd/mlsd ./cmd/mlsd-dev)
export MLSD_BINARIES
# A test that failed can leave a stream open.
node --test --test-force-exit build/test/chat.test.js
