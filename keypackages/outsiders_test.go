package keypackages_test

import (
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/people/consent"
)

// convo makes a convo of creator's with others in it. The creator knows them.
func convo(t *testing.T, db *pgxpool.Pool, creator syntax.DID, others ...syntax.DID) uuid.UUID {
	t.Helper()
	id := uuid.New()
	made, err := inTx(t, db, func(tx pgx.Tx) (convos.Convo, error) {
		return convos.Create(t.Context(), tx, convos.NewConvo{
			Creator: creator, GroupID: id[:], CipherSuite: mlstest.Suite, Members: others, Key: id.String(),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// outsiders makes n claims of bob's KeyPackages, each by another outsider, and returns how many got
// a one-time KeyPackage, the last-resort one, and nothing.
func outsiders(t *testing.T, db *pgxpool.Pool, n int) (oneTime, lastResort, nothing int) {
	t.Helper()
	for i := range n {
		got, err := take(t, db, bobs(syntax.DID(fmt.Sprintf("did:plc:outsider%d", i))))
		switch {
		case err != nil:
			t.Fatal(err)
		case len(got.Claimed) == 0:
			nothing++
		case got.Claimed[0].LastResort:
			lastResort++
		default:
			oneTime++
			continue
		}
		if len(got.Limited) != 1 {
			t.Fatalf("an outsider without a one-time KeyPackage is not told why: %+v", got)
		}
	}
	return oneTime, lastResort, nothing
}

// H8: five DIDs that shared nothing with the victim took all of its 100 KeyPackages in a second.
// All outsiders together get 40 a day, then the last-resort one. Those who the person knows still
// get one-time ones.
func TestOutsiders(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	phone := mlstest.NewDevice(t, bob.String())
	fill(t, db, phone, 100)
	fill(t, db, phone, 1, mlstest.LastResort)
	convo(t, db, bob, carol)
	if oneTime, last, _ := outsiders(t, db, 50); oneTime != keypackages.OutsidersBudget || last != 50-oneTime {
		t.Errorf("50 outsiders got %d one-time KeyPackages, and %d times the last-resort one", oneTime, last)
	}
	if got, err := take(t, db, bobs(carol)); err != nil || len(got.Claimed) != 1 || got.Claimed[0].LastResort ||
		got.Limited != nil {
		t.Errorf("somebody who bob knows got %+v, %v", got, err)
	}
	if got, err := take(t, db, bobs(bob)); err != nil || len(got.Claimed) != 1 || got.Claimed[0].LastResort {
		t.Errorf("bob himself got %+v, %v", got, err)
	}
	pgtest.Age(t, db, "key_packages", day, "claimed_at")
	if oneTime, _, _ := outsiders(t, db, 50); oneTime != keypackages.OutsidersBudget {
		t.Errorf("a day later 50 outsiders got %d one-time KeyPackages", oneTime)
	}
}

// H8: an outsider can put anybody into a convo of its own. It stays an outsider until the person
// does something there.
func TestOutsiderWithAConvo(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	fill(t, db, mlstest.NewDevice(t, bob.String()), 2*keypackages.OutsidersBudget)
	mallory := syntax.DID("did:plc:mallory")
	id := convo(t, db, mallory, bob)
	outsiders(t, db, keypackages.OutsidersBudget)
	limited := func() bool {
		got, err := take(t, db, bobs(mallory))
		if err != nil {
			t.Fatal(err)
		}
		return len(got.Limited) == 1
	}
	if !limited() {
		t.Error("an outsider is known to everybody whom it puts into a convo")
	}
	for _, step := range []struct {
		name, sql string
		known     bool
	}{
		{"bob has accepted it", `UPDATE members SET requested_at = NULL WHERE convo_id = $1 AND did = 'did:plc:bob'`, true},
		{"bob has left", `UPDATE members SET left_at = now(), left_seq = 1, left_epoch = 0 WHERE convo_id = $1 AND did =
				'did:plc:bob'`, false},
	} {
		if _, err := db.Exec(t.Context(), step.sql, id); err != nil {
			t.Fatal(err)
		}
		if limited() == step.known {
			t.Errorf("once %s, the caller is known: %t", step.name, !step.known)
		}
	}
}

// Of a person in thousands of convos only the newest ones are looked at.
func TestOutsiderToAPersonWithManyConvos(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	fill(t, db, mlstest.NewDevice(t, bob.String()), 2*keypackages.OutsidersBudget)
	join := func(did syntax.DID, first, last int) {
		_, err := db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT lpad(to_hex(n), 32, '0')::uuid, $1, 'member', now(), 0 FROM generate_series($2::integer, $3) AS n`, did,
			first, last)
		if err != nil {
			t.Fatal(err)
		}
	}
	const convos, oldest = 2000, 2000 - consent.NewestConvos + 1
	join(bob, 1, convos)
	outsiders(t, db, keypackages.OutsidersBudget)
	for _, step := range []struct{ shared, limited int }{{oldest - 1, 1}, {oldest, 0}} {
		join(carol, step.shared, step.shared)
		if got, err := take(t, db, bobs(carol)); err != nil || len(got.Limited) != step.limited {
			t.Errorf("with convo %d of %d in common: %+v, %v", step.shared, convos, got, err)
		}
	}
}
