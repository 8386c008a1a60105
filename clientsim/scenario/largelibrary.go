package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

const (
	createSize    = 100 // accounts that one createConvo takes
	batchSize     = 50  // accounts that one addMembers takes
	devicesOfMany = 4   // devices of each account in the last batch of a large group
	largeFrom     = createSize + batchSize*devicesOfMany
	timedPhones   = 16 // phones whose publications are timed
)

// largeLibraryGroup is a group of devices of one library. Few of the devices are members that read
// and commit. The others have only published a KeyPackage.
type largeLibraryGroup struct {
	w       *testbed.World
	library mlsclient.Library
	convo   string
	// people are one phone of each account, the creator first. more has the other devices of some
	// accounts.
	people  []*client.Phone
	more    map[*client.Phone][]*client.Phone
	members []*client.Phone // members that read and commit
	log     []string        // the sizes and time of each request
}

// LargeLibraryGroup plays the life of a group of --members devices of the first agent's library, in
// cipher suite 1 and in X-Wing: create, add, commit, external rejoin, removal. If there are enough
// devices, 200 are added at once. It notes the sizes of the objects and the times of the requests.
func LargeLibraryGroup(ctx context.Context, w *testbed.World) {
	library := startAgents(ctx, w)[0]
	for _, suite := range []mlsclient.Suite{mlsclient.SuiteX25519, mlsclient.SuiteXWing} {
		w.Suite = suite
		g := &largeLibraryGroup{w: w, library: library, more: map[*client.Phone][]*client.Phone{}}
		g.play(ctx, max(w.Members, 2))
		for _, line := range g.log {
			w.Note("%s, %d devices: %s", suite.Name(), max(w.Members, 2), line)
		}
	}
}

func (g *largeLibraryGroup) play(ctx context.Context, devices int) {
	g.makePhones(ctx, devices)
	creator, joiner, late := g.people[0], g.people[1], g.people[len(g.people)-1]
	g.members = []*client.Phone{creator}
	first := g.people[1:min(len(g.people), createSize+1)]
	if len(first) > 1 {
		first = first[:len(first)-1] // somebody is added later
	}
	g.create(ctx, creator, first)
	g.joins(ctx, joiner)
	for rest := g.people[1+len(first):]; len(rest) > 0; {
		n := (len(rest)-1)%batchSize + 1 // the last batch is a whole batch
		g.add(ctx, creator, rest[:n])
		rest = rest[n:]
	}
	if late != joiner {
		g.joins(ctx, late)
	}
	Check(late.Send(ctx, g.convo, "one of many"))
	g.commit(ctx, joiner, "commit", Must(joiner.DraftCommit(g.convo, mlsclient.Change{})))
	g.rejoin(ctx, late)
	g.commit(ctx, creator, "commit", Must(creator.DraftCommit(g.convo, mlsclient.Change{})))
	if len(g.people) > 3 {
		gone := g.people[2]
		g.commit(ctx, creator, "removal", Must(creator.DraftRemove(g.convo, gone.Account.DID)))
	}
	Check(creator.Send(ctx, g.convo, "all of us"))
	agree(ctx, g.w, g.convo, g.members)
}

// makePhones makes the devices, and publishes a KeyPackage of each device except the creator's.
func (g *largeLibraryGroup) makePhones(ctx context.Context, devices int) {
	people, several := devices, 0
	if devices >= largeFrom {
		several = batchSize
		people = devices - several*(devicesOfMany-1)
	}
	for i := range people {
		p := Must(g.w.PhoneOf(fmt.Sprintf("large-%d", i), g.library))
		g.people = append(g.people, p)
		if i >= people-several {
			for range devicesOfMany - 1 {
				g.more[p] = append(g.more[p], Must(g.w.SecondDeviceOf(p, fmt.Sprintf("large-%d-more", i), g.library)))
			}
		}
	}
	var size int
	var took time.Duration
	for i, p := range g.people[1:] {
		for _, device := range append([]*client.Phone{p}, g.more[p]...) {
			d := Must(device.DraftPublish())
			start := time.Now()
			Must(device.Deliver(ctx, d))
			if i < timedPhones {
				took = max(took, time.Since(start))
				size = len(Must(xrpc.Decode[mlsapi.PublishKeyPackageInput](d.Call.Body)).KeyPackage)
			}
		}
	}
	g.note("KeyPackage %d bytes, published in at most %s", size, took.Round(time.Millisecond))
	for _, p := range g.people[2 : len(g.people)-min(1, len(g.people)-2)] { // these phones never join
		g.w.Retire(p)
	}
	for _, more := range g.more {
		for _, p := range more {
			g.w.Retire(p)
		}
	}
	for _, p := range g.people {
		p.Device.HideHandshakes(false) // the server checks what it can read
	}
}

