package api_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/requests"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/limit/limittest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/internal/standby"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
	"mlsd/people/accounts"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

const service = "did:web:mls.example.com"

// world is a server on a database of its own. At the end of its test every promise is checked over
// the whole database.
type world struct {
	heads     *transparency.Service // of the newest node
	network   *network.Service      // of the newest node
	t         testing.TB
	db        *pgxpool.Pool
	faults    *failpoint.Set
	directory *authtest.Directory
	policy    welcome.Policy
	rates     api.Rates
	proxies   []netip.Prefix    // of the operator
	from      string            // address and port of the clients; "": those of httptest
	messages  *messages.Log     // of the node that was booted last
	store     attachments.Store // of the nodes; nil: one is made
	vapid     []byte            // the nodes' public key for Web Push
	noStore   bool
	retention time.Duration        // of attachments, for the sweeper
	lease     time.Duration        // of completions; 0: an hour
	sweeper   *attachments.Sweeper // of the node that was booted last
	deleted   func()               // is called after an attachment was deleted; nil: nothing is
	locks     string               // lock_timeout of the database sessions; "" is none
	logged    func(line string)    // gets each line of the log; nil: none
	faulty    bool                 // the test makes writes fail that no client can help
	tickets   *events.Tickets
	live      bool // events are sent
	hub       *events.Hub
	signals   api.Signaller // of the node that is booted next; nil: all is dropped
	address   string        // once the server listens on TCP
	deadline  time.Duration // of a request that comes over TCP, as of net/http; streams outlive it
	registry  *prometheus.Registry
	server    *api.Server
	ctx       context.Context // of the requests; nil is one that does not end
	served    *served
	recording bool // requests are recorded
	requests  *requests.Recorder
	limits    quota.Limits     // of the node that is booted next
	now       func() time.Time // the clock of quotas; nil: the real one
	quotas    *quota.Counter   // of the node that was booted last
	mode      accounts.Mode    // ""; the server has no gate
	gate      *accounts.Gate
	clock     func() time.Time  // of sessions; nil: the real one
	ownClock  bool              // the database's clock can be set (pgtest.NewClock)
	sessions  *sessions.Service // of the node that was booted last
	self      syntax.DID        // the service's DID
	services  network.Services  // of the node that is booted next; nil: there are no other services
	trust     *network.Trust    // of the node that is booted next; nil: all services
	keys      *network.Keys     // with which nodes sign for other services
	keyFile   string
	servers   *pgtest.Pair        // the database's, if it has a standby; else nil
	reads     *standby.Reads      // of the node that is booted next; nil: it reads from the primary
	operator  *reports.PrivateKey // of the node that is booted next; nil: it takes no reports
}

// served are the requests that a world's nodes have served.
type served struct {
	mu  sync.Mutex // guards all
	all []requests.Request
}

func (s *served) add(r requests.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r)
}

// take returns the requests since the last time.
func (s *served) take() []requests.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

func newWorld(t testing.TB, changes ...func(*world)) *world {
	t.Helper()
	w := &world{
		t: t, self: service, services: noServices{},
		faults: failpoint.New(), served: &served{}, directory: authtest.NewDirectory(t),
		policy: welcome.Policy{Grace: 5 * time.Minute, OnExpiry: welcome.Release}, deadline: time.Minute,
		rates: api.Rates{DID: api.Rate{PerSecond: 1e6, Burst: 1e6}, IP: api.Rate{PerSecond: 1e6, Burst: 1e6}},
	}
	key, err := reports.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	w.operator = &key
	for _, change := range changes {
		change(w)
	}
	if w.servers != nil {
		w.db = w.servers.Pool()
	} else {
		w.db = pgtest.Database(t, pgtest.MaxConns(16), func(cfg *pgxpool.Config) {
			if w.locks != "" {
				cfg.ConnConfig.RuntimeParams["lock_timeout"] = w.locks
			}
			if w.ownClock {
				pgtest.OwnClock(cfg)
			}
		})
	}
	w.tickets = events.NewTickets(w.db)
	w.server = w.boot()
	t.Cleanup(w.check)
	return w
}

// within is the world as one of its subtests sees it. What the subtest changes of it, such as the
// limits of the next node, is not changed for the others. They share the database, so a subtest
// that ages rows or counts those of all runs alone.
func (w *world) within(t testing.TB) *world {
	inner := *w
	inner.t = t
	return &inner
}

