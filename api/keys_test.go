package api_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// A key belongs to its caller, method and convo. With another of these it is another key.
func TestKeyScopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	key := newKey()
	creation := alice.creation(newGroup(t))
	creation.IdempotencyKey = key
	view := read[mlsapi.ConvoView](t, alice.post(mlsapi.NSIDCreateConvo, creation).ok())
	kp, _ := alice.KeyPackage(t)
	alice.post(mlsapi.NSIDPublishKeyPackage,
		&mlsapi.PublishKeyPackageInput{KeyPackage: kp, CipherSuite: mlstest.Suite.String(), IdempotencyKey: key}).ok()

	bob := w.user()
	first := &convo{id: view.ID, group: unhex(t, view.GroupID)}
	for i, c := range []*convo{first, alice.create()} {
		message := alice.message(c, "hello")
		message.IdempotencyKey = key
		if sent := read[mlsapi.SendMessageOutput](t, alice.post(mlsapi.NSIDSendMessage, message).ok()); *sent.Seq != 1 {
			t.Fatalf("convo %d: the message is at seq %d", i, *sent.Seq)
		}
		addition := alice.addition(c, bob)
		addition.IdempotencyKey = key
		if added := read[mlsapi.AddMembersOutput](t, alice.post(mlsapi.NSIDAddMembers, addition).ok()); *added.Seq != 2 {
			t.Fatalf("convo %d: the commit is at seq %d", i, *added.Seq)
		}
		removed := read[mlsapi.LeaveConvoOutput](t, alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
			ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: mlstest.Commit(c.group, 1, "remove bob"), IdempotencyKey: key}).ok())
		if *removed.Seq != 3 || removed.NewEpoch != 2 {
			t.Fatalf("convo %d: the removal is %+v", i, removed)
		}
	}
}

// Direct clients may send the key as a header. Both together must agree.
func TestKeyHeader(t *testing.T) {
	t.Parallel()
	const name = "Idempotency-Key"
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	in := alice.message(c, "hello")
	key := *in.IdempotencyKey

	in.IdempotencyKey = nil
	first := alice.post(mlsapi.NSIDSendMessage, in, name, key)
	first.ok()
	alice.post(mlsapi.NSIDSendMessage, in, name, key).replays(first)
	in.IdempotencyKey = &key
	alice.post(mlsapi.NSIDSendMessage, in).replays(first)
	alice.post(mlsapi.NSIDSendMessage, in, name, key).replays(first)
	message := alice.post(mlsapi.NSIDSendMessage, in, name, "another").fails(http.StatusBadRequest, "InvalidRequest")
	if !strings.Contains(message, "idempotencyKey") || !strings.Contains(message, name) || strings.Contains(message, key) {
		t.Fatalf("the refusal says %q", message)
	}
	for _, bad := range []string{strings.Repeat("k", 129), "clé", "a\tb"} {
		alice.post(mlsapi.NSIDSendMessage, alice.message(c, "x"), name, bad).fails(http.StatusBadRequest, "InvalidRequest")
	}
	two := w.request(http.MethodPost, mlsapi.NSIDSendMessage, nil, in.AppendJSON(nil), alice.authorization(mlsapi.NSIDSendMessage))
	two.Header[name] = []string{key, "another"}
	w.answer(w.server, two).fails(http.StatusBadRequest, "InvalidRequest")
	if n := w.count(`SELECT count(*) FROM messages`); n != 1 {
		t.Fatalf("%d messages are stored", n)
	}

	t.Run("query", func(t *testing.T) {
		bob := w.user()
		bob.publish()
		bob.publish()
		q := query("dids", bob.did().String())
		claim := func(headers ...string) answer {
			return w.do(http.MethodGet, mlsapi.NSIDGetKeyPackages, q, nil, alice.authorization(mlsapi.NSIDGetKeyPackages), headers...)
		}
		first := claim(name, "k")
		first.ok()
		claim(name, "k").replays(first)
		q.Set("idempotencyKey", "k")
		claim().replays(first)
		claim(name, "l").fails(http.StatusBadRequest, "InvalidRequest")
	})
}

