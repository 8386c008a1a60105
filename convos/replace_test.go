package convos_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// TestConfirmedWhileReplaced: S6. A device confirms its Welcome while another member replaces its
// leaf. The first to lock the Welcome decides: the addition waits, and then sees that the
// device has joined.
func TestConfirmedWhileReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	phone := mlstest.NewDevice(t, bob.String())
	add := f.addition(t, alice, 1, bob)
	add.Welcome = mlstest.Welcome(t, f.publish(t, bob, phone))
	add.GroupInfo = mlstest.GroupInfo(t, f.group, 2, mlstest.NewDevice(t, alice.String()), phone)
	holder, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = holder.Exec(t.Context(), `
		UPDATE welcomes SET state = 'consumed', confirmed_at = now(), attempts = 1, version = version + 1 WHERE recipient_did
			= $1`, bob)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		waited <- pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
			_, err := convos.Add(t.Context(), tx, add)
			return err
		})
	}()
	pgtest.AwaitLockWaits(t, f.db, 1)
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var member *convos.AlreadyMemberError
	if err := <-waited; !errors.As(err, &member) || !strings.Contains(member.Reason, "has joined") {
		t.Fatalf("got %v", err)
	}
}
