#!/usr/bin/env bash
# Boots the Debian in a folder, and returns when it has powered off. deploy/check/isolated.sh runs it.
set -euo pipefail
if [[ $(stat -f -c %T /sys/fs/cgroup) != cgroup2fs ]]; then # a newer systemd knows no other
	umount --recursive /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no --directory "$1" --boot
