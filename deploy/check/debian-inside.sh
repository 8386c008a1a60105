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
if nsenter --mount --target "$pid" touch /usr/bin/written 2>/dev/null; then fail "the unit can write /usr"; fi
mlsd --version | grep -q .
for command in "migrate status" "migrate up" inspect "check-config --database"; do
	# shellcheck disable=SC2086
	mlsd $command >log 2>&1 && su mlsd -s /bin/sh -c "mlsd $command" >log 2>&1 || fail "mlsd $command"
	su nobody -s /bin/sh -c "mlsd $command" >log 2>&1 && fail "nobody may type mlsd $command"
	grep -q "sudo -u mlsd mlsd $command\|permission denied" log
done
[[ $(mlsd migrate status | grep -c "live nodes *1") == 1 && -z $(ls /var/lib/mlsd) ]]
echo "package: commands act on the service's database, as root and as mlsd"

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
for left in /usr/bin/mlsd /usr/lib/systemd/system/mlsd.service /etc/mlsd /var/lib/mlsd; do
	[[ ! -e $left ]] || fail "$left is left"
done
if getent passwd mlsd; then fail "the account is left"; fi
echo "package: removed"
