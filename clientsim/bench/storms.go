package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// stormFunc is a storm. It counts its own operations.
type stormFunc = func(context.Context, *load.Counter) error

// measureStorm measures sends at a fixed rate, without a storm and during one, by turns. prepare
// prepares each storm before the load begins.
func (b *bench) measureStorm(ctx context.Context, prepare func() stormFunc) {
	var all []phase
	for i, server := range b.c.servers() {
		calm := phase{
			variant: join("load=calm", server), at: place{i, b.c.Servers, false}, rate: b.c.Rate, inFlight: b.c.InFlight,
		}
		storm := calm
		storm.variant, storm.prepare = join("load=storm", server), prepare
		all = append(all, calm, storm)
	}
	b.turns(ctx, all...)
}

// welcomeStorm makes many devices join at once. Each device fetches and confirms its Welcome.
func welcomeStorm(ctx context.Context, b *bench) {
	b.say("making %d devices", b.c.Joins)
	people := b.env.accounts(b.c.Joins)
	refs := b.env.lastResorts(ctx, people)
	b.note("%d devices join at once, %d to each convo, each on a connection of its own: getWelcome, then confirmWelcome",
		b.c.Joins, foundersAtOnce)
	b.measureStorm(ctx, func() stormFunc { return b.invite(ctx, people, refs) })
}

// invite makes convos with a Welcome for every joiner, and returns the storm.
func (b *bench) invite(ctx context.Context, people []*xrpc.Account, refs [][]byte) stormFunc {
	convos := make([]string, (len(people)+foundersAtOnce-1)/foundersAtOnce)
	Each(setupLanes, len(convos), func(i int) {
		from, to := i*foundersAtOnce, min((i+1)*foundersAtOnce, len(people))
		convos[i], _ = Must2(testbed.NewConvo(ctx, b.env.client, b.senders[i%len(b.senders)].Account,
			testbed.DIDsOf(people[from:to]), mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs[from:to]...)))
	})
	gets, confirms := signAll(people, mlsapi.NSIDGetWelcome), signAll(people, mlsapi.NSIDConfirmWelcome)
	return func(ctx context.Context, count *load.Counter) error {
		return b.atOnce(ctx, len(people), func(w *wire, i int) {
			convo := convos[i/foundersAtOnce]
			ask(ctx, w, count, mlsapi.NSIDGetWelcome, get(w.addr, mlsapi.NSIDGetWelcome, "convoId="+convo, gets[i]))
			in := mlsapi.ConfirmWelcomeInput{ConvoID: convo, Success: true}
			ask(ctx, w, count, mlsapi.NSIDConfirmWelcome,
				post(w.addr, mlsapi.NSIDConfirmWelcome, xrpc.Encode(in), confirms[i]))
		})
	}
}

// atOnce does something n times at once, each on its own connection.
func (b *bench) atOnce(ctx context.Context, n int, do func(w *wire, i int)) error {
	one := dialer{one: new(sync.Mutex)}
	err := Attempt(func() {
		Each(n, n, func(i int) {
			w := newWire(b.env.addr(i))
			w.limit, w.dialer = retryFor, one
			defer w.close()
			do(w, i)
		})
	})
	return errors.Join(err, context.Cause(ctx))
}

// ask sends a request and counts it. The request must succeed.
func ask(ctx context.Context, w *wire, count *load.Counter, method string, request []byte) answer {
	name := method[len(prefix):]
	began := time.Now()
	a, err := w.do(ctx, request)
	if err != nil {
		count.Fail(name, "connection", err.Error())
		Fail("%s: %w", name, err)
	}
	if a.status != http.StatusOK {
		var named struct{ Error, Message string }
		_ = json.Unmarshal(a.body, &named) // the error below shows any other body
		count.Fail(name, named.Error, named.Message)
		Fail("%s: %d %.200s", name, a.status, a.body)
	}
	count.Done(name, time.Since(began))
	return a
}

// prefix is the common beginning of all methods.
const prefix = "blue.catbird.mls."

func get(addr, method, query, token string) []byte {
	return []byte("GET /xrpc/" + method + "?" + query + " HTTP/1.1\r\nHost: " + addr + "\r\nAuthorization: Bearer " +
		token + "\r\n\r\n")
}

func post(addr, method string, body []byte, token string) []byte {
	return append([]byte("POST /xrpc/"+method+" HTTP/1.1\r\nHost: "+addr+"\r\nAuthorization: Bearer "+token+
		"\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}

// perTarget is how many KeyPackages one account publishes before a storm of claims.
const perTarget = 20

// claimStorm claims many KeyPackages at once.
func claimStorm(ctx context.Context, b *bench) {
	targets, devices := b.targets()
	b.note("%d getKeyPackages at once, each on a connection of its own, for the KeyPackages of %d accounts", b.c.Joins,
		len(targets))
	b.measureStorm(ctx, func() stormFunc { return b.publishForClaims(ctx, targets, devices) })
}

// targets makes the accounts whose KeyPackages are claimed, with a device each.
func (b *bench) targets() (targets []*xrpc.Account, devices []mlsclient.Device) {
	targets = b.env.accounts((b.c.Joins + perTarget - 1) / perTarget)
	for _, account := range targets {
		devices = append(devices, Must(mlsclient.NewDevice(account.DID.String(), mlsclient.SuiteX25519)))
	}
	return targets, devices
}

// publishForClaims publishes the KeyPackages, and returns the storm that claims them.
func (b *bench) publishForClaims(ctx context.Context, targets []*xrpc.Account, devices []mlsclient.Device) stormFunc {
	Each(setupLanes, len(targets), func(i int) {
		Must(testbed.PublishOf(ctx, b.env.client, targets[i], devices[i], perTarget, false))
	})
	claimers := make([]*xrpc.Account, b.c.Joins)
	for i := range claimers {
		claimers[i] = b.senders[i%len(b.senders)].Account
	}
	tokens := signAll(claimers, mlsapi.NSIDGetKeyPackages) // a token is good for one claim
	return func(ctx context.Context, count *load.Counter) error {
		var mu sync.Mutex
		claimed := map[string]bool{}
		return b.atOnce(ctx, b.c.Joins, func(w *wire, i int) {
			query := "cipherSuite=" + mlsclient.SuiteX25519.Name() + "&dids=" + targets[i%len(targets)].DID.String() +
				"&idempotencyKey=" + xrpc.NewKey()
			a := ask(ctx, w, count, mlsapi.NSIDGetKeyPackages, get(w.addr, mlsapi.NSIDGetKeyPackages, query, tokens[i]))
			out := Must(xrpc.Decode[mlsapi.GetKeyPackagesOutput](a.body))
			mu.Lock()
			defer mu.Unlock()
			for _, kp := range out.KeyPackages {
				if ref := kp.KeyPackageRef; ref != nil && claimed[*ref] {
					Fail("KeyPackage %s was handed out twice", *ref)
				} else if ref != nil {
					claimed[*ref] = true
				}
			}
		})
	}
}

// reconnectStorm drops all streams at once, and all reconnect at the same time.
func reconnectStorm(ctx context.Context, b *bench) {
	streams := b.subscribers(ctx, b.c.Subscribers)
	defer streams.close()
	b.note("%d subscribers, those who send among them, drop their connections at once and come back from where they were",
		b.c.Subscribers)
	b.measureStorm(ctx, func() stormFunc { return streams.reconnect })
}
