# shellcheck shell=bash
# What .ci/run and .ci/nightly share: steps, and a table of them at the end. Before you source it, set
# the name of the run, and whether the run goes on after a step that fails:
#
#   run='ci whole' goes_on=false
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -d ../shared/mls-vectors ]]; then # tests that need the MLS working group's vectors skip without
	MLSD_MLS_VECTORS=$(cd ../shared/mls-vectors && pwd)
	export MLSD_MLS_VECTORS
fi

work=$(mktemp -d)
table='' not_checked='' failures=0

# finish prints the table. The last line says how the run ended.
finish() {
	local status=$?
	rm -rf "$work"
	printf '\n%7s  step\n%s' seconds "$table"
	[[ -z $not_checked ]] || printf '\nNOT CHECKED:\n%s' "$not_checked"
	if [[ $status -eq 0 && $failures -eq 0 ]]; then
		printf '\n%s: PASSED in %d s\n' "$run" "$SECONDS"
		return
	fi
	printf '\n%s: FAILED after %d s\n' "$run" "$SECONDS"
	exit 1
}
trap finish EXIT
trap 'exit 1' HUP INT TERM # without it, the status in finish is that of the last step

# step NAME COMMAND… runs one step. A line of its output that begins with SKIPPED says what it could
# not check.
step() {
	local name=$1 begun=$SECONDS status verdict=''
	printf '\n== %s\n' "$name"
	set +e # in a list or a condition, bash would go on after an error within a function
	(set -e; "${@:2}") 2>&1 | tee "$work/output"
	status=${PIPESTATUS[0]}
	set -e
	not_checked+=$(sed -n 's/^SKIPPED /  /p' "$work/output")
	[[ -z $not_checked || $not_checked == *$'\n' ]] || not_checked+=$'\n'
	if [[ $status -ne 0 ]]; then
		verdict='  FAILED'
		failures=$((failures + 1))
	fi
	table+=$(printf '%7d  %s%s' $((SECONDS - begun)) "$name" "$verdict")$'\n'
	[[ $status -eq 0 ]] || "$goes_on"
}
