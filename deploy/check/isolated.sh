#!/usr/bin/env bash
# Runs a command with a network, mounts, /run and a hierarchy of control groups of its own. What
# listens in it is reached by nobody else.
#
#   deploy/check/isolated.sh COMMAND…
set -euo pipefail
if [[ ${1-} != --inside ]]; then
	exec unshare --mount --net --propagation private "$0" --inside "$@"
fi
shift
ip link set lo up
mount -t tmpfs none /run
if [[ $(stat -f -c %T /sys/fs/cgroup) != cgroup2fs ]]; then
	umount --recursive /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
exec "$@"
