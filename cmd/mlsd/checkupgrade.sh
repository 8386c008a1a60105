#!/usr/bin/env bash
# Replaces two nodes on one database, one at a time and under load, by this version, and takes one
# back. The first version is the one before the newest migration landed; MLSD_TEST_UPGRADE_FROM names another
# commit. Every call must succeed by the retry rule, and /check must find nothing.
#
# A version from before migration 24 cannot start on a newer schema. Then this version is replaced by
# one that has another migration, and goes back from that.
#
# Without the history of the repository, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

newest=$(printf '%s\n' migrations/*.up.sql | tail -n 1)
from=${MLSD_TEST_UPGRADE_FROM-}
if [[ -z $from ]]; then
	# A merge counts as one commit of the branch that it landed on.
	added=$(git log --first-parent --diff-merges=first-parent --diff-filter=A --no-patch --format=%H -- "$newest" 2>/dev/null | tail -n 1 || true)
	from=${added:+$added^}
	from=${from:-HEAD} # the migration is not committed yet
fi
if ! commit=$(git rev-parse --quiet --verify "$from^{commit}" 2>/dev/null); then
	echo "SKIPPED rolling upgrade: the history has no commit before $newest"
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
git archive "$commit" | tar -x -C "$work/source"
(cd "$work/source" && go build -buildvcs=false -o "$work/before" ./cmd/mlsd)
go build -buildvcs=false -o "$work/this" ./cmd/mlsd
go build -buildvcs=false -o "$work/clientsim" ./cmd/clientsim
upgrade=$work/this

if ! grep -q schema_support "$work"/source/migrations/*.sql; then
	number=$(basename "$newest")
	number=$(printf '%06d' $((10#${number%%_*} + 1)))
	echo "CREATE TABLE next (); INSERT INTO schema_support VALUES ($((10#$number)), $((10#$number - 1)));" >"$work/up.sql"
	echo "DROP TABLE next; DELETE FROM schema_support WHERE version = $((10#$number));" >"$work/down.sql"
	cat >"$work/overlay.json" <<-JSON
		{"Replace": {
			"$PWD/migrations/${number}_next.up.sql": "$work/up.sql",
			"$PWD/migrations/${number}_next.down.sql": "$work/down.sql"
		}}
	JSON
	go build -buildvcs=false -overlay "$work/overlay.json" -o "$work/next" ./cmd/mlsd
	upgrade+=,$work/next
fi

echo "from $(git log -1 --format='%h %s' "$commit")"
"$work/clientsim" --mlsd "$work/before" --upgrade "$upgrade" --scenario rolling-upgrade
