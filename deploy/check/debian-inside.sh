# Runs in the Debian that check/debian.sh boots: the commands of the page about installation, and
# what must be true after each.
set -Eeuo pipefail
. /root/lib.sh
export DEBIAN_FRONTEND=noninteractive
# Caddy makes a certificate for a name of this machine by an authority of its own.
export CURL_CA_BUNDLE=/var/lib/caddy/.local/share/caddy/pki/authorities/local/root.crt
trap 'echo "failed: $BASH_COMMAND"; cat log; journalctl --no-pager --lines 40 --unit mlsd --unit caddy' ERR

cd /root
begun=$SECONDS
bash -euo pipefail Install >log 2>&1
echo "package: from an empty Debian to $(tail -n 1 log) in $((SECONDS - begun)) s"
curl --fail --silent https://mls.localhost/.well-known/did.json | grep -q did:web:mls.localhost
websocket https://mls.localhost
systemd-analyze verify mlsd.service
systemd-analyze security --threshold=20 mlsd.service >/dev/null
pid=$(systemctl show --value --property MainPID mlsd)
echo "unit: runs as $(stat -c %U "/proc/$pid"), $(grep CapEff "/proc/$pid/status" | tr "\t" " ")"
[[ $(stat -c %U "/proc/$pid") == mlsd ]]
if nsenter --mount --target "$pid" touch /usr/bin/written 2>/dev/null; then echo "the unit can write /usr"; exit 1; fi
mlsd --version | grep -q .

(cd new && bash -euo pipefail ../Upgrade >../log 2>&1)
[[ $(dpkg-query -W -f '${Version}' mlsd) == 0.0.2 ]]
[[ $(systemctl show --value --property MainPID mlsd) != "$pid" ]]
mlsd health | grep -qx ok
grep -q did:web:mls.localhost /etc/mlsd/mlsd.env
echo "package: upgraded, settings kept"

# A node that dies comes back.
kill -KILL "$(systemctl show --value --property MainPID mlsd)"
for _ in {1..100}; do mlsd health >/dev/null 2>&1 && break; sleep 0.1; done
mlsd health >/dev/null
echo "package: killed, back again"

bash -euo pipefail Remove >log 2>&1
if command -v mlsd || systemctl cat mlsd.service 2>/dev/null || getent passwd mlsd || [[ -e /etc/mlsd || -e /var/lib/mlsd ]]; then
	echo "something of mlsd is left"
	exit 1
fi
echo "package: removed"
