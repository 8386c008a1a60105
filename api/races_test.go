package api_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// rotation is the input of a commit that changes nobody but its maker.
func (u *user) rotation(c *convo) *mlsapi.SubmitCommitInput {
	return &mlsapi.SubmitCommitInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: mlstest.Commit(c.group, c.epoch, "by "+u.did().String()+*newKey()),
	}
}

// rotate makes such a commit and moves c on.
func (u *user) rotate(c *convo) {
	u.w.t.Helper()
	out := read[mlsapi.SubmitCommitOutput](u.w.t, u.post(mlsapi.NSIDSubmitCommit, u.rotation(c)).ok())
	c.epoch = out.NewEpoch
}

// lose has u commit too late: winner was faster.
func (u *user) lose(c *convo, winner *user) {
	u.w.t.Helper()
	late := u.rotation(c)
	winner.rotate(c)
	u.post(mlsapi.NSIDSubmitCommit, late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
}

// Whoever loses a race learns where the convo is and, without a PDS in between, at which seq the winner stands.
func TestLoserLearnsTheWinner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "something before")
	late := bob.rotation(c)
	alice.rotate(c)
	alice.rotate(c)
	a := bob.post(mlsapi.NSIDSubmitCommit, late)
	if message := a.fails(http.StatusConflict, mlsapi.ErrEpochMismatch); message != "epoch 1 is stale; currentEpoch=3" {
		t.Errorf("the message is %q", message)
	}
	var more struct{ CurrentEpoch, Seq int64 }
	if err := json.Unmarshal(a.body, &more); err != nil || more.CurrentEpoch != 3 || more.Seq != 2 {
		t.Errorf("the answer is %s, %v; the winner of epoch 1 stands at seq 2", a.body, err)
	}
	ahead := &convo{c.id, c.group, 9}
	a = bob.post(mlsapi.NSIDSubmitCommit, bob.rotation(ahead))
	if message := a.fails(http.StatusConflict, mlsapi.ErrEpochMismatch); message != "epoch 9 is ahead; currentEpoch=3" {
		t.Errorf("the message is %q", message)
	}
}

// A member that lost three races in a row has the next commit to itself; the others wait for it.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	reserved := func(for_ *user) bool {
		t.Helper()
		return w.count(`SELECT count(*) FROM convos WHERE reserved_for = $1 AND reserved_until > clock_timestamp()`, for_.did()) == 1
	}
	bob.lose(c, alice)
	bob.lose(c, alice)
	if reserved(bob) {
		t.Fatal("two lost races are enough")
	}
	bob.lose(c, alice)
	if !reserved(bob) {
		t.Fatal("three lost races are not enough")
	}

	alices := make(chan answer)
	go func() { alices <- alice.post(mlsapi.NSIDSubmitCommit, alice.rotation(c)) }()
	bobs := bob.rotation(c)
	bob.post(mlsapi.NSIDSubmitCommit, bobs).ok()
	c.epoch++
	(<-alices).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	if reserved(bob) || w.count(`SELECT lost_races FROM members WHERE convo_id = $1 AND did = $2`, c.id, bob.did()) != 0 {
		t.Fatal("bob's turn is not over with his commit")
	}

	// A turn that is not taken ends by itself.
	for range 3 {
		bob.lose(c, carol)
	}
	if !reserved(bob) {
		t.Fatal("three lost races are not enough the second time")
	}
	pgtest.Age(t, w.db, "convos", 4*time.Second, "reserved_until")
	alice.rotate(c)
}

// Old commits sent on purpose are no lost races.
func TestNoTurnForStaleCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	old := *c
	for range 6 {
		alice.rotate(c)
	}
	for range 4 {
		bob.post(mlsapi.NSIDSubmitCommit, bob.rotation(&old)).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
		old.epoch++
	}
	if n := w.count(`SELECT lost_races FROM members WHERE convo_id = $1 AND did = $2`, c.id, bob.did()); n != 1 {
		t.Fatalf("%d races count as lost, want the first", n)
	}
	alice.rotate(c)
}

// Of two that have lost too often, the one that has lost more goes first.
func TestWhoLostMoreGoesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	bob.lose(c, alice)
	for range 2 { // both lose to alice, carol first
		carols, bobs := carol.rotation(c), bob.rotation(c)
		alice.rotate(c)
		carol.post(mlsapi.NSIDSubmitCommit, carols).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
		bob.post(mlsapi.NSIDSubmitCommit, bobs).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	}
	w.exec(`UPDATE members SET lost_races = 7 WHERE convo_id = $1 AND did = $2`, c.id, carol.did())
	carols, bobs := carol.rotation(c), bob.rotation(c)
	bob.post(mlsapi.NSIDSubmitCommit, bobs).ok() // it is still his turn
	c.epoch++
	carol.post(mlsapi.NSIDSubmitCommit, carols).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	var turn string
	if err := w.db.QueryRow(t.Context(), `SELECT reserved_for FROM convos WHERE id = $1`, c.id).Scan(&turn); err != nil || turn != carol.did().String() {
		t.Fatalf("it is the turn of %s, %v", turn, err)
	}
	w.exec(`UPDATE convos SET reserved_for = $2, reserved_until = clock_timestamp() + interval '1 minute' WHERE id = $1`, c.id, bob.did())
	w.exec(`UPDATE members SET lost_races = 9 WHERE convo_id = $1 AND did = $2`, c.id, carol.did())
	// Carol has lost more than the one whose turn it is.
	late := carol.rotation(&convo{c.id, c.group, c.epoch})
	w.exec(`UPDATE members SET lost_races = 1 WHERE convo_id = $1 AND did = $2`, c.id, bob.did())
	bob.rotate(c)
	w.exec(`UPDATE convos SET reserved_for = $2, reserved_until = clock_timestamp() + interval '1 minute' WHERE id = $1`, c.id, bob.did())
	carol.post(mlsapi.NSIDSubmitCommit, late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	carol.rotate(c)
}
