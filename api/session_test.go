package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/erasure"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/lexicons"
	"mlsd/people/accounts"
)

// timed lets the test move the clock of sessions by later. At first it is the real time.
func timed(later *time.Duration) func(*world) {
	begun := time.Now()
	return func(w *world) { w.clock = func() time.Time { return begun.Add(*later) } }
}

// still is a clock of sessions that stands.
func still() func(*world) { return timed(new(time.Duration)) }

// session buys a session of the user's device with a service-auth token.
func (u *user) session() mlsapi.CreateSessionOutput {
	u.w.t.Helper()
	in := &mlsapi.CreateSessionInput{DeviceID: u.deviceID()}
	return read[mlsapi.CreateSessionOutput](u.w.t, u.post(mlsapi.NSIDCreateSession, in).ok())
}

// under calls a method with a bearer on a node.
func (w *world) under(node *api.Server, bearer, nsid string, body []byte, params ...string) answer {
	w.t.Helper()
	verb := http.MethodGet
	if body != nil {
		verb = http.MethodPost
	}
	return w.answer(node, w.request(verb, nsid, query(params...), body, "Bearer "+bearer))
}

// readSessions makes a node read which sessions have ended.
func (w *world) readSessions() {
	w.t.Helper()
	if err := w.sessions.RunOnce(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// A session does what service-auth tokens do, on every node, and uses no token up. A repeated write
// gets its first answer by its key.
func TestSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	s := alice.session()
	if len(s.Session) > 512 || len(s.RefreshToken) > 512 {
		t.Errorf("tokens of %d and %d bytes", len(s.Session), len(s.RefreshToken))
	}
	left := time.Until(s.ExpiresAt.Time)
	if left > time.Hour || left < 59*time.Minute {
		t.Errorf("the session is good for %s", left)
	}
	bob.publish()
	tokens := w.count(`SELECT count(*) FROM used_tokens`)
	other := w.boot()
	in := alice.message(c, "hello")
	in.IdempotencyKey = newKey()
	first := w.under(other, s.Session, mlsapi.NSIDSendMessage, encode(in))
	first.ok()
	w.under(w.server, s.Session, mlsapi.NSIDSendMessage, encode(in)).replays(first)
	w.under(w.server, s.Session, mlsapi.NSIDGetMessages, nil, "convoId", c.id).ok()
	w.under(w.server, s.Session, mlsapi.NSIDUpdateCursor, encode(&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 1})).ok()
	claim := w.under(w.server, s.Session, mlsapi.NSIDGetKeyPackages, nil, "dids", bob.did().String(), "idempotencyKey",
		"k")
	claim.ok()
	w.under(other, s.Session, mlsapi.NSIDGetKeyPackages, nil, "dids", bob.did().String(), "idempotencyKey",
		"k").replays(claim)
	if n := w.count(`SELECT count(*) FROM used_tokens`); n != tokens {
		t.Errorf("%d tokens were used up", n-tokens)
	}
	// What counts for the caller counts for its session.
	for _, r := range w.served.take() {
		if r.NSID == mlsapi.NSIDUpdateCursor && r.Caller != alice.did().String() {
			t.Errorf("the request counts for %q", r.Caller)
		}
	}
	alice.send(c, "service-auth tokens go on")
}

// altered returns a token whose content was changed.
func altered(t *testing.T, token string, change func(content []byte) []byte) string {
	t.Helper()
	prefix, text := token[:6], token[6:]
	content, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return prefix + base64.RawURLEncoding.EncodeToString(change(content))
}

func replaced(old, new string) func([]byte) []byte {
	return func(content []byte) []byte { return bytes.Replace(content, []byte(old), []byte(new), 1) }
}

