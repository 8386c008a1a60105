#!/usr/bin/env bash
# Runs the images, in a network of their own.
set -euo pipefail
. deploy/check/lib.sh
finish() {
	local status=$?
	[[ $status -eq 0 ]] || podman logs --tail 20 trial || true
	timeout 60 podman rm --all --force --time 1 >/dev/null 2>&1 || true
	exit "$status"
}
trap finish EXIT

podman run --rm localhost/mlsd --version
begun=$(date +%s%N)
podman run --detach --name trial --publish 127.0.0.1:8080:8080 --read-only --cap-drop all --security-opt no-new-privileges \
	localhost/mlsd-trial >/dev/null 2>&1
wait_for "the health of mlsd-trial" podman healthcheck run trial
echo "image mlsd-trial: healthy after $((($(date +%s%N) - begun) / 1000000)) ms, with a new database"
curl --fail --silent http://127.0.0.1:8080/xrpc/_health | grep -q version
pid=$(podman inspect --format '{{.State.Pid}}' trial)
confined trial "$pid"

begun=$(date +%s%N)
podman stop --time 60 trial >/dev/null
[[ $(podman inspect --format '{{.State.ExitCode}}' trial) == 0 ]] || fail "mlsd-trial does not stop in order"
podman start trial >/dev/null 2>&1
wait_for "the health of mlsd-trial" podman healthcheck run trial
echo "image mlsd-trial: restarted on its data in $((($(date +%s%N) - begun) / 1000000)) ms"
podman stop --time 60 trial >/dev/null
if podman healthcheck run trial 2>/dev/null; then fail "mlsd-trial is healthy after its end"; fi
