package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
)

// Tests that are named after bugs of other servers quote the bug. Such tests of events are in the
// packages events and convos, those of leases are in package idem.

// replay-before-auth: look-up ran before authentication, or took the caller from an unverified
// token: anyone with a key read another's answer.
func TestReplayBeforeAuth(t *testing.T) {
	t.Parallel()
	forgers := 0
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		r.send(w.server).ok()
		forgers++ // each has an address of its own, and so enough look-ups
		w.from = fmt.Sprintf("198.51.100.%d:1", forgers)
		forger := *r.by.Identity
		forger.Key = authtest.K256(t)
		forged := r
		forged.by = &user{Identity: &forger, Device: r.by.Device, w: w}
		forged.send(w.server).fails(http.StatusUnauthorized, "InvalidToken")

		anonymous := w.do(http.MethodGet, r.nsid, query(r.params...), nil, "")
		if r.in != nil {
			anonymous = w.do(http.MethodPost, r.nsid, nil, encode(r.in), "")
		}
		anonymous.fails(http.StatusUnauthorized, "AuthMissing")
	})
}

// global-key: the key was unique across users: one user's key answered another's request.
func TestGlobalKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := newKey()
	t.Run("createConvo", func(t *testing.T) {
		for range 2 {
			u := w.user()
			in := u.creation(newGroup(t))
			in.IdempotencyKey = key
			if view := read[mlsapi.ConvoView](t, u.post(mlsapi.NSIDCreateConvo, in).ok()); view.Creator != u.did() {
				t.Fatal("a caller got another's convo")
			}
		}
	})
	t.Run("getKeyPackages", func(t *testing.T) {
		owner := w.user()
		owner.publish()
		owner.publish()
		claim := []string{"dids", owner.did().String(), "idempotencyKey", *key}
		first := w.user().get(mlsapi.NSIDGetKeyPackages, claim...).ok()
		if string(w.user().get(mlsapi.NSIDGetKeyPackages, claim...).ok()) == string(first) {
			t.Fatal("two callers got one KeyPackage")
		}
	})
	t.Run("sendMessage", func(t *testing.T) {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		for i, u := range []*user{alice, bob} {
			in := u.message(c, "by "+u.did().String())
			in.IdempotencyKey = key
			if out := read[mlsapi.SendMessageOutput](t, u.post(mlsapi.NSIDSendMessage, in).ok()); *out.Seq != int64(i+1) {
				t.Fatalf("message %d is at seq %d", i+1, *out.Seq)
			}
		}
	})
}