// A session is refused with InvalidToken if anything in it was changed, and if it is of another kind.
// Its address pays.
func TestForgedSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice, mallory := w.user(), w.user()
	s, theirs := alice.session(), mallory.session()
	forged := map[string]string{
		"other DID":                  altered(t, theirs.Session, replaced(mallory.did().String(), alice.did().String())),
		"refresh token":              s.RefreshToken,
		"refresh token as a session": "mlss1_" + s.RefreshToken[6:],
		"cut off":                    s.Session[:len(s.Session)-1],
		"no mac":                     altered(t, s.Session, func(b []byte) []byte { return b[:len(b)-32] }),
		"mac of zeros": altered(t, s.Session,
			func(b []byte) []byte { return append(b[:len(b)-32], make([]byte, 32)...) }),
		"longer":                          altered(t, s.Session, func(b []byte) []byte { return append(b, 0) }),
		"padded":                          s.Session + "==",
		"too long":                        "mlss1_" + strings.Repeat("A", 507),
		"empty":                           "mlss1_",
		"a version that there is not yet": "mlss2_" + s.Session[6:],
	}
	content, err := base64.RawURLEncoding.DecodeString(s.Session[6:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range content {
		forged[fmt.Sprintf("bit of byte %d", i)] = altered(t, s.Session, func(b []byte) []byte { b[i] ^= 1; return b })
	}
	for name, bearer := range forged {
		a := w.under(w.server, bearer, mlsapi.NSIDGetConvos, nil)
		if a.status != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") == "" ||
			bytes.Contains(a.body, []byte(bearer)) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).ok()
}

// Forged sessions are charged to the address that sends them.
func TestForgedSessionsAreCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still(), func(w *world) { w.rates.IP = api.Rate{PerSecond: 0.001, Burst: 10} })
	s := w.user().session()
	forged := altered(t, s.Session, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	var refused int
	for range 20 {
		if w.under(w.server, forged, mlsapi.NSIDGetConvos, nil).status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused != 10 {
		t.Errorf("%d of 20 forgeries were refused by the rate of their address", refused)
	}
}

// An expired session is refused, and one on a node that has not heard of ends for five seconds.
func TestOldSessions(t *testing.T) {
	t.Parallel()
	var later time.Duration
	w := newWorld(t, timed(&later))
	alice := w.user()
	s := alice.session()
	later = 5*time.Second + time.Millisecond
	w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	alice.get(mlsapi.NSIDGetConvos).ok() // service-auth tokens go on
	w.readSessions()
	w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).ok()
	later = time.Hour + time.Minute // the session was bought after the clock began
	w.readSessions()
	message := w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	if !strings.Contains(message, "expired") {
		t.Errorf("the message is %q", message)
	}
}

// deleteSession ends what its caller means: its own session, those of a device, or all of the account.
// The node that did it refuses them at once or with its next reading, and so does every other one.
func TestDeleteSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice, bob := w.user(), w.user()
	tablet := alice.device()
	sessions := map[string]string{
		"first": alice.session().Session, "second": alice.session().Session, "tablet": tablet.session().Session,
		"bob": bob.session().Session,
	}
	first, here := w.server, w.sessions
	second := w.boot()
	wants := func(open ...string) {
		t.Helper()
		w.readSessions()
		if err := here.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, bearer := range sessions {
			for i, node := range []*api.Server{first, second} {
				want := http.StatusUnauthorized
				if slices.Contains(open, name) {
					want = http.StatusOK
				}
				if a := w.under(node, bearer, mlsapi.NSIDGetConvos, nil); a.status != want {
					t.Errorf("%s on node %d: %d %s, want %d", name, i+1, a.status, a.body, want)
				}
			}
		}
	}
	wants("first", "second", "tablet", "bob")
	none := encode(&mlsapi.DeleteSessionInput{})
	w.under(first, sessions["first"], mlsapi.NSIDDeleteSession, none).ok()
	// before its next reading
	w.under(first, sessions["first"], mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	wants("second", "tablet", "bob")
	alice.post(mlsapi.NSIDDeleteSession, &mlsapi.DeleteSessionInput{DeviceID: ptr(tablet.deviceID())}).ok()
	wants("second", "bob")
	alice.post(mlsapi.NSIDDeleteSession, &mlsapi.DeleteSessionInput{}).ok()
	wants("bob")
	alice.post(mlsapi.NSIDDeleteSession, &mlsapi.DeleteSessionInput{}).ok()
	wants("bob")
}

