package scenario

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How NetworkGrowth plays.
const (
	growthPeople = 30  // people of each service
	growthConvos = 100 // convos of each service, with two members
	growthAcross = 10  // one convo in so many has a member of another service
	growthStock  = 10  // KeyPackages of a person
	growthLanes  = 32  // unanswered requests to each service
	growthTurns  = 3
	growthBody   = 1 << 10
	growthWarm   = 2 * time.Second
)

// NetworkGrowth measures how many messages a second one, two and three services take. Each service
// has a part of this machine's processors. If the services and the load use all processors, the
// rates mean nothing.
func NetworkGrowth(ctx context.Context, w *testbed.World) {
	g := &growth{w: w, length: orDefault(w.For, liveFor)}
	w.WithServices(ctx, networkServices, unlimited(ctx, w), func(all []*testbed.Service) {
		g.services = all
		g.settle(ctx)
		g.measure(ctx)
		g.judge(ctx)
	})
}

// growth is one run of NetworkGrowth.
type growth struct {
	w        *testbed.World
	length   time.Duration // length of a turn
	services []*testbed.Service
	people   [][]*xrpc.Account // people, by home
	convos   [][]*growthConvo  // convos, by service
	limits   []*testbed.Cores  // limits of the services
}

// growthConvo is a convo. Its group is fake, which the server cannot see.
type growthConvo struct {
	id      string
	group   []byte
	members [2]*xrpc.Account
	sent    atomic.Int64
}

// settle makes the people and their convos.
func (g *growth) settle(ctx context.Context) {
	for _, s := range g.services {
		people := make([]*xrpc.Account, growthPeople)
		for i := range people {
			people[i] = Must(s.Resident())
			Must(testbed.Publish(ctx, s.Net, people[i], growthStock, false))
		}
		g.people = append(g.people, people)
	}
	for at := range g.services {
		convos := make([]*growthConvo, growthConvos)
		for i := range convos {
			home := at
			if i%growthAcross == 0 {
				home = (at + 1 + i/growthAcross%(len(g.services)-1)) % len(g.services)
			}
			convos[i] = g.create(ctx, at, home, i)
		}
		g.convos = append(g.convos, convos)
	}
}

// create makes a convo at a service: a person of that service invites a person of a home.
func (g *growth) create(ctx context.Context, at, home, i int) *growthConvo {
	by, with := g.people[at][i%growthPeople], g.people[home][(i+1)%growthPeople]
	c := &growthConvo{group: mlsclient.RandomBytes(16), members: [2]*xrpc.Account{by, with}}
	claim := xrpc.ReceiptsCall([]syntax.DID{with.DID}, mlsclient.SuiteX25519, xrpc.NewKey())
	claimed := Must(xrpc.Ask[mlsapi.GetKeyPackagesOutput](ctx, g.services[home].Net, by, claim)).KeyPackages
	if len(claimed) != 1 {
		Fail("%d KeyPackages were claimed", len(claimed))
	}
	ref := Must(hex.DecodeString(*claimed[0].KeyPackageRef))
	staged := &mlsclient.Staged{Epoch: 1, Welcome: mlsclient.FakeWelcome(mlsclient.SuiteX25519, ref)}
	net := g.services[at].Net
	c.id = Must(xrpc.Ask[mlsapi.CreateConvoOutput](ctx, net, by, xrpc.CreateCall(c.group, mlsclient.SuiteX25519,
		[]syntax.DID{with.DID}, staged, xrpc.NewKey(), *claimed[0].Receipt))).ID
	Must(net.Do(ctx, with, xrpc.AcceptCall(c.id, xrpc.NewKey())))
	return c
}

// measure measures one service, two and so on, by turns.
func (g *growth) measure(ctx context.Context) {
	defer func() {
		for _, l := range g.limits {
			Check(l.Lift(context.WithoutCancel(ctx)))
		}
	}()
	for _, s := range g.services {
		g.limits = append(g.limits, Must(s.Limit(ctx, g.w.Cores[0], g.w.Cores[1])))
	}
	rates := make([][]float64, len(g.services)+1)
	for range growthTurns {
		for n := 1; n <= len(g.services); n++ {
			rates[n] = append(rates[n], g.turn(ctx, n))
		}
	}
	median := func(n int) float64 {
		slices.Sort(rates[n])
		return rates[n][growthTurns/2]
	}
	for n := 1; n <= len(g.services); n++ {
		g.w.Note("%d services: %.0f messages a second, %.2f times one service", n, median(n), median(n)/median(1))
	}
}

// turn measures how many messages a second the first n services take.
func (g *growth) turn(ctx context.Context, n int) float64 {
	writing, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var sent atomic.Int64
	for i := range n {
		all.Go(func() {
			d := load.Driver{Lanes: growthLanes}
			d.Run(writing, func(r load.Request) {
				if err := g.send(ctx, i, r.I); err != nil {
					g.w.Broken("service %d: %v", i+1, err)
					stop()
				}
				sent.Add(1)
			})
		})
	}
	xrpc.Sleep(writing, growthWarm)
	before, began, used := sent.Load(), time.Now(), g.used(n)
	xrpc.Sleep(writing, g.length)
	rate := float64(sent.Load()-before) / time.Since(began).Seconds()
	for i, now := range g.used(n) {
		used[i] = (now - used[i]) / time.Since(began).Seconds()
	}
	stop()
	all.Wait()
	g.w.Note("%d services: %.0f messages a second; cores of databases %s, of servers %s, of the load %.2f",
		n, rate, figures(used[:n]), figures(used[n:2*n]), used[2*n])
	return rate
}

// send sends the i-th message to a service.
func (g *growth) send(ctx context.Context, at, i int) error {
	c := g.convos[at][i%growthConvos]
	from := c.members[i/growthConvos%2]
	body := mlsclient.FakeMessage(c.group, 1, growthBody)
	_, err := g.services[at].Net.Do(ctx, from, xrpc.SendCall(c.id, from.DID, 1, body, xrpc.NewKey()))
	if err == nil {
		c.sent.Add(1)
	}
	return err
}

// used returns the processor time in s of the first n databases, of their servers, and of this
// process.
func (g *growth) used(n int) []float64 {
	all := make([]float64, 2*n+1)
	for i, l := range g.limits[:n] {
		database, server := l.Used()
		all[i], all[n+i] = database.Seconds(), server.Seconds()
	}
	all[2*n] = testbed.ProcessTime(os.Getpid()).Seconds()
	return all
}

func figures(all []float64) string {
	var texts []string
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%.2f", f))
	}
	return strings.Join(texts, " ")
}

// judge checks that every convo has its acknowledged messages, and that every home was told.
func (g *growth) judge(ctx context.Context) {
	for at, s := range g.services {
		for _, c := range g.convos[at] {
			view := Must(xrpc.Ask[mlsapi.GetConvoOutput](ctx, s.Net, c.members[0], xrpc.ConvoCall(c.id))).Convo
			if got, want := *view.LastSeq, c.sent.Load(); got != want {
				g.w.Broken("convo %s has %d messages, and %d were acknowledged", c.id, got, want)
			}
			g.w.Stats.Sent.Add(c.sent.Load())
		}
		sent := Must(s.Sent(ctx))
		done := slices.DeleteFunc(slices.Clone(sent), func(i testbed.Invitation) bool { return i.State != "done" })
		if len(sent) != growthConvos/growthAcross || len(done) != len(sent) {
			g.w.Broken("service %d: %d invitations, %d of them done", at+1, len(sent), len(done))
		}
	}
}
