#!/usr/bin/env bash
# Runs mlsd behind a real PgBouncer. Without one, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec cmd/mlsd/pgbouncer.sh go test -count=1 -v -run TestPgBouncer ./cmd/mlsd
