#!/usr/bin/env bash
# Follows the account events of a real PDS (@atproto/pds), prints how long each takes to have its
# effect, and calls mlsd through it. Without a PDS, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=$(cmd/mlsd/installpds.sh)
if [[ $packages == SKIPPED* ]]; then
	echo "$packages"
	exit 0
fi
MLSD_TEST_PDS=$packages go test -count=1 -v -run "TestAccountsOfAPDS|TestThroughAPDS" ./cmd/mlsd