// check fails the test if a promise is broken.
func (w *world) check() {
	w.t.Helper()
	violations, err := invariants.Check(context.Background(), w.db)
	if err != nil {
		w.t.Errorf("check the promises: %v", err)
	}
	for _, v := range violations {
		w.t.Errorf("violated: %s", v)
	}
}

// boot returns a node on the world's database. A second one shares nothing else with the first.
func (w *world) boot() *api.Server {
	w.t.Helper()
	var server *api.Server
	limittest.Watch(w.t, func() []any { return []any{server} })
	log := slog.New(slog.NewTextHandler(testLog{w}, nil))
	auth, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(w.self), Directory: w.directory, Replays: serviceauth.NewUsedTokens(w.db),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.registry = prometheus.NewRegistry()
	metrics := api.NewMetrics(w.registry)
	hub, committed, stream := w.events()
	w.hub, w.messages = hub, messages.NewLog(w.db, 0, metrics, log, w.faults, stream)
	if w.now == nil {
		w.now = time.Now
	}
	options := []quota.Option{quota.WithClock(w.now), quota.OnUse(metrics.QuotaUsed)}
	gate := w.newGate()
	if gate != nil {
		options = append(options, quota.ScaledBy(gate.Percent))
	}
	w.quotas = quota.New(w.db, w.limits, log, options...)
	writes := idem.New(w.db, metrics, log, w.faults, idem.WithRetire(api.RetireKeys))
	heads := w.newHeads(log)
	if w.trust == nil {
		w.trust = new(must(network.ParseTrust("all"))(w))
	}
	if w.keys == nil {
		w.keyFile = filepath.Join(w.t.TempDir(), "service.key")
		w.keys = network.KeysAt(w.keyFile)
		must(w.keys.Sync(""))(w)
	}
	w.network = network.New(network.Config{DID: w.self, Services: w.services, Keys: w.keys, Trust: *w.trust,
		AllowLoopback: true})
	server, err = api.New(complete(api.Config{
		Attachments: w.newAttachments(writes, log), AttachmentDeleted: w.deleted,
		Heads:    heads,
		Network:  w.network,
		Signals:  w.signals,
		Quotas:   w.quotas,
		Gate:     gate,
		Erasures: erasure.NewStore(accounts.NewStore(0, convos.HandOver)),
		Answered: w.answered(log),
		Tickets:  w.tickets, Events: w.hub, Committed: committed,
		DB: w.db, Reads: w.reads, Auth: auth, Metrics: metrics, Log: log, Rates: w.rates,
		Push:       push.Policy{Webhooks: true, WebPush: w.vapid},
		Proxies:    w.proxies,
		ServiceDID: w.self,
		PublicURL:  "https://mls.example.com", Version: "test",
		Sessions: w.newSessions(log), ReportKey: w.reportKey(),
		Writes:   writes,
		Messages: w.messages,
		Cursors:  convos.NewCursors(w.db, w.faults, func(uuid.UUID, syntax.DID, convos.Cursor) {}),
		Welcomes: welcome.New(w.db, w.policy, metrics.WelcomeConfirmed, log, w.faults),
	}))
	if err != nil {
		w.t.Fatal(err)
	}
	server.ChargeNoTime() // on a busy machine every request is late
	return server
}

// reportKey is what reports are sealed to.
func (w *world) reportKey() *reports.PublicKey {
	if w.operator == nil {
		return nil
	}
	key := w.operator.Public()
	return &key
}

