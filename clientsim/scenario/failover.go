package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// failoverLimit bounds one failover, including the return of the old primary.
const failoverLimit = time.Minute

// Failover makes the primary of two servers crash or hang under load, again and again. Its
// synchronous standby is promoted, and the old primary comes back as the standby.
func Failover(ctx context.Context, w *testbed.World) {
	w.WithPair(ctx, true, func(f *testbed.Cluster, pair *testbed.Pair) {
		promoted := func(name string, fault func() error) outage {
			return outage{name: name, begin: func(ctx context.Context) (end func(context.Context)) {
				Check(errors.Join(fault(), pair.Promote(ctx)))
				return func(ctx context.Context) { Check(pair.Rejoin(ctx)) }
			}}
		}
		playOutages(ctx, w, f, newWriteTimes(len(f.Nodes)), failoverLimit, orDefault(w.Failovers, failoversUsual),
			promoted("primary crashed", pair.Crash), promoted("primary hung", pair.Freeze))
	})
}

// FailoverAsync promotes a standby that has not received the newest writes, so these writes are
// lost. The server tells every subscriber that has seen a lost event, and no other subscriber. All
// subscribers see the later events.
func FailoverAsync(ctx context.Context, w *testbed.World) {
	w.Calm = true // only messages are lost
	w.WithPair(ctx, false, func(f *testbed.Cluster, pair *testbed.Pair) {
		for i := range orDefault(w.Failovers, 1) {
			r := &lossRun{pair: pair, seen: map[string]*seenEvents{}}
			r.liveRun = newLiveRun(ctx, w, f, traffic.Options{Acked: r.sent, Listen: r.observe})
			err := Attempt(func() { r.play(ctx) })
			if err = errors.Join(err, r.Subscribers.Stop()); err != nil {
				Fail("failover %d: %w", i+1, err)
			}
			Check(errs.Wrap(pair.Rejoin(ctx), "failover %d", i+1))
		}
		w.CheckNodes(ctx, f)
	})
}

// lossRun is one failover of FailoverAsync, with accounts and convos of its own.
type lossRun struct {
	*liveRun
	pair *testbed.Pair
	seen map[string]*seenEvents // by subscriber

	mu   sync.Mutex // guards acks
	acks []sentMessage
}

// sentMessage is an acknowledged message.
type sentMessage struct {
	convo  string
	seq    int64
	digest history.EntryDigest
	at     time.Time
}

// seenEvents is what a subscriber saw, by the generations of the stream. Only the subscriber writes
// to its seenEvents. Others read them after the subscriber has ended.
type seenEvents struct {
	last map[int64]int64 // the last place of each generation, until the server tells of the loss
	told bool
}

func (r *lossRun) sent(convo string, m history.Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks = append(r.acks, sentMessage{convo, m.Seq, m.Entry(), time.Now()})
}

func (r *lossRun) play(ctx context.Context) {
	Check(r.Prepare(ctx))
	promoted := Must(r.lose(ctx))
	lost := Must(r.countLost(ctx, promoted))
	id, after := Must2(r.pair.Generation(ctx))
	Check(r.Await(ctx))
	told := r.judgeTold(id, after)
	r.w.Note("%d of %d acknowledged messages were lost; %d of %d subscribers had seen lost events and were told", lost,
		len(r.acks), told, len(r.seen))
}

// lose lets clients write, cuts the standby off, lets clients write to some of the convos, and
// makes the primary crash. The standby is promoted, and the writers go on.
func (r *lossRun) lose(ctx context.Context) (promoted time.Time, err error) {
	writing, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.SendAll(ctx, writing, float64(r.w.Rate)) }()
	xrpc.Sleep(ctx, time.Second)
	everything := r.Convos()
	r.Use(everything[:len(everything)/10]) // the subscribers of the other convos lose nothing
	xrpc.Sleep(ctx, time.Second)           // until all messages to the other convos are answered
	err = errors.Join(r.pair.AwaitStandby(ctx), r.pair.CutOff(ctx))
	xrpc.Sleep(ctx, time.Second)
	err = errors.Join(err, r.pair.Crash(), r.pair.Promote(ctx))
	promoted = time.Now()
	r.Use(everything)
	xrpc.Sleep(ctx, failoverLoad)
	stop()
	return promoted, errors.Join(err, <-done)
}

