#!/usr/bin/env bash
# Visits the operator's console in a real Chromium: every page in two widths and two themes, every
# action, with axe-core. SCREENSHOTS names a folder for pictures, and CHROMIUM another browser than
# /usr/bin/chromium.
#
# Without Node, its packages or Chromium, a line that begins with SKIPPED says so.
set -euo pipefail
[[ -z ${SCREENSHOTS-} ]] || SCREENSHOTS=$(realpath -m "$SCREENSHOTS")
export SCREENSHOTS
cd "$(dirname "$0")/browser"

skip() {
	echo "SKIPPED the console: $1"
	exit 0
}

. ../../../.ci/browser.sh
npm ci --silent --no-audit --no-fund || skip "its packages cannot be downloaded"

binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT
(cd ../../.. && go build -o "$binaries" ./cmd/mlsd ./cmd/clientsim ./operator/console/browser)
export MLSD_BINARY=$binaries/mlsd CLIENTSIM_BINARY=$binaries/clientsim PLANT_BINARY=$binaries/browser
node --test console.test.js
