package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// The kinds of streams.
const (
	webSockets = "websocket"
	serverSent = "sse"
)

// streams are subscribers that count events. A subscriber on a WebSocket resumes when its
// connection has ended.
type streams struct {
	b       *bench
	kind    string
	all     []*stream
	events  atomic.Int64
	arrived arrival

	mu   sync.Mutex // guards drop
	drop context.CancelFunc
	done sync.WaitGroup
}

// messageEvent is the name of the event of a message. Each subscriber also gets some events of the
// changes that made the convo.
const messageEvent = "messageEvent"

// isMessage reports whether a frame has a message event. The first bytes of a frame are its header.
func isMessage(frame []byte) bool {
	return bytes.Contains(frame[:min(len(frame), 32)], []byte("#"+messageEvent))
}

// arrival is called for the n-th message of a stream; the first message is number 0. read decodes
// the message.
type arrival func(n int64, wire []byte, read func([]byte) (xrpc.Event, error))

// stream is one subscriber.
type stream struct {
	account *xrpc.Account
	token   string
	base    string
	web     *http.Client
	cursor  int64        // cursor of the last event; 0 means that no event came
	broke   atomic.Int64 // connections that the server or the network ended
}

// openingLanes is how many connections open at once outside of a storm. A server looks up the same
// number of accounts at a time.
const openingLanes = 16

// maxFrame is the largest event, in bytes.
const maxFrame = 16 << 20

// devices is how many streams an account has in a storm. A server allows an account maxStreams.
const (
	devices    = 4
	maxStreams = 16
)

// subscribers opens n streams of the senders, and of more accounts if needed.
func (b *bench) subscribers(ctx context.Context, n int) *streams {
	accounts := b.accounts()[:min(len(b.senders), n)]
	others := max((n+devices-1)/devices-len(accounts), 0)
	return b.subscribe(ctx, slices.Concat(accounts, b.env.accounts(others)), n, webSockets,
		func(int64, []byte, func([]byte) (xrpc.Event, error)) {})
}

// subscribe opens n streams of the accounts, by turns and spread over the servers.
func (b *bench) subscribe(ctx context.Context, accounts []*xrpc.Account, n int, kind string,
	arrived arrival) *streams {
	b.say("opening %d streams: %s", n, kind)
	s, method := &streams{b: b, kind: kind, arrived: arrived}, mlsapi.NSIDSubscribeConvoEvents
	if kind == serverSent {
		method = mlsapi.NSIDStreamConvoEvents
	}
	tokens := signAll(accounts, method)
	var homes []*http.Client // one client for each address
	one := new(sync.Mutex)
	for i := range min(len(accounts), addresses) {
		homes = append(homes, streamClient(dialer{one: one, from: home(i)}))
	}
	for i := range n {
		k := i % len(accounts)
		s.all = append(s.all, &stream{
			account: accounts[k], token: tokens[k], base: b.env.Nodes[i%len(b.env.Nodes)].URL(), web: homes[k%len(homes)],
		})
	}
	s.open(ctx)
	return s
}

// addresses is how many loopback addresses the accounts connect from. A server limits the waiting
// streams and the sold sessions of one address.
const addresses = 100

// home returns a loopback address. It returns nil, which means any address, on a system with only
// one.
func home(i int) net.IP {
	if runtime.GOOS != "linux" {
		return nil
	}
	return net.IPv4(127, 0, 1, byte(1+i))
}

func streamClient(d dialer) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableCompression: true, ReadBufferSize: 2 << 10, WriteBufferSize: 1 << 10, DialContext: d.dial,
	}}
}

// open opens all streams. After an error, no stream is open.
func (s *streams) open(ctx context.Context) {
	listening, drop := context.WithCancel(ctx)
	s.drop = drop
	err := Attempt(func() {
		Each(openingLanes, len(s.all), func(i int) {
			Check(s.insist(ctx, listening, s.all[i], func(error) {})) // a server limits its look-ups of unknown accounts
		})
	})
	if err != nil {
		s.end()
	}
	Check(err)
}

// insist connects, and retries as a client would. It calls failed for each failure.
func (s *streams) insist(ctx, listening context.Context, one *stream, failed func(error)) error {
	began := time.Now()
	err := s.connect(ctx, listening, one)
	for wait := 50 * time.Millisecond; err != nil && ctx.Err() == nil &&
		time.Since(began) < retryFor; wait = min(2*wait, time.Second) {
		failed(err)
		xrpc.Sleep(ctx, wait)
		err = s.connect(ctx, listening, one)
	}
	return err
}

// connect opens a stream. The stream listens until listening ends or the server ends the stream.
func (s *streams) connect(ctx, listening context.Context, one *stream) error {
	if s.kind == serverSent {
		return s.listen(listening, one)
	}
	address := one.base + "/xrpc/" + mlsapi.NSIDSubscribeConvoEvents
	if one.cursor > 0 {
		address += "?cursor=" + strconv.FormatInt(one.cursor, 10)
	}
	dialing, cancel := context.WithTimeout(ctx, retryFor)
	defer cancel()
	conn, _, err := websocket.Dial(dialing, address, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + one.token}}, HTTPClient: one.web,
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	conn.SetReadLimit(maxFrame)
	s.done.Go(func() {
		defer func() { _ = conn.CloseNow() }() // a phone's connection also ends without a closing handshake
		var last, next bytes.Buffer            // frames; only the last one is decoded
		for n := int64(0); ; {
			_, r, err := conn.Reader(listening)
			if err == nil {
				next.Reset()
				_, err = next.ReadFrom(r)
			}
			if err != nil {
				break
			}
			last, next = next, last
			s.events.Add(1)
			if isMessage(last.Bytes()) {
				s.arrived(n, last.Bytes(), xrpc.ReadFrame)
				n++
			}
		}
		if listening.Err() == nil {
			one.broke.Add(1)
		}
		if cursor, err := xrpc.EventCursor(last.Bytes()); err == nil {
			one.cursor = cursor + 1
		}
	})
	return nil
}

// reconnect drops all connections at once. All connect again as fast as they can. Each counts with
// the time from the drop until its new connection is open.
func (s *streams) reconnect(ctx context.Context, count *load.Counter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	s.drop()
	s.done.Wait()
	listening, drop := context.WithCancel(ctx)
	s.drop = drop
	err := Attempt(func() {
		Each(len(s.all), len(s.all), func(i int) {
			Check(s.insist(ctx, listening, s.all[i],
				func(err error) { count.Fail(reconnection, "connection", err.Error()) }))
			count.Done(reconnection, time.Since(began))
		})
	})
	return errors.Join(err, context.Cause(ctx))
}

// reconnection is the operation that a reconnect counts as.
const reconnection = "subscribeConvoEvents"

// end ends all streams.
func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	s.done.Wait()
}

// atFirst is how many streams are at the first server.
func (s *streams) atFirst() int {
	return (len(s.all) + len(s.b.env.Nodes) - 1) / len(s.b.env.Nodes)
}

// ended is how many connections the servers or the network ended.
func (s *streams) ended() (n int64) {
	for _, one := range s.all {
		n += one.broke.Load()
	}
	return n
}

// close ends all streams, and adds their counts to the report.
func (s *streams) close() {
	s.end()
	s.b.note("%d streams got %d events; servers ended %d connections", len(s.all), s.events.Load(), s.ended())
}