// A session that the database has lost can be ended nevertheless.
func TestDeleteLostSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	s := w.user().session()
	w.exec(`DELETE FROM sessions`)
	w.under(w.server, s.Session, mlsapi.NSIDDeleteSession, encode(&mlsapi.DeleteSessionInput{})).ok()
	node := w.boot()
	w.under(node, s.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
}

// Sessions end with what happens to their account, and do not come back with it.
func TestSessionsEndWithTheirAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still(), gated(accounts.ModeOpen))
	for name, happens := range map[string]func(*world, *user){
		"block": func(w *world, u *user) {
			w.block(u)
			if _, err := accounts.NewStore(0, convos.HandOver).Unblock(w.t.Context(), w.db, u.did()); err != nil {
				w.t.Fatal(err)
			}
			w.readAccounts()
		},
		"status": func(w *world, u *user) {
			w.states(u, accounts.Suspended, 1)
			w.states(u, accounts.Active, 2)
		},
		"erasure": func(w *world, u *user) {
			tx, err := w.db.Begin(w.t.Context())
			if err != nil {
				w.t.Fatal(err)
			}
			jobs := erasure.NewStore(accounts.NewStore(0, convos.HandOver))
			if _, _, err := jobs.Begin(w.t.Context(), tx, u.did(), erasure.ByAccount, "test"); err != nil {
				w.t.Fatal(err)
			}
			if err := tx.Commit(w.t.Context()); err != nil {
				w.t.Fatal(err)
			}
		},
		"key forgotten": func(w *world, u *user) {
			w.exec(`INSERT INTO identity_keys (did, version, fetched_at, forgotten_at) VALUES ($1, 1, now(), now())`, u.did())
		},
		"key replaced": func(w *world, u *user) {
			w.exec(`
				INSERT INTO identity_keys (did, key, version, fetched_at, forgotten_at, verified_at) VALUES ($1, 'did:key:another',
					1, now(), now(), now())`, u.did())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			alice, bob := w.user(), w.user()
			alice.publish() // so that the service knows her
			hers, his := alice.session(), bob.session()
			happens(w, alice)
			w.readSessions()
			w.under(w.server, hers.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
			w.under(w.server, his.Session, mlsapi.NSIDGetConvos, nil).ok()
		})
	}
}

// An account that may not use the node gets its own error under a session too.
func TestSessionOfRefusedAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still(), gated(accounts.ModeOpen))
	alice := w.user()
	s := alice.session()
	w.block(alice)
	w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusForbidden, "Blocked")
}

// refresh refreshes a session.
func (w *world) refresh(bearer, token string) answer {
	w.t.Helper()
	return w.under(w.server, bearer, mlsapi.NSIDRefreshSession, encode(&mlsapi.RefreshSessionInput{RefreshToken: token}))
}

// A refresh token is good once. Its repetition gets the first answer, byte for byte, as long as the
// client can be waiting for it. Later it ends the session.
func TestRefreshSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice := w.user()
	first := alice.session()
	answered := w.refresh(first.Session, first.RefreshToken)
	second := read[mlsapi.CreateSessionOutput](t, answered.ok())
	if second.Session == first.Session || second.RefreshToken == first.RefreshToken ||
		!second.EndsAt.Equal(first.EndsAt.Time) {
		t.Errorf("first %+v, then %+v", first, second)
	}
	w.refresh(first.Session, first.RefreshToken).replays(answered)
	w.under(w.server, first.Session, mlsapi.NSIDGetConvos, nil).ok() // until its hour is over
	w.under(w.server, second.Session, mlsapi.NSIDGetConvos, nil).ok()
	third := read[mlsapi.CreateSessionOutput](t, w.refresh(second.Session, second.RefreshToken).ok())

	w.refresh(third.Session, first.RefreshToken).fails(http.StatusBadRequest, "InvalidRefreshToken") // two clients have it
	w.refresh(third.Session, third.RefreshToken).fails(http.StatusUnauthorized, "InvalidToken")
	w.readSessions()
	for _, bearer := range []string{first.Session, second.Session, third.Session} {
		w.under(w.server, bearer, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	}
}