// body-ignored: the same key with another body silently replayed the first answer (and lost the
// second message). The conflict names the fields that differ, and no value.
func TestBodyIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c, group, later := alice.create(bob), newGroup(t), lexcodec.NewDatetime(time.Now().Add(time.Hour))
	kp1, _ := alice.KeyPackage(t)
	kp2, _ := alice.KeyPackage(t)
	key := newKey()
	suite := mlstest.Suite.String()
	message := func(body string, embedType *string) *mlsapi.SendMessageInput {
		in := alice.message(c, body)
		in.IdempotencyKey, in.EmbedType = key, embedType
		return in
	}
	addition := alice.addition(c, w.user())
	other := *addition
	other.Commit, other.WelcomeMessage = mlstest.Commit(c.group, c.epoch, "another"), nil
	creation := alice.creation(group)
	named := *creation
	named.Metadata = &mlsapi.ConvoMetadata{Name: text("secret name")}
	renamed, called := *alice.creation(newGroup(t)), mlsapi.CreateConvoInput{}
	renamed.IdempotencyKey = newKey()
	renamed.Metadata = &mlsapi.ConvoMetadata{Name: text("secret name"), Description: text("of us")}
	called = renamed
	called.Metadata = &mlsapi.ConvoMetadata{Name: text("another name"), Description: text("of us")}
	called.InitialMembers = []syntax.DID{bob.did()}
	for _, test := range []struct {
		name          string
		nsid          string
		first, second any
		differing     string
	}{
		{"ciphertext", mlsapi.NSIDSendMessage, message("one", nil), message("two", nil), "ciphertext"},
		{"embedType", mlsapi.NSIDSendMessage, message("one", nil), message("one", text("secret")), "embedType"},
		{"two fields", mlsapi.NSIDSendMessage, message("one", nil), message("two", text("secret")), "ciphertext, embedType"},
		{"metadata", mlsapi.NSIDCreateConvo, creation, &named, "metadata"},
		{"metadata.name", mlsapi.NSIDCreateConvo, &renamed, &called, "initialMembers, metadata.name"},
		{"commit", mlsapi.NSIDAddMembers, addition, &other, "commit, welcomeMessage"},
		{"keyPackage", mlsapi.NSIDPublishKeyPackage,
			&mlsapi.PublishKeyPackageInput{KeyPackage: kp1, CipherSuite: suite, IdempotencyKey: key},
			&mlsapi.PublishKeyPackageInput{KeyPackage: kp2, CipherSuite: suite, IdempotencyKey: key, Expires: &later},
			"expires, keyPackage"},
		{"targetDid", mlsapi.NSIDLeaveConvo,
			&mlsapi.LeaveConvoInput{ConvoID: alice.create(bob).id, IdempotencyKey: key}, nil, "targetDid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if leave, ok := test.first.(*mlsapi.LeaveConvoInput); ok {
				test.second = &mlsapi.LeaveConvoInput{ConvoID: leave.ConvoID, IdempotencyKey: key, TargetDID: ptr(bob.did())}
			}
			first := alice.post(test.nsid, test.first)
			first.ok()
			before := w.digest()
			conflict := alice.post(test.nsid, test.second)
			message := conflict.fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
			want := "the idempotency key was used for another request; differing fields: " + test.differing +
				"; first used at 20"
			if !strings.HasPrefix(message, want) {
				t.Fatalf("the conflict says %q, want %q", message, want)
			}
			// S9: what the message says is there for programs too.
			var body struct {
				Fields                        []string
				FirstUsedAt                   time.Time
				FirstRequestHash, RequestHash string
			}
			if err := json.Unmarshal(conflict.body, &body); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(body.Fields, ", "); got != test.differing || body.FirstUsedAt.IsZero() ||
				len(body.FirstRequestHash) != 64 || len(body.RequestHash) != 64 || body.FirstRequestHash == body.RequestHash {
				t.Fatalf("the conflict's body is %s", conflict.body)
			}
			if bytes.Contains(conflict.body, []byte("secret")) {
				t.Fatalf("the conflict shows a value: %s", conflict.body)
			}
			if h := conflict.header.Get("X-Idempotency-Conflict"); h != "body-mismatch" {
				t.Fatalf("X-Idempotency-Conflict is %q", h)
			}
			if w.digest() != before {
				t.Fatal("the refused request has changed what is stored")
			}
			alice.post(test.nsid, test.first).replays(first)
		})
	}
	t.Run("dids", func(t *testing.T) {
		bob.publish()
		claim := []string{"dids", bob.did().String(), "idempotencyKey", *key}
		first := alice.get(mlsapi.NSIDGetKeyPackages, claim...)
		first.ok()
		alice.get(mlsapi.NSIDGetKeyPackages, append(claim, "dids", alice.did().String())...).
			fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
		alice.get(mlsapi.NSIDGetKeyPackages, claim...).replays(first)
	})
}

// check-then-run: two concurrent duplicates both ran. While the first is still running, the second
// gets RequestInProgress.
func TestCheckThenRun(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		answered, resume := w.pause(r)
		second := r.send(w.boot())
		second.fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
		if second.header.Get("Retry-After") == "" {
			t.Error("the second answer has no Retry-After")
		}
		resume()
		first := <-answered
		first.ok()
		r.send(w.server).replays(first)
		r.once()
	}, func(w *world) { w.locks = "100ms" })
}

