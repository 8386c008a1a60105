package main

import (
	"context"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// The page about a PostgreSQL that somebody else runs is enough to run mlsd with it: an administrator
// that is no superuser types its statements, and a server with the role that they make does its work.
func TestManagedPostgreSQL(t *testing.T) {
	t.Parallel()
	admin, page := pgtest.Empty(t), pages(t)["docs/operating/POSTGRESQL.md"]
	name, database := managedDatabase(t, admin, blocks(page)["sql"])
	w := newWorld(t)
	s := boot(t, []string{"MLSD_DATABASE_URL=" + database}, w.flags()...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "by a role of no rights")).must().ok()
	if log := bob.log(c); len(log) != 1 {
		t.Fatalf("%d messages", len(log))
	}
	w.wantSound()
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")

	db := pgtest.Session(t, database)
	var rights, extensions string
	err := db.QueryRow(t.Context(), `
		SELECT concat_ws(' ', rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication),
			(SELECT string_agg(extname, ' ') FROM pg_extension)
		FROM pg_roles WHERE rolname = current_user`).Scan(&rights, &extensions)
	if err != nil || rights != "f f f f f" || extensions != "plpgsql" {
		t.Errorf("rights %q, extensions %q, %v", rights, extensions, err)
	}
	s.stop()
	wantDump(t, admin, name, database, blocks(page)["bash"])
}

// managedDatabase types the page's statements, and returns the name of the role and of its database,
// and the URL.
func managedDatabase(t *testing.T, admin *pgxpool.Pool, statements string) (name, database string) {
	t.Helper()
	name = "mlsd_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	managed := manage(t, admin, name)
	typeStatements(t, admin, managed, strings.ReplaceAll(statements, "mlsd_service", name))
	own := admin.Config().ConnConfig
	database = (&url.URL{Scheme: "postgres", Path: "/" + name, RawQuery: url.Values{
		"host": {own.Host}, "port": {"5432"}, "user": {name}, "sslmode": {"disable"},
	}.Encode()}).String()
	pgtest.LetConnect(t, admin, name, database)
	return name, database
}

// G9: a node works with a role and a database that have everything set against it, or it does not
// start, and says which command mends it. check-config says the same.
func TestSettingsAgainstUs(t *testing.T) {
	t.Parallel()
	admin, page := pgtest.Empty(t), pages(t)["docs/operating/POSTGRESQL.md"]
	name, database := managedDatabase(t, admin, blocks(page)["sql"])
	configured := []string{"MLSD_DATABASE_URL=" + database + "&pool_max_conns=8", "MLSD_SERVICE_DID=" + serviceDID}
	alter := func(change string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), strings.ReplaceAll(change, "{role}", name)); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
	}
	for _, set := range []string{"row_security = off", "client_encoding = LATIN1", "standard_conforming_strings = off",
		"idle_session_timeout = 100", "statement_timeout = 1000", "search_path = elsewhere", "DateStyle = German",
		"default_transaction_isolation = serializable", "exit_on_error = on", "enable_indexscan = off"} {
		alter("ALTER ROLE {role} SET " + set)
		alter("ALTER DATABASE {role} SET " + set)
	}
	w := newWorld(t)
	s := boot(t, configured, w.flags()...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "жук")).must().ok()
	if log := bob.log(c); len(log) != 1 {
		t.Errorf("%d messages", len(log))
	}
	w.wantSound()
	s.stop()

	for _, c := range []struct{ change, says, mend string }{
		{"ALTER ROLE {role} CONNECTION LIMIT 10", "the role may have 10 connections",
			`ALTER ROLE "{role}" CONNECTION LIMIT 64`},
		{"ALTER DATABASE {role} SET default_transaction_read_only = on", "no write works",
			`ALTER DATABASE "{role}" RESET default_transaction_read_only`},
		{"ALTER ROLE {role} SET session_replication_role = replica", "foreign keys and triggers do not work",
			`ALTER ROLE "{role}" RESET session_replication_role`},
	} {
		alter(c.change)
		mend := strings.ReplaceAll(c.mend, "{role}", name)
		for _, command := range []string{"serve", "check-config --database"} {
			launch(t, configured, strings.Fields(command)...).fails("MLSD_DATABASE_URL", c.says, mend)
		}
		alter(mend)
	}
	alter("ALTER ROLE {role} SUPERUSER")
	checked := launch(t, configured, "check-config", "--database")
	if err := checked.wait(); err != nil || !strings.Contains(checked.stdout.String(), "is a superuser") {
		t.Errorf("check-config of a superuser: %v, %s", err, checked.stdout)
	}
	s = boot(t, configured, w.flags()...)
	if !strings.Contains(s.stderr.String(), "is a superuser") {
		t.Error("the start does not warn of a superuser")
	}
	s.stop()
	alter("ALTER ROLE {role} NOSUPERUSER")
}

