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
	name := "mlsd_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	managed := manage(t, admin, name)
	typeStatements(t, admin, managed, strings.ReplaceAll(blocks(page)["sql"], "mlsd_service", name))
	own := admin.Config().ConnConfig
	database := (&url.URL{Scheme: "postgres", Path: "/" + name, RawQuery: url.Values{
		"host": {own.Host}, "port": {"5432"}, "user": {name}, "sslmode": {"disable"},
	}.Encode()}).String()
	pgtest.LetConnect(t, admin, name, database)

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
