package main

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// crashCase is one write that runs when mlsd is killed.
type crashCase struct {
	name    string
	request request
	// effects counts what the write has done, as a client sees it.
	effects func() int
	// countOnce says that counting consumes the effect, so the test counts at the end only.
	countOnce bool
	// keyless says that the write has no record. Its retry is not marked as a replay.
	keyless bool
}

// crashCases prepares one write of each kind.
func crashCases(w *world) []crashCase {
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob)
	bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).must().ok()
	creation, group := alice.creation(dave)
	message := alice.message(c, "the message")
	fetched, confirmed := alice.create(bob), alice.create(bob)
	bob.query(mlsapi.NSIDGetWelcome, "convoId", confirmed.id).must().ok()
	added, left, rotated := alice.create(bob), alice.create(bob), alice.create(bob)
	return []crashCase{
		{name: "createConvo", request: creation, effects: func() (n int) {
			out := read[mlsapi.GetConvosOutput](w.t, alice.query(mlsapi.NSIDGetConvos, "limit", "100").must().ok())
			for _, c := range out.Conversations {
				if c.GroupID == hex.EncodeToString(group) {
					n++
				}
			}
			return n
		}},
		{name: "sendMessage", request: alice.procedure(mlsapi.NSIDSendMessage, message), effects: func() (n int) {
			for _, m := range bob.log(c) {
				if bytes.Equal(m.Ciphertext, message.Ciphertext) {
					n++
				}
			}
			return n
		}},
		{name: "addMembers", request: alice.addition(added, carol), effects: func() int {
			n := strings.Count(bob.members(added), carol.did().String())
			if commits := len(bob.log(added)); commits != n {
				w.t.Errorf("%d commits in the log, and the added member is on the roster %d times", commits, n)
			}
			return n
		}},
		{name: "submitCommit", request: bob.procedure(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{
			ConvoID: rotated.id, IdempotencyKey: newKey(), Commit: mlstest.Commit(rotated.group, rotated.epoch, "rotation"),
		}), effects: func() int { return len(alice.log(rotated)) }},
		{name: "publishKeyPackage", request: carol.publication(), countOnce: true, effects: func() (n int) {
			for len(alice.claim(carol)) > 0 {
				n++
			}
			return n
		}},
		{name: "getWelcome", request: bob.query(mlsapi.NSIDGetWelcome, "convoId", fetched.id), keyless: true},
		{name: "confirmWelcome", keyless: true,
			request: bob.procedure(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: confirmed.id, Success: true}),
			effects: func() int {
				a := bob.query(mlsapi.NSIDGetWelcome, "convoId", confirmed.id).must()
				if a.status == http.StatusOK {
					return 0
				}
				a.fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)
				return 1
			}},
		{name: "leaveConvo",
			request: bob.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: left.id, IdempotencyKey: newKey()}),
			effects: func() int { return 1 - strings.Count(alice.members(left), bob.did().String()) }},
	}
}

// After kill -9 between COMMIT and the answer, a retry gets the first answer. There is one effect.
// The private PostgreSQL dies too.
func TestKillBetweenCommitAndAnswer(t *testing.T) {
	t.Parallel()
	killAt(t, failpoint.AfterCommit, 1)
}

// After kill -9 just before COMMIT there is no effect. A retry has the effect. PostgreSQL lives on.
func TestKillBeforeCommit(t *testing.T) {
	t.Parallel()
	killAt(t, failpoint.BeforeCommit, 0, "MLSD_DATABASE_URL="+pgtest.URL(t))
}

// killAt kills the server at a point of each kind of write, restarts it and retries. done is how
// many effects there are before the retry.
func killAt(parent *testing.T, point string, done int, env ...string) {
	w, dir := newWorld(parent), pgtest.DataDir(parent)
	server := w.spawn(parent, dir, env...)
	for _, cc := range crashCases(w) {
		ok := parent.Run(cc.name, func(t *testing.T) {
			w.t = t
			defer func() { w.t = parent }()
			arm(t, w, point, cc.request.nsid)
			if a, err := cc.request.send(); err == nil {
				t.Fatalf("the server answered %d %s", a.status, a.body)
			}
			server.wait()
			died := time.Now()
			server = w.spawn(parent, dir, env...)

			if cc.effects != nil && !cc.countOnce {
				if n := cc.effects(); n != done {
					t.Errorf("%d effects after the restart, want %d", n, done)
				}
			}
			first := cc.request.must()
			first.ok()
			if want := done == 1 && !cc.keyless; first.replayed() != want {
				t.Errorf("the retry's answer is marked as a replay: %t, want %t", first.replayed(), want)
			}
			second := cc.request.must()
			if !bytes.Equal(second.ok(), first.body) || second.replayed() == cc.keyless {
				t.Errorf("the next retry got %s (replay: %t), the first %s", second.body, second.replayed(), first.body)
			}
			if cc.effects != nil {
				if n := cc.effects(); n != 1 {
					t.Errorf("%d effects in the end", n)
				}
			} else if leased := leaseBegin(t, first).Before(died); leased != (done == 1) {
				t.Errorf("the lease was opened before the kill: %t", leased)
			}
			w.wantSound()
		})
		if !ok {
			return // the server can be in any state
		}
	}
}

// arm kills the server when the next write of a method reaches a point.
func arm(t *testing.T, w *world, point, nsid string) {
	t.Helper()
	armWith(t, w, failpoint.Kill, point, nsid)
}

func armWith(t *testing.T, w *world, action failpoint.Action, point, nsid string) {
	t.Helper()
	q := url.Values{"point": {point}, "method": {nsid}, "action": {string(action)}}
	resp, err := http.Post(w.admin+"/failpoints?"+q.Encode(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("arm %s: %s, %v", point, resp.Status, err)
	}
}

// leaseBegin returns when the Welcome of an answer was first fetched: the default grace before its
// end.
func leaseBegin(t *testing.T, a answer) time.Time {
	t.Helper()
	out := read[mlsapi.GetWelcomeOutput](t, a.body)
	return out.GraceExpiresAt.Time.Add(-5 * time.Minute)
}
