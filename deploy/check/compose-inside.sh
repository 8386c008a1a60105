# Runs the commands of the page, with podman-compose in the place of docker compose.
set -Eeuo pipefail
. "$1/deploy/check/lib.sh"
docker() { shift; timeout 90 "$MLSD_COMPOSE" "$@" >>log 2>&1; }
finish() {
	local status=$?
	if [[ $status -ne 0 ]]; then
		cat log
		podman ps --all
		for c in $(podman ps --all --quiet); do podman logs --tail 10 "$c"; done
	fi
	timeout 60 podman rm --all --force --time 1 >/dev/null 2>&1 || true
	exit "$status"
}
trap finish EXIT

# What the image of Caddy trusts is not known here: its own authority's certificate is.
curl() { command curl --cacert root.crt "$@"; }
certificate() { podman cp mlsd_caddy_1:/data/caddy/pki/authorities/local/root.crt root.crt; }
sed -i 's/^host=.*/host=mls.localhost/; s/^curl /wait_for "the certificate" certificate\ncurl /' start
begun=$SECONDS
. ./start
echo
echo "compose: up in $((SECONDS - begun)) s"

curl --fail --silent https://mls.localhost/.well-known/did.json | grep -q did:web:mls.localhost
[[ $(command curl --silent --output /dev/null --write-out '%{http_code}' http://mls.localhost/) == 308 ]] || fail "http is not redirected"
websocket https://mls.localhost
echo "compose: TLS, the redirect and a WebSocket through Caddy"
podman healthcheck run mlsd_mlsd_1
confined "compose mlsd" "$(podman inspect --format '{{.State.Pid}}' mlsd_mlsd_1)"
podman logs mlsd_mlsd_1 2>&1 | grep "is a superuser" && fail "mlsd is a superuser"
podman inspect mlsd_mlsd_1 | grep -q "$(cat secrets/database-password)" && fail "the password is in the container's settings"

podman stop --time 30 mlsd_mlsd_1 mlsd_postgres_1 >/dev/null 2>&1
podman start mlsd_postgres_1 mlsd_mlsd_1 >/dev/null 2>&1
wait_for "mlsd after a restart" podman healthcheck run mlsd_mlsd_1
curl --fail --silent --retry 20 --retry-delay 1 --retry-all-errors https://mls.localhost/xrpc/_health >/dev/null
echo "compose: restarted on its volume"
