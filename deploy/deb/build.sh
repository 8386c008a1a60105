#!/usr/bin/env bash
# Builds the Debian package of one architecture. deploy/release.sh calls it.
#
#   deploy/deb/build.sh VERSION ARCH BINARY COMPLETIONS DIRECTORY
set -euo pipefail
umask 022
cd "$(dirname "$0")"
version=$1 arch=$2 binary=$3 completions=$4 directory=$5

# Debian's versions begin with a digit, and ~ sorts before the end: 1.0~rc1 is older than 1.0.
number=${version#v}
[[ $number == [0-9]* ]] || number=0~$number
number=${number//-rc/\~rc}
number=${number//-/+}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
install -D -m 755 "$binary" "$root/usr/bin/mlsd"
install -D -m 644 ../systemd/mlsd.service "$root/usr/lib/systemd/system/mlsd.service"
install -D -m 644 ../systemd/sysusers.conf "$root/usr/lib/sysusers.d/mlsd.conf"
install -D -m 640 ../systemd/mlsd.env "$root/etc/mlsd/mlsd.env"
install -D -m 644 "$completions/mlsd.bash" "$root/usr/share/bash-completion/completions/mlsd"
install -D -m 644 "$completions/mlsd.zsh" "$root/usr/share/zsh/vendor-completions/_mlsd"
install -D -m 644 "$completions/mlsd.fish" "$root/usr/share/fish/vendor_completions.d/mlsd.fish"
install -D -m 644 ../../LICENSE "$root/usr/share/doc/mlsd/copyright"
install -D -m 644 ../Caddyfile "$root/usr/share/mlsd/Caddyfile"
install -D -m 755 -t "$root/DEBIAN" postinst prerm postrm
echo /etc/mlsd/mlsd.env >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<CONTROL
Package: mlsd
Version: $number
Architecture: $arch
Maintainer: the authors of mlsd <mlsd@localhost>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: ca-certificates, systemd | systemd-standalone-sysusers
Recommends: postgresql (>= 15)
Suggests: caddy
Section: net
Priority: optional
Description: delivery service for MLS groups of AT Protocol clients
 mlsd keeps the ordered log of each end-to-end encrypted group, hands out
 KeyPackages once and delivers Welcomes. It stores its data in PostgreSQL.
CONTROL
dpkg-deb --root-owner-group -Zxz --build "$root" "$directory/mlsd_${version}_$arch.deb" >/dev/null
