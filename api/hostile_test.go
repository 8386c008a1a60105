package api_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/lexgen/examples"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
)

// internals matches texts that no answer must contain.
var internals = regexp.MustCompile(`(?i)sqlstate|pgx|postgres|panic|runtime|goroutine|\.go\b|mlsapi|0x[0-9a-f]{6}|` +
	`\bselect\b|\binsert\b|constraint|%!|<nil>|\*[a-z]+\.|idempotency_keys`)

// hostile calls one method with any requests.
type hostile struct {
	t      *testing.T
	w      *world
	by     *user
	method mlsapi.Method
	query  string // the token of a query can be used again, which saves time
}

// newHostileWorld makes a world whose streams end before they begin.
func newHostileWorld(t *testing.T) *world {
	w := newWorld(t)
	w.pretend().refuses = events.ErrFutureCursor
	return w
}

func (w *world) hostile(t *testing.T, method mlsapi.Method) *hostile {
	w = w.within(t)
	id := authtest.NewP256Identity(t) // the faster signature
	w.directory.Publish(id.DID, id.PublicKey(t))
	by := &user{Identity: id, Device: mlstest.NewDevice(t, id.DID.String()), w: w}
	return &hostile{t: t, w: w, by: by, method: method, query: by.authorization(method.NSID)}
}

func (h *hostile) send(q url.Values, body []byte) answer {
	if h.method.Kind == mlsapi.Subscription {
		return h.dial(q)
	}
	if h.method.Kind == mlsapi.Query {
		return h.w.do(http.MethodGet, h.method.NSID, q, nil, h.query)
	}
	return h.w.do(http.MethodPost, h.method.NSID, q, body, h.by.authorization(h.method.NSID))
}

// dial opens a WebSocket, by the ticket if there is one. The answer is that to the handshake.
func (h *hostile) dial(q url.Values) answer {
	authorization := h.query
	if q.Has("ticket") {
		authorization = ""
	}
	return h.w.handshake(h.method.NSID, q, authorization)
}

// slowest is the longest time for an answer to a hostile request, on a machine that is busy with others.
const slowest = 20 * time.Second

// judge fails the test unless the method can give this answer. It returns the error's name and
// message.
func (h *hostile) judge(what string, q url.Values, body []byte) (status int, name, message string) {
	h.t.Helper()
	begun := time.Now()
	a := h.send(q, body)
	if took := time.Since(begun); took > slowest {
		h.t.Errorf("%s: the answer took %s", what, took)
	}
	if a.status == http.StatusSwitchingProtocols {
		return a.status, "", ""
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		h.t.Errorf("%s: Content-Type is %q", what, got)
	}
	if a.status == http.StatusOK {
		return a.status, "", ""
	}
	var e struct { // and what some say to those who call directly
		Error, Message, FirstUsedAt, KeyExpiresAt, FirstRequestHash, RequestHash, ProcessingStartedAt string
		Fields                                                                                        []string
		CurrentEpoch, Seq                                                                             int64
	}
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		h.t.Errorf("%s: the body of the %d is %.300q", what, a.status, a.body)
	}
	name, message = e.Error, e.Message
	if !slices.Contains(h.method.Errors, name) && !api.EveryMethod(name) {
		h.t.Errorf("%s: the error %q is not declared", what, name)
	}
	if a.status < 400 || a.status >= 500 {
		h.t.Errorf("%s: status %d %s", what, a.status, a.body)
	}
	if message == "" || len(message) > 300 || internals.MatchString(message) {
		h.t.Errorf("%s: the message is %.400q", what, message)
	}
	return a.status, name, message
}

// Every rule of every lexicon is broken, one at a time. The answer comes in time, is an error that
// the method declares, and names the field.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	w := newHostileWorld(t)
	for _, method := range mlsapi.Methods() {
		t.Run(method.NSID, func(t *testing.T) {
			h := w.hostile(t, method)
			before := h.w.digest()
			for _, c := range examples.Invalid(method.NSID) {
				status, _, message := h.judge(c.Name, c.Query, c.Body)
				if status == http.StatusOK || status == http.StatusSwitchingProtocols {
					t.Errorf("%s: accepted", c.Name)
				}
				field, _, _ := strings.Cut(c.Field, "[")
				field, _, _ = strings.Cut(field, ".")
				if c.Rule != "syntax" && status != http.StatusRequestEntityTooLarge && !strings.Contains(message, field) {
					t.Errorf("%s: the message %q does not name %s", c.Name, message, field)
				}
				for _, values := range c.Query {
					for _, v := range values {
						if len(v) > 12 && strings.Contains(message, v) {
							t.Errorf("%s: the message %q repeats a value", c.Name, message)
						}
					}
				}
			}
			if h.w.digest() != before {
				t.Error("a refused request has left something behind")
			}
			for _, c := range examples.Valid(method.NSID) { // valid by the lexicon
				if _, name, message := h.judge(c.Name, c.Query, c.Body); name == "InvalidRequest" {
					t.Errorf("%s: refused with %q", c.Name, message)
				}
			}
		})
	}
}

