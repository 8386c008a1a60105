// Package traffic lets many clients write to several servers and listen to them, at a rate or as
// fast as possible, while others make things fail. Then it judges the data of the servers. Messages
// and commits are fake objects, because fake objects are made faster. KeyPackages are real.
package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Options say what the clients do.
type Options struct {
	Writers, Listeners int // accounts
	Convos             int
	Steady             int  // convos whose rosters stay as they are
	MaxConvos          int  // no change makes more convos than this; 0 means no limit
	Stocks, Consenters int  // accounts whose KeyPackages are claimed, and accounts that change their consent
	Small              bool // no message is large
	// Roles is how many of ten changes of a convo that is not steady make or demote an admin. It is 0
	// if a write can be lost, or if a server does not know roles.
	Roles int
	// Rough makes a third of the attempts go to all nodes at once, and makes some clients hang up
	// early.
	Rough bool
	// Judged keeps what Judge needs: every request and every message.
	Judged bool
	// Listen sets how the i-th subscriber listens. It may be nil.
	Listen func(i int, s *client.Subscriber)
	// Answered gets each call with a key that a node has answered with success. It may be nil.
	Answered func(node int, call xrpc.Call)
	// Acked gets each acknowledged message instead of the history. It may be nil.
	Acked func(convo string, sent history.Sent)
}

// Traffic makes clients write and listen.
type Traffic struct {
	Model       *history.Model
	Subscribers *client.Subscribers
	Writers     []*xrpc.Account
	Listeners   []*Listener
	Sent        atomic.Int64 // acknowledged messages
	Changes     atomic.Int64 // changes of rosters and epochs
	RoleChanges atomic.Int64 // answers to requests for a change of a role
	LongestSend atomic.Int64 // in ns, with the retries

	o       Options
	w       *testbed.World
	cluster *testbed.Cluster
	calls   *caller

	epochs, welcomes, packages, consents *journal // nil if not judged

	stocks    []*stock
	consenter []*xrpc.Account

	mu      sync.RWMutex // guards convos and invited
	convos  []*Convo
	invited []invited

	abandonedMu sync.Mutex // guards abandoned
	abandoned   []pendingSend

	verified   atomic.Int64 // readings of logs that fitted signed heads
	operations atomic.Int64
}

// Listener is an account with one device, which listens to events and is added to convos.
type Listener struct {
	*xrpc.Account
	Device string
	pkg    mlsclient.KeyPackage // a last-resort KeyPackage
	ref    []byte
}

// stock is an account whose KeyPackages are claimed.
type stock struct {
	*xrpc.Account
	mu     sync.Mutex // guards device
	device mlsclient.Device
}

// New returns traffic without accounts.
func New(ctx context.Context, w *testbed.World, f *testbed.Cluster, o Options) *Traffic {
	model := history.NewModel()
	model.History = history.New()
	t := &Traffic{
		w: w, cluster: f, o: o, Model: model, Subscribers: client.NewSubscribers(ctx, w.RNG.Uint64()),
		calls: &caller{nodes: f.Clients, answered: o.Answered, rough: o.Rough, failures: map[string]int{}},
	}
	if !o.Judged {
		return t
	}
	t.calls.acknowledged, t.calls.keys = model.Acknowledged, newJournal("idempotency key", keyModel())
	t.epochs, t.welcomes = newJournal("epoch of convo", epochModel()), newJournal("Welcome", welcomeModel())
	if o.Stocks > 0 {
		t.packages = newJournal("KeyPackage", packageModel())
	}
	if o.Consenters > 0 {
		t.consents = newJournal("consent", registerModel())
	}
	return t
}

// journals returns the journals that are judged.
func (t *Traffic) journals() []*journal {
	all := []*journal{t.calls.keys, t.epochs, t.welcomes, t.packages, t.consents}
	return slices.DeleteFunc(all, func(j *journal) bool { return j == nil })
}

// Prepare makes the accounts and the convos. The listeners listen from then on.
func (t *Traffic) Prepare(ctx context.Context) (err error) {
	defer Catch(&err)
	t.w.Progress("making accounts")
	for _, list := range []struct {
		n  int
		to *[]*xrpc.Account
	}{{t.o.Writers, &t.Writers}, {t.o.Consenters, &t.consenter}} {
		for range list.n {
			account := Must(t.w.P256Account())
			*list.to = append(*list.to, account)
		}
	}
	for range t.o.Stocks {
		account := Must(t.w.P256Account())
		device := Must(mlsclient.NewDevice(account.DID.String(), t.w.Suite))
		t.stocks = append(t.stocks, &stock{Account: account, device: device})
	}
	for i := range t.o.Listeners {
		Check(t.addListener(ctx, i))
	}
	Check(t.Subscribers.Listen(t.Subscribers.All...))
	t.w.Progress("making convos")
	const lanes = 8
	seed := t.w.RNG.Uint64()
	Each(lanes, t.o.Convos, func(i int) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		Check(t.try(func() { t.create(ctx, rng, i < t.o.Steady) }))
	})
	return nil
}

