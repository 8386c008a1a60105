package scenario

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How Network plays.
const (
	networkServices = 3
	networkPeople   = 60
	networkRate     = 20 // steps of people a second
	networkStock    = 10 // KeyPackages of a person at the beginning
	networkMembers  = 8  // most members of a convo
	networkConvos   = 4  // most convos that a person makes
	linkFaults      = 0.2
	clientFaults    = 0.1
	// networkPatience is longer than the absence of a service.
	networkPatience = 3 * time.Minute
	// networkDrain bounds how long everything takes to arrive after the last fault.
	networkDrain = 3 * time.Minute
)

// Network spreads people over three services with databases of their own. People look each other's
// home up, claim there with receipts, make convos, and add members at their own service and at
// others. They get the invitation at home, answer it, and then read and write at the service of the
// convo. Packets of all links are lost, late or doubled, apps and services are killed, and one
// service is away for a while.
//
// Every service gets the usual checks. In addition, each invitation is seen once, and each
// KeyPackage is in one group. Nobody sees a convo whose maker they have blocked at home. This
// holds for a claim before the block and for a claim after it.
func Network(ctx context.Context, w *testbed.World) {
	n := &network{w: w, length: orDefault(w.For, liveFor), where: map[string]int{}, pairs: map[[2]syntax.DID]bool{},
		probe: testbed.FastTransport()}
	w.WithServices(ctx, networkServices, unlimited(ctx, w), func(all []*testbed.Service) {
		n.services = all
		n.settle(ctx)
		n.play(ctx)
		n.finish(ctx)
		n.judge(ctx)
	})
}

// network is one run of Network.
type network struct {
	w        *testbed.World
	services []*testbed.Service
	streams  []*client.Subscribers // the subscribers of each service's people
	people   []*resident
	length   time.Duration
	probe    *http.Transport

	mu      sync.Mutex // guards the fields below
	where   map[string]int
	pairs   map[[2]syntax.DID]bool // who has invited whom; true if the invited person has then blocked the other
	invited []invited
	claims  int
	held    int // claims at homes where a block was in force
	late    int // commits that added somebody whom another member had already added
	kills   int
}

// invited is one acknowledged Welcome for a device of another service.
type invited struct {
	who     *resident
	ref     string
	at      int // the service of the convo
	convo   string
	blocked bool // blocked between the claim and the Welcome
}

// resident is a person with one device.
type resident struct {
	*client.Phone                 // the phone at home
	at            []*client.Phone // the phone at each service
	home          int
	rng           *rand.Rand
	made          int // convos that the person has made
	said          int
	declined      map[string]bool // convos that the person has declined

	mu    sync.Mutex   // guards heard
	heard []xrpc.Event // Welcomes and invitations that are not answered yet
}

// settle makes the people. They listen at their homes.
func (n *network) settle(ctx context.Context) {
	for i, s := range n.services {
		s.Model.History = history.New()
		s.Net.Limit = networkPatience
		n.streams = append(n.streams, client.NewSubscribers(ctx, n.w.Seed+uint64(i)))
	}
	for i := range orDefault(n.w.People, networkPeople) {
		home := i % len(n.services)
		p := &resident{home: home, rng: rand.New(rand.NewPCG(n.w.Seed, uint64(i))), declined: map[string]bool{}}
		p.Phone = Must(n.services[home].Settle(fmt.Sprintf("person-%d", i)))
		for at, s := range n.services {
			there := p.Phone
			if at != home {
				there = s.Visit(p.Phone)
			}
			p.at = append(p.at, there)
		}
		Check(p.PublishMany(ctx, networkStock, false))
		listens := n.streams[home].Add(p.Name, p.Account, []*xrpc.Client{p.Net}, p.DeviceID())
		listens.From, listens.ServerSent = new(int64), i%10 == 0
		listens.ConnectionLife, listens.OnEvent = max(n.length/5, time.Second), p.hear
		n.people = append(n.people, p)
	}
	for _, s := range n.streams {
		Check(s.Listen(s.All...))
	}
}

// hear records the invitations to a person.
func (p *resident) hear(h *xrpc.Event, _ time.Time, _ bool) {
	if h.Kind != xrpc.EventWelcome && h.Kind != xrpc.EventInvitation {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, *h)
}

