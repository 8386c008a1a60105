#!/usr/bin/env bash
# Runs the tests of the S3 store, and those of the server's attachments, against a real S3 server:
# versitygw, on this machine. The first run builds it, for some minutes; the program is kept. If it
# cannot be had, a line that begins with SKIPPED says so.
set -euo pipefail
cd "$(dirname "$0")/../../.."

work=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

gw=$(command -v versitygw || true)
if [ -z "$gw" ]; then
  gw=${MLSD_VERSITYGW:-${XDG_CACHE_HOME:-$HOME/.cache}/mlsd/versitygw}
  if [ ! -x "$gw" ] && ! GOBIN=$(dirname "$gw") timeout 900 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 >&2; then
    echo "SKIPPED attachments in a real S3 server: versitygw is not installed, and cannot be built"
    exit 0
  fi
fi

export MLSD_TEST_S3_ACCESS_KEY=check MLSD_TEST_S3_SECRET_KEY=check-secret MLSD_TEST_S3_BUCKET=attachments
mkdir -p "$work/data/$MLSD_TEST_S3_BUCKET" "$work/iam"
port=${MLSD_TEST_S3_PORT:-$((20000 + RANDOM % 10000))}
"$gw" --port "127.0.0.1:$port" --access "$MLSD_TEST_S3_ACCESS_KEY" --secret "$MLSD_TEST_S3_SECRET_KEY" posix --nometa "$work/data" >"$work/log" 2>&1 &
server=$!
export MLSD_TEST_S3_ENDPOINT=http://127.0.0.1:$port
for _ in $(seq 100); do
  curl -s -o "$work/answer" "$MLSD_TEST_S3_ENDPOINT" && break
  kill -0 "$server" || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done

go test -count=1 -v ./features/attachments/s3store -run TestStore | tee "$work/out"
if grep -q -- '--- SKIP' "$work/out"; then
  echo "a test was skipped" >&2
  exit 1
fi
go test -count=1 ./api -run 'TestAttachment'