// observe records what a subscriber sees, and whether it is told of a loss.
func (r *lossRun) observe(_ int, s *client.Subscriber) {
	seen := &seenEvents{last: map[int64]int64{}}
	r.seen[s.Name] = seen
	s.ReadAgain = true
	s.OnOutdated = func() { seen.told = true }
	s.OnEvent = func(h *xrpc.Event, _ time.Time, _ bool) {
		generation, place, err := readPosition(h.Position)
		if err != nil {
			r.w.Broken("%s: %v", s.Name, err)
		} else if !seen.told { // after that, it gets everything again
			seen.last[generation] = place
		}
	}
}

// readPosition reads a position such as 1k.0:1042.
func readPosition(text string) (generation, place int64, err error) {
	id, rest, ok := strings.Cut(text, ".0:")
	generation, idErr := strconv.ParseInt(id, 36, 64)
	place, placeErr := strconv.ParseInt(rest, 10, 64)
	if !ok || idErr != nil || placeErr != nil {
		return 0, 0, fmt.Errorf("%q is no position", text)
	}
	return generation, place, nil
}

// countLost reads all logs, counts the acknowledged messages that are missing, and records the
// other messages in the history. Only messages that were acknowledged before the promotion may be
// lost.
func (r *lossRun) countLost(ctx context.Context, promoted time.Time) (lost int, err error) {
	defer Catch(&err)
	logs := map[string][]history.EntryDigest{}
	for _, c := range r.Convos() {
		view := Must(r.w.ViewBy(ctx, r.cluster.Clients[0], "the creator", c.Creator, c.ID))
		for i := range view.Log { // nobody commits
			m := &view.Log[i]
			logs[c.ID] = append(logs[c.ID],
				history.DigestEntry(false, m.ID, m.Sender.String(), m.Epoch, history.DigestOf(m.Ciphertext)))
		}
	}
	known := 0
	for _, m := range r.acks {
		log := logs[m.convo]
		switch {
		case m.seq <= int64(len(log)) && log[m.seq-1] == m.digest:
			known++
			if r.Model.History.Entry(m.convo, m.seq, m.digest) {
				return 0, fmt.Errorf("convo %s: two messages at seq %d", m.convo, m.seq)
			}
		case m.at.After(promoted):
			r.w.Broken("convo %s: the message at seq %d was acknowledged after the failover, and is lost", m.convo, m.seq)
		default:
			lost++
		}
	}
	stored := 0
	for _, log := range logs {
		stored += len(log)
	}
	if stored != known {
		r.w.Broken("the logs have %d messages, and %d of them were acknowledged", stored, known)
	}
	if lost == 0 {
		r.w.Broken("the scenario itself: nothing was lost")
	}
	return lost, nil
}

// judgeTold checks who was told of the loss. The generation with this id begins after a place. An
// event of an earlier generation behind that place is lost.
func (r *lossRun) judgeTold(id, after int64) (told int) {
	for name, seen := range r.seen {
		sawLost := false
		for generation, place := range seen.last {
			sawLost = sawLost || generation < id && place > after
		}
		if sawLost != seen.told {
			r.w.Broken("%s has seen lost events: %t, and was told so: %t", name, sawLost, seen.told)
		}
		if seen.told {
			told++
		}
	}
	if told == 0 || told == len(r.seen) {
		r.w.Broken("the scenario itself: %d of %d subscribers were told", told, len(r.seen))
	}
	return told
}
