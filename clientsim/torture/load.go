package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	driver "mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The size of the load.
const (
	writerCount   = 8
	listenerCount = 9
	stockCount    = 4
	consentCount  = 3
	convoCount    = 24
	steadyConvos  = 8 // of them; their rosters stay as they are
	lanes         = 24
)

// load makes clients do everything at once. Messages and commits are fake objects, because they are
// made faster than real ones. KeyPackages are real.
type load struct {
	w           *testbed.World
	cluster     *testbed.Cluster
	calls       *caller
	model       *history.Model
	subscribers *client.Subscribers

	epochs, welcomes, packages, consents *journal

	writers   []*xrpc.Account
	listeners []*listener
	stocks    []*stock
	consenter []*xrpc.Account

	mu      sync.RWMutex // guards convos and invited
	convos  []*convo
	invited []invited

	abandonedMu sync.Mutex // guards abandoned
	abandoned   []pendingSend

	verified   atomic.Int64 // readings of logs that fitted signed heads
	operations atomic.Int64
}

// listener is an account with one device, which listens to events and is added to convos.
type listener struct {
	*xrpc.Account
	device string
	pkg    mlsclient.KeyPackage // last-resort
	ref    []byte
}

// stock is an account whose KeyPackages are claimed.
type stock struct {
	*xrpc.Account
	mu     sync.Mutex // guards device
	device mlsclient.Device
}

// convo is a convo with two writers and some listeners.
type convo struct {
	id      string
	group   []byte
	writers []*xrpc.Account // the first is the creator
	steady  bool            // its roster does not change
	log     *client.LogReader

	// mu is write-locked for a change of the epoch or the roster. Senders lock it for reading, so
	// that it is known who must see a message. In a steady convo they do not lock it.
	mu                  sync.RWMutex
	epoch               atomic.Uint64
	members, nonMembers []*listener
}

// pendingSend is a message whose sender did not wait for an answer.
type pendingSend struct {
	to   *convo
	from *xrpc.Account
	sent history.Sent
	call xrpc.Call
	// clashes is set if another message has the same idempotency key.
	clashes bool
}

func newLoad(ctx context.Context, w *testbed.World, f *testbed.Cluster) *load {
	model := history.NewModel()
	model.History = history.New()
	return &load{
		w: w, cluster: f, model: model, subscribers: client.NewSubscribers(ctx, w.RNG.Uint64()),
		calls:  &caller{nodes: f.Clients, keys: newJournal("idempotency key", keyModel()), acknowledged: model.Acknowledged, failures: map[string]int{}},
		epochs: newJournal("epoch of convo", epochModel()), welcomes: newJournal("Welcome", welcomeModel()),
		packages: newJournal("KeyPackage", packageModel()), consents: newJournal("consent", registerModel()),
	}
}

// journals are all journals.
func (l *load) journals() []*journal {
	return []*journal{l.calls.keys, l.epochs, l.welcomes, l.packages, l.consents}
}

// prepare makes the accounts and convos, before any fault.
func (l *load) prepare(ctx context.Context, length time.Duration) error {
	l.w.Progress("making accounts")
	for _, list := range []struct {
		n  int
		to *[]*xrpc.Account
	}{{writerCount, &l.writers}, {consentCount, &l.consenter}} {
		for range list.n {
			account, err := l.w.P256Account()
			if err != nil {
				return err
			}
			*list.to = append(*list.to, account)
		}
	}
	for range stockCount {
		account, err := l.w.P256Account()
		if err != nil {
			return err
		}
		device, err := mlsclient.NewDevice(account.DID.String(), l.w.Suite)
		if err != nil {
			return err
		}
		l.stocks = append(l.stocks, &stock{Account: account, device: device})
	}
	for i := range listenerCount {
		if err := l.addListener(ctx, i, length); err != nil {
			return err
		}
	}
	if err := l.subscribers.Listen(l.subscribers.All...); err != nil {
		return err
	}
	l.w.Progress("making convos")
	for i := range convoCount {
		if err := l.create(ctx, l.w.RNG, i < steadyConvos); err != nil {
			return err
		}
	}
	return nil
}

// addListener makes a listener. Some read server-sent events, and all reconnect now and then.
func (l *load) addListener(ctx context.Context, i int, length time.Duration) error {
	account, err := l.w.P256Account()
	if err != nil {
		return err
	}
	phone, err := client.NewPhone("listener", account, l.w.Suite, l.cluster.Clients[0], l.model)
	if err != nil {
		return err
	}
	p := &listener{Account: account, device: phone.DeviceID()}
	if p.pkg, err = phone.Device.LastResort(); err != nil {
		return err
	}
	if p.ref, err = mlsclient.PackageRef(p.pkg.Message); err != nil {
		return err
	}
	if _, err := l.calls.do(ctx, l.w.RNG, account, xrpc.PublishCall(p.pkg, l.w.Suite, xrpc.NewKey())); err != nil {
		return err
	}
	l.listeners = append(l.listeners, p)
	s := l.subscribers.Add(fmt.Sprintf("subscriber-%d", i), account, l.cluster.Clients, p.device)
	s.From = new(int64) // the account is new: this is everything that there ever was for it
	s.ConnectionLife = length / 3
	s.ServerSent = i%3 == 2
	return nil
}

// operation is one kind of what clients do, and how often.
type operation struct {
	weight int
	do     func(context.Context, *rand.Rand) error
}

func (l *load) all() []operation {
	return []operation{
		{42, l.send}, {5, l.clash}, {3, l.clashConsent}, {6, l.abandon}, {10, l.change}, {8, l.race}, {18, l.welcome}, {2, l.publish}, {6, l.claim}, {5, l.setConsent},
		{5, l.readConsent}, {6, l.readEpoch}, {3, l.verifyLog},
	}
}

// run does operations until loading ends. Each operation that has begun gets its verdict.
func (l *load) run(ctx, loading context.Context) error {
	d := driver.Driver{Lanes: lanes}
	return d.Try(loading, l.w.Seed, func(_ driver.Request, rng *rand.Rand) error {
		defer l.operations.Add(1)
		return l.pick(rng)(ctx, rng)
	})
}

func (l *load) pick(rng *rand.Rand) func(context.Context, *rand.Rand) error {
	operations, total := l.all(), 0
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

// some picks a convo at random.
func (l *load) some(rng *rand.Rand) *convo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.convos[rng.IntN(len(l.convos))]
}

// unexpected reports a refusal that a correct server does not give. Any other error is returned.
func (l *load) unexpected(err error) error {
	if xrpc.ErrorName(err) == "" {
		return err
	}
	l.w.Broken("refused: %v", err)
	return nil
}
