package api_test

import (
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// X6: a commit that ends Welcomes of a person in several steps locks all of them first, in the order
// of ids. While it waits for the first one, it has not locked the second.
func TestCommitLocksWelcomesInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(w.phone())
	alice.invite(c, bob)
	if err := alice.group.Confirm(); err != nil {
		t.Fatal(err)
	}
	// The commit removes bob's phone from the group. His older Welcome is for a device that is not in
	// it, and ends because he leaves the roster.
	w.exec(`
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
		SELECT convo_id, '00000000-0000-7000-8000-000000000000', recipient_did, 'tablet', '\x01', epoch, created_at
		FROM welcomes WHERE recipient_did = $1`, bob.did())
	holder, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM welcomes WHERE device_id = 'tablet' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	remove := must(alice.group.StageRemove(bob.did().String()))(w)
	removed := make(chan answer, 1)
	go func() {
		removed <- alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
			ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: remove.Commit, GroupInfo: remove.GroupInfo,
			IdempotencyKey: newKey(),
		})
	}()
	for len(removed) == 0 && pgtest.LockWaits(t, w.db) == 0 {
	}
	w.exec(`SELECT FROM welcomes WHERE recipient_did = $1 AND device_id <> 'tablet' FOR UPDATE NOWAIT`, bob.did())
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-removed).ok()
	if n := w.count(`SELECT count(*) FROM welcomes WHERE recipient_did = $1 AND state = 'superseded'`, bob.did()); n != 2 {
		t.Errorf("%d of 2 Welcomes are superseded", n)
	}
}
