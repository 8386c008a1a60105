package scenario

import (
	"context"
	"errors"
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
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How Network plays.
const (
	networkServices = 3
	networkPeople   = 60
	networkRate     = 20 // steps of people a second
	networkStock    = 10 // KeyPackages of a person in the beginning
	networkMembers  = 8  // of a convo at most
	networkConvos   = 4  // that a person makes at most
	linkFaults      = 0.2
	clientFaults    = 0.1
	// networkPatience is longer than a service is away.
	networkPatience = 3 * time.Minute
	// networkDrain bounds how long everything takes to arrive when nothing fails any more.
	networkDrain = 3 * time.Minute
)

// Network spreads people over three services with databases of their own. They look each other's home
// up, claim there with receipts, make convos and add members at their own service and at others, get
// the invitation at home, answer it, and then read and write where the convo is. Packets of all links
// are lost, late or doubled, apps and services are killed, and one service is away for a while.
//
// Every service is checked as any other. Besides, each invitation is seen once, each KeyPackage is in
// one group, and nobody sees a convo whose maker it has blocked at home: neither after a claim that
// was before the block, nor by a claim after it.
func Network(ctx context.Context, w *testbed.World) {
	n := &network{w: w, length: orDefault(w.For, liveFor), where: map[string]int{}, pairs: map[[2]syntax.DID]bool{},
		times: newNetworkTimes(w.RNG.IntN(networkServices)), probe: testbed.FastTransport()}
	o := testbed.ServicesOptions{Services: networkServices, Settings: unlimited(ctx, w), Transport: n.times.transport}
	withServices(ctx, w, o, func(all []*testbed.Service) {
		n.services = all
		n.settle(ctx)
		n.play(ctx)
		n.finish(ctx)
		n.judge(ctx)
	})
}

// network is one run of it.
type network struct {
	w        *testbed.World
	services []*testbed.Service
	streams  []*client.Subscribers // of the people of each service
	people   []*resident
	length   time.Duration
	times    *networkTimes
	probe    *http.Transport

	mu      sync.Mutex // guards what follows
	where   map[string]int
	pairs   map[[2]syntax.DID]bool // who has invited whom; true: who has blocked whom then
	invited []invited
	claims  int
	held    int // claims at homes where a block held
	late    int // commits that added somebody whom another member had added
	kills   int
}

// invited is one acknowledged Welcome for a device of another service.
type invited struct {
	who     *resident
	ref     string
	at      int // service of the convo
	convo   string
	blocked bool // between the claim and the Welcome
}

// resident is a person with one device.
type resident struct {
	*client.Phone                 // at home
	at            []*client.Phone // at each service
	home          int
	rng           *rand.Rand
	made          int // convos
	said          int
	declined      map[string]bool // convos

	mu    sync.Mutex   // guards heard
	heard []xrpc.Event // Welcomes and invitations that are not answered yet
}

// settle makes the people, who listen at their homes.
func (n *network) settle(ctx context.Context) {
	for i, s := range n.services {
		s.Model.History = history.New()
		s.Net.Limit = networkPatience
		n.streams = append(n.streams, client.NewSubscribers(ctx, n.w.Seed+uint64(i)))
	}
	for i := range orDefault(n.w.People, networkPeople) {
		home := i % len(n.services)
		p := &resident{home: home, rng: rand.New(rand.NewPCG(n.w.Seed, uint64(i))), declined: map[string]bool{}}
		p.Phone = must(n.services[home].Settle(fmt.Sprintf("person-%d", i)))
		for at, s := range n.services {
			there := p.Phone
			if at != home {
				there = s.Visit(p.Phone)
			}
			p.at = append(p.at, there)
		}
		check(p.PublishMany(ctx, networkStock, false))
		listens := n.streams[home].Add(p.Name, p.Account, []*xrpc.Client{p.Net}, p.DeviceID())
		listens.From, listens.ServerSent = new(int64), i%10 == 0
		listens.ConnectionLife, listens.OnEvent = max(n.length/5, time.Second), p.hear
		n.people = append(n.people, p)
	}
	for _, s := range n.streams {
		check(s.Listen(s.All...))
	}
}

// hear notes what a person is invited to.
func (p *resident) hear(h *xrpc.Event, _ time.Time, _ bool) {
	if h.Kind != xrpc.EventWelcome && h.Kind != xrpc.EventInvitation {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, *h)
}

// play lets everybody go on while everything fails.
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
				if err := attempt(func() { n.step(ctx, p) }); err != nil {
					n.w.Broken("%s: %v", p.Name, err)
					return
				}
			}
		})
	}
	failed := attempt(func() { n.disturb(ctx, writing) })
	all.Wait()
	for _, s := range n.services {
		s.Faults.Use(nil)
		s.Link.Use(nil)
	}
	check(failed)
}