// addListener makes an account with a device that can be added to any number of convos.
func (t *Traffic) addListener(ctx context.Context, i int) (err error) {
	defer Catch(&err)
	account := Must(t.w.P256Account())
	phone := Must(client.NewPhone("listener", account, t.w.Suite, t.cluster.Clients[0], t.Model))
	p := &Listener{Account: account, Device: phone.DeviceID()}
	p.pkg = Must(phone.Device.LastResort())
	p.ref = Must(mlsclient.PackageRef(p.pkg.Message))
	Must(t.calls.do(ctx, t.w.RNG, account, xrpc.PublishCall(p.pkg, t.w.Suite, xrpc.NewKey())))
	t.Listeners = append(t.Listeners, p)
	s := t.Subscribers.Add(fmt.Sprintf("subscriber-%d", i), p.Account, t.cluster.Clients, p.Device)
	s.From = new(int64) // from the first event of the new account
	if t.o.Listen != nil {
		t.o.Listen(i, s)
	}
	return nil
}

// operation is one kind of operation, and how often clients do it.
type operation struct {
	weight int
	do     func(context.Context, *rand.Rand)
}

func (t *Traffic) all() []operation {
	return []operation{
		{42, t.Send}, {5, t.clash}, {3, t.clashConsent}, {6, t.abandon}, {10, t.Change}, {8, t.race}, {18, t.welcome},
		{2, t.publish},
		{6, t.claim}, {5, t.setConsent}, {5, t.readConsent}, {6, t.readEpoch}, {3, t.verifyLog},
	}
}

// DoAll does operations of all kinds until loading ends. Each operation that has begun gets its
// verdict.
func (t *Traffic) DoAll(ctx, loading context.Context, lanes int) error {
	d := load.Driver{Lanes: lanes}
	return d.Try(loading, t.w.Seed, func(_ load.Request, rng *rand.Rand) error {
		defer t.operations.Add(1)
		return t.try(func() { t.pick(rng)(ctx, rng) })
	})
}

func (t *Traffic) pick(rng *rand.Rand) func(context.Context, *rand.Rand) {
	operations, total := t.all(), 0
	for _, o := range operations {
		total += o.weight
	}
	at := rng.IntN(total)
	for _, o := range operations {
		if at < o.weight {
			return o.do
		}
		at -= o.weight
	}
	panic("unreachable")
}

// maxInFlight is the largest number of unanswered messages at a given rate.
const maxInFlight = 512

// SendAll sends until writing ends. Each writer sends one message after the other. With a rate, all
// writers together start so many messages a second, whether or not earlier messages are answered.
func (t *Traffic) SendAll(ctx, writing context.Context, rate float64) error {
	d := load.Driver{Rate: rate, Lanes: len(t.Writers)}
	if rate > 0 {
		d.Lanes = max(d.Lanes, maxInFlight)
	}
	var behind sync.Once
	return d.Try(writing, t.w.Seed, func(r load.Request, rng *rand.Rand) error {
		if time.Since(r.Due) > time.Second {
			behind.Do(func() { t.w.Note("at %g a second the servers fell a second behind", rate) })
		}
		return t.try(func() { t.Send(ctx, rng) })
	})
}

// ChangeAll changes rosters and epochs, one after the other, until writing ends. pause is the
// average time between two changes.
func (t *Traffic) ChangeAll(ctx, writing context.Context, pause time.Duration) error {
	rng := rand.New(rand.NewPCG(t.w.Seed, 0x57112))
	for writing.Err() == nil {
		if err := t.try(func() { t.Change(ctx, rng) }); err != nil {
			return err
		}
		xrpc.Sleep(writing, time.Duration(rng.Int64N(int64(2*pause))))
	}
	return nil
}

// Resolve asks for the verdicts of abandoned messages.
func (t *Traffic) Resolve(ctx context.Context) error {
	for _, m := range t.abandoned {
		if err := t.try(func() { t.deliver(ctx, t.w.RNG, m) }); err != nil {
			return err
		}
	}
	return nil
}

// Await waits until every subscriber has all events, and reports the violations that it saw.
func (t *Traffic) Await(ctx context.Context) error {
	t.w.Progress("waiting until every subscriber has everything")
	return t.w.AwaitAndJudge(ctx, t.Subscribers, t.Model.History, xrpc.CallTimeout)
}

// Counts say what the clients did.
type Counts struct {
	Operations int64
	Attempts   int64          // requests, with repetitions
	Tripled    int64          // attempts that went to all nodes at once
	Unknown    int64          // requests without a verdict
	Failures   map[string]int // requests without a verdict, by the error's name
	Verified   int64          // readings of logs that fitted signed heads
	Refused    int64          // refused operations
}

// Counts returns what the clients have done. All operations must have ended.
func (t *Traffic) Counts() Counts {
	return Counts{
		Operations: t.operations.Load(), Attempts: t.calls.attempts.Load(), Tripled: t.calls.tripled.Load(),
		Unknown:  t.calls.unknown.Load(),
		Failures: t.calls.failures, Verified: t.verified.Load(), Refused: t.calls.refused.Load(),
	}
}

// Operations counts what was done so far.
func (t *Traffic) Operations() int64 { return t.operations.Load() }

// Convos returns the convos.
func (t *Traffic) Convos() []*Convo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.convos)
}

// Use makes the writers write to these convos only.
func (t *Traffic) Use(convos []*Convo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.convos = convos
}

// some picks a convo at random.
func (t *Traffic) some(rng *rand.Rand) *Convo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.convos[rng.IntN(len(t.convos))]
}

// try runs the steps of an operation. It reports a refusal that a correct server does not give. Any
// other error is returned.
func (t *Traffic) try(operation func()) error {
	err := Attempt(operation)
	if xrpc.ErrorName(err) == "" {
		return err
	}
	t.w.Broken("refused: %v", err)
	return nil
}

func Between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}
