#!/usr/bin/env bash
# Compiles the web chat, and plays it in a real Chromium with a service that is killed on the way.
#
#   check.sh             people at one service and at two, and what the page weighs
#   check.sh --oauth     people who sign in with OAuth at a real PDS
#   check.sh --figures   how long 200 chats and 10,000 messages take
#
# SCREENSHOTS names a folder for pictures, and CHROMIUM another browser than /usr/bin/chromium.
# Without Node, its packages, Chromium or the PDS, a line that begins with SKIPPED says so.
set -euo pipefail
case ${1-} in
"") tests=(chat evening two) ;;
--oauth) tests=(oauth) ;;
--figures) tests=(figures) ;;
*) echo "usage: check.sh [--oauth | --figures]" >&2; exit 2 ;;
esac
[[ -z ${SCREENSHOTS-} ]] || SCREENSHOTS=$(realpath -m "$SCREENSHOTS")
cd "$(dirname "$0")"

skip() {
	echo "SKIPPED the web chat: $1"
	exit 0
}

. ../../../.ci/browser.sh
install() {
	npm ci --silent --no-audit --no-fund || skip "its packages cannot be downloaded"
}

if [[ ${tests[0]} == oauth ]]; then
	WEB_CHAT_PDS=$(../../../cmd/mlsd/installpds.sh)
	[[ $WEB_CHAT_PDS != SKIPPED* ]] || skip "${WEB_CHAT_PDS#SKIPPED }"
	export WEB_CHAT_PDS
fi

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
node build/test/weight.js
MLSD_BINARIES=$PWD/build
(cd ../../.. && go build -o "$MLSD_BINARIES/" ./cmd/mlsd ./cmd/mlsd-dev)
export MLSD_BINARIES
# The tests wait most of the time, so they run beside each other, each with its own servers and browser.
# One that failed can leave a stream open.
tests=("${tests[@]/#/build/test/}")
node --test --test-force-exit --test-concurrency=2 "${tests[@]/%/.test.js}"
