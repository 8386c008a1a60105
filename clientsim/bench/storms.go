package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The variants of a storm: the same sends without it and during it.
const (
	calm  = "calm"
	storm = "storm"
)

// stormRate is the default number of messages a second during a storm.
const stormRate = 500

// stormFunc is a storm. It counts its own operations.
type stormFunc = func(context.Context, *load.Counter) error

// measureStorm measures sends at a fixed rate, without a storm and during one, by turns. ready
// prepares each storm before the load begins.
func (b *bench) measureStorm(ctx context.Context, subscribers int,
	ready func(context.Context) (stormFunc, error)) error {
	rate := b.c.Rate
	if rate == 0 {
		rate = stormRate
	}
	play := func(turn, binary int, server string) error {
		without, with := join(calm, server), join(storm, server)
		if _, err := b.run(ctx, phase{variant: without, turn: turn, binary: binary, rate: rate,
			subscribers: subscribers}); err != nil {
			return fmt.Errorf("%s: %w", without, err)
		}
		comes, err := ready(ctx)
		if err != nil {
			return fmt.Errorf("prepare the storm: %w", err)
		}
		// The phase lasts as long as the storm, so that nothing after it counts.
		r, err := b.run(ctx, phase{
			variant: with, against: without, turn: turn, binary: binary, rate: rate, subscribers: subscribers,
			storm: comes, span: 100 * time.Millisecond,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", with, err)
		}
		b.say("the storm took %s", r.Took.Round(time.Millisecond))
		return nil
	}
	for turn := range b.c.Turns {
		for i, server := range b.c.servers() {
			if err := play(turn, i, server); err != nil {
				return err
			}
		}
	}
	return nil
}

// joiner is a device that is about to join.
type joiner struct {
	account *xrpc.Account
	ref     []byte // of its KeyPackage
}

// welcomeStorm makes many devices join at once. Each fetches its Welcome and confirms it.
func welcomeStorm(ctx context.Context, b *bench) error {
	if err := b.makeConvos(ctx); err != nil {
		return err
	}
	b.say("making %d devices", b.c.Joins)
	people := make([]joiner, b.c.Joins)
	err := eachOf(setupLanes, len(people), func(i int) error {
		account, err := b.env.account(i)
		if err != nil {
			return err
		}
		people[i].account = account
		people[i].ref, err = b.env.lastResort(ctx, account)
		return err
	})
	if err != nil {
		return err
	}
	b.note("%d devices join at once, %d to each convo, each on a connection of its own: getWelcome, then confirmWelcome",
		b.c.Joins, foundersAtOnce)
	return b.measureStorm(ctx, 0, func(ctx context.Context) (stormFunc, error) {
		return b.invite(ctx, people)
	})
}

// invite makes convos with a Welcome for every joiner, and returns the storm.
func (b *bench) invite(ctx context.Context, people []joiner) (stormFunc, error) {
	convos := make([]string, (len(people)+foundersAtOnce-1)/foundersAtOnce)
	err := eachOf(setupLanes, len(convos), func(i int) error {
		some := people[i*foundersAtOnce : min((i+1)*foundersAtOnce, len(people))]
		var dids []syntax.DID
		var refs [][]byte
		for _, p := range some {
			dids, refs = append(dids, p.account.DID), append(refs, p.ref)
		}
		var err error
		creator := b.senders[i%len(b.senders)]
		convos[i], _, err = testbed.NewConvo(ctx, b.env.client, creator, dids,
			mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs...))
		return err
	})
	if err != nil {
		return nil, err
	}
	accounts := make([]*xrpc.Account, len(people))
	for i, p := range people {
		accounts[i] = p.account
	}
	gets, err := signAll(accounts, mlsapi.NSIDGetWelcome)
	if err != nil {
		return nil, err
	}
	confirms, err := signAll(accounts, mlsapi.NSIDConfirmWelcome)
	return func(ctx context.Context, count *load.Counter) error {
		return b.atOnce(ctx, count, len(people), func(w *wire, i int) error {
			convo := convos[i/foundersAtOnce]
			_, err := ask(ctx, w, count, mlsapi.NSIDGetWelcome, get(w.addr, mlsapi.NSIDGetWelcome, "convoId="+convo, gets[i]))
			if err != nil {
				return err
			}
			in := mlsapi.ConfirmWelcomeInput{ConvoID: convo, Success: true}
			_, err = ask(ctx, w, count, mlsapi.NSIDConfirmWelcome,
				post(w.addr, mlsapi.NSIDConfirmWelcome, xrpc.Encode(in), confirms[i]))
			return err
		})
	}, err
}