// Random bytes, and valid requests with a few changed bits or bytes, from a fixed seed.
func TestHostileNoise(t *testing.T) {
	t.Parallel()
	w := newHostileWorld(t)
	for _, method := range mlsapi.Methods() {
		t.Run(method.NSID, func(t *testing.T) {
			h := w.hostile(t, method)
			random := rand.New(rand.NewPCG(1, 2))
			valid := examples.Valid(method.NSID)
			for i := range 15 {
				noise := make([]byte, random.IntN(300))
				for j := range noise {
					noise[j] = byte(random.Uint32())
				}
				if !method.HasInput {
					h.judge("noise", url.Values{string(noise): {"x"}, "convoId": {string(noise)}, "dids": {string(noise)},
						"limit": {string(noise)}, "cursor": {string(noise)}}, nil)
					continue
				}
				h.judge("noise", nil, noise)
				body := bytes.Clone(valid[i%len(valid)].Body)
				for range 1 + random.IntN(3) {
					body[random.IntN(len(body))] ^= 1 << random.IntN(8)
				}
				h.judge("bits", nil, body)
				h.judge("cut", nil, body[:random.IntN(len(body))])
			}
		})
	}
}

// Large and deep bodies are refused before they cost anything.
func TestHostileSize(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	w := newHostileWorld(t)
	for _, method := range mlsapi.Methods() {
		if !method.HasInput {
			continue
		}
		t.Run(method.NSID, func(t *testing.T) {
			h := w.hostile(t, method)
			for name, body := range map[string][]byte{
				"deep":        bytes.Repeat([]byte("["), 5<<20),
				"deep objs":   bytes.Repeat([]byte(`{"a":`), 1<<20),
				"white space": bytes.Repeat([]byte(" "), 5<<20),
				"digits":      append([]byte(`{"epoch":`), bytes.Repeat([]byte("9"), 5<<20)...),
				"one string":  append([]byte(`{"convoId":"`), bytes.Repeat([]byte("a"), 5<<20)...),
				"escapes":     append([]byte(`{"convoId":"`), bytes.Repeat([]byte(`\u0041`), 1<<20-1)...),
			} {
				want := map[string]int{"InvalidRequest": 400, "PayloadTooLarge": 413}
				if status, got, _ := h.judge(name, nil, body); want[got] != status || status == 0 {
					t.Errorf("%s: %d %s", name, status, got)
				}
			}
		})
	}
	t.Run("query", func(t *testing.T) {
		h := w.hostile(t, method(mlsapi.NSIDGetKeyPackages))
		many := url.Values{}
		for range 50_000 {
			many.Add("dids", h.by.did().String())
		}
		if _, name, _ := h.judge("many", many, nil); name != mlsapi.ErrTooManyDids && name != "InvalidRequest" {
			t.Errorf("50,000 DIDs are answered with %s", name)
		}
		if _, name, _ := h.judge("long", url.Values{"dids": {"did:web:" + strings.Repeat("a", 1<<20)}},
			nil); name != mlsapi.ErrInvalidDid {
			t.Errorf("a DID of 1 MiB is answered with %s", name)
		}
		h.judge("long value", url.Values{"dids": {h.by.did().String()}, "x": {strings.Repeat("%", 1<<20)}}, nil)
		r := h.w.request(http.MethodGet, h.method.NSID, nil, nil, h.query)
		r.URL.RawQuery = "dids=%zz&dids=" + h.by.did().String() + ";limit=%"
		if a := h.w.answer(h.w.server, r); a.status >= 500 {
			t.Errorf("a malformed query is answered with %d %s", a.status, a.body)
		}
	})
}

// MLS objects that are well-formed as JSON and random bytes as MLS.
func TestHostileObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	before := w.count(`SELECT count(*) FROM messages`)
	random := rand.New(rand.NewPCG(3, 4))
	good := [][]byte{
		mlstest.Commit(c.group, c.epoch, "x"), mlstest.Message(c.group, c.epoch, "x"), alice.groupInfo(c.group, 2, bob),
		mlstest.Welcome(t, make([]byte, 32)), func() []byte { kp, _ := alice.KeyPackage(t); return kp }(),
	}
	for i := range 30 {
		object := bytes.Clone(good[i%len(good)])
		switch i % 3 {
		case 0:
			object = object[:random.IntN(len(object))]
		case 1: // the frame and what follows it, not the encrypted bytes
			object[random.IntN(min(len(object), 8))] ^= 1 << random.IntN(8)
		case 2:
			object = append(object, byte(i))
		}
		for _, a := range []answer{
			alice.post(mlsapi.NSIDAddMembers,
				&mlsapi.AddMembersInput{ConvoID: c.id, DIDList: []syntax.DID{"did:web:new.example"},
					Commit: object, WelcomeMessage: object, GroupInfo: object}),
			alice.post(mlsapi.NSIDCreateConvo, func() *mlsapi.CreateConvoInput {
				in := alice.creation(newGroup(t))
				in.GroupInfo = object
				return in
			}()),
			alice.post(mlsapi.NSIDPublishKeyPackage,
				&mlsapi.PublishKeyPackageInput{KeyPackage: object, CipherSuite: mlstest.Suite.String()}),
			alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: object}),
		} {
			if a.status < 400 || a.status >= 500 || internals.Match(a.body) {
				t.Fatalf("object %d is answered with %d %s", i, a.status, a.body)
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM messages`); n != before {
		t.Fatalf("%d entries were written", n-before)
	}
}

func method(nsid string) mlsapi.Method {
	methods := mlsapi.Methods()
	return methods[slices.IndexFunc(methods, func(m mlsapi.Method) bool { return m.NSID == nsid })]
}
