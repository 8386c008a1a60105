package bench

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// The variants of a storm: the same sends without it and during it.
const (
	calm  = "calm"
	storm = "storm"
)

// stormRate is the default number of messages a second during a storm.
const stormRate = 500

// measureStorm measures sends at a fixed rate, without a storm and during one, by turns. ready
// prepares each storm before the load begins.
func (b *bench) measureStorm(ctx context.Context, s *convoSet, subscribers int, ready func(context.Context) (func(context.Context, *counter) error, error)) error {
	rate := b.c.Rate
	if rate == 0 {
		rate = stormRate
	}
	play := func(turn, binary int, server string) error {
		without, with := report.Variant(calm, server), report.Variant(storm, server)
		if _, err := b.run(ctx, phase{variant: without, turn: turn, binary: binary, convos: s, rate: rate, subscribers: subscribers}); err != nil {
			return fmt.Errorf("%s: %w", without, err)
		}
		comes, err := ready(ctx)
		if err != nil {
			return fmt.Errorf("prepare the storm: %w", err)
		}
		// The phase lasts as long as the storm, so that nothing after it counts.
		r, err := b.run(ctx, phase{
			variant: with, turn: turn, binary: binary, convos: s, rate: rate, subscribers: subscribers, storm: comes, span: 100 * time.Millisecond,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", with, err)
		}
		b.say("the storm took %s", r.Took.Round(time.Millisecond))
		return nil
	}
	for turn := range b.c.Turns {
		if !b.c.compares() {
			if err := play(turn, 0, ""); err != nil {
				return err
			}
			continue
		}
		for i, binary := range b.c.Binaries {
			if err := play(turn, i, binary.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// stormConvos makes the convos that are sent to meanwhile.
func (b *bench) stormConvos(ctx context.Context) (*convoSet, error) {
	c := b.c
	return b.makeConvos(ctx, convoPlan{convos: c.Convos, members: c.Members, body: c.Body, pool: c.pool(c.Convos, c.Members, c.Body)})
}

// joiner is a device that is about to join.
type joiner struct {
	account *xrpc.Account
	ref     []byte // of its KeyPackage
}

// welcomeStorm makes many devices join at once. Each fetches its Welcome and confirms it.
func welcomeStorm(ctx context.Context, b *bench) error {
	s, err := b.stormConvos(ctx)
	if err != nil {
		return err
	}
	b.say("making %d devices", b.c.Joins)
	people := make([]joiner, b.c.Joins)
	err = eachOf(setupLanes, len(people), func(i int) error {
		account, err := b.env.account(i)
		if err != nil {
			return err
		}
		kp, err := b.env.lastResort(ctx, account)
		if err != nil {
			return err
		}
		people[i].account = account
		people[i].ref, err = hex.DecodeString(kp.Ref)
		return err
	})
	if err != nil {
		return err
	}
	b.note("%d devices join at once, %d to each convo, each on a connection of its own: getWelcome, then confirmWelcome", b.c.Joins, foundersAtOnce)
	return b.measureStorm(ctx, s, 0, func(ctx context.Context) (func(context.Context, *counter) error, error) {
		return b.invite(ctx, people)
	})
}

// invite makes convos with a Welcome for every joiner, and returns the storm.
func (b *bench) invite(ctx context.Context, people []joiner) (func(context.Context, *counter) error, error) {
	convos := make([]string, (len(people)+foundersAtOnce-1)/foundersAtOnce)
	err := eachOf(setupLanes, len(convos), func(i int) error {
		some := people[i*foundersAtOnce : min((i+1)*foundersAtOnce, len(people))]
		in := &mlsapi.CreateConvoInput{
			GroupID: hex.EncodeToString(mlsclient.RandomBytes(16)), CipherSuite: mlsclient.SuiteX25519.Name(), IdempotencyKey: newKey(), CurrentEpoch: new(int64),
		}
		*in.CurrentEpoch = 1
		var refs [][]byte
		for _, p := range some {
			in.InitialMembers, refs = append(in.InitialMembers, p.account.DID), append(refs, p.ref)
		}
		in.WelcomeMessage = mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs...)
		body, err := b.env.call(ctx, b.senders[i%len(b.senders)], mlsapi.NSIDCreateConvo, in)
		if err != nil {
			return err
		}
		out, err := xrpc.Decode[mlsapi.CreateConvoOutput](body)
		if err == nil {
			convos[i] = out.ID
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	type pair struct{ get, confirm string } // tokens
	signed := make([]pair, len(people))
	err = each(len(people), func(i int) (err error) {
		if signed[i].get, err = b.token(people[i].account, mlsapi.NSIDGetWelcome); err == nil {
			signed[i].confirm, err = b.token(people[i].account, mlsapi.NSIDConfirmWelcome)
		}
		return err
	})
	return func(ctx context.Context, count *counter) error {
		return b.atOnce(ctx, count, len(people), func(w *wire, i int) error {
			convo := convos[i/foundersAtOnce]
			_, err := ask(ctx, w, count, mlsapi.NSIDGetWelcome, get(w.addr, mlsapi.NSIDGetWelcome, "convoId="+convo, signed[i].get))
			if err != nil {
				return err
			}
			in := mlsapi.ConfirmWelcomeInput{ConvoID: convo, Success: true}
			_, err = ask(ctx, w, count, mlsapi.NSIDConfirmWelcome, post(w.addr, mlsapi.NSIDConfirmWelcome, xrpc.Encode(in), signed[i].confirm))
			return err
		})
	}, err
}

// atOnce does something n times at once, each on its own connection.
func (b *bench) atOnce(ctx context.Context, count *counter, n int, do func(w *wire, i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	one := dialer{one: new(sync.Mutex)}
	for i := range n {
		w := newWire(b.env.addr(i))
		w.limit, w.dialer = patience, one
		all.Go(func() {
			defer w.close()
			errs[i] = do(w, i)
		})
	}
	all.Wait()
	return errors.Join(append(errs[:min(n, 10)], context.Cause(ctx))...)
}

// ask sends a request, which must succeed, and counts it.
func ask(ctx context.Context, w *wire, count *counter, method string, request []byte) (answer, error) {
	name := method[len(prefix):]
	began := time.Now()
	a, err := w.do(ctx, request)
	if err != nil {
		count.add(name, 0, "connection")
		return a, fmt.Errorf("%s: %w", name, err)
	}
	if a.status != http.StatusOK {
		var named struct{ Error string }
		_ = json.Unmarshal(a.body, &named) // a body that is no error of ours is in the error below
		count.add(name, 0, named.Error)
		return a, fmt.Errorf("%s: %d %.200s", name, a.status, a.body)
	}
	count.add(name, time.Since(began), "")
	return a, nil
}

// prefix is the common beginning of all methods.
const prefix = "blue.catbird.mls."

func get(addr, method, query, token string) []byte {
	return []byte("GET /xrpc/" + method + "?" + query + " HTTP/1.1\r\nHost: " + addr + "\r\nAuthorization: Bearer " + token + "\r\n\r\n")
}

func post(addr, method string, body []byte, token string) []byte {
	return append([]byte("POST /xrpc/"+method+" HTTP/1.1\r\nHost: "+addr+"\r\nAuthorization: Bearer "+token+
		"\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}

func (b *bench) token(who *xrpc.Account, method string) (string, error) {
	return who.TokenFor(b.env.audience, syntax.NSID(method), tokenLife)
}

// perTarget is how many KeyPackages one account publishes before a storm of claims.
const perTarget = 20

// claimStorm claims many KeyPackages at once.
func claimStorm(ctx context.Context, b *bench) error {
	s, err := b.stormConvos(ctx)
	if err != nil {
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
	b.note("%d getKeyPackages at once, each on a connection of its own, for the KeyPackages of %d accounts", b.c.Joins, len(targets))
	return b.measureStorm(ctx, s, 0, func(ctx context.Context) (func(context.Context, *counter) error, error) {
		return b.publishForClaims(ctx, targets, devices)
	})
}

// publishForClaims publishes the KeyPackages, and returns the storm that claims them.
func (b *bench) publishForClaims(ctx context.Context, targets []*xrpc.Account, devices []mlsclient.Device) (func(context.Context, *counter) error, error) {
	err := eachOf(setupLanes, len(targets), func(i int) error {
		in := &mlsapi.PublishKeyPackagesInput{IdempotencyKey: newKey()}
		for range perTarget {
			kp, err := devices[i].KeyPackage()
			if err != nil {
				return err
			}
			in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: kp.Message, CipherSuite: mlsclient.SuiteX25519.Name()})
		}
		_, err := b.env.call(ctx, targets[i], mlsapi.NSIDPublishKeyPackages, in)
		return err
	})
	if err != nil {
		return nil, err
	}
	tokens := make([]string, b.c.Joins) // a token is good for one claim
	err = each(len(tokens), func(i int) (err error) {
		tokens[i], err = b.token(b.senders[i%len(b.senders)], mlsapi.NSIDGetKeyPackages)
		return err
	})
	return func(ctx context.Context, count *counter) error {
		var mu sync.Mutex
		claimed := map[string]bool{}
		return b.atOnce(ctx, count, b.c.Joins, func(w *wire, i int) error {
			query := "cipherSuite=" + mlsclient.SuiteX25519.Name() + "&dids=" + targets[i%len(targets)].DID.String() + "&idempotencyKey=" + *newKey()
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
	s, err := b.stormConvos(ctx)
	if err != nil {
		return err
	}
	streams, err := b.subscribers(ctx, b.c.Subscribers)
	if err != nil {
		return err
	}
	defer streams.close()
	b.note("%d subscribers, those who send among them, drop their connections at once and come back from where they were", b.c.Subscribers)
	return b.measureStorm(ctx, s, b.c.Subscribers, func(context.Context) (func(context.Context, *counter) error, error) { return streams.reconnect, nil })
}

// mixed sends, reads, and updates cursors, while streams listen.
func mixed(ctx context.Context, b *bench) error {
	s, err := b.stormConvos(ctx)
	if err != nil {
		return err
	}
	streams, err := b.subscribers(ctx, b.c.Subscribers)
	if err != nil {
		return err
	}
	defer streams.close()
	var all []phase
	for _, v := range b.c.Variants {
		if v != ceiling { // there is nothing to read
			all = append(all, phase{variant: v, mode: modes[v], convos: s, rate: b.c.Rate, order: mixedOperations, subscribers: b.c.Subscribers})
		}
	}
	if len(all) == 0 {
		return errors.New("mixed has no ceiling")
	}
	return b.turns(ctx, all...)
}