// play lets everybody act while everything fails.
func (n *network) play(ctx context.Context) {
	writing, stop := context.WithTimeout(ctx, n.length)
	defer stop()
	for i, s := range n.services {
		s.Faults.Use(testbed.NewRandomFaults(n.w.Seed+uint64(i), clientFaults))
		s.Link.Use(testbed.NewRandomFaults(n.w.Seed+uint64(100+i), linkFaults))
	}
	pause := time.Duration(float64(time.Second) * float64(len(n.people)) / float64(orDefault(n.w.Rate, networkRate)))
	var all sync.WaitGroup
	for _, p := range n.people {
		all.Go(func() {
			for writing.Err() == nil {
				xrpc.Sleep(writing, time.Duration(p.rng.Int64N(int64(2*pause))))
				if err := Attempt(func() { n.step(ctx, p) }); err != nil {
					n.w.Broken("%s: %v", p.Name, err)
					return
				}
			}
		})
	}
	failed := Attempt(func() { n.disturb(ctx, writing, n.w.RNG.IntN(len(n.services))) })
	all.Wait()
	for _, s := range n.services {
		s.Faults.Use(nil)
		s.Link.Use(nil)
	}
	Check(failed)
}

// step does the next thing that a person does.
func (n *network) step(ctx context.Context, p *resident) {
	switch roll := p.rng.IntN(20); {
	case roll < 3:
		n.invite(ctx, p)
	case roll < 7:
		n.answer(ctx, p)
	case roll == 7:
		if at, convo, ok := n.pick(ctx, p); ok {
			Check(at.Rotate(ctx, convo))
		}
	case roll == 8:
		if n.there(ctx, p.home) {
			Check(p.Publish(ctx, 3))
		}
	case roll == 9: // the app is killed and starts again
		p.Kill()
		Check(p.Launch())
	default:
		if at, convo, ok := n.pick(ctx, p); ok {
			p.said++
			Check(at.Send(ctx, convo, fmt.Sprintf("%s says %d", p.Name, p.said)))
			Check(at.Sync(ctx, convo))
		}
	}
}

// there reports whether a service answers. If it does not, a client tries another time.
func (n *network) there(ctx context.Context, service int) bool {
	s := running{base: n.services[service].Net.Base, transport: n.probe}
	status, _, err := s.get(ctx, "/xrpc/_health")
	return err == nil && status == http.StatusOK
}

// pick returns a convo of the person at a service that answers.
func (n *network) pick(ctx context.Context, p *resident) (at *client.Phone, convo string, ok bool) {
	convos := slices.Sorted(maps.Keys(p.Threads))
	if len(convos) == 0 {
		return nil, "", false
	}
	convo = convos[p.rng.IntN(len(convos))]
	service := n.serviceOf(convo)
	return p.at[service], convo, n.there(ctx, service)
}

func (n *network) serviceOf(convo string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if service, ok := n.where[convo]; ok {
		return service
	}
	return -1
}

// networkStrikes are the points where services are killed: around the COMMIT of each write on the
// way of an invitation, and in the work that delivers the invitation.
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
	strikeWithin = 3 * time.Second // a service that has not reached the point by then is killed where it is
	longestAway  = 2 * time.Second // of a service that was killed
	awayFor      = time.Minute     // of the service that is away for longer
)

// disturb kills services. In the middle of the run, one of them is away for a while.
func (n *network) disturb(ctx, writing context.Context, victim int) {
	begun := time.Now()
	n.strike(ctx, writing, begun.Add(n.length/3))
	n.w.Progress(fmt.Sprintf("service %d is away", victim+1))
	Check(n.services[victim].Server.Kill())
	xrpc.Sleep(writing, min(awayFor, n.length/6))
	Check(n.services[victim].Server.Start(ctx, nil))
	n.strike(ctx, writing, begun.Add(n.length))
}

// strike kills one service after the other until the given time.
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
		// An error means that the service has not reached the point.
		_ = xrpc.Until(ctx, strikeWithin, func() (bool, error) { return s.Exited() != nil, nil })
		Check(s.Kill())
		n.mu.Lock()
		n.kills++
		n.mu.Unlock()
		xrpc.Sleep(ctx, gone)
		Check(s.Start(ctx, nil))
	}
}