// answered returns what records the requests of a node, nil unless the world is recording.
func (w *world) answered(log *slog.Logger) func(requests.Request) {
	w.t.Helper()
	if !w.recording {
		return w.served.add
	}
	w.requests = requests.New(requests.Config{DB: w.db, Log: log, Node: "node-a:8080", Sample: 1, Keep: time.Hour})
	if err := w.requests.Load(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return func(r requests.Request) {
		w.served.add(r)
		w.requests.Add(r)
	}
}

// newHeads returns what signs heads of logs on a node.
func (w *world) newHeads(log *slog.Logger) *transparency.Service {
	w.t.Helper()
	heads, err := transparency.New(transparency.Config{
		DB: w.db, Service: w.self.String(), Log: log,
		Generation: events.Generation,
	})
	if err == nil {
		err = heads.Load(context.Background())
	}
	if err != nil && !pgpool.Unavailable(err) { // some tests have no database
		w.t.Fatal(err)
	}
	w.heads = heads
	return heads
}

// newSessions returns the sessions of a node, which reads changes when it is told.
func (w *world) newSessions(log *slog.Logger) *sessions.Service {
	w.t.Helper()
	w.sessions = sessions.New(sessions.Config{DB: w.db, Identities: w.directory, Log: log, Now: w.clock})
	// some tests have no database
	if err := w.sessions.Load(context.Background()); err != nil && !pgpool.Unavailable(err) {
		w.t.Fatal(err)
	}
	return w.sessions
}

// testLog writes the server's log into the test's. A defect that the server itself notices fails
// the test.
type testLog struct{ w *world }

func (l testLog) Write(p []byte) (int, error) {
	line := string(bytes.TrimSpace(p))
	l.w.t.Log(line)
	if l.w.logged != nil {
		l.w.logged(line)
	}
	if strings.Contains(line, "level=ERROR") && (!l.w.faulty || !expected.MatchString(line)) {
		l.w.t.Errorf("the server reports a defect: %s", line)
	}
	return len(p), nil
}

// expected matches the log lines that the server of a faulty world can write.
var expected = regexp.MustCompile(`request failed|a stream has ended|msg=panic|is left for another worker`)

// faulty allows errors in the server's log, for tests that make writes fail.
func faulty(w *world) { w.faulty = true }

// user is a person with one device.
type user struct {
	*authtest.Identity
	*mlstest.Device
	w *world
}

func (w *world) user() *user {
	w.t.Helper()
	id := authtest.NewIdentity(w.t)
	w.directory.Publish(id.DID, id.PublicKey(w.t))
	return &user{Identity: id, Device: mlstest.NewDevice(w.t, id.DID.String()), w: w}
}

// device is another device of the same person.
func (u *user) device() *user {
	u.w.t.Helper()
	return &user{Identity: u.Identity, Device: mlstest.NewDevice(u.w.t, u.Identity.DID.String()), w: u.w}
}

// on is the same person talking to another node.
func (u *user) on(node *api.Server) *user {
	w := *u.w
	w.server = node
	return &user{Identity: u.Identity, Device: u.Device, w: &w}
}

func (u *user) did() syntax.DID { return u.Identity.DID }

// answer is the server's answer.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// post calls a procedure with a fresh token, as every retry of a client does.
func (u *user) post(nsid string, in any, headers ...string) answer {
	u.w.t.Helper()
	return u.w.do(http.MethodPost, nsid, nil, encode(in), u.authorization(nsid), headers...)
}

// get calls a query; params are pairs of name and value.
func (u *user) get(nsid string, params ...string) answer {
	u.w.t.Helper()
	return u.w.do(http.MethodGet, nsid, query(params...), nil, u.authorization(nsid))
}

func query(params ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		q.Add(params[i], params[i+1])
	}
	return q
}

func (u *user) authorization(nsid string) string {
	return u.Authorization(u.w.t, u.w.self.String(), nsid, time.Now())
}

// do sends a request as it is. headers are pairs of name and value.
func (w *world) do(verb, nsid string, q url.Values, body []byte, authorization string, headers ...string) answer {
	w.t.Helper()
	return w.answer(w.server, w.request(verb, nsid, q, body, authorization, headers...))
}

