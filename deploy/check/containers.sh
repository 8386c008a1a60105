# Containers for the parts of deploy/check.sh. They source it after lib.sh.

# containers WHAT sets podman and buildah up, and makes the base image under the name that
# deploy/Containerfile uses. Images are kept; containers and volumes are new in each run.
containers() {
	packages "$1" buildah podman runc netavark aardvark-dns iptables iproute2 mmdebstrap
	debian debian-base.tar || skip "$1" "Debian cannot be fetched"
	cat >"$WORK/containers.conf" <<-CONF
		[containers]
		default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
		[engine]
		runtime = "runc"
		cgroup_manager = "cgroupfs"
		events_logger = "none"
		static_dir = "$WORK/podman"
		volume_path = "$WORK/volumes"
		[network]
		network_backend = "netavark"
		network_config_dir = "$WORK/networks"
	CONF
	cat >"$WORK/storage.conf" <<-CONF
		[storage]
		driver = "overlay"
		graphroot = "$CACHE/containers"
		runroot = "/run/mlsd-check"
	CONF
	export CONTAINERS_CONF=$WORK/containers.conf CONTAINERS_STORAGE_CONF=$WORK/storage.conf
	export BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker
	# A run that was killed leaves the layers of its containers.
	podman ps --all --external --quiet | xargs --no-run-if-empty podman rm --force >/dev/null
	local base=docker.io/library/debian:trixie-slim
	if ! podman image exists $base; then
		podman import --quiet "$CACHE/debian-base.tar" $base >/dev/null || skip "$1" "podman does not work here"
	fi
}

# image TARGET NAME builds a target of a Containerfile. Its layers are kept.
image() {
	buildah build --quiet --layers --pull=never --file "${3:-deploy/Containerfile}" --target "$1" --tag "$2" "$DIST/image" >"$WORK/build" 2>&1 ||
		fail "the image $1: $(tail -n 20 "$WORK/build")"
}