// wantDump types the commands that dump a database and read the dump into another one. Every record
// must be there again, also those that row-level security hides.
func wantDump(t *testing.T, admin *pgxpool.Pool, name, database, commands string) {
	t.Helper()
	for _, program := range []string{"bash", "pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("the commands for a dump are not tried: %v", err)
			return
		}
	}
	if _, err := admin.Exec(t.Context(), `CREATE DATABASE `+name+`_restored OWNER `+name); err != nil {
		t.Fatal(err)
	}
	restored := strings.Replace(database, "/"+name, "/"+name+"_restored", 1)
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	shell.Dir = t.TempDir()
	shell.Env = append(shell.Environ(), "MLSD_DATABASE_URL="+database, "NEW_DATABASE_URL="+restored)
	if output, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var counts [2]string
	for i, url := range []string{database, restored} {
		db := pgtest.Session(t, url)
		if _, err := db.Exec(t.Context(), `SET mlsd.maintenance = 'on'`); err != nil {
			t.Fatal(err)
		}
		err := db.QueryRow(t.Context(), `
			SELECT format('%s, %s, %s', (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM quota_counts), (SELECT
				count(*) FROM messages))`).Scan(&counts[i])
		if err != nil {
			t.Fatal(err)
		}
	}
	if counts[0] != counts[1] || strings.HasPrefix(counts[0], "0") || strings.Contains(counts[0], " 0") {
		t.Errorf("the database has %s rows, the restored one %s", counts[0], counts[1])
	}
}

// manage makes a role with the rights that hosts of databases give to their customers, and removes it
// and what it has made at the end.
func manage(t *testing.T, admin *pgxpool.Pool, name string) (managed string) {
	t.Helper()
	managed = name + "_admin"
	if _, err := admin.Exec(t.Context(), `CREATE ROLE `+managed+` NOSUPERUSER CREATEROLE CREATEDB`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, sql := range []string{
			`DROP DATABASE IF EXISTS ` + name + `_restored WITH (FORCE)`, `DROP DATABASE IF EXISTS ` + name + ` WITH (FORCE)`,
			`DROP ROLE IF EXISTS ` + name, `DROP ROLE ` + managed,
		} {
			if _, err := admin.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	return managed
}

// typeStatements runs statements one by one as a role.
func typeStatements(t *testing.T, admin *pgxpool.Pool, role, statements string) {
	t.Helper()
	conn, err := admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	typed := 0
	for _, sql := range append([]string{`SET SESSION AUTHORIZATION ` + role},
		append(split(statements), `RESET SESSION AUTHORIZATION`)...) {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		typed++
	}
	if typed < 6 {
		t.Errorf("the page has only %d statements", typed-2)
	}
}

// split returns the statements of a text, without their comments.
func split(text string) (statements []string) {
	text = regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(text, "")
	for sql := range strings.SplitSeq(text, ";") {
		if sql = strings.TrimSpace(sql); sql != "" {
			statements = append(statements, sql)
		}
	}
	return statements
}
