package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
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

// disturb kills services. In the middle one of them is away for a while.
func (n *network) disturb(ctx, writing context.Context, victim int) {
	begun := time.Now()
	n.strike(ctx, writing, begun.Add(n.length/3))
	n.w.Progress(fmt.Sprintf("service %d is away", victim+1))
	Check(n.services[victim].Server.Kill())
	xrpc.Sleep(writing, min(awayFor, n.length/6))
	Check(n.services[victim].Server.Start(ctx, nil))
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
