#!/usr/bin/env bash
# Checks metrics, rules and the examples of configurations with promtool and amtool: the page of a
# server with some traffic, and the files here. It uses the tools that are installed, or else Debian's,
# unpacked into a folder that is kept. Without either, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/prometheus

# unpack gets the tools without installing them.
unpack() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	rm -rf "$packages"
	mkdir -p "$packages"
	(cd "$packages" && timeout 120 apt-get -qq download prometheus prometheus-alertmanager) || return 1
	dpkg -x "$packages"/prometheus_*.deb "$packages" &&
		dpkg -x "$packages"/prometheus-alertmanager_*.deb "$packages" && touch "$packages/unpacked-both"
}

if ! promtool=$(command -v promtool) || ! amtool=$(command -v amtool); then
	if [[ ! -e $packages/unpacked-both ]] && ! unpack >/dev/null 2>&1; then
		echo "SKIPPED metrics and rules by promtool: it is not installed, and Debian's packages cannot be fetched"
		exit 0
	fi
	promtool=$packages/usr/bin/promtool amtool=$packages/usr/bin/amtool
fi

page=$(mktemp)
trap 'rm -f "$page"' EXIT
MLSD_TEST_SCRAPE=$page go test -count=1 -run 'TestDashboard$' ./cmd/mlsd
"$promtool" check metrics <"$page"
echo "promtool check metrics: no complaint about $(grep -c '^mlsd_' "$page") series"
"$promtool" check rules deploy/ops/alerts.yml deploy/ops/recording.yml
"$promtool" check config --syntax-only deploy/ops/examples/prometheus.yml
"$amtool" check-config deploy/ops/examples/alertmanager.yml

# Prometheus 3 leaves out the sample at the beginning of a range; the cases are written for that.
version=$("$promtool" --version 2>&1 | sed -n 's/^promtool, version \([0-9]*\)\..*/\1/p')
if [[ $version -ge 3 ]]; then
	"$promtool" test rules deploy/ops/alerts_test.yml deploy/ops/recording_test.yml
else
	echo "promtool is of Prometheus $version, so the rules' cases are left to go test ./ops, which evaluates all of them"
fi
