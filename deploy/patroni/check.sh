#!/usr/bin/env bash
# Plays what deploy/patroni/README.md promises: three PostgreSQL under Patroni and etcd whose primary
# fails under load, each fault TIMES times (1), and a restore by pgBackRest. A lost write fails it.
#
#   deploy/patroni/check.sh [TIMES]
#
# It needs Go, and root on Debian. Everything runs in a network of its own. What cannot be tried is
# said in a line that begins with SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/check/lib.sh

needed=(postgresql patroni etcd-server python3-etcd pgbackrest iptables iproute2)
if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null && ! dpkg-query -s "${needed[@]}" >/dev/null 2>&1; then
	apt-get update --quiet=2 >/dev/null 2>&1 || true # packages then says that they cannot be installed
fi
packages patroni "${needed[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/" ./cmd/mlsd ./cmd/clientsim
deploy/check/isolated.sh "$work/clientsim" --mlsd "$work/mlsd" --seed 1 --scenario patroni,restored-pgbackrest \
	--patroni deploy/patroni --failovers "${1:-1}"
