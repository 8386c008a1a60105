#!/usr/bin/env bash
# Builds a release twice, and looks into it.
set -euo pipefail
. deploy/check/lib.sh

arch=$(go env GOHOSTARCH)
PLATFORMS=${PLATFORMS:-linux/$arch darwin/arm64} deploy/release.sh v0.0.1 "$DIST"

# Each builds in a folder of its own.
PLATFORMS=linux/$arch deploy/release.sh v0.0.1 "$WORK/again" >/dev/null
diff <(grep -E "linux_$arch|_$arch.deb" "$DIST/SHA256SUMS") "$WORK/again/SHA256SUMS" || fail "two builds of one commit differ"
echo "reproducible: two builds in different folders have the same checksums"

(cd "$DIST" && sha256sum --quiet --check SHA256SUMS)
mkdir "$WORK/unpacked"
tar -C "$WORK/unpacked" --strip-components=1 -xzf "$DIST/mlsd_v0.0.1_linux_$arch.tar.gz"
binary=$WORK/unpacked/mlsd
if ldd "$binary" >/dev/null 2>&1; then fail "the binary is not static"; fi
"$binary" --version | grep -q "$(git rev-parse --short HEAD)" || fail "--version does not say the commit: $("$binary" --version)"
if grep -q --text --fixed-strings "$PWD" "$binary"; then fail "the binary names this folder"; fi
for file in LICENSE README.md mlsd.service mlsd.env sysusers.conf completions/mlsd.{bash,zsh,fish}; do
	[[ -s $WORK/unpacked/$file ]] || fail "the archive has no $file"
done
bash -n "$WORK/unpacked/completions/mlsd.bash"
"$binary" migrate --generate-shell-completion | grep -q ^status || fail "the binary does not complete: mlsd migrate"

if ! bin=$(python); then skip "list of modules" "Python's packages cannot be had"; fi
"$bin/python" - "$DIST"/*.cdx.json <<'PYTHON'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for path in sys.argv[1:]:
    text = open(path).read()
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    if error or '"pkg:golang/github.com/jackc/pgx/v5@' not in text:
        sys.exit(f"{path}: {error or 'pgx is missing'}")
print(f"CycloneDX: {len(sys.argv) - 1} lists are valid")
PYTHON
