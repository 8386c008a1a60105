package pgpool_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// against are values that somebody can have set for a database or a role, and that would break mlsd.
var against = map[string]string{
	"lock_timeout": "60000", "statement_timeout": "60000", "idle_in_transaction_session_timeout": "50000",
	"idle_session_timeout": "60000", "transaction_timeout": "60000", "jit": "on", "application_name": "other",
	"default_transaction_isolation": "serializable", "row_security": "off", "exit_on_error": "on",
	"search_path": "elsewhere", "client_encoding": "LATIN1", "standard_conforming_strings": "off",
	"timezone": "Asia/Kathmandu", "DateStyle": "German", "IntervalStyle": "iso_8601", "bytea_output": "escape",
	"extra_float_digits": "-15", "array_nulls": "off", "default_transaction_read_only": "on",
	"session_replication_role": "replica", "synchronous_commit": "off",
	"mlsd.maintenance": "on", "mlsd.caller": "did:plc:mallory",
	// A connection over a socket of this machine has none of these.
	"tcp_keepalives_idle": "", "tcp_keepalives_interval": "", "tcp_keepalives_count": "",
}

// G9: what a role, its database or the server has set does not reach a session of ours, however it
// was opened.
func TestSettingsOfOthers(t *testing.T) {
	t.Parallel()
	clean, set := pgtest.EmptyURL(t), pgtest.EmptyURL(t)
	names, _ := pgpool.NamesOfSettings()
	db := pgtest.Session(t, set)
	known := settingsOf(t, db, names) // PostgreSQL 15 does not know all
	for _, name := range names {
		bad, listed := against[name]
		if !listed {
			t.Errorf("this test has no value against %s", name)
		}
		if _, exists := known[name]; bad != "" && (exists || strings.HasPrefix(name, "mlsd.")) {
			alter(t, db, fmt.Sprintf("SET %s = '%s'", name, bad))
		}
	}
	raw := settingsOf(t, pgtest.Session(t, set), names)
	sessions := []map[string]map[string]string{sessionsOf(t, clean, names), sessionsOf(t, set, names)}
	for kind, want := range sessions[0] {
		for name, value := range want {
			if got := sessions[1][kind][name]; got != value {
				t.Errorf("%s: %s is %q, and %q on a database that sets nothing", kind, name, got, value)
			}
			if against[name] != "" && raw[name] == value {
				t.Errorf("the database does not set %s", name)
			}
		}
	}
}

// Options of the URL, or PGOPTIONS for another program, do not reach what mlsd sets always.
func TestOptionsOfOthers(t *testing.T) {
	t.Parallel()
	options := url.QueryEscape("-cmlsd.maintenance=on -cmlsd.caller=did:plc:mallory -crow_security=off")
	options = strings.ReplaceAll(options, "+", "%20") // a + is no space to the driver
	names := []string{"mlsd.maintenance", "mlsd.caller", "row_security"}
	want := map[string]string{"mlsd.maintenance": "off", "mlsd.caller": "", "row_security": "on"}
	for kind, got := range sessionsOf(t, pgtest.EmptyURL(t)+"&options="+options, names) {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
}

// What other programs need in the environment, a service file or the URL is accepted, and mlsd's
// own values win.
func TestParametersThatMlsdSets(t *testing.T) {
	services := filepath.Join(t.TempDir(), "services")
	err := os.WriteFile(services, []byte("[chat]\nclient_encoding=LATIN1\ndatestyle=German\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, tz, parameters string }{
		{"an environment", "Asia/Kathmandu", ""},
		{"a service file", "", "&service=chat&servicefile=" + url.QueryEscape(services)},
		{"a URL", "", "&client_encoding=LATIN1&TimeZone=Asia/Kathmandu&search_path=public"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := pgtest.EmptyURL(t) + tc.parameters
			t.Setenv("PGTZ", tc.tz) // after the start of the tests' server, which removes it
			cfg, err := pgx.ParseConfig(at)
			if err != nil {
				t.Fatal(err)
			}
			if err := pgpool.CheckParameters(cfg.RuntimeParams); err != nil {
				t.Error(err)
			}
			want := map[string]string{"client_encoding": "UTF8", "timezone": "UTC", "DateStyle": "ISO, MDY"}
			for kind, got := range sessionsOf(t, at, slices.Collect(maps.Keys(want))) {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", kind, diff)
				}
			}
		})
	}
}

// alter changes a setting of the database of a connection.
func alter(t *testing.T, db *pgx.Conn, change string) {
	t.Helper()
	sql := fmt.Sprintf(`DO $$BEGIN EXECUTE format('ALTER DATABASE %%I ', current_database()) || $q$%s$q$; END$$`, change)
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", change, err)
	}
}

