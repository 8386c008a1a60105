package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How many honest users there are, and what each of them has.
const (
	minPeople      = 24
	sendsPerPerson = 6 // per second at most, far below a DID's limit
	membersOfConvo = 4
	packagesEach   = 20
	pushedPeople   = 4
)

// Sizes of honest messages and pages, in bytes.
const (
	smallMessage = 200
	largeMessage = 300 << 10 // larger than the bodies that count as small
	pageMessage  = 200 << 10
	pageMessages = 8 // messages in the large page
)

// pushLimit is how long a push may take before it counts as lost.
const pushLimit = 15 * time.Second

// honest are the honest users. All of them use one address, like the users of one PDS.
type honest struct {
	client *xrpc.Client
	env    *testbed.Environment
	people []*xrpc.Account
	convos []honestConvo
	page   honestConvo  // a convo with a large log
	hooks  string       // URL of their webhooks
	pushes arrivals     // by path of the webhook
	nth    atomic.Int64 // number of newcomers so far
}

type honestConvo struct {
	id      string
	group   []byte
	members []*xrpc.Account
}

// honestAddress is the address of honest users.
var honestAddress = net.IPv4(127, 0, 0, 1)

func newHonest(t *Target, rate float64) *honest {
	h := &honest{client: t.clientFrom(honestAddress), env: t.env}
	site := Must(serve(honestAddress, func(w http.ResponseWriter, r *http.Request) {
		if !answerChallenge(w, r) {
			h.pushes.arrive(r.URL.Path)
		}
	}))
	h.hooks = site.URL
	t.atEnd(site.Close)
	for i := range max(minPeople, int(rate)/sendsPerPerson) {
		h.people = append(h.people, Must(h.env.Account(i)))
	}
	return h
}

// preparing is how many requests run at one time while the honest users prepare.
const preparing = 4

// prepare makes the convos, KeyPackages and push targets.
func (h *honest) prepare(ctx context.Context) {
	Each(preparing, len(h.people), func(i int) {
		Must(testbed.Publish(ctx, h.client, h.people[i], packagesEach, true))
	})
	h.convos = make([]honestConvo, len(h.people))
	Each(preparing, len(h.people), func(i int) { h.convos[i] = h.convo(ctx, i) })
	h.page = h.convo(ctx, 0)
	for i := range pageMessages {
		h.send(ctx, h.page, i, pageMessage)
	}
	for i := range pushedPeople {
		Must(h.client.Do(ctx, h.people[i],
			xrpc.RegisterCall(fmt.Sprintf("device-%d", i), h.hooks+hookPath(i), xrpc.NewKey())))
	}
}

// convo creates the i-th convo. Every member sends a message, like people who accept an invitation.
func (h *honest) convo(ctx context.Context, i int) (c honestConvo) {
	for k := range membersOfConvo {
		c.members = append(c.members, h.people[(i+k)%len(h.people)])
	}
	c.id, c.group = Must2(testbed.NewConvo(ctx, h.client, c.members[0], testbed.DIDsOf(c.members[1:]), nil))
	for k := range c.members {
		h.send(ctx, c, k, smallMessage)
	}
	return c
}

// send sends a message, with retries.
func (h *honest) send(ctx context.Context, c honestConvo, member, size int) {
	Must(h.client.Do(ctx, c.members[member%len(c.members)], c.message(member, size)))
}

func (c honestConvo) message(member, size int) xrpc.Call {
	return xrpc.SendCall(c.id, c.members[member%len(c.members)].DID, 1, mlsclient.FakeMessage(c.group, 1, size),
		xrpc.NewKey())
}

// operations returns what the honest users do, with rate small messages per second. No operation is
// repeated: if a user would have to repeat it, it counts as failed.
func (h *honest) operations(rate float64) []Operation {
	once := func(who *xrpc.Account, call xrpc.Call) (time.Duration, error) {
		_, err := h.client.Once(context.Background(), who, call)
		return 0, err
	}
	// inConvo makes each member of each convo call in turn.
	inConvo := func(call func(c honestConvo, member int) xrpc.Call) func(context.Context, int) (time.Duration, error) {
		return func(_ context.Context, i int) (time.Duration, error) {
			c, k := h.convos[i%len(h.convos)], i/len(h.convos)%membersOfConvo
			return once(c.members[k], call(c, k))
		}
	}
	return []Operation{
		{"send", rate, inConvo(func(c honestConvo, k int) xrpc.Call { return c.message(k, smallMessage) })},
		{"send 300 KiB", 1, inConvo(func(c honestConvo, k int) xrpc.Call { return c.message(k, largeMessage) })},
		{"getConvos", 5, func(_ context.Context, i int) (time.Duration, error) {
			return once(h.people[i%len(h.people)], xrpc.ConvosCall("", 20))
		}},
		{"getConvo", 5, inConvo(func(c honestConvo, _ int) xrpc.Call { return xrpc.ConvoCall(c.id) })},
		{"getMessages", 5, inConvo(func(c honestConvo, _ int) xrpc.Call {
			return xrpc.MessagesCall(c.id, "all", 0, membersOfConvo)
		})},
		{"getMessages 2 MB", 1, func(_ context.Context, i int) (time.Duration, error) {
			return once(h.page.members[i%membersOfConvo], xrpc.MessagesCall(h.page.id, "all", 0, 50))
		}},
		{"createConvo", 0.5, func(_ context.Context, i int) (time.Duration, error) {
			n := len(h.people)
			return once(h.people[i%n], xrpc.CreateCall(mlsclient.RandomBytes(16), mlsclient.SuiteX25519,
				[]syntax.DID{h.people[(i+1)%n].DID}, &mlsclient.Staged{Epoch: 1}, xrpc.NewKey()))
		}},
		{"WebSocket", 3, h.openSocket},
		{"event stream", 3, h.openEventStream},
		{"newcomer", 2, func(context.Context, int) (_ time.Duration, err error) {
			defer Catch(&err)
			return once(Must(h.env.Account(int(h.nth.Add(1)))), xrpc.ConvosCall("", 20))
		}},
		{"newcomer's claim", 1, func(ctx context.Context, i int) (_ time.Duration, err error) {
			defer Catch(&err)
			h.claim(ctx, Must(h.env.Account(int(h.nth.Add(1)))), h.people[i%len(h.people)].DID)
			return 0, nil
		}},
		{"push", 2, h.push},
	}
}

