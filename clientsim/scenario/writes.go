package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// writeFault is what goes wrong with every kind of write in one scenario.
type writeFault struct {
	name, about string
	control     bool // see Scenario
	// deliver delivers a draft in spite of the fault, and checks that the write was done once.
	deliver func(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft)
	// join fetches and confirms a Welcome. nil means that nothing goes wrong.
	join func(ctx context.Context, w *testbed.World, p *client.Phone, convo string)
	// read reports a place in the log as read.
	read func(ctx context.Context, w *testbed.World, p *client.Phone, convo string, back int64)
}

// writeFaults lists the faults. Each fault is a scenario.
func writeFaults() []writeFault {
	return []writeFault{
		{
			name: "lost-answer", about: "the answer to every kind of write is lost after the COMMIT",
			deliver: lostAnswer, join: lostAnswersOfJoin, read: lostAnswerOfCursor,
		},
		{
			name:    "lost-answer-app-killed",
			about:   "the answer to every kind of write is lost, and the app dies before it asks again",
			deliver: appKilled, join: appKilledAtJoin,
		},
		{
			name:    "twice-at-once",
			about:   "every write arrives twice at the same time, and a message a hundred times",
			deliver: twice,
		},
		killedAt("killed-before-commit", testbed.BeforeCommit,
			"the server is killed before COMMIT, restarted, and asked again"),
		killedAt("killed-after-commit", testbed.AfterCommit,
			"the server is killed between COMMIT and the answer, restarted, and asked again"),
	}
}

func (f writeFault) scenario() Scenario {
	return Scenario{Name: f.name, About: f.about, Control: f.control, Run: f.everyWrite}
}