func (w *world) request(verb, nsid string, q url.Values, body []byte, authorization string,
	headers ...string) *http.Request {
	r := httptest.NewRequest(verb, "/xrpc/"+nsid+"?"+q.Encode(), bytes.NewReader(body))
	r.RemoteAddr = cmp.Or(w.from, r.RemoteAddr)
	if verb == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// answer sends r to server.
func (w *world) answer(server http.Handler, r *http.Request) answer {
	if w.ctx != nil {
		r = r.WithContext(w.ctx)
	}
	rec := httptest.NewRecorder()
	server.ServeHTTP(rec, r)
	return answer{t: w.t, status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
}

// answerTo returns the server's answer to a request from an address.
func (w *world) answerTo(address string, r *http.Request) answer {
	r.RemoteAddr = address + ":1234"
	return w.answer(w.server, r)
}

// ok fails the test unless the answer is 200, and returns its body.
func (a answer) ok() []byte {
	a.t.Helper()
	if a.status != http.StatusOK {
		a.t.Fatalf("status %d: %s", a.status, a.body)
	}
	return a.body
}

// fails fails the test unless the answer is this error, and returns its message.
func (a answer) fails(status int, name string) string {
	a.t.Helper()
	var e struct{ Error, Message string }
	if err := json.Unmarshal(a.body, &e); err != nil || a.status != status || e.Error != name {
		a.t.Fatalf("status %d, body %s; want %d %s", a.status, a.body, status, name)
	}
	return e.Message
}

// replays fails the test unless the answer is the first one again, byte for byte and marked as
// such.
func (a answer) replays(first answer) {
	a.t.Helper()
	if a.status != first.status || !bytes.Equal(a.body, first.body) {
		a.t.Fatalf("the retry got %d %s; the first answer was %d %s", a.status, a.body, first.status, first.body)
	}
	if a.header.Get("X-Idempotency-Replay") != "true" {
		a.t.Fatal("the replay is not marked")
	}
}

// read decodes an answer.
func read[T any](t testing.TB, body []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return v
}

// text returns a pointer, for optional fields.
func text(s string) *string { return &s }

// encode returns a method's input as a client sends it.
func encode(in any) []byte {
	body, err := lexcodec.Marshal(in)
	if err != nil {
		panic(err)
	}
	return body
}

func newKey() *string { return text(uuid.Must(uuid.NewV7()).String()) }

func newGroup(t testing.TB) []byte {
	t.Helper()
	group := make([]byte, 16)
	if _, err := rand.Read(group); err != nil {
		t.Fatal(err)
	}
	return group
}

// publish makes one KeyPackage available.
func (u *user) publish(options ...mlstest.Option) mls.KeyPackageRef {
	u.w.t.Helper()
	body, ref := u.KeyPackage(u.w.t, options...)
	u.post(mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
		KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey(),
	}).ok()
	return ref
}

// claim claims one KeyPackage of each of the others.
func (u *user) claim(others ...*user) []mls.KeyPackageRef {
	u.w.t.Helper()
	var params []string
	for _, o := range others {
		params = append(params, "dids", o.did().String())
	}
	out := read[mlsapi.GetKeyPackagesOutput](u.w.t, u.get(mlsapi.NSIDGetKeyPackages, params...).ok())
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

// convo is a convo as the tests know it. epoch is that of its group.
type convo struct {
	id    string
	group []byte
	epoch int64
}

// creation is the input that announces a group with the others in it.
func (u *user) creation(group []byte, others ...*user) *mlsapi.CreateConvoInput {
	u.w.t.Helper()
	in := &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(group), CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey(),
	}
	if len(others) == 0 {
		return in
	}
	for _, o := range others {
		o.publish()
		in.InitialMembers = append(in.InitialMembers, o.did())
	}
	in.WelcomeMessage = mlstest.Welcome(u.w.t, u.claim(others...)...)
	return in
}

// create makes a convo with the others in it, at epoch 1, or alone at epoch 0.
func (u *user) create(others ...*user) *convo {
	u.w.t.Helper()
	group := newGroup(u.w.t)
	view := read[mlsapi.ConvoView](u.w.t, u.post(mlsapi.NSIDCreateConvo, u.creation(group, others...)).ok())
	return &convo{id: view.ID, group: group, epoch: view.Epoch}
}

// createWithInfo is create with a GroupInfo, which it returns.
func (u *user) createWithInfo(others ...*user) (*convo, []byte) {
	u.w.t.Helper()
	group := newGroup(u.w.t)
	in := u.creation(group, others...)
	in.GroupInfo = u.groupInfo(group, 1, others...)
	view := read[mlsapi.ConvoView](u.w.t, u.post(mlsapi.NSIDCreateConvo, in).ok())
	return &convo{id: view.ID, group: group, epoch: view.Epoch}, in.GroupInfo
}

// meets puts the others into a convo of u's, so that each shares a convo with u.
func (u *user) meets(others ...*user) {
	u.w.t.Helper()
	in := u.creation(newGroup(u.w.t))
	for _, o := range others {
		in.InitialMembers = append(in.InitialMembers, o.did())
	}
	u.post(mlsapi.NSIDCreateConvo, in).ok()
}

// addition is the input that adds the others with a commit made in the convo's epoch.
func (u *user) addition(c *convo, others ...*user) *mlsapi.AddMembersInput {
	u.w.t.Helper()
	in := &mlsapi.AddMembersInput{
		ConvoID: c.id, IdempotencyKey: newKey(),
		Commit: mlstest.Commit(c.group, c.epoch, "add by "+u.did().String()+*newKey()),
	}
	for _, o := range others {
		o.publish()
		in.DIDList = append(in.DIDList, o.did())
	}
	in.WelcomeMessage = mlstest.Welcome(u.w.t, u.claim(others...)...)
	return in
}

// add adds the others and advances c.
func (u *user) add(c *convo, others ...*user) {
	u.w.t.Helper()
	out := read[mlsapi.AddMembersOutput](u.w.t, u.post(mlsapi.NSIDAddMembers, u.addition(c, others...)).ok())
	c.epoch = out.NewEpoch
}

// remove removes other with a commit, and advances c.
func (u *user) remove(c *convo, other *user) {
	u.w.t.Helper()
	out := read[mlsapi.LeaveConvoOutput](u.w.t, u.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
		ConvoID: c.id, TargetDID: ptr(other.did()), IdempotencyKey: newKey(),
		Commit: mlstest.Commit(c.group, c.epoch, "remove "+other.did().String()),
	}).ok())
	c.epoch = out.NewEpoch
}