// A repetition after two minutes ends the session.
func TestLateRepetitionOfRefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice := w.user()
	first := alice.session()
	second := read[mlsapi.CreateSessionOutput](t, w.refresh(first.Session, first.RefreshToken).ok())
	w.exec(`UPDATE sessions SET issued_at = issued_at - interval '2 minutes'`)
	w.refresh(first.Session, first.RefreshToken).fails(http.StatusBadRequest, "InvalidRefreshToken")
	w.under(w.server, second.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
}

// Who has stolen the bearer alone cannot refresh it, nor with another session's refresh token, nor
// buy another session. A session does not outlast its end.
func TestWhatAStolenSessionCannotDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice, mallory := w.user(), w.user()
	s, theirs, tablet := alice.session(), mallory.session(), alice.device().session()
	for name, token := range map[string]string{"bearer": s.Session, "another's": theirs.RefreshToken,
		"another device's": tablet.RefreshToken, "none": "x"} {
		if a := w.refresh(s.Session, token); a.status != http.StatusBadRequest {
			t.Errorf("refreshed with %s: %d %s", name, a.status, a.body)
		}
	}
	for _, nsid := range []string{mlsapi.NSIDCreateSession, mlsapi.NSIDEraseMyAccount} {
		body := encode(&mlsapi.CreateSessionInput{DeviceID: alice.deviceID()})
		w.under(w.server, s.Session, nsid, body).fails(http.StatusUnauthorized, "InvalidToken")
	}
	alice.post(mlsapi.NSIDRefreshSession,
		&mlsapi.RefreshSessionInput{RefreshToken: s.RefreshToken}).fails(http.StatusUnauthorized, "InvalidToken")
	w.exec(`UPDATE sessions SET ends_at = expires_at`)
	w.refresh(s.Session, s.RefreshToken).fails(http.StatusBadRequest, "InvalidRefreshToken")
}