// settingsOf returns settings of a session that the server knows.
func settingsOf(t *testing.T, db pgpool.Queryer, names []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	var name, value string
	rows := pgpool.Rows(t.Context(), db, `
		SELECT name, current_setting(name, true) FROM unnest($1::text[]) AS n(name)
		WHERE current_setting(name, true) IS NOT NULL`, names)
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { all[name] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// sessionsOf returns the settings of every kind of session.
func sessionsOf(t *testing.T, url string, names []string) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	for kind, open := range map[string]func(context.Context, string, ...pgpool.Option) (*pgxpool.Pool, error){
		"requests": pgpool.Open, "reserved": pgpool.OpenReserved, "maintenance": pgpool.OpenMaintenance,
	} {
		pool, err := open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		all[kind] = settingsOf(t, pool, names)
	}
	for kind, connect := range map[string]func() (*pgx.Conn, error){
		"migrations": func() (*pgx.Conn, error) { return pgpool.ConnectToMigrate(t.Context(), url) },
		"commands":   func() (*pgx.Conn, error) { return pgpool.ConnectFor(t.Context(), url, nil) },
	} {
		conn, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		all[kind] = settingsOf(t, conn, names)
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// check returns what Check says about a database.
func check(t *testing.T, url string) (doubts []string, err error) {
	t.Helper()
	cfg, err := pgpool.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgpool.Connect(t.Context(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	return pgpool.Check(t.Context(), conn, cfg)
}

// G9: Check names what keeps a node from working, and the command that it names mends it.
func TestCheck(t *testing.T) {
	t.Parallel()
	admin := pgtest.Empty(t)
	role := "mlsd_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(context.Background(), strings.ReplaceAll(sql, "{role}", role)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`CREATE ROLE {role} LOGIN`)
	t.Cleanup(func() { exec(`DROP ROLE {role}`) })
	var database string
	if err := admin.QueryRow(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	own := admin.Config().ConnConfig
	url := fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=%s&sslmode=disable", database, own.Host, own.Port,
		role)
	pgtest.LetConnect(t, admin, role, url)
	url += "&pool_max_conns=8"
	exec(`ALTER ROLE {role} SET synchronous_commit = on`) // the tests' server has it off
	if doubts, err := check(t, url); len(doubts) > 0 || err != nil {
		t.Fatalf("a good role: %v, %q", err, doubts)
	}
	_, judged := pgpool.NamesOfSettings()
	for _, name := range judged {
		// ROLE ALL would reach the other tests of this server.
		for _, of := range []string{"ROLE {role}", "DATABASE " + database, "ROLE {role} IN DATABASE " + database} {
			exec(`ALTER ROLE {role} RESET ` + name)
			exec(fmt.Sprintf("ALTER %s SET %s = '%s'", of, name, against[name]))
			doubts, err := check(t, url)
			said := strings.Join(doubts, "\n")
			if name != "synchronous_commit" {
				said = fmt.Sprint(err)
			}
			mend := regexp.MustCompile(`ALTER (ROLE|DATABASE) .* RESET ` + name).FindString(said)
			if mend == "" {
				t.Errorf("%s is set for the %s: %v, %q", name, of, err, doubts)
				mend = fmt.Sprintf("ALTER %s RESET %s", of, name)
			}
			exec(mend)
			exec(`ALTER ROLE {role} SET synchronous_commit = on`)
			if doubts, err := check(t, url); len(doubts) > 0 || err != nil {
				t.Errorf("%s is still set after %s: %v, %q", name, mend, err, doubts)
			}
		}
	}
	exec(`ALTER ROLE {role} SET synchronous_commit = remote_apply`) // it waits for more than on
	if doubts, err := check(t, url); len(doubts) > 0 || err != nil {
		t.Errorf("remote_apply: %v, %q", err, doubts)
	}
	const lastingCommit = `ALTER ROLE {role} SET synchronous_commit = on`
	for _, c := range []struct{ sql, says, undo string }{
		{`ALTER ROLE {role} SET synchronous_commit = local`, "so a failover loses answered writes", lastingCommit},
		{`ALTER ROLE {role} SET synchronous_commit = remote_write`, "so a failover loses answered writes", lastingCommit},
		{`ALTER ROLE {role} CONNECTION LIMIT 31`, "the role may have 31 connections, and each node opens up to 32: " +
			`ALTER ROLE "{role}" CONNECTION LIMIT 64`, ``},
		{`ALTER DATABASE ` + database + ` CONNECTION LIMIT 10`, `ALTER DATABASE "` + database + `" CONNECTION LIMIT 64`, ``},
		{`ALTER ROLE {role} SUPERUSER`, `"{role}" is a superuser`, `ALTER ROLE {role} NOSUPERUSER`},
		{`ALTER ROLE {role} BYPASSRLS`, `ALTER ROLE "{role}" NOBYPASSRLS`, `ALTER ROLE {role} NOBYPASSRLS`},
	} {
		exec(c.sql)
		doubts, err := check(t, url)
		says := strings.ReplaceAll(c.says, "{role}", role)
		if said := fmt.Sprint(err, doubts); !strings.Contains(said, says) {
			t.Errorf("%s: %s\nwant %s", c.sql, said, says)
		}
		if c.undo == "" { // the command stands in the error
			c.undo = regexp.MustCompile(`ALTER .* CONNECTION LIMIT \d+`).FindString(fmt.Sprint(err))
		}
		exec(c.undo)
		if doubts, err := check(t, url); len(doubts) > 0 || err != nil {
			t.Errorf("after %s: %v, %q", c.undo, err, doubts)
		}
	}
}
