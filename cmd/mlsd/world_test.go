package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/mls"
)

const serviceDID = "did:web:mls.example.com"

// world is the directory and the users. It stays when a server is killed.
type world struct {
	t             *testing.T
	plc           *plc
	client        *http.Client
	admin, public string  // of the current server
	booted        *server // by operated
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, plc: newPLC(t), client: http.DefaultClient}
}

// flags returns the flags of a server of this world.
func (w *world) flags(more ...string) []string {
	return append([]string{"--service-did", serviceDID, "--plc-url", w.plc.URL}, more...)
}

// use sends requests to a server from now on.
func (w *world) use(admin, public string) { w.admin, w.public = admin, public }

// wantSound fails the test if the database violates a promise. After a restore, the stream's
// generation is that of this database only once a node leads.
func (w *world) wantSound() {
	w.t.Helper()
	before := ""
	await.Until(w.t, "every promise is kept", func() bool {
		_, got := fetch(w.t, w.admin+"/check")
		if got != before {
			w.t.Logf("/check: %s", got)
		}
		before = got
		return got == "[]\n"
	})
}

// user is a user with one device.
type user struct {
	*authtest.Identity
	*mlstest.Device
	w     *world
	asked <-chan struct{} // closed when the server looks the user up
}

func (w *world) user() *user {
	w.t.Helper()
	id := authtest.NewIdentity(w.t)
	return &user{
		Identity: id, Device: mlstest.NewDevice(w.t, id.DID.String()), w: w, asked: w.plc.publish(w.t, id),
	}
}

func (u *user) did() syntax.DID { return u.Identity.DID }

// answer is the server's answer.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// request is a request of a user. Every attempt has a new token, as a client's has.
type request struct {
	u    *user
	verb string
	nsid string
	q    url.Values
	body []byte

	header http.Header // further headers; nil: none
}

func (u *user) procedure(nsid string, in any) request {
	return request{u: u, verb: http.MethodPost, nsid: nsid, body: encode(in)}
}

// query makes the request of a query. params are names, each followed by its value.
func (u *user) query(nsid string, params ...string) request {
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		q.Add(params[i], params[i+1])
	}
	return request{u: u, verb: http.MethodGet, nsid: nsid, q: q}
}

// send makes one attempt. An error is one of the connection.
func (r request) send() (answer, error) { return r.sendBody(bytes.NewReader(r.body)) }

func (r request) sendBody(body io.Reader) (answer, error) {
	a := answer{t: r.u.w.t}
	req, err := http.NewRequest(r.verb, r.u.w.public+"/xrpc/"+r.nsid+"?"+r.q.Encode(), body)
	if err != nil {
		return a, err
	}
	maps.Copy(req.Header, r.header)
	req.Header.Set("Authorization", r.u.Authorization(a.t, serviceDID, r.nsid, time.Now()))
	if r.verb == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.u.w.client.Do(req)
	if err != nil {
		return a, err
	}
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(resp.Body)
	return a, errors.Join(err, resp.Body.Close())
}

// must makes an attempt that gets an answer.
func (r request) must() answer {
	r.u.w.t.Helper()
	a, err := r.send()
	if err != nil {
		r.u.w.t.Fatalf("%s: %v", r.nsid, err)
	}
	return a
}

// ok fails the test unless the answer is 200, and returns its body.
func (a answer) ok() []byte {
	a.t.Helper()
	if a.status != http.StatusOK {
		a.t.Fatalf("status %d: %s", a.status, a.body)
	}
	return a.body
}

// fails fails the test unless the answer is this error.
func (a answer) fails(status int, name string) {
	a.t.Helper()
	if e := read[struct{ Error string }](a.t, a.body); a.status != status || e.Error != name {
		a.t.Fatalf("status %d, body %s; want %d %s", a.status, a.body, status, name)
	}
}

// replayed reports whether the answer is marked as a replay.
func (a answer) replayed() bool { return a.header.Get("X-Idempotency-Replay") == "true" }

// read decodes an answer.
func read[T any](t testing.TB, body []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return v
}

// encode returns a method's input as a client sends it.
func encode(in any) []byte {
	body, err := lexcodec.Marshal(in)
	if err != nil {
		panic(err)
	}
	return body
}

func newKey() *string {
	key := uuid.Must(uuid.NewV7()).String()
	return &key
}

// publication is a request that publishes a new KeyPackage.
func (u *user) publication() request {
	u.w.t.Helper()
	body, _ := u.KeyPackage(u.w.t)
	return u.procedure(mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
		KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey(),
	})
}

// claim claims one KeyPackage of each other user that has one.
func (u *user) claim(others ...*user) []mls.KeyPackageRef {
	u.w.t.Helper()
	var params []string
	for _, o := range others {
		params = append(params, "dids", o.did().String())
	}
	out := read[mlsapi.GetKeyPackagesOutput](u.w.t, u.query(mlsapi.NSIDGetKeyPackages, params...).must().ok())
	refs := make([]mls.KeyPackageRef, len(out.KeyPackages))
	for i, k := range out.KeyPackages {
		ref, err := hex.DecodeString(*k.KeyPackageRef)
		if err != nil {
			u.w.t.Fatal(err)
		}
		refs[i] = ref
	}
	return refs
}

