package pgtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The next process drops the databases of a process that has ended, and no others.
func TestDropAbandonedDatabases(t *testing.T) {
	t.Parallel()
	mine := Empty(t)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	const stale, foreign = namePrefix + "00000000_7", namePrefix + "notes"
	for _, name := range []string{stale, foreign} {
		if err := s.createFrom(t.Context(), name, "template0"); err != nil {
			t.Fatal(err)
		}
	}
	other := &server{}
	if err := other.open(t.Context(), s.base.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.tokens.Release(); other.admin.Close() })
	got := map[string]bool{}
	for _, name := range []string{stale, foreign, mine.Config().ConnConfig.Database, s.template} {
		var exists bool
		const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
		if err := s.admin.QueryRow(t.Context(), q, name).Scan(&exists); err != nil {
			t.Fatal(err)
		}
		got[name] = exists
	}
	want := map[string]bool{stale: false, foreign: true, mine.Config().ConnConfig.Database: true, s.template: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exist (-want +got)\n%s", diff)
	}
	if err := s.drop(t.Context(), foreign); err != nil {
		t.Error(err)
	}
}