// Client libraries spell base64 and JSON differently. The request is the same.
func TestSpellingsOfOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	ciphertext := mlstest.Message(c.group, 0, "hello")
	for len(ciphertext)%3 == 0 { // padding must make a difference
		ciphertext = mlstest.Message(c.group, 0, fmt.Sprint("hello", len(ciphertext)))
	}
	send := func(enc *base64.Encoding, format string) answer {
		body := fmt.Sprintf(format, enc.EncodeToString(ciphertext), c.id, alice.did())
		return w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, []byte(body), alice.authorization(mlsapi.NSIDSendMessage))
	}
	const plain = `{"ciphertext":{"$bytes":%q},"convoId":%q,"senderDid":%q,"epoch":0,"idempotencyKey":"k"}`
	first := send(base64.RawStdEncoding, plain)
	first.ok()
	send(base64.StdEncoding, plain).replays(first)
	send(base64.StdEncoding, ` { "epoch" : 0, "unknown": [], "ciphertext":{"$bytes":%q},"convoId":%q,`+
		`"idempotencyKey":"\u006b", "senderDid":%q}`).replays(first)

	kp, _ := alice.KeyPackage(t)
	for i := 0; len(kp)%3 == 0; i++ {
		kp, _ = alice.KeyPackage(t, mlstest.Identity(fmt.Sprintf("%s#%d", alice.did(), i)))
	}
	var published answer
	for i, enc := range []*base64.Encoding{base64.RawURLEncoding, base64.URLEncoding, base64.StdEncoding, base64.RawStdEncoding} {
		body := fmt.Sprintf(`{"keyPackage":%q,"cipherSuite":%q,"idempotencyKey":"k"}`, enc.EncodeToString(kp), mlstest.Suite)
		a := w.do(http.MethodPost, mlsapi.NSIDPublishKeyPackage, nil, []byte(body), alice.authorization(mlsapi.NSIDPublishKeyPackage))
		if i == 0 {
			published = a
			a.ok()
			continue
		}
		a.replays(published)
	}
}

// Without a key, an MLS object is its own key: the same bytes are the same write, even if other
// fields differ.
func TestNaturalGuards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	t.Run("group_id", func(t *testing.T) {
		group := newGroup(t)
		alice.post(mlsapi.NSIDCreateConvo, alice.creation(group)).ok()
		alice.post(mlsapi.NSIDCreateConvo, alice.creation(group)).fails(http.StatusConflict, mlsapi.ErrGroupAlreadyExists)
	})
	t.Run("KeyPackageRef", func(t *testing.T) {
		kp, ref := alice.KeyPackage(t)
		for _, key := range []*string{nil, newKey(), newKey()} {
			out := read[mlsapi.PublishKeyPackageOutput](t, alice.post(mlsapi.NSIDPublishKeyPackage,
				&mlsapi.PublishKeyPackageInput{KeyPackage: kp, CipherSuite: mlstest.Suite.String(), IdempotencyKey: key}).ok())
			if *out.KeyPackageRef != ref.String() {
				t.Fatalf("the ref is %s, want %s", *out.KeyPackageRef, ref)
			}
		}
		if n := w.count(`SELECT count(*) FROM key_packages WHERE ref = $1`, []byte(ref)); n != 1 {
			t.Fatalf("the KeyPackage is stored %d times", n)
		}
	})
	t.Run("left_at", func(t *testing.T) {
		c := alice.create(bob)
		var answers []string
		for _, key := range []*string{newKey(), nil, newKey()} {
			answers = append(answers, string(bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: key}).ok()))
		}
		alice.add(c, w.user())
		answers = append(answers, string(bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()))
		for _, a := range answers {
			if a != `{"newEpoch":1,"success":true}` {
				t.Fatalf("leaving is answered with %q", answers)
			}
		}
	})
	t.Run("leaving twice, being back in between", func(t *testing.T) {
		c := alice.create(bob)
		bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
		alice.add(c, bob)
		out := read[mlsapi.LeaveConvoOutput](t, bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok())
		if out.NewEpoch != 2 {
			t.Fatalf("the second departure is in epoch %d, want 2", out.NewEpoch)
		}
		bob.get(mlsapi.NSIDGetEpoch, "convoId", c.id).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	})
	t.Run("cursor", func(t *testing.T) {
		c := alice.create()
		for _, body := range []string{"a", "b", "c"} {
			alice.send(c, body)
		}
		for _, step := range []struct{ seq, want int64 }{{2, 2}, {1, 2}, {3, 3}, {2, 3}} {
			out := read[mlsapi.UpdateCursorOutput](t,
				alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: step.seq}).ok())
			if out.Seq != step.want {
				t.Fatalf("after %d the cursor is at %d, want %d", step.seq, out.Seq, step.want)
			}
		}
		alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 4}).fails(http.StatusBadRequest, "InvalidRequest")
	})
}