// welcomeFor publishes and claims KeyPackages of the other users, and makes a Welcome for them.
func (u *user) welcomeFor(others ...*user) lexcodec.Base64 {
	u.w.t.Helper()
	for _, o := range others {
		o.publication().must().ok()
	}
	return mlstest.Welcome(u.w.t, u.claim(others...)...)
}

// convo is a convo and the current epoch of its group.
type convo struct {
	id    string
	group []byte
	epoch int64
}

// creation is a request that creates a convo with the other users.
func (u *user) creation(others ...*user) (request, []byte) {
	u.w.t.Helper()
	group := []byte(rand.Text())
	in := &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(group), CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey(),
		WelcomeMessage: u.welcomeFor(others...),
	}
	for _, o := range others {
		in.InitialMembers = append(in.InitialMembers, o.did())
	}
	return u.procedure(mlsapi.NSIDCreateConvo, in), group
}

// create creates a convo with the other users.
func (u *user) create(others ...*user) *convo {
	u.w.t.Helper()
	r, group := u.creation(others...)
	view := read[mlsapi.ConvoView](u.w.t, r.must().ok())
	return &convo{id: view.ID, group: group, epoch: view.Epoch}
}

// addition is a request that adds the other users, with a commit of the convo's epoch.
func (u *user) addition(c *convo, others ...*user) request {
	u.w.t.Helper()
	in := &mlsapi.AddMembersInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: mlstest.Commit(c.group, c.epoch, rand.Text()),
		WelcomeMessage: u.welcomeFor(others...),
	}
	for _, o := range others {
		in.DIDList = append(in.DIDList, o.did())
	}
	return u.procedure(mlsapi.NSIDAddMembers, in)
}

// message is the input that sends body in the convo's epoch.
func (u *user) message(c *convo, body string) *mlsapi.SendMessageInput {
	return &mlsapi.SendMessageInput{
		ConvoID: c.id, SenderDID: u.did(), Epoch: c.epoch, IdempotencyKey: newKey(),
		Ciphertext: mlstest.Message(c.group, c.epoch, body),
	}
}

// stream opens a stream of the user's events: from now on, unless a parameter says something else.
func (u *user) stream(params ...string) *bufio.Reader {
	u.w.t.Helper()
	r, err := http.NewRequestWithContext(u.w.t.Context(), http.MethodGet, u.w.public+"/xrpc/"+
		mlsapi.NSIDStreamConvoEvents+"?"+u.query("", params...).q.Encode(), nil)
	if err != nil {
		u.w.t.Fatal(err)
	}
	r.Header.Set("Authorization", u.Authorization(u.w.t, serviceDID, mlsapi.NSIDStreamConvoEvents, time.Now()))
	stream, err := http.DefaultClient.Do(r)
	if err != nil || stream.StatusCode != http.StatusOK {
		u.w.t.Fatalf("%v, %v", stream, err)
	}
	u.w.t.Cleanup(func() { _ = stream.Body.Close() })
	return bufio.NewReader(stream.Body)
}

// awaitMessage reads a stream up to an event of a message.
func awaitMessage(t *testing.T, stream *bufio.Reader) {
	t.Helper()
	awaitLine(t, stream, "messageEvent")
}

// awaitLine reads a stream up to a line that has a text.
func awaitLine(t *testing.T, stream *bufio.Reader, text string) {
	t.Helper()
	for line := ""; !strings.Contains(line, text); {
		var err error
		if line, err = stream.ReadString('\n'); err != nil {
			t.Fatalf("a stream ended: %v", err)
		}
	}
}

// log reads a convo's whole log, page by page, and fails the test unless seq is 1, 2, 3 ….
func (u *user) log(c *convo) []mlsapi.MessageView {
	u.w.t.Helper()
	var log []mlsapi.MessageView
	for {
		page := read[mlsapi.GetMessagesOutput](u.w.t, u.query(mlsapi.NSIDGetMessages,
			"convoId", c.id, "limit", "100", "messageType", "all", "sinceSeq", strconv.Itoa(len(log))).must().ok())
		for _, m := range page.Messages {
			if log = append(log, m); m.Seq != int64(len(log)) {
				u.w.t.Fatalf("seq %d at place %d of the log", m.Seq, len(log))
			}
		}
		if len(page.Messages) == 0 {
			return log
		}
	}
}

// members returns the DIDs of a convo's roster as one text.
func (u *user) members(c *convo) string {
	u.w.t.Helper()
	out := read[mlsapi.GetConvoOutput](u.w.t, u.query(mlsapi.NSIDGetConvo, "convoId", c.id).must().ok())
	var dids []string
	for _, m := range out.Convo.Members {
		dids = append(dids, m.DID.String())
	}
	return strings.Join(dids, " ")
}
