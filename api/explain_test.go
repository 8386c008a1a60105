package api_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/operator"
	"mlsd/people/accounts"
)

// recording makes a world whose requests are recorded.
func recording(w *world) { w.recording = true }

// explained returns what inspect says of requests.
func (w *world) explained(of operator.RequestsOf) (all []operator.Explanation) {
	w.t.Helper()
	if err := w.requests.Flush(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	err := pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) (err error) {
		_, err = tx.Exec(w.t.Context(), `SELECT set_config('mlsd.maintenance', 'on', true)`)
		if err == nil {
			of.Rows = max(of.Rows, 20)
			all, err = operator.Explain(w.t.Context(), tx, of)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// why returns the sentences about an answer, with T for each time and D for each duration.
func (w *world) why(a answer) string {
	w.t.Helper()
	all := w.explained(operator.RequestsOf{Request: a.header.Get("X-Request-Id")})
	if len(all) != 1 {
		w.t.Fatalf("%d requests have the id of the answer %d %s", len(all), a.status, a.body)
	}
	if all[0].Status != a.status {
		w.t.Errorf("the row has status %d, the answer %d", all[0].Status, a.status)
	}
	text := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC`).ReplaceAllString(all[0].Why, "T")
	return regexp.MustCompile(`T, [0-9a-zµ. ]+ before`).ReplaceAllString(text, "T, D before")
}

// Why did this request get 409? Each case sends real requests, and the last one is explained.
func TestExplain(t *testing.T) {
	t.Parallel()
	const another = " A retry must repeat its request; another request needs another key."
	w := newWorld(t, recording, faulty)
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, w *world, alice, bob *user, c *convo) answer
		want string // ALICE and BOB stand for their DIDs
	}{
		{"key of another message", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			first, second := alice.message(c, "one"), alice.message(c, "two")
			second.IdempotencyKey = first.IdempotencyKey
			alice.post(mlsapi.NSIDSendMessage, first).ok()
			return alice.post(mlsapi.NSIDSendMessage, second)
		}, "The caller had used this key for another request of sendMessage, at T, D before. Different in this one: " +
			"ciphertext." + another},
		{"key of another convo's creation", func(t *testing.T, _ *world, alice, _ *user, _ *convo) answer {
			first, second := alice.creation(newGroup(t)), alice.creation(newGroup(t))
			second.IdempotencyKey, second.Metadata = first.IdempotencyKey, &mlsapi.ConvoMetadata{Name: text("secret")}
			alice.post(mlsapi.NSIDCreateConvo, first).ok()
			return alice.post(mlsapi.NSIDCreateConvo, second)
		}, "The caller had used this key for another request of createConvo, at T, D before. Different in this one: " +
			"groupId, metadata." + another},
		{"key of another device", func(_ *testing.T, _ *world, alice, _ *user, _ *convo) answer {
			target := &mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: text("https://push.example.com/"),
				IdempotencyKey: newKey()}
			alice.post(mlsapi.NSIDRegisterPushTarget, target).ok()
			target.DeviceID = "tablet"
			return alice.post(mlsapi.NSIDRegisterPushTarget, target)
		}, "The caller had used this key for another request of registerPushTarget, at T, D before. Different in this " +
			"one: deviceId." + another},
		{"key of another commit", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			first, second := alice.rotation(c), alice.rotation(c)
			second.IdempotencyKey = first.IdempotencyKey
			alice.post(mlsapi.NSIDSubmitCommit, first).ok()
			return alice.post(mlsapi.NSIDSubmitCommit, second)
		}, "The caller had used this key for another request of submitCommit, at T, D before. Different in this one: " +
			"commit." + another},
		{"an attempt holds the key", func(_ *testing.T, w *world, alice, _ *user, _ *convo) answer {
			publication := alice.publication(t)
			alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
			w.exec(`UPDATE idempotency_keys SET state = 'processing', started_at = now() - interval '7 minutes',
				lease_expires_at = now() + interval '1 minute' WHERE key = $1`, *publication.IdempotencyKey)
			return alice.post(mlsapi.NSIDPublishKeyPackage, publication)
		}, "Another request with this key was under way, since T. It still holds the key; its lease ends at T, and then " +
			"another can take the work over " +
			"(fence 1). To retry with the same key is right."},
		{"a lost race", func(_ *testing.T, _ *world, alice, bob *user, c *convo) answer {
			late := bob.rotation(c)
			alice.rotate(c)
			return bob.post(mlsapi.NSIDSubmitCommit, late)
		}, "The MLS object was made in epoch 1, and the convo was in epoch 2 by then: a commit of ALICE had ended epoch 1 " +
			"at T, D before (seq 1)."},
		{"a message of an old epoch", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			late := alice.message(c, "late")
			alice.rotate(c)
			alice.rotate(c)
			return alice.post(mlsapi.NSIDSendMessage, late)
		}, "The MLS object was made in epoch 1, and the convo was in epoch 3 by then: a commit of the caller itself had " +
			"ended epoch 1 at T, D before (seq 1)."},
		{"a message of an epoch to come", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			return alice.post(mlsapi.NSIDSendMessage, alice.message(&convo{c.id, c.group, 9}, "early"))
		}, "The MLS object was made in epoch 9, and the convo was in epoch 1: the client had applied a commit that the " +
			"server has not accepted."},
		{"a commit again, after its key's lifetime", func(t *testing.T, w *world, alice, _ *user, c *convo) answer {
			commit := alice.rotation(c)
			alice.post(mlsapi.NSIDSubmitCommit, commit).ok()
			pgtest.Age(t, w.db, "idempotency_keys", 400*24*time.Hour, "expires_at")
			return alice.post(mlsapi.NSIDSubmitCommit, commit)
		}, "The MLS object was made in epoch 1, and the convo was in epoch 2 by then: this very request had ended epoch 1 " +
			"at T, D before (seq 1), " +
			"and the record of its key is over. The key had been used before, and the lifetime of its record was over: so " +
			"the request ran as a new one."},
		{"a closed convo", func(_ *testing.T, w *world, alice, _ *user, c *convo) answer {
			w.exec(`UPDATE convos SET closed_at = now(), successor_group_id = '\x0123' WHERE id = $1`, c.id)
			return alice.post(mlsapi.NSIDSendMessage, alice.message(c, "after"))
		}, "A commit with ReInit closed the convo at T. The group 0123 replaces it."},
		{"a convo that an operator closed", func(_ *testing.T, w *world, alice, _ *user, c *convo) answer {
			w.exec(`UPDATE convos SET closed_at = now() WHERE id = $1`, c.id)
			return alice.post(mlsapi.NSIDSendMessage, alice.message(c, "after"))
		}, "An operator closed the convo at T."},
		{"a group that exists", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			return alice.post(mlsapi.NSIDCreateConvo, alice.creation(c.group))
		}, "A convo with this MLS group_id exists. If the client had made it, this was a retry under another key: " +
			"getConvos lists the convo."},
		{"a member again", func(_ *testing.T, w *world, alice, bob *user, c *convo) answer {
			in := alice.addition(c, w.user())
			in.DIDList = []syntax.DID{bob.did()}
			return alice.post(mlsapi.NSIDAddMembers, in)
		}, "Somebody whom the request adds is in the convo: BOB is a member already: no device of its has joined; " +
			"to replace its leaf, send the new epoch's GroupInfo."},
		{"the last member", func(_ *testing.T, _ *world, alice, _ *user, _ *convo) answer {
			return alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: alice.create().id})
		}, "The caller was the last member of the convo, and the last member cannot leave."},
		{"a Welcome that is used", func(_ *testing.T, w *world, _, bob *user, c *convo) answer {
			w.exec(`UPDATE welcomes SET state = 'consumed', confirmed_at = now(), device_id = 'phone' WHERE convo_id = $1`, c.id)
			return bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id)
		}, "The device phone confirmed at T that it has joined with the Welcome into epoch 1."},
		{"a refusal that explains itself", func(_ *testing.T, _ *world, alice, _ *user, _ *convo) answer {
			return alice.get(mlsapi.NSIDGetEpoch, "convoId", uuid.NewString())
		}, "The server answered ConvoNotFound: no such convo, or the caller was never its member; getConvos lists the " +
			"caller's."},
		{"a retry", func(_ *testing.T, _ *world, alice, _ *user, c *convo) answer {
			message := alice.message(c, "one")
			alice.post(mlsapi.NSIDSendMessage, message).ok()
			return alice.post(mlsapi.NSIDSendMessage, message)
		}, "It succeeded: its key had been used for the same request before, and it got the first answer again. The key " +
			"was first used at T."},
		{"a key used anew", func(t *testing.T, w *world, alice, _ *user, _ *convo) answer {
			publication := alice.publication(t)
			alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
			pgtest.Age(t, w.db, "idempotency_keys", 400*24*time.Hour, "expires_at")
			publication.KeyPackage, _ = alice.KeyPackage(t)
			return alice.post(mlsapi.NSIDPublishKeyPackage, publication)
		}, "It succeeded. The key had been used before, and the lifetime of its record was over: so it ran as a new " +
			"request."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := w.within(t)
			alice, bob := w.user(), w.user()
			c := alice.create(bob)
			names := strings.NewReplacer(alice.did().String(), "ALICE", bob.did().String(), "BOB")
			if got := names.Replace(w.why(tc.do(t, w, alice, bob, c))); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// publication is the input that publishes a KeyPackage.
func (u *user) publication(t *testing.T) *mlsapi.PublishKeyPackageInput {
	t.Helper()
	body, _ := u.KeyPackage(t)
	return &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey()}
}

// A request that waits for another with its key is explained by what became of that one.
func TestExplainInProgress(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(keyed, func(k write) bool { return k.name == "createConvo" })
	w := newWorld(t, recording, func(w *world) { w.locks = "100ms" })
	r := keyed[i].make(w, newKey())
	answered, resume := w.pause(r)
	second := r.send(w.boot())
	second.fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
	const before = "Another request with this key was under way. "
	if got, want := w.why(second),
		before+"It has left no record: it failed, or it is still under way. To retry with the same key is right."; got !=
		want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	resume()
	(<-answered).ok()
	if got, want := w.why(second), before+"It has taken effect at T. To retry with the same key is right."; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Requests are found by id, key, caller and convo. Those of others are not among them.
func TestRequestsAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, recording)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	early := alice.message(&convo{c.id, c.group, 9}, "early")
	alice.post(mlsapi.NSIDSendMessage, early, "X-Request-Id", "mine").fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	bob.post(mlsapi.NSIDSendMessage, bob.message(&convo{c.id, c.group, 8}, "early"), "X-Request-Id",
		"his").fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	id := uuid.MustParse(c.id)
	for name, tc := range map[string]struct {
		of   operator.RequestsOf
		want []string
	}{
		"id":            {operator.RequestsOf{Request: "mine"}, []string{"mine"}},
		"key":           {operator.RequestsOf{Key: *early.IdempotencyKey}, []string{"mine"}},
		"caller":        {operator.RequestsOf{Caller: alice.did().String(), Failed: true}, []string{"mine"}},
		"convo":         {operator.RequestsOf{Convo: &id, Error: mlsapi.ErrEpochMismatch}, []string{"his", "mine"}},
		"nobody's":      {operator.RequestsOf{Request: "theirs"}, nil},
		"another's key": {operator.RequestsOf{Caller: bob.did().String(), Key: *early.IdempotencyKey}, nil},
	} {
		var got []string
		for _, e := range w.explained(tc.of) {
			got = append(got, e.Request.Request)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("by %s: %v, want %v", name, got, tc.want)
		}
	}
	if alone := w.explained(operator.RequestsOf{Request: "mine"})[0]; alone.Node != "node-a:8080" ||
		alone.Caller != alice.did().String() ||
		alone.Method != mlsapi.NSIDSendMessage || *alone.Convo != id || alone.Key != *early.IdempotencyKey {
		t.Errorf("the row is %+v", alone)
	}
}

// Who is not known, not served or being erased leaves no row.
func TestOutsidersLeaveNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, recording)
	w.anonymous(mlsapi.NSIDGetEpoch)
	w.anonymous("no.such.method")
	alice := w.user()
	w.do(http.MethodGet, mlsapi.NSIDGetEpoch, nil, nil,
		alice.authorization(mlsapi.NSIDSendMessage)).fails(http.StatusUnauthorized, "InvalidToken")
	if all := w.explained(operator.RequestsOf{}); len(all) != 0 {
		t.Errorf("outsiders have left %+v", all)
	}
}

// Whom the node does not serve, or erases, leaves no row. A blocked account does.
func TestWhoLeavesNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, recording, gated(accounts.ModeOpen))
	alice, bob, carol := w.user(), w.user(), w.user()
	alice.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{ConfirmationToken: ptr(alice.confirmation())}).ok()
	w.exec(`INSERT INTO accounts (did, blocked_at, blocked_by, version) SELECT $1, now(), 'olga', version + 1 FROM
			account_clock`, bob.did())
	w.exec(`UPDATE account_clock SET version = version + 1`)
	if err := w.gate.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	alice.get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, "AccountInactive")
	bob.get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, "Blocked")
	all := w.explained(operator.RequestsOf{Failed: true})
	w.mode = accounts.ModeClosed
	carol.on(w.boot()).get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	all = append(all, w.explained(operator.RequestsOf{Caller: carol.did().String()})...)
	if len(all) != 1 || all[0].Caller != bob.did().String() ||
		all[0].Why != "The server answered Blocked: the operator of this service has blocked the account." {
		t.Errorf("rows: %+v", all)
	}
}