// atOnce does something n times at once, each on its own connection.
func (b *bench) atOnce(ctx context.Context, count *load.Counter, n int, do func(w *wire, i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	one := dialer{one: new(sync.Mutex)}
	for i := range n {
		w := newWire(b.env.addr(i))
		w.limit, w.dialer = retryFor, one
		all.Go(func() {
			defer w.close()
			errs[i] = do(w, i)
		})
	}
	all.Wait()
	return errors.Join(append(errs[:min(n, 10)], context.Cause(ctx))...)
}

// ask sends a request, which must succeed, and counts it.
func ask(ctx context.Context, w *wire, count *load.Counter, method string, request []byte) (answer, error) {
	name := method[len(prefix):]
	began := time.Now()
	a, err := w.do(ctx, request)
	if err != nil {
		count.Fail(name, "connection", err.Error())
		return a, fmt.Errorf("%s: %w", name, err)
	}
	if a.status != http.StatusOK {
		var named struct{ Error, Message string }
		_ = json.Unmarshal(a.body, &named) // a body that is no error of ours is in the error below
		count.Fail(name, named.Error, named.Message)
		return a, fmt.Errorf("%s: %d %.200s", name, a.status, a.body)
	}
	count.Done(name, time.Since(began))
	return a, nil
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
func claimStorm(ctx context.Context, b *bench) error {
	if err := b.makeConvos(ctx); err != nil {
		return err
	}
	targets, err := b.env.accounts((b.c.Joins + perTarget - 1) / perTarget)
	if err != nil {
		return err
	}
	devices := make([]mlsclient.Device, len(targets))
	for i, account := range targets {
		if devices[i], err = mlsclient.NewDevice(account.DID.String(), mlsclient.SuiteX25519); err != nil {
			return err
		}
	}
	b.note("%d getKeyPackages at once, each on a connection of its own, for the KeyPackages of %d accounts", b.c.Joins,
		len(targets))
	return b.measureStorm(ctx, 0, func(ctx context.Context) (stormFunc, error) {
		return b.publishForClaims(ctx, targets, devices)
	})
}

// publishForClaims publishes the KeyPackages, and returns the storm that claims them.
func (b *bench) publishForClaims(ctx context.Context, targets []*xrpc.Account, devices []mlsclient.Device) (stormFunc,
	error) {
	err := eachOf(setupLanes, len(targets), func(i int) error {
		_, err := testbed.PublishOf(ctx, b.env.client, targets[i], devices[i], perTarget, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	claimers := make([]*xrpc.Account, b.c.Joins)
	for i := range claimers {
		claimers[i] = b.senders[i%len(b.senders)]
	}
	tokens, err := signAll(claimers, mlsapi.NSIDGetKeyPackages) // a token is good for one claim
	return func(ctx context.Context, count *load.Counter) error {
		var mu sync.Mutex
		claimed := map[string]bool{}
		return b.atOnce(ctx, count, b.c.Joins, func(w *wire, i int) error {
			query := "cipherSuite=" + mlsclient.SuiteX25519.Name() + "&dids=" + targets[i%len(targets)].DID.String() +
				"&idempotencyKey=" + xrpc.NewKey()
			a, err := ask(ctx, w, count, mlsapi.NSIDGetKeyPackages, get(w.addr, mlsapi.NSIDGetKeyPackages, query, tokens[i]))
			if err != nil {
				return err
			}
			out, err := xrpc.Decode[mlsapi.GetKeyPackagesOutput](a.body)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, kp := range out.KeyPackages {
				if ref := kp.KeyPackageRef; ref != nil && claimed[*ref] {
					return fmt.Errorf("KeyPackage %s was handed out twice", *ref)
				} else if ref != nil {
					claimed[*ref] = true
				}
			}
			return nil
		})
	}, err
}

// reconnectStorm drops all streams at once, and they reconnect.
func reconnectStorm(ctx context.Context, b *bench) error {
	if err := b.makeConvos(ctx); err != nil {
		return err
	}
	streams, err := b.subscribers(ctx, b.c.Subscribers)
	if err != nil {
		return err
	}
	defer streams.close()
	b.note("%d subscribers, those who send among them, drop their connections at once and come back from where they were",
		b.c.Subscribers)
	return b.measureStorm(ctx, b.c.Subscribers,
		func(context.Context) (stormFunc, error) { return streams.reconnect, nil })
}
