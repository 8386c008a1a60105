#!/usr/bin/env bash
# Runs a command with a network, mounts, /run and processes of its own. What listens in it is reached
# by nobody else, and what it leaves running ends with it.
#
#   deploy/check/isolated.sh COMMAND…
set -euo pipefail
if [[ ${1-} != --inside ]]; then
	exec unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$0" --inside "$@"
fi
shift
ip link set lo up
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
"$@"
