#!/bin/sh
# What the image postgres:17 does with POSTGRES_PASSWORD_FILE and /docker-entrypoint-initdb.d.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
install -d -o postgres /run/postgresql
if [ ! -e "$PGDATA/PG_VERSION" ]; then
	mkdir -p "$PGDATA"
	chown -R postgres:postgres "$PGDATA"
	as_postgres "$bin/initdb" --username postgres --pwfile "$POSTGRES_PASSWORD_FILE" --encoding UTF8 --locale C.UTF-8 \
		--auth-local trust --auth-host scram-sha-256
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	as_postgres "$bin/pg_ctl" --pgdata "$PGDATA" --wait --options "-c listen_addresses=" start
	for file in /docker-entrypoint-initdb.d/*.sql; do
		as_postgres "$bin/psql" --set ON_ERROR_STOP=1 --no-password --no-psqlrc --username postgres --file "$file"
	done
	as_postgres "$bin/pg_ctl" --pgdata "$PGDATA" --wait --mode fast stop
fi
PATH=$bin:$PATH
exec setpriv --reuid postgres --regid postgres --clear-groups "$bin/postgres" -D "$PGDATA" -c listen_addresses='*'