// After the account's key has changed, nobody refreshes a session of the old one or buys another with
// a token that the old one has signed, although the server still takes such a token elsewhere.
func TestSessionsOfAReplacedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice := w.user()
	s, other := alice.session(), alice.session()
	stolen := &user{Identity: &authtest.Identity{DID: alice.did(), Key: alice.Key}, Device: alice.Device, w: w}
	alice.Key = authtest.K256(t)
	w.directory.Publish(alice.did(), alice.PublicKey(t))
	stolen.get(mlsapi.NSIDGetConvos).ok() // the key is trusted for an hour
	message := stolen.post(mlsapi.NSIDCreateSession,
		&mlsapi.CreateSessionInput{DeviceID: alice.deviceID()}).fails(http.StatusUnauthorized, "InvalidToken")
	if !strings.Contains(message, "replaced") {
		t.Errorf("the message is %q", message)
	}
	w.refresh(s.Session, s.RefreshToken).fails(http.StatusUnauthorized, "InvalidToken")
	w.under(w.server, s.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	mine := alice.session() // which ends those of the key before
	w.readSessions()
	w.under(w.server, other.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	w.under(w.server, mine.Session, mlsapi.NSIDGetConvos, nil).ok()
}

// Every method that names a device refuses another one than the session's. The methods come from the
// lexicons, so a new one is among them.
func TestSessionOfAnotherDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice := w.user()
	s, other, c := alice.session(), alice.device(), alice.create()
	tried := 0
	for _, method := range mlsapi.Methods() {
		kind, named := namesDevice(t, method.NSID)
		if !named || method.NSID == mlsapi.NSIDCreateSession || method.NSID == mlsapi.NSIDDeliverInvitation { // take none
			continue
		}
		tried++
		switch {
		case method.Kind == mlsapi.Subscription:
			w.handshake(method.NSID, query("deviceId", other.deviceID()), "Bearer "+s.Session).refusesDevice(method.NSID)
		case kind == "parameters":
			w.under(w.server, s.Session, method.NSID, nil, "deviceId", other.deviceID(), "convoId",
				c.id).refusesDevice(method.NSID)
		default:
			body := fmt.Sprintf(`{"deviceId": %q, "convoId": %q, "success": true, "kind": "webhook", "url": `+
				`"https://push.example.com/"}`, other.deviceID(), c.id)
			w.under(w.server, s.Session, method.NSID, []byte(body)).refusesDevice(method.NSID)
		}
	}
	if tried < 8 {
		t.Errorf("%d methods name a device", tried)
	}
	// Those that name one by an object.
	body, _ := other.KeyPackage(t)
	in := &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String()}
	w.under(w.server, s.Session, mlsapi.NSIDPublishKeyPackage, encode(in)).fails(http.StatusBadRequest,
		"InvalidKeyPackage")
	many := &mlsapi.PublishKeyPackagesInput{KeyPackages: []mlsapi.Item{{KeyPackage: body,
		CipherSuite: mlstest.Suite.String()}}}
	results := read[mlsapi.PublishKeyPackagesOutput](t,
		w.under(w.server, s.Session, mlsapi.NSIDPublishKeyPackages, encode(many)).ok()).Results
	if results[0].Status != "rejected" {
		t.Errorf("published for another device: %+v", results)
	}
	mine, _ := alice.KeyPackage(t)
	in.KeyPackage = mine
	w.under(w.server, s.Session, mlsapi.NSIDPublishKeyPackage, encode(in)).ok()
}

// A session does not let another device join a group: who has stolen it cannot add one of its own.
func TestSessionJoinsWithItsDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice, bob := w.user(), w.user()
	c := alice.knows(bob, nil)
	second := alice.device()
	proposal, ref := bob.Device.PublicProposal(t, c.info, 1, mlstest.SelfRemove())
	bob.post(mlsapi.NSIDSendMessage, bob.propose(c, proposal)).ok()
	in := &mlsapi.ProcessExternalCommitInput{
		ConvoID: c.id, IdempotencyKey: newKey(),
		Commit: second.Device.ExternalCommit(t, c.info, alice.Device, mlstest.ByReference(ref)),
	}
	w.under(w.server, alice.session().Session, mlsapi.NSIDProcessExternalCommit, encode(in)).fails(http.StatusForbidden,
		mlsapi.ErrNotPermitted)
	w.under(w.server, second.session().Session, mlsapi.NSIDProcessExternalCommit, encode(in)).ok()
}

// refusesDevice is fails for a request that names another device.
func (a answer) refusesDevice(nsid string) {
	a.t.Helper()
	if a.status != http.StatusForbidden || !bytes.Contains(a.body, []byte("another device")) {
		a.t.Errorf("%s: %d %s", nsid, a.status, a.body)
	}
}

// namesDevice reports whether a method has a field or a parameter deviceId, and where.
func namesDevice(t *testing.T, nsid string) (where string, ok bool) {
	t.Helper()
	type object struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var doc struct {
		Defs struct {
			Main struct {
				Parameters object `json:"parameters"`
				Input      struct {
					Schema object `json:"schema"`
				} `json:"input"`
			} `json:"main"`
		} `json:"defs"`
	}
	text, err := lexicons.Files.ReadFile(lexicons.Path(nsid))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if _, ok := doc.Defs.Main.Parameters.Properties["deviceId"]; ok {
		return "parameters", true
	}
	_, ok = doc.Defs.Main.Input.Schema.Properties["deviceId"]
	return "input", ok
}

