package api_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth/authtest"
)

// wrongInput is a request that a newcomer sends by mistake, and what its answer must say: what was
// got, and what is wanted or to be done.
type wrongInput struct {
	name        string
	answer      answer
	status      int
	error       string
	got, wanted string
}

// wrongCount matches a count whose noun has the wrong number.
var wrongCount = regexp.MustCompile(`\b1 (bytes|characters|elements|members|parts|KeyPackages)\b`)

// Each answer to a wrong input says what was got and what is wanted. -v prints them.
func TestWrongInputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "first")
	epoch := alice.get(mlsapi.NSIDGetEpoch, "convoId", c.id)
	epoch.ok()

	message := alice.message(c, "hello")
	alice.post(mlsapi.NSIDSendMessage, message).ok()
	publication := alice.publication(t)
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	sent := func(change func(*mlsapi.SendMessageInput)) answer {
		in := alice.message(c, "x")
		change(in)
		return alice.post(mlsapi.NSIDSendMessage, in)
	}
	token := func(changes ...authtest.Change) answer {
		return w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(message),
			alice.Authorization(t, service, mlsapi.NSIDSendMessage, time.Now(), changes...))
	}
	body := func(nsid, json string) answer {
		return w.do(http.MethodPost, nsid, nil, []byte(json), alice.authorization(nsid))
	}
	people := make([]syntax.DID, 101)
	for i := range people {
		people[i] = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
	}
	now, past := time.Now(), time.Now().Add(-time.Hour)
	stamp := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	claim := authtest.Claim
	const bad = http.StatusBadRequest
	const invalidRequest, invalidToken = "InvalidRequest", "InvalidToken"

	inputs := []wrongInput{
		{"no token", w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(message), ""),
			http.StatusUnauthorized, "AuthMissing", "there is no Authorization header", "send a service-auth token"},
		{"a token of another method", token(claim("lxm", mlsapi.NSIDGetConvos)), http.StatusUnauthorized, invalidToken,
			`"` + mlsapi.NSIDGetConvos + `" instead`, `of "` + mlsapi.NSIDSendMessage + `": get a token for this method`},
		{"a token of an hour ago", token(claim("iat", past.Unix()), claim("exp", past.Unix()+60)),
			http.StatusUnauthorized, invalidToken,
			"iat is " + stamp(past) + ", exp " + stamp(past.Add(time.Minute)), "and the server's time 20"},
		{"a token for a day", token(claim("exp", now.Add(24*time.Hour).Unix())), http.StatusUnauthorized, invalidToken,
			"exp " + stamp(now.Add(24*time.Hour)), "within 1 hour of iat"},
		{"a token of another service", token(claim("aud", "did:web:other.example")), http.StatusUnauthorized, invalidToken,
			`"did:web:other.example" instead`, "of " + service},
		{"a handle for an issuer", token(claim("iss", "alice.test")), http.StatusUnauthorized, invalidToken,
			`it is "alice.test"`, "must be a did:plc or did:web account"},
		{"a session of a PDS", token(authtest.Header("typ", "at+jwt")), http.StatusUnauthorized, invalidToken,
			`"at+jwt" instead`, "send the token of getServiceAuth"},
		{"no token behind Bearer", w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(message), "Bearer token"),
			http.StatusUnauthorized, invalidToken, "the number of its parts is 1", "instead of 3"},
		{"the wrong scheme", w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(message), "Basic YTpi"),
			http.StatusUnauthorized, invalidToken, `"Basic" instead`, "of Bearer"},

		{"GET for a procedure", w.do(http.MethodGet, mlsapi.NSIDSendMessage, nil, nil,
			alice.authorization(mlsapi.NSIDSendMessage)), bad, invalidRequest, "not GET", "use POST"},
		{"another Content-Type", w.do(http.MethodPost, mlsapi.NSIDSendMessage, nil, encode(message),
			alice.authorization(mlsapi.NSIDSendMessage), "Content-Type", "text/plain"), bad, invalidRequest,
			`got "text/plain"`, "must be application/json"},
		{"no such method", alice.get("blue.catbird.mls.nope"), http.StatusNotImplemented, "MethodNotImplemented",
			`"blue.catbird.mls.nope"`, "a newer server may have it"},
		{"no JSON", body(mlsapi.NSIDUpdateCursor, `{"convoId":`), bad, invalidRequest, "at byte 11", "valid JSON"},
		{"no convoId", body(mlsapi.NSIDUpdateCursor, `{"seq":1}`), bad, invalidRequest, "convoId", "is required"},
		{"a string for a number", body(mlsapi.NSIDUpdateCursor, `{"convoId":"`+c.id+`","seq":"1"}`), bad, invalidRequest,
			"got a string", "seq must be an integer"},
		{"null for a number", body(mlsapi.NSIDUpdateCursor, `{"convoId":"`+c.id+`","seq":null}`), bad, invalidRequest,
			"got null", "seq must be an integer"},
		{"a limit of 101", alice.get(mlsapi.NSIDGetConvos, "limit", "101"), bad, invalidRequest, "got 101", "at most 100"},

		{"a convo id that is none", alice.get(mlsapi.NSIDGetEpoch, "convoId", "nonsense"), bad, invalidRequest,
			"got a text of 8 bytes", "convoId must be a UUID in lower case"},
		{"a convo id of one byte", alice.get(mlsapi.NSIDGetEpoch, "convoId", "x"), bad, invalidRequest,
			"got a text of 1 byte", "must be a UUID"},
		{"a convo that is not there", alice.get(mlsapi.NSIDGetEpoch, "convoId", uuid.NewString()), http.StatusNotFound,
			mlsapi.ErrConvoNotFound, "no such convo, or the caller was never its member", "getConvos lists"},
		{"a key with a space at its end", sent(func(in *mlsapi.SendMessageInput) { in.IdempotencyKey = text("k ") }), bad,
			invalidRequest, "got such a space", "neither begin nor end with a space"},
		{"a key in Cyrillic", sent(func(in *mlsapi.SendMessageInput) { in.IdempotencyKey = text("kлюч") }), bad,
			invalidRequest, "another character at byte 1", "printable ASCII"},
		{"an empty key", sent(func(in *mlsapi.SendMessageInput) { in.IdempotencyKey = text("") }), bad,
			invalidRequest, "got 0", "at least 1 byte,"},
		{"a key of 129 bytes", sent(func(in *mlsapi.SendMessageInput) { in.IdempotencyKey = text(strings.Repeat("k", 129)) }),
			bad, invalidRequest, "got 129", "at most 128 bytes"},
		{"the key of another request", func() answer {
			in := *publication
			in.KeyPackage, _ = alice.KeyPackage(t)
			return alice.post(mlsapi.NSIDPublishKeyPackage, &in)
		}(), http.StatusConflict, mlsapi.ErrIdempotencyConflict, "differing fields: keyPackage; first used at 20",
			"a new request needs a new key"},

		{"another's name", sent(func(in *mlsapi.SendMessageInput) { in.SenderDID = bob.did() }), http.StatusForbidden,
			mlsapi.ErrSenderMismatch, "senderDid is " + bob.did().String(), "the caller " + alice.did().String()},
		{"another epoch in the field", sent(func(in *mlsapi.SendMessageInput) { in.Epoch = 7 }), bad,
			mlsapi.ErrInvalidMessage, "epoch is 7", "the ciphertext's own 1; send the epoch"},
		{"an epoch ahead", alice.post(mlsapi.NSIDSendMessage, alice.message(&convo{c.id, c.group, 9}, "x")),
			http.StatusConflict, mlsapi.ErrEpochMismatch, "epoch 9 is ahead", "currentEpoch=1"},
		{"another group", sent(func(in *mlsapi.SendMessageInput) {
			in.Ciphertext = mlstest.Message(newGroup(t), c.epoch, "x")
		}), bad, mlsapi.ErrInvalidMessage, "another group than the convo", "send it to the convo of its group"},
		{"no ciphertext", sent(func(in *mlsapi.SendMessageInput) { in.Ciphertext = []byte("hello") }), bad,
			mlsapi.ErrInvalidMessage, "MLSMessage.version", "not mls10 but 26725"},
		{"an embedUri that is none", sent(func(in *mlsapi.SendMessageInput) { in.EmbedURI = text("not a uri") }), bad,
			mlsapi.ErrInvalidAsset, "got a text of 9 bytes", "must be a URI, with a scheme"},
		{"a message of 10 MiB and a byte", sent(func(in *mlsapi.SendMessageInput) {
			in.Ciphertext = make([]byte, 10<<20+1)
		}), http.StatusRequestEntityTooLarge, mlsapi.ErrMessageTooLarge,
			"got 10485761", "ciphertext must have at most 10485760 bytes"},
		{"a body of 300 KiB", body(mlsapi.NSIDUpdateCursor, strings.Repeat(" ", 300<<10)),
			http.StatusRequestEntityTooLarge, "PayloadTooLarge", "got 307200",
			"the body of " + mlsapi.NSIDUpdateCursor + " must have at most 262144 bytes"},
		{"a commit of 3 MiB and more", alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id,
			Commit: make([]byte, 3<<20+1)}), bad, invalidRequest, "got 3145729", "commit must have at most 3145728 bytes"},
		{"a proposal of 1 MiB and more", sent(func(in *mlsapi.SendMessageInput) {
			in.Ciphertext = mlstest.Proposal(c.group, c.epoch, strings.Repeat("x", 1<<20))
		}), http.StatusRequestEntityTooLarge, mlsapi.ErrMessageTooLarge, "a handshake of 1048", "at most 1048576 are taken"},
		{"a handle for a DID", body(mlsapi.NSIDCreateConvo, `{"groupId":"00","cipherSuite":"`+mlstest.Suite.String()+
			`","initialMembers":["bob.test"]}`), bad, invalidRequest, "initialMembers[0]", "must be a DID"},
		{"101 people", alice.post(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{GroupID: "00",
			CipherSuite: mlstest.Suite.String(), InitialMembers: people}), bad, mlsapi.ErrTooManyMembers, "got more",
			"at most 100 elements"},
		{"an unknown suite", alice.post(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{GroupID: "00",
			CipherSuite: "AES"}), bad, mlsapi.ErrInvalidCipherSuite, "got a text of 3 bytes", "such as MLS_128_"},
		{"a groupId in capitals", alice.post(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{GroupID: "AB",
			CipherSuite: mlstest.Suite.String()}), bad, invalidRequest, "got a text of 2 bytes", "lower-case hexadecimal"},
		{"nobody to add", body(mlsapi.NSIDAddMembers, `{"convoId":"`+c.id+`","didList":[]}`), bad, invalidRequest, "got 0",
			"at least 1 element,"},
		{"a range backwards", alice.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "3", "toEpoch", "1"), bad,
			mlsapi.ErrInvalidEpochRange, "fromEpoch is 3", "toEpoch 1; it must not be less"},
		{"a seq beyond the end", alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 99}), bad,
			invalidRequest, "beyond the end of the log", "lastSeq=2"},
	}
	unsaid := map[string]int{}
	for _, in := range inputs {
		said := in.answer.fails(in.status, in.error)
		t.Logf("%-32s %d %s: %s", in.name, in.status, in.error, said)
		if wrongCount.MatchString(said) {
			t.Errorf("%s: %q has a count of one with a plural", in.name, said)
		}
		for what, piece := range map[string]string{"got": in.got, "wanted": in.wanted} {
			if piece == "" || !strings.Contains(said, piece) {
				unsaid[what]++
				t.Errorf("%s: %q does not say what is %s: %q", in.name, said, what, piece)
			}
		}
	}
	t.Logf("%d inputs; without got: %d; without wanted: %d", len(inputs), unsaid["got"], unsaid["wanted"])
}