// everyWrite makes every kind of write with a key, and the calls that bring a phone into a convo.
func (f writeFault) everyWrite(ctx context.Context, w *testbed.World) {
	f.publishes(ctx, w)
	phones := Must(w.Phones(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	packages := Must(alice.Claim(ctx, "", testbed.DIDs(phones[1:2])))
	f.deliver(ctx, w, alice, Must(alice.DraftCreate(testbed.DIDs(phones[1:2]), packages)))
	var convo string
	for convo = range alice.Threads { // it has one
	}
	f.joins(ctx, w, bob, convo)
	f.deliver(ctx, w, bob, Must(bob.DraftSend(convo, "sent once, I hope")))
	Check(bob.Sync(ctx, convo))
	packages = Must(bob.Claim(ctx, convo, testbed.DIDs(phones[2:])))
	f.deliver(ctx, w, bob, Must(bob.DraftAdd(convo, testbed.DIDs(phones[2:]), packages)))
	f.joins(ctx, w, carol, convo)
	Check(w.SyncAll(ctx, convo, phones...))
	f.deliver(ctx, w, carol, Must(carol.DraftCommit(convo, mlsclient.Change{})))
	for _, keepKey := range []bool{true, false} {
		Check(carol.LoseState(keepKey))
		info := Must(carol.GroupInfo(ctx, convo))
		f.deliver(ctx, w, carol, Must(carol.DraftRejoin(convo, info)))
	}
	Check(w.SyncAll(ctx, convo, phones...))
	for _, back := range []int64{1, 0, 2, 0} { // an older place never moves the cursor back
		f.reads(ctx, w, bob, convo, back)
	}
	f.deliver(ctx, w, bob, Must(bob.DraftLeave(convo)))
	f.deliver(ctx, w, alice, Must(alice.DraftRemove(convo, bob.Account.DID)))
	Check(w.SyncAll(ctx, convo, alice, carol))
	Check(carol.Send(ctx, convo, "everything has happened once"))
	Check(w.SyncAll(ctx, convo, alice))
}

// publishes publishes KeyPackages, alone and in one request. Each KeyPackage can be claimed once.
func (f writeFault) publishes(ctx context.Context, w *testbed.World) {
	p, claimer := Must(w.Phone("publisher")), Must(w.Phone("claimer"))
	f.deliver(ctx, w, p, Must(p.DraftPublish()))
	kp := Must(p.Device.KeyPackage())
	f.deliver(ctx, w, p, Must(p.DraftPublishMany([]mlsclient.KeyPackage{kp})))
	const published = 2
	if stats := Must(p.Stats(ctx)); stats.Available != published {
		w.Broken("%d KeyPackages are available, and %d were published", stats.Available, published)
	}
	for range published {
		Must(claimer.Claim(ctx, "", testbed.DIDs([]*client.Phone{p})))
	}
	_, err := claimer.Claim(ctx, "", testbed.DIDs([]*client.Phone{p}))
	if !errors.Is(err, client.ErrNoPackages) {
		w.Report(history.Violation{Kind: history.Duplicated, What: fmt.Sprintf("a KeyPackage was claimed again: %v", err)})
	}
}

func (f writeFault) joins(ctx context.Context, w *testbed.World, p *client.Phone, convo string) {
	if f.join == nil {
		Check(p.Join(ctx, convo))
		return
	}
	f.join(ctx, w, p, convo)
}

func (f writeFault) reads(ctx context.Context, w *testbed.World, p *client.Phone, convo string, back int64) {
	if f.read == nil {
		Check(p.MarkReadBehind(ctx, convo, back))
		return
	}
	f.read(ctx, w, p, convo, back)
}

// lostAnswer loses the first answer. The second answer is a replay of the first.
func lostAnswer(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) {
	Must(w.DeliverWithLostAnswer(ctx, p, d))
}

// lostAnswersOfJoin loses the first answers to getWelcome and confirmWelcome.
func lostAnswersOfJoin(ctx context.Context, w *testbed.World, p *client.Phone, convo string) {
	var second *mlsapi.GetWelcomeOutput
	Check(w.WithLostAnswer("getWelcome", func() (err error) {
		second, err = p.FetchWelcome(ctx, convo)
		return err
	}))
	w.CheckSameWelcome(second, Must(p.FetchWelcome(ctx, convo)))
	Check(w.WithLostAnswer("confirmWelcome", func() error { return p.Join(ctx, convo) }))
	w.CheckConsumed(ctx, p, convo)
}

func lostAnswerOfCursor(ctx context.Context, w *testbed.World, p *client.Phone, convo string, back int64) {
	Check(w.WithLostAnswer("updateCursor", func() error { return p.MarkReadBehind(ctx, convo, back) }))
}

// appKilled loses the answer and kills the app. The app asks again with the bytes and key from its
// disk.
func appKilled(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) {
	Check(w.DeliverAfterKill(ctx, p, d))
}

// appKilledAtJoin kills the app before the fetched Welcome is on its disk, and again after that.
func appKilledAtJoin(ctx context.Context, w *testbed.World, p *client.Phone, convo string) {
	first := Must(p.FetchWelcome(ctx, convo))
	p.Kill()
	Check(p.Launch())
	second := Must(p.FetchWelcome(ctx, convo))
	w.CheckSameWelcome(first, second)
	Check(p.SaveWelcome(second))
	p.Kill()
	Check(p.Launch())
	Check(p.FinishJoin(ctx, convo))
	w.CheckConsumed(ctx, p, convo)
}

// twice delivers a draft twice at the same time, and a message a hundred times.
func twice(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) {
	times := 2
	if d.Call.Method.String() == mlsapi.NSIDSendMessage {
		times = 100
	}
	answers := Must(w.AtOnce(ctx, p, d.Call, times))
	w.CheckOneOriginal(d.Call.Method.String(), answers)
	Check(p.Acknowledge(ctx, d, answers[0]))
}

// killedAt kills the server at a point of each write. Before the COMMIT, nothing of the write may
// remain, and the retry is a first write. After the COMMIT, everything must remain, and the retry
// is a replay of an answer that no client got.
func killedAt(name, point, about string) writeFault {
	return writeFault{
		name: name, about: about, control: true,
		deliver: func(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) {
			dieOf(ctx, w, point, p, d.Call)
			answer, err := p.Deliver(ctx, d)
			Check(errs.Wrap(err, "%s after a kill %s", d.Call.Method, point))
			if want := point == testbed.AfterCommit; answer.Replayed() != want {
				w.Broken("%s retried after a kill %s: replay is %t, want %t", d.Call.Method, point, answer.Replayed(), want)
			}
		},
		join: func(ctx context.Context, w *testbed.World, p *client.Phone, convo string) {
			killedAtJoin(ctx, w, point, p, convo)
		},
	}
}

// dieOf arms the failpoint, makes the call, and starts the server again.
func dieOf(ctx context.Context, w *testbed.World, point string, p *client.Phone, call xrpc.Call) {
	w.Progress(fmt.Sprintf("killing the server %s of %s", point, call.Method))
	Check(w.Server.Arm(ctx, point, call.Method, "kill"))
	answer, err := w.Net.Once(ctx, p.Account, call)
	if err == nil {
		Fail("%s was answered %q by a server that was to be dead", call.Method, answer.Body)
	}
	var named *xrpc.CallError
	if errors.As(err, &named) {
		Fail("a server that was to be dead: %w", err)
	}
	Check(w.Server.Died())
	Check(w.Server.Start(ctx, nil))
}

// killedAtJoin kills the server at the fetch and at the confirmation of a Welcome.
func killedAtJoin(ctx context.Context, w *testbed.World, point string, p *client.Phone, convo string) {
	dieOf(ctx, w, point, p, xrpc.WelcomeCall(convo, ""))
	out := Must(p.FetchWelcome(ctx, convo))
	Check(p.SaveWelcome(out))
	Check(p.JoinSaved(convo))
	dieOf(ctx, w, point, p, xrpc.ConfirmCall(convo, *out.KeyPackageRef, true, ""))
	if point == testbed.BeforeCommit {
		again, err := p.FetchWelcome(ctx, convo)
		Check(errs.Wrap(err, "a confirmation that never happened took the Welcome away"))
		w.CheckSameWelcome(out, again)
	} else {
		w.CheckConsumed(ctx, p, convo)
	}
	Check(p.Confirm(ctx, convo))
	w.CheckConsumed(ctx, p, convo)
	Check(p.Sync(ctx, convo))
}

// writeTimes knows when nodes acknowledged writes, and the longest time without one.
type writeTimes struct {
	mu    sync.Mutex  // guards the fields below
	last  []time.Time // last write, by node
	first []time.Time // first write since reset after from, by node
	from  time.Time   // the time that await waits for
	gap   time.Duration
}

func newWriteTimes(nodes int) *writeTimes {
	return &writeTimes{last: make([]time.Time, nodes), first: make([]time.Time, nodes)}
}

// answered records an acknowledged write.
func (t *writeTimes) answered(node int, call xrpc.Call) {
	if call.Key == "" {
		return
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	last := slices.MaxFunc(t.last, time.Time.Compare)
	if !last.IsZero() {
		t.gap = max(t.gap, now.Sub(last))
	}
	t.last[node] = now
	if !t.from.IsZero() && t.first[node].IsZero() && now.After(t.from) {
		t.first[node] = now
	}
}

// reset forgets the longest time.
func (t *writeTimes) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gap = 0
}

// longest returns the longest time without an acknowledged write since reset.
func (t *writeTimes) longest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gap
}

// awaitNone waits until no write was acknowledged for some time.
func (t *writeTimes) awaitNone(ctx context.Context, still, limit time.Duration) error {
	return xrpc.Until(ctx, limit, func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return time.Since(slices.MaxFunc(t.last, time.Time.Compare)) > still, nil
	})
}

// await waits until each node has acknowledged a write after a moment.
func (t *writeTimes) await(ctx context.Context, from time.Time, limit time.Duration) error {
	t.mu.Lock()
	t.from = from
	clear(t.first)
	t.mu.Unlock()
	return xrpc.Until(ctx, limit, func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return !slices.ContainsFunc(t.first, time.Time.IsZero), nil
	})
}