// record-after: a crash between effect and record ran the write twice. Here one COMMIT stores both,
// and the record shows the outcome of a lost COMMIT.
func TestRecordAfter(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		w.arm(failpoint.AfterCommit, r, failpoint.Error)
		r.send(w.server)
		r.once()
		r.send(w.boot()).ok()
		r.once()
	}, faulty)
}

// epoch-before-key: the epoch check came first, so a retry after a commit got 409, the client
// encrypted the message again, and the log had it twice.
func TestEpochBeforeKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	message := alice.message(c, "hello")
	sent := alice.post(mlsapi.NSIDSendMessage, message)
	sent.ok()
	addition := alice.addition(c, w.user())
	added := alice.post(mlsapi.NSIDAddMembers, addition)
	c.epoch = read[mlsapi.AddMembersOutput](t, added.ok()).NewEpoch
	alice.add(c, w.user())

	alice.post(mlsapi.NSIDSendMessage, message).replays(sent)
	alice.post(mlsapi.NSIDAddMembers, addition).replays(added)
	if page := alice.page(c); len(page.Messages) != 1 {
		t.Fatalf("the message stands %d times", len(page.Messages))
	}
}

// member-before-key: a retry of leaveConvo answered 403. The same holds for everything that was
// stored before its sender left.
func TestMemberBeforeKey(t *testing.T) {
	t.Parallel()
	t.Run("keyed", func(t *testing.T) { t.Parallel(); testMemberBeforeKey(t, newKey) })
	t.Run("without a key", func(t *testing.T) { t.Parallel(); testMemberBeforeKey(t, noKey) })
}

func testMemberBeforeKey(t *testing.T, key func() *string) {
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	message := bob.message(c, "bye")
	message.IdempotencyKey = key()
	sent := bob.post(mlsapi.NSIDSendMessage, message)
	sent.ok()
	addition := bob.addition(c, w.user())
	addition.IdempotencyKey = key()
	added := bob.post(mlsapi.NSIDAddMembers, addition)
	added.ok()
	leave := &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: key()}
	left := bob.post(mlsapi.NSIDLeaveConvo, leave)
	left.ok()
	bob.post(mlsapi.NSIDSendMessage, bob.message(&convo{c.id, c.group, 2}, "new")).fails(http.StatusForbidden,
		mlsapi.ErrNotMember)

	c.epoch = 2
	alice.add(c, w.user()) // and the epoch advances
	bob.post(mlsapi.NSIDSendMessage, message).replays(sent)
	bob.post(mlsapi.NSIDAddMembers, addition).replays(added)
	if again := bob.post(mlsapi.NSIDLeaveConvo, leave); string(again.ok()) != string(left.ok()) {
		t.Fatalf("leaving again is answered with %s, the first time it was %s", again.body, left.body)
	}
}

// cached-401: 4xx and 429 were stored and stuck for the TTL.
func TestCached401(t *testing.T) {
	t.Parallel()
	t.Run("401", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		alice := w.user()
		in := alice.creation(newGroup(t))
		w.do(http.MethodPost, mlsapi.NSIDCreateConvo, nil, encode(in), "Bearer x").fails(http.StatusUnauthorized,
			"InvalidToken")
		alice.post(mlsapi.NSIDCreateConvo, in).ok()
	})
	t.Run("404", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		alice, bob := w.user(), w.user()
		body, ref := bob.KeyPackage(t)
		in := alice.creation(newGroup(t))
		in.InitialMembers, in.WelcomeMessage = append(in.InitialMembers, bob.did()), mlstest.Welcome(t, ref)
		before := w.digest()
		alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusNotFound, mlsapi.ErrKeyPackageNotFound)
		if w.digest() != before {
			t.Fatal("the refused request has left something behind")
		}
		bob.post(mlsapi.NSIDPublishKeyPackage,
			&mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String()}).ok()
		alice.post(mlsapi.NSIDCreateConvo, in).ok()
	})
	t.Run("409", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		alice := w.user()
		c := alice.create()
		early := alice.message(&convo{c.id, c.group, 1}, "too early")
		alice.post(mlsapi.NSIDSendMessage, early).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
		alice.add(c, w.user())
		alice.post(mlsapi.NSIDSendMessage, early).ok()
	})
	t.Run("429", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 1} })
		alice := w.user()
		in := alice.creation(newGroup(t))
		alice.get(mlsapi.NSIDGetConvos).ok()
		alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusTooManyRequests, "RateLimitExceeded")
		alice.on(w.boot()).post(mlsapi.NSIDCreateConvo, in).ok()
	})
}

