#!/usr/bin/env bash
# Runs a command with a network, mounts and /run of its own. What listens in it is reached by nobody
# else.
#
#   deploy/check/isolated.sh COMMAND…
set -euo pipefail
if [[ ${1-} != --inside ]]; then
	exec unshare --mount --net --propagation private "$0" --inside "$@"
fi
shift
ip link set lo up
mount -t tmpfs none /run
exec "$@"
