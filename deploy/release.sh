#!/usr/bin/env bash
# Builds everything that a release has, into dist/ or the second argument: archives, Debian packages,
# what the container images are made of, lists of the modules (CycloneDX) and checksums.
#
#   deploy/release.sh [VERSION] [DIRECTORY]
#
# VERSION defaults to the tag (git describe), or dev. PLATFORMS names fewer than all four. It builds
# the commit that is checked out, without later changes. The same commit, version and release of Go
# give the same bytes, in whatever directory and on whatever day. It needs Go and GNU tar. Without
# dpkg-deb, a line that begins with SKIPPED says so.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

version=${1:-$(git describe --tags --match 'v*' 2>/dev/null || echo dev)}
mkdir -p "${2:-dist}"
dist=$(cd "${2:-dist}" && pwd)
read -ra platforms <<<"${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --shared . "$work/source"
cd "$work/source"

# build OS ARCH FILE builds mlsd without C libraries, and without the names of this machine.
build() {
	CGO_ENABLED=0 GOOS=$1 GOARCH=$2 GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' \
		go build -trimpath -buildvcs=true -ldflags "-s -w -X mlsd/node.release=$version" -o "$3" ./cmd/mlsd
}

# completions writes the scripts for three shells into a folder.
completions() {
	mkdir -p "$1"
	local shell
	for shell in bash zsh fish; do "$work/mlsd" completion "$shell" >"$1/mlsd.$shell"; done
}

# archive OS ARCH packs the binary and what belongs to it.
archive() {
	local name=mlsd_${version}_$1_$2 folder=$work/tree/mlsd_${version}_$1_$2
	mkdir -p "$folder"
	install -m 755 "$work/$1/$2/mlsd" "$folder/mlsd"
	install -m 644 LICENSE README.md CHANGELOG.md "$folder"
	cp -r "$work/completions" "$folder/completions"
	if [[ $1 == linux ]]; then
		install -m 644 deploy/systemd/mlsd.service deploy/systemd/mlsd.env deploy/systemd/sysusers.conf "$folder"
	fi
	tar -C "$work/tree" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		-cf - "$name" | gzip -n -9 >"$dist/$name.tar.gz"
}

rm -rf "$dist"/mlsd_* "$dist"/image "$dist"/SHA256SUMS
GOFLAGS='' CGO_ENABLED=0 build "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)" "$work/mlsd"
completions "$work/completions"
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/}
	build "$os" "$arch" "$work/$os/$arch/mlsd"
	archive "$os" "$arch"
	go run ./deploy/sbom "$work/$os/$arch/mlsd" "$version" "$SOURCE_DATE_EPOCH" >"$dist/mlsd_${version}_${os}_$arch.cdx.json"
	[[ $os == linux ]] || continue
	install -D -m 755 "$work/$os/$arch/mlsd" "$dist/image/linux/$arch/mlsd"
	if command -v dpkg-deb >/dev/null; then
		deploy/deb/build.sh "$version" "$arch" "$work/$os/$arch/mlsd" "$work/completions" "$dist"
	else
		echo "SKIPPED the Debian package of $arch: there is no dpkg-deb"
	fi
done
cd "$dist"
find . -maxdepth 1 -type f -name 'mlsd_*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
cat SHA256SUMS
