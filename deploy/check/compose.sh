#!/usr/bin/env bash
# Brings deploy/compose.yaml up by the page about installation, with stand-ins for the images of
# PostgreSQL and Caddy.
set -euo pipefail
. deploy/check/lib.sh
. deploy/check/containers.sh

containers "compose"
bin=$(python) || skip "compose" "Python's packages cannot be had"
image mlsd localhost/mlsd
image mlsd-trial localhost/mlsd-trial
cp deploy/check/standins/postgres.sh "$DIST/image/"
image postgres docker.io/library/postgres:17 deploy/check/standins/Containerfile
image caddy docker.io/library/caddy:2 deploy/check/standins/Containerfile
podman image prune --force >/dev/null
mkdir "$WORK/compose"
cp deploy/compose.yaml deploy/compose.sql deploy/Caddyfile "$WORK/compose"
section "### Start" >"$WORK/compose/start"
cd "$WORK/compose"
MLSD_COMPOSE="$bin/podman-compose" exec "$OLDPWD/deploy/check/isolated.sh" bash "$OLDPWD/deploy/check/compose-inside.sh" "$OLDPWD"