// swallowed-insert: the record's insert always failed and the error was dropped. If the record
// cannot be written, neither is the effect.
func TestSwallowedInsert(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		table := "idempotency_keys"
		if r.nsid == mlsapi.NSIDSendMessage {
			table = "messages"
		}
		w.exec(`ALTER TABLE ` + table + ` ADD CONSTRAINT broken CHECK (false) NOT VALID`)
		before := w.digest()
		r.send(w.server).fails(http.StatusInternalServerError, "InternalServerError")
		if w.digest() != before {
			t.Fatal("the write took effect without its record")
		}
		w.exec(`ALTER TABLE ` + table + ` DROP CONSTRAINT broken`)
		r.send(w.server).ok()
		r.once()
	}, faulty)
}

// epoch-in-replay: the replay lacked newEpoch, so clients stopped trusting it. Here the replay has
// the newEpoch of the first answer.
func TestEpochInReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	addition := alice.addition(c, w.user())
	alice.post(mlsapi.NSIDAddMembers, addition).ok()
	c.epoch = 2
	removal := &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()), IdempotencyKey: newKey(),
		Commit: mlstest.Commit(c.group, 2, "remove bob")}
	alice.post(mlsapi.NSIDLeaveConvo, removal).ok()
	c.epoch = 3
	alice.add(c, w.user())

	added := read[mlsapi.AddMembersOutput](t, alice.post(mlsapi.NSIDAddMembers, addition).ok())
	if added.NewEpoch != 2 || !added.Success || *added.Seq != 1 {
		t.Fatalf("the replay of addMembers is %+v", added)
	}
	removed := read[mlsapi.LeaveConvoOutput](t, alice.post(mlsapi.NSIDLeaveConvo, removal).ok())
	if removed.NewEpoch != 3 || !removed.Success || *removed.Seq != 2 {
		t.Fatalf("the replay of leaveConvo is %+v", removed)
	}
}

// D17: the key in the body is the request's key, whatever a browser or a proxy puts into the header.
func TestKeyInBodyWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create(w.user())
	in := alice.message(c, "hello")
	in.IdempotencyKey = text("mine")
	body := encode(in)
	var first answer
	for i, header := range [][]string{nil, {"mine"}, {"other"}, {"\"quoted\", and too long" + strings.Repeat("x", 200)},
		{"two", "keys"}, {" "}} {
		r := w.request(http.MethodPost, mlsapi.NSIDSendMessage, nil, body, alice.authorization(mlsapi.NSIDSendMessage))
		r.Header["Idempotency-Key"] = header
		a := w.answer(w.server, r)
		if i == 0 {
			a.ok()
			first = a
			continue
		}
		a.replays(first)
	}
	in.IdempotencyKey = nil
	for _, header := range [][]string{{"two", "keys"}, {strings.Repeat("x", 200)}} {
		r := w.request(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(in), alice.authorization(mlsapi.NSIDSendMessage))
		r.Header["Idempotency-Key"] = header
		w.answer(w.server, r).fails(http.StatusBadRequest, "InvalidRequest")
	}
}
