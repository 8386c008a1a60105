package invariants_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/operator/invariants"
)

// G6: a check of some convos finds what is wrong with them, and nothing else. A check of everything
// finds it too, in parts as well as at once.
func TestScopes(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	plant(t, db, ids[0], ids[1])
	const stream = "the stream has not gone back"
	if _, err := db.Exec(t.Context(), `UPDATE generations SET after_seq = 1000000`); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		scope  invariants.Scope
		convos []uuid.UUID
		stream bool
	}{
		"everything":            {invariants.Scope{}, ids[:2], true},
		"the rest":              {invariants.Scope{After: before(ids[1], ids)}, []uuid.UUID{ids[1]}, false},
		"nothing is left":       {invariants.Scope{After: slices.MaxFunc(ids, compare)}, nil, false},
		"one convo":             {invariants.Scope{Convos: ids[:1]}, ids[:1], false},
		"a sample of all":       {invariants.Scope{Sample: 100}, ids[:2], false},
		"since yesterday":       {invariants.Scope{Since: time.Now().Add(-24 * time.Hour)}, ids[:2], false},
		"nothing since then":    {invariants.Scope{Since: time.Now().Add(time.Hour)}, nil, false},
		"a convo that is a gap": {invariants.Scope{Convos: []uuid.UUID{uuid.New()}}, nil, false},
	} {
		for _, atOnce := range []int{1, 2, 500} {
			got, err := invariants.CheckParts(t.Context(), db, tc.scope, atOnce)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, id := range ids {
				if found := mention(got, id.String()) > 0; found != slices.Contains(tc.convos, id) {
					t.Errorf("%s, %d at once: convo %s is reported: %t, of %v in %q", name, atOnce, id, found, tc.convos, got)
				}
			}
			if found := mention(got, stream) > 0; found != tc.stream {
				t.Errorf("%s, %d at once: the stream is reported: %t in %q", name, atOnce, found, got)
			}
		}
	}
	if one, err := invariants.CheckParts(t.Context(), db, invariants.Scope{Sample: 1}, 500); err != nil ||
		mention(one, ids[0].String()) > 0 && mention(one, ids[1].String()) > 0 {
		t.Errorf("a sample of one convo: %q, %v", one, err)
	}
	if _, err := invariants.CheckParts(t.Context(), db, invariants.Scope{Since: time.Unix(0, 0)}, 500); !errors.Is(err,
		invariants.ErrSince) {
		t.Errorf("since a time whose events are gone: %v", err)
	}
}

// G6: a check that has not enough time says where it goes on. Its parts together find every violation
// once, also of a convo that came meanwhile.
func TestCheckGoesOn(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	plant(t, db, ids...)
	scope := invariants.Scope{Within: 1}
	var all []string
	for parts := 1; ; parts++ {
		got, err := invariants.CheckParts(t.Context(), db, scope, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, after, more := strings.Cut(strings.Join(got, "\n"), "the check is not complete: it goes on with ?after=")
		if more {
			got = got[:len(got)-1]
		}
		all = append(all, got...)
		if parts == 1 {
			late := uuid.Must(uuid.NewV7())
			ids = append(ids, late)
			if _, err := db.Exec(t.Context(), `
				INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
				VALUES ($1, 'late', 'did:plc:alice', 1, 1, 0, now())`, late); err != nil {
				t.Fatal(err)
			}
		}
		if !more {
			if parts != len(ids) {
				t.Errorf("%d parts for %d convos", parts, len(ids))
			}
			break
		}
		scope.After = uuid.MustParse(after)
	}
	for _, id := range ids {
		if n := mention(all, id.String()); n != 1 {
			t.Errorf("convo %s is reported %d times in %q", id, n, all)
		}
	}
}

// plant breaks one promise of each convo.
func plant(t *testing.T, db *pgxpool.Pool, convos ...uuid.UUID) {
	t.Helper()
	for _, id := range convos {
		if _, err := db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, 'did:plc:zoe', 'member', now(), 999)`,
			id); err != nil {
			t.Fatal(err)
		}
	}
}

// mention counts the texts that contain a word.
func mention(texts []string, word string) (n int) {
	for _, text := range texts {
		if strings.Contains(text, word) {
			n++
		}
	}
	return n
}

func compare(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) }

// before returns the convo before id, or the zero id.
func before(id uuid.UUID, ids []uuid.UUID) (last uuid.UUID) {
	for _, other := range slices.SortedFunc(slices.Values(ids), compare) {
		if compare(other, id) < 0 {
			last = other
		}
	}
	return last
}
