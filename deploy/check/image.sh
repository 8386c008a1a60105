#!/usr/bin/env bash
# Builds both images, and runs the one with a PostgreSQL of its own.
set -euo pipefail
. deploy/check/lib.sh
. deploy/check/containers.sh

containers "the container images"
for target in mlsd mlsd-trial; do
	image $target localhost/$target
	echo "image $target: $(($(podman image inspect --format '{{.Size}}' localhost/$target) >> 20)) MiB, user $(podman image inspect --format '{{.User}}' localhost/$target)"
	[[ $(podman image inspect --format '{{.User}}' localhost/$target) == 10001:10001 ]] || fail "$target does not run as 10001"
	[[ $(podman image inspect --format '{{.HealthCheck.Test}}' localhost/$target) == '[CMD /usr/bin/mlsd health]' ]] || fail "$target has no health check"
done
podman image prune --force >/dev/null
deploy/check/isolated.sh deploy/check/image-inside.sh
