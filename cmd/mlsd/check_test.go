package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// The command checks a server in each way. It succeeds while every promise holds, and fails when one
// is broken. (G6)
func TestCheckCommand(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	convo := alice.create(bob).id
	check := func(args ...string) (out string, err error) {
		var stdout bytes.Buffer
		err = run(t.Context(), append([]string{"mlsd", "--admin-url=" + w.admin, "check"}, args...), nil, &stdout, io.Discard)
		return stdout.String(), err
	}
	ways := [][]string{{}, {"--convo", convo}, {"--sample", "10"}, {"--since", "2026-01-01T00:00:00Z"}}
	for _, way := range ways {
		if out, err := check(way...); err != nil || out != "every promise holds\n" {
			t.Errorf("%q: %q, %v", way, out, err)
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `UPDATE members SET cursor_seq = 99`); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, way := range ways {
		out, err := check(way...)
		if err == nil || err.Error() != "2 violations" ||
			strings.Count(out, "convo "+convo+": positions within the log: ") != 2 {
			t.Errorf("%q: %q, %v", way, out, err)
		}
	}
	if out, err := check("--since", "yesterday"); err == nil || !strings.Contains(err.Error(), "since must be a time") {
		t.Errorf("%q, %v", out, err)
	}
}

// The command goes on behind each part, prints what each has found, and says how to go on if a part
// fails.
func TestCheckInParts(t *testing.T) {
	t.Parallel()
	var asked []string
	fails := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		parts := map[string]any{
			"":   map[string]any{"violations": []string{"first"}, "checked": "1 convo", "cursor": "c1"},
			"c1": map[string]any{"violations": []string{"second"}, "checked": "2 convos", "cursor": ""},
		}
		cursor := r.URL.Query().Get("cursor")
		if fails && cursor == "c1" {
			http.Error(w, "the check could not be made", http.StatusInternalServerError)
			return
		}
		if err := json.NewEncoder(w).Encode(parts[cursor]); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	for _, fails = range []bool{false, true} {
		var stdout, stderr bytes.Buffer
		asked = nil
		err := run(t.Context(), []string{"mlsd", "--admin-url", s.URL, "check", "--since", "2026-01-01T00:00:00Z"}, nil, &stdout,
			&stderr)
		if diff := cmp.Diff([]string{"cursor=&since=2026-01-01T00%3A00%3A00Z", "cursor=c1"}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		want, printed := "2 violations", "first\nsecond\n"
		if fails {
			want, printed = "check: 500 Internal Server Error: the check could not be made\nto go on: mlsd check --cursor c1", "first\n"
		}
		if err == nil || err.Error() != want || stdout.String() != printed ||
			!strings.HasPrefix(stderr.String(), "1 convo\n") {
			t.Errorf("%v, %q, %q", err, stdout.String(), stderr.String())
		}
	}
}