// step is the next thing that a person does.
func (n *network) step(ctx context.Context, p *resident) {
	switch roll := p.rng.IntN(20); {
	case roll < 3:
		n.invite(ctx, p)
	case roll < 7:
		n.answer(ctx, p)
	case roll == 7:
		if at, convo, ok := n.pick(ctx, p); ok {
			check(at.Rotate(ctx, convo))
		}
	case roll == 8:
		if n.there(ctx, p.home) {
			check(p.Publish(ctx, 3))
		}
	case roll == 9: // the app is killed, and begins again
		p.Kill()
		check(p.Launch())
	default:
		if at, convo, ok := n.pick(ctx, p); ok {
			p.said++
			check(at.Send(ctx, convo, fmt.Sprintf("%s says %d", p.Name, p.said)))
			check(at.Sync(ctx, convo))
		}
	}
}

// there reports whether a service answers. A client leaves one that does not for later.
func (n *network) there(ctx context.Context, service int) bool {
	return healthy(ctx, n.services[service].Net.Base, n.probe) == nil
}

// pick returns a convo of the person whose service answers.
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

// invite makes a convo at the person's own service, or adds members to one where it is. Sometimes who
// is invited into a new one blocks the inviter between the claim and the Welcome.
func (n *network) invite(ctx context.Context, p *resident) {
	at, convo, ok := p.Phone, "", p.made < networkConvos && n.there(ctx, p.home)
	var members []string
	if !ok || p.rng.IntN(2) == 0 {
		if at, convo, ok = n.pick(ctx, p); !ok {
			return
		}
		members = must(at.Group(convo)).Members()
	}
	service := slices.Index(p.at, at)
	var packages []mlsapi.KeyPackageRef
	for range 1 + p.rng.IntN(3) {
		q := n.people[p.rng.IntN(len(n.people))]
		n.mu.Lock()
		blocks := n.pairs[[2]syntax.DID{q.Account.DID, p.Account.DID}]
		n.mu.Unlock()
		if q != p && !blocks && !slices.Contains(members, q.Account.DID.String()) && len(members) < networkMembers {
			members = append(members, q.Account.DID.String())
			packages = append(packages, n.claim(ctx, p, q, service)...)
		}
	}
	if len(packages) == 0 {
		return
	}
	if len(packages) == 1 && convo == "" && p.rng.IntN(4) == 0 {
		n.block(ctx, p, packages[0], service)
	}
	for _, k := range packages {
		pair := [2]syntax.DID{p.Account.DID, k.DID}
		n.mu.Lock()
		n.pairs[pair] = n.pairs[pair]
		n.mu.Unlock()
	}
	convo, epoch, err := n.welcome(ctx, p, at, convo, packages)
	if name := xrpc.ErrorName(err); name == mlsapi.ErrAlreadyMember || err == nil && epoch == 0 {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.late++ // two members add the same person at once
		return
	}
	check(err)
	n.record(convo, service, epoch, p, packages)
}

// claim claims a KeyPackage of q at q's home, with a receipt. Nobody whom q has blocked there gets one.
func (n *network) claim(ctx context.Context, p, q *resident, asked int) []mlsapi.KeyPackageRef {
	home := must(p.at[asked].Home(ctx, q.Account.DID))
	if home != n.services[q.home].DID {
		fail("the home of %s is said to be %s", q.Name, home)
	}
	if !n.there(ctx, q.home) {
		return nil
	}
	packages := must(p.at[q.home].ClaimAbroad(ctx, []syntax.DID{q.Account.DID}))
	n.mu.Lock()
	defer n.mu.Unlock()
	switch blocked := n.pairs[[2]syntax.DID{p.Account.DID, q.Account.DID}]; {
	case blocked && len(packages) > 0:
		n.w.Broken("%s has blocked %s at home, which gets a KeyPackage", q.Name, p.Name)
		return nil
	case blocked:
		n.held++
	}
	n.claims += len(packages)
	return packages
}

