#!/bin/sh
# What the image postgres:17 does with POSTGRES_USER, POSTGRES_DB and POSTGRES_PASSWORD_FILE.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
if [ ! -e "$PGDATA/PG_VERSION" ]; then
	mkdir -p "$PGDATA"
	chown -R postgres:postgres "$PGDATA"
	setpriv --reuid postgres --regid postgres --clear-groups \
		"$bin/initdb" --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --encoding UTF8 --locale C.UTF-8 \
		--auth-local trust --auth-host scram-sha-256
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	echo "CREATE DATABASE $POSTGRES_DB" |
		setpriv --reuid postgres --regid postgres --clear-groups "$bin/postgres" --single -D "$PGDATA" template1
fi
install -d -o postgres /run/postgresql
PATH=$bin:$PATH
exec setpriv --reuid postgres --regid postgres --clear-groups "$bin/postgres" -D "$PGDATA" -c listen_addresses='*'
