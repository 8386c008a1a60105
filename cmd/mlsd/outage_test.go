package main

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// O4: while its database is away, a server under load writes one line, and another one when the
// database is back. Requests are refused meanwhile and served afterwards.
func TestOutageIsTwoLines(t *testing.T) {
	t.Parallel()
	database := withPassword(t, pgtest.URL(t))
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", database, "--rate-did", "1e6/1000000")...)
	w.use(s.admin, s.public)
	alice := w.user()
	alice.query(mlsapi.NSIDGetConvos).must().ok()
	before := strings.Count(s.stderr.String(), "\n")

	administer(t, database, `ALTER DATABASE "{db}" ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'`)
	s.stderr.await(t, regexp.MustCompile("the database cannot be reached"), s.ended)
	const refused = 300
	for range refused {
		if a := alice.query(mlsapi.NSIDGetConvos).must(); a.status < http.StatusInternalServerError {
			t.Fatalf("status %d without a database", a.status)
		}
	}
	administer(t, database, `ALTER DATABASE "{db}" ALLOW_CONNECTIONS true`)
	s.stderr.await(t, regexp.MustCompile("the database is back"), s.ended)
	await.Until(t, "requests are served",
		func() bool { return alice.query(mlsapi.NSIDGetConvos).must().status == http.StatusOK })
	s.stop()
	said := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")[before:]
	said = slices.DeleteFunc(said, func(line string) bool {
		// package requests bounds these
		return strings.Contains(line, "this node leads the sequencer") || strings.Contains(line, "msg=access")
	})
	for i, want := range []string{"the database cannot be reached", "the database is back", "shutting down"} {
		if len(said) <= i || !strings.Contains(said[i], want) {
			t.Fatalf("line %d does not say %q", i+1, want)
		}
	}
	if len(said) != 3 {
		t.Errorf("%d lines, want 3", len(said))
	}
	if left := regexp.MustCompile(`left_out=\d{2}`).FindString(said[1]); left == "" {
		t.Errorf("the end does not say how many lines were left out: %s", said[1])
	}
}
