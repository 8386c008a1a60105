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

// rotation is the input of a commit that changes its maker only.
func (u *user) rotation(c *convo) *mlsapi.SubmitCommitInput {
	return &mlsapi.SubmitCommitInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: mlstest.Commit(c.group, c.epoch, "by "+u.did().String()+*newKey()),
	}
}

// rotate makes such a commit and advances c.
func (u *user) rotate(c *convo) {
	u.w.t.Helper()
	out := read[mlsapi.SubmitCommitOutput](u.w.t, u.post(mlsapi.NSIDSubmitCommit, u.rotation(c)).ok())
	c.epoch = out.NewEpoch
}

// lose makes u commit after winner, in the same epoch.
func (u *user) lose(c *convo, winner *user) {
	u.w.t.Helper()
	late := u.rotation(c)
	winner.rotate(c)
	u.post(mlsapi.NSIDSubmitCommit, late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
}

// The loser of a race learns the convo's epoch. Without a PDS in between it also learns the seq of
// the accepted commit.
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

// The next commit is reserved for a member that lost three races in a row. The others wait for it.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	reserved := func(for_ *user) bool {
		t.Helper()
		return w.count(`SELECT count(*) FROM convos WHERE reserved_for = $1 AND reserved_until > clock_timestamp()`,
			for_.did()) == 1
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

	alices, bobs := alice.rotation(c), bob.rotation(c)
	late := make(chan answer)
	go func() { late <- alice.post(mlsapi.NSIDSubmitCommit, alices) }()
	bob.post(mlsapi.NSIDSubmitCommit, bobs).ok()
	c.epoch++
	(<-late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	if reserved(bob) || w.count(`SELECT lost_races FROM members WHERE convo_id = $1 AND did = $2`, c.id, bob.did()) != 0 {
		t.Fatal("bob's reservation did not end with his commit")
	}

	// A reservation that is not used expires.
	for range 3 {
		bob.lose(c, carol)
	}
	if !reserved(bob) {
		t.Fatal("three lost races are not enough the second time")
	}
	pgtest.Age(t, w.db, "convos", 4*time.Second, "reserved_until")
	alice.rotate(c)
}

// Old commits that are sent on purpose do not count as lost races, because an epoch counts once.
func TestNoReservationForStaleCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	old := *c
	lost := func() int {
		t.Helper()
		return w.count(`SELECT lost_races FROM members WHERE convo_id = $1 AND did = $2`, c.id, bob.did())
	}
	alice.rotate(c)
	alice.rotate(c)
	for range 4 {
		bob.post(mlsapi.NSIDSubmitCommit, bob.rotation(&old)).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	}
	if lost() != 1 {
		t.Fatalf("%d races count as lost, want one", lost())
	}
	bob.lose(c, alice)
	if lost() != 2 {
		t.Fatalf("%d races count as lost, want two", lost())
	}
}

// X7: one commit of epoch 0 is one lost race, however many epochs it is behind. It buys no
// reservation, and the count does not overflow.
func TestOneStaleCommitIsOneLostRace(t *testing.T) {
	t.Parallel()
	for _, behind := range []int64{3, 1 << 40} {
		w := newWorld(t)
		alice, bob := w.user(), w.user()
		group := newGroup(t)
		in := alice.creation(group, bob)
		in.CurrentEpoch = &behind
		c := read[mlsapi.ConvoView](t, alice.post(mlsapi.NSIDCreateConvo, in).ok())
		stale := bob.rotation(&convo{c.ID, group, 0})
		bob.post(mlsapi.NSIDSubmitCommit, stale).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
		lost := w.count(`SELECT lost_races FROM members WHERE convo_id = $1 AND did = $2`, c.ID, bob.did())
		reserved := w.count(`SELECT count(*) FROM convos WHERE reserved_for IS NOT NULL`)
		if lost != 1 || reserved != 0 {
			t.Errorf("%d epochs behind: %d lost races, %d reservations", behind, lost, reserved)
		}
	}
}

// After a used reservation the next one goes to the member that has been losing for longest and
// still sends commits.
func TestWhoLostLongestGoesNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol, dave)
	reserved := func() (did string) {
		t.Helper()
		if err := w.db.QueryRow(t.Context(), `SELECT coalesce(reserved_for, '') FROM convos WHERE id = $1`,
			c.id).Scan(&did); err != nil {
			t.Fatal(err)
		}
		return did
	}
	race := func(winner *user, losers ...*user) {
		t.Helper()
		var late []*mlsapi.SubmitCommitInput
		for _, l := range losers {
			late = append(late, l.rotation(c))
		}
		winner.rotate(c)
		for i, l := range losers {
			l.post(mlsapi.NSIDSubmitCommit, late[i]).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
		}
	}
	race(alice, carol)
	race(alice, carol, bob, dave)
	race(alice, carol, bob, dave)
	if reserved() != carol.did().String() { // the first one that has lost three races
		t.Fatalf("the epoch is reserved for %s", reserved())
	}
	race(carol, bob, dave)
	if reserved() != bob.did().String() {
		t.Fatalf("the epoch is reserved for %s", reserved())
	}
	race(bob, dave, carol)
	if reserved() != dave.did().String() {
		t.Fatalf("the epoch is reserved for %s", reserved())
	}
	dave.rotate(c)
	if reserved() != "" {
		t.Fatalf("the epoch is reserved for %s", reserved())
	}

	// A member that has given up gets no reservation.
	race(alice, bob, carol)
	race(alice, bob)
	race(alice, bob, carol) // the third of each
	if reserved() != bob.did().String() {
		t.Fatalf("the epoch is reserved for %s", reserved())
	}
	pgtest.Age(t, w.db, "members", time.Minute, "lost_at")
	bob.rotate(c)
	if reserved() != "" {
		t.Fatalf("the epoch is reserved for %s", reserved())
	}
}

// An unused reservation delays the others by three seconds once, and not each time.
func TestMissedReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	for range 3 {
		bob.lose(c, alice)
	}
	pgtest.Age(t, w.db, "convos", time.Minute, "reserved_until")
	for range 6 {
		bob.lose(c, alice) // none of these commits waits
	}
	if n := w.count(`SELECT count(*) FROM convos WHERE reserved_for IS NOT NULL`); n != 0 {
		t.Fatal("bob has another reservation, after he let one pass")
	}
	pgtest.Age(t, w.db, "members", time.Hour, "no_turn_until")
	bob.lose(c, alice)
	if n := w.count(`SELECT count(*) FROM convos WHERE reserved_for = $1`, bob.did()); n != 1 {
		t.Fatal("bob never gets a reservation again")
	}
}

// One commit of a caller waits. A second one gets ServiceUnavailable.
func TestOneWaitsForAReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	for range 3 {
		bob.lose(c, alice)
	}
	answers := make(chan answer, 5)
	for range 5 {
		go func() { answers <- alice.post(mlsapi.NSIDSubmitCommit, alice.rotation(c)) }()
	}
	for range 4 {
		a := <-answers
		a.fails(http.StatusServiceUnavailable, "ServiceUnavailable")
		if a.header.Get("Retry-After") == "" {
			t.Error("without Retry-After")
		}
	}
	bob.post(mlsapi.NSIDSubmitCommit, bob.rotation(c)).ok()
	(<-answers).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
}
