package main

import (
	"net/url"
	"regexp"
	"testing"

	"mlsd/internal/pgtest"
)

// G5: a server whose start waits for a COMMIT says so, and serves when it has ended. A restored
// primary with synchronous_standby_names, whose standbys are not there yet, makes every COMMIT wait.
func TestStartWaitsForACommit(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t)
	operator := pgtest.Session(t, p.Primary)
	for _, sql := range []string{
		`CREATE DATABASE fresh`,
		`ALTER SYSTEM SET synchronous_standby_names = 'away'`,
		`SELECT pg_reload_conf()`,
	} {
		if _, err := operator.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	fresh, err := url.Parse(p.Primary)
	if err != nil {
		t.Fatal(err)
	}
	fresh.Path = "/fresh"
	s := launch(t, nil, "--database-url", fresh.String())
	s.stderr.await(t, regexp.MustCompile(`the start has not ended yet.*COMMITs wait for a standby: `+
		`synchronous_standby_names is 'away'`), s.ended)
	for _, sql := range []string{`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`} {
		if _, err := operator.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.ready()
}
