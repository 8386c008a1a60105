package convos_test

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/people/consent"
)

//go:embed outsiders.sql
var readOutsiders string

// H10: to look for outsiders reads what the invited are in, not the rosters of the inviter's
// convos. The inviter is in 200 convos, one of 1,000 people, and invites 50 who are in 20 others
// each.
func TestOutsidersAreFoundByIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for _, sql := range []string{
		`INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT gen_random_uuid(), 'inviter', 'member', now(), 0 FROM generate_series(1, 200)`,
		`INSERT INTO members (convo_id, did, role, joined_at, joined_seq, requested_at)
		SELECT gen_random_uuid(), 'outsider' || n, 'member', now(), 0, now() FROM generate_series(1, 20), generate_series(1,
			50) n`,
		`INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT (SELECT convo_id FROM members WHERE did = 'inviter' LIMIT 1), 'known' || n, 'member', now(), 0 FROM
			generate_series(1, 999) n`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for who, want := range map[string]struct{ outsiders, open int }{"outsider": {50, 20}, "known": {0, 0}} {
		var dids []string
		for n := range 50 {
			dids = append(dids, fmt.Sprint(who, n+1))
		}
		rows, err := db.Query(t.Context(), `SELECT n FROM (`+readOutsiders+`) s`, "inviter", dids, 200,
			consent.NewestConvos, "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil || len(found) != want.outsiders || len(found) > 0 && found[0] != want.open {
			t.Errorf("%s: %v, %v", who, found, err)
		}
		// One page of an index or table costs about a microsecond.
		const pagesOfOne = 20 * 10
		if pages := pagesRead(t.Context(), t, db.QueryRow, dids); pages == 0 || pages > 50*pagesOfOne {
			t.Errorf("%s: %d pages were read", who, pages)
		} else {
			t.Logf("%s: %d pages were read", who, pages)
		}
	}
}

// An invited person in 3,000 convos costs as much as one in 500. A convo that it shares with the
// inviter counts if it is one of its newest.
func TestInvitedWithManyConvos(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	join := func(did string, first, last int) {
		_, err := db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT lpad(to_hex(n), 32, '0')::uuid, $1, 'member', now(), 0 FROM generate_series($2::integer, $3) AS n`, did,
			first, last)
		if err != nil {
			t.Fatal(err)
		}
	}
	outsiders := func() (n int) {
		err := db.QueryRow(t.Context(), `SELECT count(*) FROM (`+readOutsiders+`) s`, "inviter", []string{"busy"}, 200,
			consent.NewestConvos, "192.0.2.1").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const convos, oldest = 3000, 3000 - consent.NewestConvos + 1
	join("busy", 1, convos)
	join("inviter", oldest-1, oldest-1)
	if n := outsiders(); n != 1 {
		t.Errorf("%d outsiders, with an old convo in common", n)
	}
	const pagesOfOne = 8
	if n := pagesRead(t.Context(), t, db.QueryRow, []string{"busy"}); n == 0 || n > pagesOfOne*consent.NewestConvos {
		t.Errorf("%d pages were read", n)
	}
	join("inviter", oldest, oldest)
	if n := outsiders(); n != 0 {
		t.Errorf("%d outsiders, with a newer convo in common", n)
	}
}

// pagesRead is how many pages the statement reads.
func pagesRead(ctx context.Context, t *testing.T, query func(context.Context, string, ...any) pgx.Row,
	dids []string) (pages int) {
	t.Helper()
	var plan []struct {
		Plan struct {
			Pages int `json:"Shared Hit Blocks"`
		}
	}
	if err := query(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+strings.TrimSpace(readOutsiders), "inviter", dids, 200,
		consent.NewestConvos, "192.0.2.1").Scan(&plan); err != nil {
		t.Fatal(err)
	}
	return plan[0].Plan.Pages
}