// groupInfo is a GroupInfo of the group with u and the others in it, signed by u.
func (u *user) groupInfo(group []byte, epoch int64, others ...*user) []byte {
	u.w.t.Helper()
	members := []*mlstest.Device{u.Device}
	for _, o := range others {
		members = append(members, o.Device)
	}
	return mlstest.GroupInfo(u.w.t, group, epoch, members...)
}

// message is the input that sends body in the convo's epoch.
func (u *user) message(c *convo, body string) *mlsapi.SendMessageInput {
	return &mlsapi.SendMessageInput{
		ConvoID: c.id, SenderDID: u.did(), Epoch: c.epoch, IdempotencyKey: newKey(),
		Ciphertext: mlstest.Message(c.group, c.epoch, body),
	}
}

func (u *user) send(c *convo, body string) mlsapi.SendMessageOutput {
	u.w.t.Helper()
	return read[mlsapi.SendMessageOutput](u.w.t, u.post(mlsapi.NSIDSendMessage, u.message(c, body)).ok())
}

// page reads the log from the start; params are pairs of name and value.
func (u *user) page(c *convo, params ...string) mlsapi.GetMessagesOutput {
	u.w.t.Helper()
	return read[mlsapi.GetMessagesOutput](u.w.t,
		u.get(mlsapi.NSIDGetMessages, append([]string{"convoId", c.id, "limit", "100"}, params...)...).ok())
}

// count runs a SELECT that returns one number.
func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// digest is a hash of everything that is stored, apart from used tokens, which every procedure
// stores.
func (w *world) digest() string {
	w.t.Helper()
	rows, err := w.db.Query(context.Background(), `
		SELECT relname || (xpath('//row/md5/text()', query_to_xml(format(
			'SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM %I t', relname), true, true, '')))::text
		FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'used_tokens'
		ORDER BY relname`)
	if err != nil {
		w.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(tables, "\n")
}

// exec changes the database directly.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// inCommit makes two calls: the first one has reached its COMMIT when the second one begins, and goes
// on when the second one waits for a lock. The answers are in the order in which they come.
func (w *world) inCommit(nsid string, first, second func() answer) []answer {
	w.t.Helper()
	failpointtest.Arm(w.t, w.faults, failpoint.BeforeCommit, nsid, failpoint.Pause)
	answers := make(chan answer, 2)
	go func() { answers <- first() }()
	<-w.faults.Reached(failpoint.BeforeCommit, nsid)
	go func() { answers <- second() }()
	for len(answers) == 0 && pgtest.LockWaits(w.t, w.db) == 0 {
	}
	w.faults.Resume(failpoint.BeforeCommit, nsid)
	return []answer{<-answers, <-answers}
}

// together makes n calls at the same moment.
func together(n int, call func(i int) answer) []answer {
	answers := make([]answer, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			answers[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	return answers
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
