#!/usr/bin/env bash
# Generates clients from the lexicons with three generators, compiles them, and calls every method of
# a booted server. Without Node, or without its packages, only the Go generator is tried, and a line
# that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
cp clientsim/generators/typescript/package*.json "$packages"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	echo "SKIPPED @atproto/lex-cli and @atproto/lex: node or npm is not installed"
elif ! npm ci --prefix "$packages" --silent --no-audit --no-fund; then
	echo "SKIPPED @atproto/lex-cli and @atproto/lex: their packages cannot be downloaded"
else
	export MLSD_TEST_TYPESCRIPT=$packages
fi
go test -count=1 -v ./clientsim/generators