// block makes the owner of a claimed KeyPackage, which is of another service and was never invited by
// p, block p at home. After that, p gets none.
func (n *network) block(ctx context.Context, p *resident, k mlsapi.KeyPackageRef, service int) {
	q := n.person(k.DID)
	pair := [2]syntax.DID{p.Account.DID, k.DID}
	n.mu.Lock()
	_, known := n.pairs[pair]
	n.mu.Unlock()
	if known || q.home == service || !n.there(ctx, q.home) {
		return
	}
	must(n.services[q.home].Net.Do(ctx, q.Account, xrpc.BlockCall(p.Account.DID, xrpc.NewKey())))
	n.mu.Lock()
	n.pairs[pair] = true
	n.mu.Unlock()
	n.claim(ctx, p, q, service)
}

func (n *network) person(did syntax.DID) *resident {
	i := slices.IndexFunc(n.people, func(p *resident) bool { return p.Account.DID == did })
	return n.people[i]
}

// welcome makes a convo of the KeyPackages' owners, or adds them to one. It returns the epoch that the
// Welcome leads into, or 0 if another member has added one of them.
func (n *network) welcome(ctx context.Context, p *resident, at *client.Phone, convo string,
	packages []mlsapi.KeyPackageRef) (_ string, epoch int64, err error) {
	var dids []syntax.DID
	var messages [][]byte
	var receipts []string
	for _, k := range packages {
		dids, messages, receipts = append(dids, k.DID), append(messages, k.KeyPackage), append(receipts, *k.Receipt)
	}
	if convo != "" {
		err := at.Commit(ctx, convo, func() (*client.Draft, error) {
			inside := must(at.Group(convo)).Members()
			if slices.ContainsFunc(dids, func(did syntax.DID) bool { return slices.Contains(inside, did.String()) }) {
				epoch = 0
				return nil, nil
			}
			d, err := at.DraftAdd(convo, dids, messages, receipts...)
			if err == nil {
				epoch = int64(d.Epoch)
			}
			return d, err
		})
		return convo, epoch, err
	}
	p.made++
	d := must(at.DraftCreate(dids, messages, receipts...))
	if p.rng.IntN(5) == 0 { // the app is killed with the draft in its outbox
		p.Kill()
		check(p.Launch())
	}
	answer, err := at.Deliver(ctx, d)
	if err != nil {
		return "", 0, err
	}
	return must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)).ID, int64(d.Epoch), nil
}

// record notes who was welcomed, and what everybody must hear.
func (n *network) record(convo string, service int, epoch int64, by *resident, packages []mlsapi.KeyPackageRef) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.where[convo] = service
	for _, k := range packages {
		q := n.person(k.DID)
		n.services[service].Model.History.Welcomed(k.DID, convo, *k.DeviceID, epoch)
		if q.home == service {
			continue
		}
		blocked := n.pairs[[2]syntax.DID{by.Account.DID, k.DID}]
		n.invited = append(n.invited, invited{q, *k.KeyPackageRef, service, convo, blocked})
		if !blocked {
			n.services[q.home].Model.History.Invited(k.DID, convo, *k.DeviceID, epoch)
		}
	}
}

// answer answers the oldest Welcome or invitation that the person has heard of, if the services answer
// that have to do with it. It reports whether there was one.
func (n *network) answer(ctx context.Context, p *resident) bool {
	p.mu.Lock()
	if len(p.heard) == 0 {
		p.mu.Unlock()
		return false
	}
	h := p.heard[0]
	p.heard = p.heard[1:]
	p.mu.Unlock()
	service := n.serviceOf(h.Convo)
	known := service >= 0 && n.services[service].Model.Live(h.Convo, p.Account.DID) // by who sends to the convo
	if !known || !n.there(ctx, service) || !n.there(ctx, p.home) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.heard = append(p.heard, h)
		return true
	}
	if h.Kind == xrpc.EventInvitation {
		of, call := syntax.DID(h.DID), xrpc.AcceptInvitationCall
		if of != n.services[service].DID {
			fail("an invitation to %s says that it is at %s", h.Convo, of)
		}
		if p.declined[h.Convo] = p.rng.IntN(8) == 0; p.declined[h.Convo] {
			call = xrpc.DeclineInvitationCall
		}
		must(n.services[p.home].Net.Do(ctx, p.Account, call(of, h.Convo, xrpc.NewKey())))
		if p.declined[h.Convo] {
			return true
		}
	}
	at := p.at[service]
	must(at.Net.Do(ctx, p.Account, xrpc.AcceptCall(h.Convo, xrpc.NewKey())))
	err := at.Join(ctx, h.Convo)
	if errors.Is(err, client.ErrWelcomeLost) {
		err = at.Rejoin(ctx, h.Convo)
	}
	check(err)
	return true
}

