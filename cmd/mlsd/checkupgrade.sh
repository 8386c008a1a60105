#!/usr/bin/env bash
# Replaces two nodes on one database by another version, one at a time and under load, and takes one
# back. Every call must succeed by the retry rule, and /check must find nothing.
#
# The first version is the newest release in the history; MLSD_TEST_UPGRADE_FROM names another commit.
# Then comes this source, and then this source with one migration more, which this script makes.
# Without a release the first version is this source.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -buildvcs=false -o "$work/this" ./cmd/mlsd
go build -buildvcs=false -o "$work/clientsim" ./cmd/clientsim

newest=$(printf '%s\n' migrations/*.up.sql | tail -n 1)
number=$(basename "$newest")
number=$(printf '%06d' $((10#${number%%_*} + 1)))
echo "CREATE TABLE next (); UPDATE installation SET min_binary = $((10#$number - 1));" >"$work/up.sql"
echo "DROP TABLE next; UPDATE installation SET min_binary = 0;" >"$work/down.sql"
cat >"$work/overlay.json" <<-JSON
	{"Replace": {
		"$PWD/migrations/${number}_next.up.sql": "$work/up.sql",
		"$PWD/migrations/${number}_next.down.sql": "$work/down.sql"
	}}
JSON
go build -buildvcs=false -overlay "$work/overlay.json" -o "$work/next" ./cmd/mlsd

first=$work/this upgrade=$work/next
from=${MLSD_TEST_UPGRADE_FROM-$(git tag --list 'v*' --sort=-version:refname 2>/dev/null | head -n 1)}
if [[ -n $from ]]; then
	mkdir "$work/source"
	git archive "$from" | tar -x -C "$work/source"
	(cd "$work/source" && go build -buildvcs=false -o "$work/before" ./cmd/mlsd)
	first=$work/before upgrade=$work/this,$work/next
	echo "from $(git log -1 --format='%h %s' "$from")"
fi
"$work/clientsim" --seed 1 --mlsd "$first" --upgrade "$upgrade" --scenario rolling-upgrade
