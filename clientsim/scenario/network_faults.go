package scenario

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// networkStrikes are where services are killed: around the COMMIT of each write on the way of an
// invitation, and in the work of who delivers it.
var networkStrikes = []struct {
	point  string
	method syntax.NSID
}{
	{testbed.BeforeCommit, mlsapi.NSIDGetKeyPackages}, {testbed.AfterCommit, mlsapi.NSIDGetKeyPackages},
	{testbed.BeforeCommit, mlsapi.NSIDCreateConvo}, {testbed.AfterCommit, mlsapi.NSIDCreateConvo},
	{testbed.BeforeCommit, mlsapi.NSIDAddMembers}, {testbed.AfterCommit, mlsapi.NSIDAddMembers},
	{testbed.BeforeReserve, testbed.NSIDInvitation}, {testbed.AfterReserve, testbed.NSIDInvitation},
	{testbed.AfterWork, testbed.NSIDInvitation},
	{testbed.BeforeCommit, mlsapi.NSIDDeliverInvitation}, {testbed.AfterCommit, mlsapi.NSIDDeliverInvitation},
	{testbed.BeforeCommit, mlsapi.NSIDAcceptInvitation}, {testbed.AfterCommit, mlsapi.NSIDAcceptInvitation},
	{testbed.AfterCommit, mlsapi.NSIDConfirmWelcome}, {testbed.AfterCommit, mlsapi.NSIDSendMessage},
}

const (
	strikeWithin = 3 * time.Second // a service that has not come to the point is killed where it is
	longestAway  = 2 * time.Second // of those that are killed
	awayFor      = time.Minute     // of the one that is away for longer
)

// disturb kills services. In the middle it leaves them alone for a while, and then one of them is away
// for as long.
func (n *network) disturb(ctx, writing context.Context) {
	window, begun := min(awayFor, n.length/6), time.Now()
	n.strike(ctx, writing, begun.Add(n.length/4))
	n.times.measure(calm, func() { xrpc.Sleep(writing, window) })
	victim := n.services[n.times.victim].Server
	n.w.Progress(fmt.Sprintf("service %d is away", n.times.victim+1))
	Check(victim.Kill())
	n.times.measure(away, func() { xrpc.Sleep(writing, window) })
	Check(victim.Start(ctx, nil))
	n.strike(ctx, writing, begun.Add(n.length))
}

// strike kills one service after the other until the time.
func (n *network) strike(ctx, writing context.Context, until time.Time) {
	for {
		xrpc.Sleep(writing, time.Duration(n.w.RNG.Int64N(int64(max(n.length/30, time.Second/2)))))
		if !time.Now().Before(until) || writing.Err() != nil {
			return
		}
		s, at := n.services[n.w.RNG.IntN(len(n.services))].Server, networkStrikes[n.w.RNG.IntN(len(networkStrikes))]
		gone := time.Duration(n.w.RNG.Int64N(int64(longestAway)))
		n.w.Progress(fmt.Sprintf("a service is killed %s of %s", at.point, at.method))
		Check(s.Arm(ctx, at.point, at.method, "kill"))
		// The error says that nobody has come there.
		_ = xrpc.Until(ctx, strikeWithin, func() (bool, error) { return s.Exited() != nil, nil })
		Check(s.Kill())
		n.mu.Lock()
		n.kills++
		n.mu.Unlock()
		xrpc.Sleep(ctx, gone)
		Check(s.Start(ctx, nil))
	}
}

// The windows in which requests are measured.
const (
	calm = "all three are there"
	away = "one is away"
)

// networkTimes measures the services beside the one that will be away.
type networkTimes struct {
	victim  int
	window  atomic.Pointer[string] // nil: none
	bounds  map[string][2]time.Time
	counter *load.Counter
}

func newNetworkTimes(victim int) *networkTimes {
	return &networkTimes{victim: victim, bounds: map[string][2]time.Time{}, counter: load.NewCounter()}
}

// measure counts what happens during play.
func (t *networkTimes) measure(window string, play func()) {
	begun := time.Now()
	t.window.Store(&window)
	play()
	t.window.Store(nil)
	t.bounds[window] = [2]time.Time{begun, time.Now()}
}

// transport measures a service's answers.
func (t *networkTimes) transport(service int, wire http.RoundTripper) http.RoundTripper {
	if service == t.victim {
		return wire
	}
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		window, begun := t.window.Load(), time.Now()
		resp, err := wire.RoundTrip(req)
		if _, call := xrpc.CallInfoFrom(req.Context()); !call || window == nil {
			return resp, err
		}
		if err != nil || resp.StatusCode >= http.StatusInternalServerError {
			t.counter.Fail(*window, "no answer", fmt.Sprint(err))
		} else {
			t.counter.Done(*window, time.Since(begun))
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// note adds to the report what the services did beside the one that was away.
func (t *networkTimes) note(n *network, sent []testbed.Invitation) {
	gone := n.services[t.victim].DID
	for _, window := range []string{calm, away} {
		bounds, delivered := t.bounds[window], load.NewLatency()
		for _, i := range sent {
			if from := n.services[n.where[i.ConvoID]].DID; from != gone && i.Other != gone &&
				i.From.After(bounds[0]) && i.From.Before(bounds[1]) {
				delivered.Record(i.To.Sub(i.From))
			}
		}
		op := t.counter.Operations()[window]
		if op == nil {
			continue
		}
		n.w.Note("two services for %s while %s: %d requests, %s; %d without an answer; invitations between them: %s",
			bounds[1].Sub(bounds[0]).Round(time.Second), window, op.Done, op.Latency, op.Failures(), delivered)
	}
}