func (g *largeLibraryGroup) note(format string, args ...any) {
	g.log = append(g.log, fmt.Sprintf(format, args...))
	g.w.Progress(g.log[len(g.log)-1])
}

// claim claims a KeyPackage of each device of some accounts.
func (g *largeLibraryGroup) claim(ctx context.Context, by *client.Phone, people []*client.Phone) [][]byte {
	var packages [][]byte
	for some := range slices.Chunk(testbed.DIDs(people), createSize) {
		packages = append(packages, Must(by.Claim(ctx, g.convo, some))...)
	}
	return packages
}

func (g *largeLibraryGroup) create(ctx context.Context, by *client.Phone, people []*client.Phone) {
	start := time.Now()
	packages := g.claim(ctx, by, people)
	claimed := time.Since(start)
	d := Must(by.DraftCreate(testbed.DIDs(people), packages))
	staged := time.Since(start) - claimed
	start = time.Now()
	answer := Must(by.Deliver(ctx, d))
	took := time.Since(start)
	g.convo = Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)).ID
	in := Must(xrpc.Decode[mlsapi.CreateConvoInput](d.Call.Body))
	g.note("createConvo of %d others: Welcome %d, GroupInfo %d bytes; claimed in %s, made in %s, accepted in %s",
		len(packages), len(in.WelcomeMessage), len(in.GroupInfo), ms(claimed), ms(staged), ms(took))
}

func (g *largeLibraryGroup) add(ctx context.Context, by *client.Phone, people []*client.Phone) {
	Check(by.Sync(ctx, g.convo))
	packages := g.claim(ctx, by, people)
	start := time.Now()
	d := Must(by.DraftAdd(g.convo, testbed.DIDs(people), packages))
	staged := time.Since(start)
	start = time.Now()
	Must(by.Deliver(ctx, d))
	took := time.Since(start)
	in := Must(xrpc.Decode[mlsapi.AddMembersInput](d.Call.Body))
	g.note("addMembers of %d: commit %d, Welcome %d, GroupInfo %d, request %d bytes; made in %s, accepted in %s",
		len(packages), len(in.Commit), len(in.WelcomeMessage), len(in.GroupInfo), len(d.Call.Body), ms(staged), ms(took))
	agree(ctx, g.w, g.convo, g.members)
}

func (g *largeLibraryGroup) joins(ctx context.Context, p *client.Phone) {
	start := time.Now()
	Check(p.Join(ctx, g.convo))
	g.note("%s joined in %s", p.Name, ms(time.Since(start)))
	g.members = append(g.members, p)
	agree(ctx, g.w, g.convo, g.members)
}

func (g *largeLibraryGroup) commit(ctx context.Context, by *client.Phone, what string, d *client.Draft) {
	start := time.Now()
	Must(by.Deliver(ctx, d))
	took := time.Since(start)
	commit, info := commitOf(d.Call)
	g.note("%s: %d, GroupInfo %d bytes, accepted in %s", what, commit, info, ms(took))
	agree(ctx, g.w, g.convo, g.members)
}

func (g *largeLibraryGroup) rejoin(ctx context.Context, p *client.Phone) {
	Check(p.LoseState(true))
	start := time.Now()
	info := Must(p.GroupInfo(ctx, g.convo))
	fetched := time.Since(start)
	g.commit(ctx, p, "external rejoin", Must(p.DraftRejoin(g.convo, info)))
	g.note("getGroupInfo of %d bytes in %s", len(info), ms(fetched))
}

// commitOf returns the sizes of the commit and the GroupInfo in a call.
func commitOf(call xrpc.Call) (commit, info int) {
	switch call.Method {
	case mlsapi.NSIDLeaveConvo:
		in := Must(xrpc.Decode[mlsapi.LeaveConvoInput](call.Body))
		return len(in.Commit), len(in.GroupInfo)
	case mlsapi.NSIDProcessExternalCommit:
		in := Must(xrpc.Decode[mlsapi.ProcessExternalCommitInput](call.Body))
		return len(in.Commit), len(in.GroupInfo)
	default:
		in := Must(xrpc.Decode[mlsapi.SubmitCommitInput](call.Body))
		return len(in.Commit), len(in.GroupInfo)
	}
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
