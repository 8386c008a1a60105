#!/usr/bin/env bash
# Builds the agents of other MLS libraries into a folder: build.sh FOLDER.
#
# An agent whose toolchain is missing, or whose packages cannot be downloaded, is skipped with a
# line that begins with SKIPPED. An agent that does not build is an error.
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: build.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

openmls() {
	local manifest=$source/openmls/Cargo.toml
	if ! command -v cargo >/dev/null; then
		echo "SKIPPED openmls: cargo is not installed"
	elif ! cargo fetch --quiet --locked --manifest-path "$manifest"; then
		echo "SKIPPED openmls: its crates cannot be downloaded"
	else
		CARGO_TARGET_DIR=$folder/target cargo build --quiet --locked --offline --manifest-path "$manifest"
		cp "$folder/target/debug/openmls-agent" "$folder/openmls-agent"
		echo "openmls-agent is built"
	fi
}

tsmls() {
	if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
		echo "SKIPPED ts-mls: node or npm is not installed"
		return
	fi
	mkdir -p "$folder/tsmls"
	cp "$source"/tsmls/*.json "$folder/tsmls/"
	if ! npm ci --prefix "$folder/tsmls" --silent --no-audit --no-fund; then
		echo "SKIPPED ts-mls: its packages cannot be downloaded"
	else
		cp "$source"/tsmls/*.mjs "$folder/tsmls/"
		echo "tsmls is built"
	fi
}

rm -f "$folder/openmls-agent" "$folder/tsmls/agent.mjs" # an agent of older sources must not run
openmls
tsmls