// claim claims a KeyPackage of a person who has one device.
func (h *honest) claim(ctx context.Context, by *xrpc.Account, of syntax.DID) mlsapi.KeyPackageRef {
	answer := Must(h.client.Once(ctx, by, claimOf(of)))
	out := Must(xrpc.Decode[mlsapi.GetKeyPackagesOutput](answer.Body))
	if len(out.KeyPackages) != 1 {
		Fail("%d KeyPackages of one person", len(out.KeyPackages))
	}
	return out.KeyPackages[0]
}

func claimOf(did syntax.DID) xrpc.Call {
	return xrpc.ClaimCall([]syntax.DID{did}, mlsclient.SuiteX25519, "", xrpc.NewKey())
}

// openSocket opens a WebSocket. A server may accept the handshake and then refuse with an error
// frame.
func (h *honest) openSocket(ctx context.Context, i int) (_ time.Duration, err error) {
	defer Catch(&err)
	began := time.Now()
	token := Must(h.client.Token(h.people[i%len(h.people)], client.NSIDSubscribe))
	opened, err := client.OpenStream(ctx, h.client, token, nil)
	return opened.Sub(began), err
}

// openEventStream opens a stream of server-sent events.
func (h *honest) openEventStream(ctx context.Context, i int) (_ time.Duration, err error) {
	defer Catch(&err)
	token := Must(h.people[i%len(h.people)].Token(h.client.Audience, syntax.NSID(mlsapi.NSIDStreamConvoEvents)))
	ctx, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, h.client.Base+"/xrpc/"+mlsapi.NSIDStreamConvoEvents, nil))
	req.Header.Set("Authorization", "Bearer "+token)
	resp := Must(h.client.HTTP.Do(req))
	if resp.StatusCode != http.StatusOK {
		return 0, errors.Join(xrpc.ReadError(mlsapi.NSIDStreamConvoEvents, resp, nil), resp.Body.Close())
	}
	cancel()
	_ = resp.Body.Close() // the stream does not end by itself
	return 0, nil
}

// push sends a message to a person with a webhook, and waits for the call.
func (h *honest) push(ctx context.Context, i int) (_ time.Duration, err error) {
	defer Catch(&err)
	to := i % pushedPeople
	c := h.convos[to]
	wait := h.pushes.await(hookPath(to))
	Must(h.client.Once(ctx, c.members[1], c.message(1, smallMessage)))
	return wait()
}

// hookPath is the path of the i-th person's webhook.
func hookPath(i int) string { return fmt.Sprintf("/%d", i) }

// arrivals are calls that honest users wait for, by name.
type arrivals struct {
	mu      sync.Mutex // guards waiting
	waiting map[string][]chan struct{}
}

// await begins to wait for the next call with that name. wait returns the time from then until the
// call.
func (a *arrivals) await(name string) (wait func() (time.Duration, error)) {
	called := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = map[string][]chan struct{}{}
	}
	a.waiting[name] = append(a.waiting[name], called)
	return func() (time.Duration, error) {
		began := time.Now()
		select {
		case <-called:
			return time.Since(began), nil
		case <-time.After(pushLimit):
			return 0, fmt.Errorf("no call within %s", pushLimit)
		}
	}
}

// arrive records that a call has come.
func (a *arrivals) arrive(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, called := range a.waiting[name] {
		close(called)
	}
	delete(a.waiting, name)
}

// answerChallenge answers a server that asks whether a webhook wants its calls. The challenge is
// the whole answer. It reports whether the call was such a question.
func answerChallenge(w http.ResponseWriter, r *http.Request) bool {
	var note struct{ Challenge string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&note); err != nil || note.Challenge == "" {
		return false
	}
	// If the server has closed the connection, it asks again.
	_, _ = io.WriteString(w, note.Challenge)
	return true
}
