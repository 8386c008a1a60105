package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

const password = "correct horse+battery"

// withPassword adds a password to a database URL. The tests' server accepts any.
func withPassword(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// wantNoPassword fails the test if a text contains the password, in any notation.
func wantNoPassword(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for _, form := range []string{password, url.QueryEscape(password), url.PathEscape(password), "horse", "battery"} {
			if strings.Contains(text, form) {
				t.Errorf("the password is in: %s", text)
			}
		}
	}
}

// administer runs statements about a database on a connection to another one. {db} stands for its
// name.
func administer(t *testing.T, database string, statements ...string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), strings.ReplaceAll(sql, "{db}", name)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// If the operator's database goes away, the server is not ready, but does not end. No log contains
// the password.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	database := withPassword(t, pgtest.URL(t))
	s := boot(t, []string{"MLSD_DATABASE_URL=" + database}, "--log-level", "debug")
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")

	administer(t, database, `ALTER DATABASE "{db}" ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'`)
	await.Until(t, "the server finds that it cannot connect", func() bool {
		status, _ := fetch(t, s.admin+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(s.stderr.String(), "failed to connect")
	})
	wantPage(t, s.admin+"/readyz", http.StatusServiceUnavailable, "the database cannot be reached\n")
	wantPage(t, s.admin+"/livez", http.StatusOK, "ok\n")
	wantPage(t, s.admin+"/check", http.StatusInternalServerError, "the check could not be made\n")
	wantFigures(t, scrape(t, s), map[string]float64{"mlsd_database_up": 0})

	administer(t, database, `ALTER DATABASE "{db}" ALLOW_CONNECTIONS true`)
	await.Until(t, "the server is ready again", func() bool {
		status, _ := fetch(t, s.admin+"/readyz")
		return status == http.StatusOK
	})
	s.stop()
	wantNoPassword(t, s.stdout.String(), s.stderr.String())
}

func TestUnusableDatabase(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		url  string
		want []string
	}{
		"no server listens": {"postgres://mlsd:" + url.QueryEscape(password) + "@127.0.0.1:1/mlsd",
			[]string{"127.0.0.1:1", "refused"}},
		"no such database": {
			withPassword(t, strings.Replace(pgtest.EmptyURL(t), "?", "_none?", 1)), []string{"_none", "does not exist"}},
		"unreadable":   {"postgres://mlsd:" + password + "%zz@127.0.0.1/mlsd", nil},
		"bad port":     {"postgres://mlsd:horse/battery@127.0.0.1/mlsd", nil},
		"bad setting":  {"postgres://mlsd:battery@127.0.0.1/mlsd?sslmode=horse", nil},
		"words":        {"host=127.0.0.1 user=mlsd password='correct horse+battery", nil},
		"other scheme": {"mysql://mlsd:battery@127.0.0.1/mlsd", nil},
		"certificate does not exist": {"postgres://mlsd:battery@127.0.0.1/mlsd?sslmode=verify-full&sslrootcert=/none.pem",
			[]string{"/none.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, command := range []string{"serve", "migrate up"} {
				s := launch(t, []string{"MLSD_DATABASE_URL=" + tc.url}, strings.Fields(command)...)
				s.fails(append(tc.want, "MLSD_DATABASE_URL")...)
				wantNoPassword(t, s.err.Error(), s.stderr.String())
			}
		})
	}
}

// E3: an operator says that the database was restored. Each time begins another generation.
func TestRestored(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	for n := range 2 {
		s := launch(t, []string{"MLSD_DATABASE_URL=" + database}, "restored")
		if err := s.wait(); err != nil || !strings.Contains(s.stdout.String(), "begins after event 0\n") {
			t.Fatalf("restored: %q, %v", s.stdout, err)
		}
		conn, err := pgx.Connect(t.Context(), database)
		if err != nil {
			t.Fatal(err)
		}
		var generations int
		err = errors.Join(conn.QueryRow(t.Context(), `SELECT count(*) FROM generations`).Scan(&generations),
			conn.Close(t.Context()))
		if err != nil || generations != n+2 {
			t.Errorf("%d generations, %v", generations, err)
		}
	}
	launch(t, []string{"MLSD_DATABASE_URL=" + pgtest.EmptyURL(t)}, "restored").fails("does not exist")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	database := pgtest.EmptyURL(t)
	migrate := func(args ...string) *server {
		return launch(t, []string{"MLSD_DATABASE_URL=" + database}, append([]string{"migrate"}, args...)...)
	}
	wantVersion := func(want string) {
		t.Helper()
		s := migrate("version")
		if err := s.wait(); err != nil || s.stdout.String() != want+"\n" {
			t.Fatalf("migrate version: %q, %v; want %s", s.stdout, err, want)
		}
	}
	ok := func(args ...string) {
		t.Helper()
		if s := migrate(args...); s.wait() != nil || s.stdout.String() != "" {
			t.Fatalf("migrate %v: %v, %q", args, s.err, s.stdout)
		}
	}
	all := strconv.Itoa(newestMigration(t))
	wantVersion("0")
	ok("up")
	wantVersion(all)
	ok("up")
	wantVersion(all)
	migrate("down", "0").fails("must be positive")
	migrate("down", "-1").fails("-1")
	migrate("down", "one").fails(`"one" is not a number`)
	wantVersion(all)
	migrate("down", all).fails("--yes-delete-data", "only a backup brings it back",
		fmt.Sprintf("%06d_", newestMigration(t)), "DROP TABLE")
	wantVersion(all)
	ok("down", "--yes-delete-data", all)
	wantVersion("0")
	migrate("down").fails("fewer than 1")
	migrate("down", "--yes-delete-data").fails("fewer than 1")
	// serve migrates too.
	boot(t, []string{"MLSD_DATABASE_URL=" + database}).stop()
	wantVersion(all)
}

// newestMigration returns the number of the newest migration, which is how many there are.
func newestMigration(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("../../migrations/*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	return len(files)
}