// finish lets everything arrive when nothing fails any more, and everybody answer.
func (n *network) finish(ctx context.Context) {
	start := time.Now()
	for _, s := range n.services {
		check(s.Server.EndLeases(ctx))
	}
	err := xrpc.Until(ctx, networkDrain, func() (bool, error) {
		var missing int64
		for i, s := range n.services {
			missing += n.streams[i].Missing(s.Model.History)
			for _, sent := range must(s.SentInvitations(ctx)) {
				if sent.State == "pending" || sent.State == "sending" {
					missing++
				}
			}
		}
		return missing == 0, nil
	})
	if err != nil {
		n.w.Broken("not everything has arrived: %v", err)
	}
	n.w.Note("the last invitation arrived %s after the last fault", time.Since(start).Round(time.Millisecond))
	for _, p := range n.people {
		check(attempt(func() {
			for n.answer(ctx, p) {
				check(ctx.Err())
			}
		}))
	}
	for i, s := range n.services {
		check(s.AwaitAndJudge(ctx, n.streams[i], s.Model.History, networkDrain))
	}
}

// judge compares all invitations with what was acknowledged.
func (n *network) judge(ctx context.Context) {
	sent, received, listed := map[string][]string{}, map[string][]string{}, map[string][]string{}
	add := func(to map[string][]string, did syntax.DID, ref, format string, args ...any) {
		to[did.String()+" "+ref] = append(to[did.String()+" "+ref], fmt.Sprintf(format, args...))
	}
	var times []testbed.SentInvitation
	for _, s := range n.services {
		for _, i := range must(s.SentInvitations(ctx)) {
			if i.State != "done" {
				i.State += ": " + i.Reason
			}
			add(sent, i.DID, i.Ref, "%s of %s to %s, %s", i.ConvoID, s.DID, i.Home, i.State)
			times = append(times, i)
		}
		for _, i := range must(s.ReceivedInvitations(ctx)) {
			add(received, i.DID, i.Ref, "%s of %s, hidden %t, consumed %t", i.ConvoID, i.Service, i.Hidden, i.Used)
		}
	}
	for _, p := range n.people {
		for _, i := range must(p.Invitations(ctx)) {
			add(listed, p.Account.DID, i.KeyPackageRef, "%s of %s", i.ConvoID, i.Service)
		}
	}
	hidden, joined, declined := 0, 0, 0
	for _, i := range n.invited {
		key, from := i.who.Account.DID.String()+" "+i.ref, n.services[i.at].DID
		n.same("sent_invitations", key, sent, fmt.Sprintf("%s of %s to %s, done", i.convo, from, n.services[i.who.home].DID))
		n.same("received_invitations", key, received,
			fmt.Sprintf("%s of %s, hidden %t, consumed true", i.convo, from, i.blocked))
		_, inside := i.who.Threads[i.convo]
		switch {
		case i.blocked:
			hidden++
			n.same("getInvitations", key, listed)
			if inside {
				n.w.Broken("%s is in %s, whose maker it has blocked", i.who.Name, i.convo)
			}
			continue
		case i.who.declined[i.convo]:
			declined++
		case inside:
			joined++
		default:
			n.w.Report(history.Violation{Kind: history.Lost, Convo: i.convo, Who: i.who.Name, What: "never joined"})
		}
		n.same("getInvitations", key, listed, fmt.Sprintf("%s of %s", i.convo, from))
	}
	for _, rows := range []map[string][]string{sent, received, listed} {
		for key, what := range rows {
			n.w.Report(history.Violation{Kind: history.Duplicated, What: fmt.Sprintf("nobody made %s: %s", key, what)})
		}
	}
	n.w.Note("%d people, %d convos; %d claims, %d more that a block at home refused; %d invitations: %d joined, "+
		"%d declined, %d hidden; %d people were added by two at once; %d kills", len(n.people), len(n.where), n.claims, n.held,
		len(n.invited), joined, declined, hidden, n.late, n.kills)
	n.times.note(n, times)
}

// same takes a row out of rows, and reports it unless it is there as it has to be, once.
func (n *network) same(where, key string, rows map[string][]string, want ...string) {
	got := rows[key]
	delete(rows, key)
	kind := history.Broken
	switch {
	case slices.Equal(got, want):
		return
	case len(got) < len(want):
		kind = history.Lost
	case len(got) > len(want):
		kind = history.Duplicated
	}
	n.w.Report(history.Violation{Kind: kind, What: fmt.Sprintf("%s of %s: %q, want %q", where, key, got, want)})
}