// A stream takes a session in the place of a ticket, or a ticket that the session has bought. Each
// ends when the session does, with its error.
func TestStreamsOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	h, alice := w.pretend(), w.user()
	s := alice.session()
	ticket := read[mlsapi.GetSubscriptionTicketOutput](t,
		w.under(w.server, s.Session, mlsapi.NSIDGetSubscriptionTicket, []byte{}).ok())
	unused := read[mlsapi.GetSubscriptionTicketOutput](t,
		w.under(w.server, s.Session, mlsapi.NSIDGetSubscriptionTicket, []byte{}).ok())

	w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", ticket.Ticket, "deviceId", alice.device().deviceID()),
		"").refusesDevice("a ticket")
	sockets := []*socket{w.dial("Bearer "+s.Session, "deviceId", alice.deviceID()), w.dial("", "ticket", ticket.Ticket)}
	for _, k := range sockets {
		h.next(t).events <- welcomeEvent(7)
		k.wants(welcomeHeader(), welcomeBody(7))
	}
	r := alice.stream(nil, "Authorization", "Bearer "+s.Session)
	h.next(t)

	w.under(w.server, s.Session, mlsapi.NSIDDeleteSession, []byte("{}")).ok()
	w.readSessions()
	const ended = "session has ended: buy a new one with createSession"
	for _, k := range sockets {
		k.fails("InvalidToken", ended)
	}
	if e := r.event(); !strings.Contains(e.data, "InvalidToken: "+ended) {
		t.Errorf("the event stream got %+v", e)
	}
	w.counts(2, "mlsd_subscriptions_ended_total", "kind", "websocket", "reason", "session")
	w.dial("", "ticket", unused.Ticket).fails("InvalidTicket", "the ticket is not valid: it was used, is old, or "+
		"is no ticket; get a new one with getSubscriptionTicket")
}

// A stream does not outlast the bearer that opened it, refreshed or not.
func TestStreamEndsWithItsBearer(t *testing.T) {
	t.Parallel()
	var later time.Duration
	w := newWorld(t, timed(&later))
	h, alice := w.pretend(), w.user()
	s := alice.session()
	w.refresh(s.Session, s.RefreshToken).ok()
	later = s.ExpiresAt.Sub(w.clock()) - 100*time.Millisecond
	w.readSessions()
	r := alice.stream(nil, "Authorization", "Bearer "+s.Session)
	h.next(t)
	if e := r.event(); !strings.Contains(e.data, "InvalidToken: session has expired") {
		t.Errorf("the stream got %+v", e)
	}
}

// Not more than 50 sessions of an account are open. The oldest end.
func TestSessionsOfAnAccountAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, still())
	alice := w.user()
	first := alice.session()
	w.exec(`
		INSERT INTO sessions (id, did, device_id, account_key, key_version, signed_with, issued_at, expires_at, ends_at)
		SELECT gen_random_uuid(), did, device_id, account_key, key_version, signed_with, issued_at + n * interval '1 second',
			expires_at, ends_at
		FROM sessions, generate_series(1, 49) AS n`)
	w.under(w.server, first.Session, mlsapi.NSIDGetConvos, nil).ok()
	last := alice.session()
	w.readSessions()
	w.under(w.server, first.Session, mlsapi.NSIDGetConvos, nil).fails(http.StatusUnauthorized, "InvalidToken")
	w.under(w.server, last.Session, mlsapi.NSIDGetConvos, nil).ok()
	if n := w.count(`SELECT count(*) FROM sessions WHERE ended_version IS NULL`); n != 50 {
		t.Errorf("%d sessions are open", n)
	}
}

// A device's id is checked before anything is looked up.
func TestDeviceOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	for _, id := range []string{strings.ToUpper(alice.deviceID()), strings.Repeat("g", 64), alice.deviceID()[:63]} {
		alice.post(mlsapi.NSIDCreateSession, &mlsapi.CreateSessionInput{DeviceID: id}).fails(http.StatusBadRequest,
			"InvalidRequest")
	}
}