// A conflict says when the key is free again: to a client behind a PDS in the message, to a direct one
// in a field (A6). A message is its own record, which has no end.
func TestConflictSaysWhenTheKeyIsFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	conflict := func(a answer) (string, string) {
		said := a.fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
		return said, read[struct{ KeyExpiresAt string }](t, a.body).KeyExpiresAt
	}
	publication := alice.publication(t)
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	publication.KeyPackage, _ = alice.KeyPackage(t)
	said, free := conflict(alice.post(mlsapi.NSIDPublishKeyPackage, publication))
	var want string
	if err := w.db.QueryRow(t.Context(), `SELECT to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
		FROM idempotency_keys WHERE key = $1`, *publication.IdempotencyKey).Scan(&want); err != nil {
		t.Fatal(err)
	}
	if free != want || !strings.Contains(said, "; keyExpiresAt="+want+";") {
		t.Errorf("the key is free at %q, and the message says %q; want %s", free, said, want)
	}
	message := alice.message(c, "one")
	alice.post(mlsapi.NSIDSendMessage, message).ok()
	message.Ciphertext = mlstest.Message(c.group, c.epoch, "two")
	if said, free := conflict(alice.post(mlsapi.NSIDSendMessage, message)); free != "" || strings.Contains(said,
		"keyExpires") {
		t.Errorf("the key of a message is free at %q: %s", free, said)
	}
	// The key is free then: the same request runs as a new one.
	pgtest.Age(t, w.db, "idempotency_keys", 25*time.Hour, "created_at", "expires_at")
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
}
