#!/usr/bin/env bash
# Boots a Debian 13 that has neither mlsd, PostgreSQL nor Caddy, and follows the page about
# installation in it: install, upgrade and remove the package.
set -euo pipefail
. deploy/check/lib.sh

what="the package in a Debian that boots"
packages "$what" mmdebstrap systemd systemd-container iproute2
report=$(systemd-analyze security --offline=true --threshold=20 deploy/systemd/mlsd.service) || fail "the unit is exposed: $report"
tail -n 1 <<<"$report"

# The Debian has the packages that it is going to install in its cache: it gets no network.
debian debian-boot.tar --include=systemd,systemd-sysv,dbus,ca-certificates,curl \
	--skip=cleanup/apt,cleanup/reproducible \
	--customize-hook='chroot "$1" apt-get install --yes --download-only postgresql caddy' ||
	skip "$what" "Debian cannot be fetched"
root=$WORK/debian
mkdir "$root"
tar -C "$root" -xf "$CACHE/debian-boot.tar"
echo 'APT::Install-Recommends "false";' >"$root/etc/apt/apt.conf.d/check" # they are not in the cache
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/check"

arch=$(dpkg --print-architecture)
mkdir "$root/root/new"
cp "$DIST/mlsd_v0.0.1_$arch.deb" "$root/root/mlsd_v0.0.1_$arch.deb"
mkdir "$WORK/payload"
tar -C "$WORK/payload" --strip-components=1 -xzf "$DIST/mlsd_v0.0.1_linux_$arch.tar.gz"
deploy/deb/build.sh v0.0.2 "$arch" "$WORK/payload/mlsd" "$WORK/payload/completions" "$root/root/new"
for part in Install Upgrade Remove; do
	section "### $part" | sed "s/^host=.*/host=mls.localhost/; s/_amd64/_$arch/" >"$root/root/$part"
done
cp deploy/check/lib.sh deploy/check/debian-inside.sh "$root/root/"
cat >"$root/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=network.target dbus.service
[Service]
Type=oneshot
WorkingDirectory=/root
ExecStart=/bin/bash /root/debian-inside.sh
StandardOutput=file:/root/output
StandardError=inherit
ExecStopPost=/bin/sh -c 'echo $EXIT_STATUS >/root/status; systemctl poweroff --no-block'
UNIT
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/check.service"

timeout 400 deploy/check/isolated.sh deploy/check/boot.sh "$root" </dev/null >"$WORK/boot" 2>&1 || true
if ! grep -q systemd "$WORK/boot"; then
	skip "$what" "systemd-nspawn does not run here: $(head -n 1 "$WORK/boot")"
fi
cat "$root/root/output" || cat "$WORK/boot"
[[ $(cat "$root/root/status") == 0 ]] || fail "the installation on Debian"
