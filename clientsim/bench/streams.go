package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
	"mlsd/clientsim"
)

// streams are subscribers that listen on WebSockets, count what they are told, and go on from there when their connection has ended.
type streams struct {
	b    *bench
	all  []*stream
	web  *http.Client
	told atomic.Int64 // events

	mu   sync.Mutex // guards drop
	drop context.CancelFunc
	done sync.WaitGroup
}

// stream is one of them.
type stream struct {
	account *clientsim.Account
	token   string
	base    string
	cursor  int64        // behind the last event; 0: none has come
	broke   atomic.Int64 // connections that ended by themselves
}

// openingLanes is how many connections are opened at once when nobody is in a hurry: a server looks up no more accounts at a time.
const openingLanes = 16

// maxFrame bounds an event, in bytes.
const maxFrame = 16 << 20

// devices is how many streams an account has: a server takes sixteen.
const devices = 4

// subscribe opens n streams, of the accounts that send and of as many others as it takes, spread over the servers.
func (b *bench) subscribe(ctx context.Context, n int) (*streams, error) {
	b.say("opening %d streams", n)
	accounts := b.senders[:min(len(b.senders), n)]
	if others := (n+devices-1)/devices - len(accounts); others > 0 {
		more, err := b.stage.accounts(others)
		if err != nil {
			return nil, err
		}
		accounts = slices.Concat(accounts, more)
	}
	s := &streams{b: b, web: &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 2 << 10, WriteBufferSize: 1 << 10}}}
	tokens := make([]string, len(accounts))
	err := each(len(tokens), func(i int) (err error) {
		tokens[i], err = accounts[i].TokenFor(b.stage.audience, syntax.NSID(mlsapi.NSIDSubscribeConvoEvents), tokenLife)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range n {
		k := i % len(accounts)
		s.all = append(s.all, &stream{account: accounts[k], token: tokens[k], base: b.stage.servers[i%len(b.stage.servers)].URL()})
	}
	listening, drop := context.WithCancel(ctx)
	s.drop = drop
	err = eachOf(openingLanes, n, func(i int) error {
		return s.insist(ctx, listening, s.all[i], func() {}) // a server that knows nobody yet looks up so many accounts a second
	})
	if err != nil {
		drop()
		s.done.Wait()
		return nil, err
	}
	return s, nil
}

// insist connects, and tries again for as long as a client would. Each failure is told.
func (s *streams) insist(ctx, listening context.Context, one *stream, failed func()) error {
	began := time.Now()
	err := s.connect(ctx, listening, one)
	for wait := 50 * time.Millisecond; err != nil && ctx.Err() == nil && time.Since(began) < patience; wait = min(2*wait, time.Second) {
		failed()
		pause(ctx, wait)
		err = s.connect(ctx, listening, one)
	}
	return err
}

// connect opens one, and has it listen until listening ends or the server ends it.
func (s *streams) connect(ctx, listening context.Context, one *stream) error {
	address := one.base + "/xrpc/" + mlsapi.NSIDSubscribeConvoEvents
	if one.cursor > 0 {
		address += "?cursor=" + strconv.FormatInt(one.cursor, 10)
	}
	dialing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, _, err := websocket.Dial(dialing, address, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + one.token}}, HTTPClient: s.web, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	conn.SetReadLimit(maxFrame)
	s.done.Go(func() {
		defer func() { _ = conn.CloseNow() }() // an end without a word is what a phone's network has to offer
		var last, next bytes.Buffer            // frames: only of the last is the cursor looked at
		for {
			_, r, err := conn.Reader(listening)
			if err == nil {
				next.Reset()
				_, err = next.ReadFrom(r)
			}
			if err != nil {
				break
			}
			last, next = next, last
			s.told.Add(1)
		}
		if listening.Err() == nil {
			one.broke.Add(1)
		}
		if cursor, err := clientsim.EventCursor(last.Bytes()); err == nil {
			one.cursor = cursor + 1
		}
	})
	return nil
}

// reconnect drops all connections at once, and has all connect again as fast as they can. Each is counted with the time from the drop
// until it was open.
func (s *streams) reconnect(ctx context.Context, count *counter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	s.drop()
	s.done.Wait()
	listening, drop := context.WithCancel(ctx)
	s.drop = drop
	err := eachOf(len(s.all), len(s.all), func(i int) error {
		err := s.insist(ctx, listening, s.all[i], func() { count.add(reconnection, 0, "connection") })
		if err == nil {
			count.add(reconnection, time.Since(began), "")
		}
		return err
	})
	return errors.Join(err, context.Cause(ctx))
}

// reconnection is what coming back is counted as.
const reconnection = "subscribeConvoEvents"

// close ends all, and reports those that had ended before.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	s.done.Wait()
	var broke int64
	for _, one := range s.all {
		broke += one.broke.Load()
	}
	s.b.note("%d streams were told %d events; %d connections were ended by a server", len(s.all), s.told.Load(), broke)
}
