#!/usr/bin/env bash
# Builds a release and tries everything in this folder: the package in a Debian that boots, the
# images, compose, and the chart. docs/operating/INSTALL.md is tried by its own commands.
#
#   deploy/check.sh [PART…]     release, debian, image, compose, chart
#
# It needs Go, and root on Debian for most parts. What cannot be tried is said in a line that begins
# with SKIPPED. Servers run in network namespaces of their own. ~/.cache/mlsd/deploy keeps the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

export CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/deploy
WORK=$(mktemp -d)
export WORK DIST=$WORK/dist
# podman leaves mounts only if it was killed.
trap 'rm -rf --one-file-system "$WORK"' EXIT
mkdir -p "$CACHE"

parts=("$@")
[[ $# -gt 0 ]] || parts=(release debian image compose chart)
if [[ ${parts[0]} != release ]]; then
	PLATFORMS=linux/$(go env GOARCH) deploy/release.sh v0.0.1 "$DIST" >/dev/null
fi
for part in "${parts[@]}"; do
	begun=$SECONDS
	"deploy/check/$part.sh"
	echo "deploy $part: $((SECONDS - begun)) s"
done
