package clientsim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
)

// The methods of the event stream.
const (
	nsidSubscribe = syntax.NSID(mlsapi.NSIDSubscribeConvoEvents)
	nsidTicket    = syntax.NSID(mlsapi.NSIDGetSubscriptionTicket)
	nsidStream    = syntax.NSID(mlsapi.NSIDStreamConvoEvents)
)

// Subscriber is a client that listens. It keeps its cursor, and after whatever ends a connection it goes on from there, on any of
// its servers.
type Subscriber struct {
	Name    string
	Account *Account
	Vigil   *Vigil
	// Nodes are the servers that it may connect to.
	Nodes []*Client
	// From is the cursor of the first connection: nil for what happens from then on.
	From *int64
	// Query holds further parameters.
	Query url.Values
	// By says how it proves who it is: byToken, byTicket or, if it says nothing, now so and now so.
	By string
	// ServerSent has it read streamConvoEvents.
	ServerSent bool
	// Life is how long a connection lasts about, before it is dropped: 0 for ever. Doze is how long it stops reading now and then.
	Life, Doze time.Duration
	// DozeAfter is after how many events, about, it does that; 0: a hundred.
	DozeAfter int
	// Heard is called with every new event and when it came; live tells those that happened while this connection was open.
	Heard func(h *happening, at time.Time, live bool)

	rng   *rand.Rand
	tally *streamTally
	ready chan struct{} // closed once the first connection is open
	awake chan struct{} // closed when it is to sleep no more
}

// streamTally counts what becomes of connections.
type streamTally struct {
	Connected atomic.Int64
	Dropped   atomic.Int64 // by the client
	Slow      atomic.Int64 // ConsumerTooSlow
	Restarted atomic.Int64 // closed with 1012
	Broke     atomic.Int64 // ended otherwise
	Failed    atomic.Int64 // not opened

	mu      sync.Mutex // guards reasons
	reasons map[string]int
}

// reason counts why connections broke or were not opened.
func (t *streamTally) reason(err error) {
	var named *CallError
	if errors.As(err, &named) {
		err = named
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner // without the addresses
	}
	text := err.Error()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reasons == nil {
		t.reasons = map[string]int{}
	}
	if len(t.reasons) < 20 || t.reasons[text] > 0 {
		t.reasons[text]++
	}
}

// Reasons are the most frequent ones, in words.
func (t *streamTally) Reasons() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	texts := slices.SortedFunc(maps.Keys(t.reasons), func(a, b string) int { return t.reasons[b] - t.reasons[a] })
	for i, text := range texts {
		texts[i] = fmt.Sprintf("%d × %.150s", t.reasons[text], text)
	}
	return strings.Join(texts[:min(len(texts), 5)], "; ")
}

// How a subscriber proves who it is.
const (
	byToken  = "token"
	byTicket = "ticket"
)

// maxFrame bounds what a subscriber reads at once.
const maxFrame = 16 << 20

// Listen connects again and again until ctx ends. The error is for what no client can go on after.
func (s *Subscriber) Listen(ctx context.Context) error {
	wait := firstBackoff
	for ctx.Err() == nil {
		opened, err := s.connection(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if opened {
			wait = firstBackoff
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if err == nil {
			continue
		}
		timer := time.NewTimer(wait/2 + time.Duration(s.rng.Int64N(int64(wait))))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		wait = min(2*wait, maxBackoff)
	}
	return nil
}

// fatalError is a verdict that asking again does not change.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

func (s *Subscriber) connection(ctx context.Context) (opened bool, err error) {
	if s.Life > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Life/2+time.Duration(s.rng.Int64N(int64(s.Life))))
		defer cancel()
	}
	node := s.Nodes[s.rng.IntN(len(s.Nodes))]
	params := url.Values{}
	for k, v := range s.Query {
		params[k] = v
	}
	// Server-sent events begin behind the cursor: there is no telling again.
	cursor, ok := s.Vigil.Resume(!s.ServerSent && s.rng.IntN(4) > 0)
	if !ok && s.From != nil {
		cursor, ok = *s.From, true
	}
	if s.ServerSent {
		opened, err = s.readServerSent(ctx, node, params, cursor, ok)
	} else {
		if ok {
			params.Set("cursor", strconv.FormatInt(cursor, 10))
		}
		opened, err = s.readFrames(ctx, node, params)
	}
	return opened, s.ended(ctx, opened, err)
}

// ended counts how a connection ended, and says after what to wait.
func (s *Subscriber) ended(ctx context.Context, opened bool, err error) error {
	var named *streamError
	var fatal *fatalError
	switch {
	case errors.As(err, &fatal):
	case ctx.Err() != nil:
		s.tally.Dropped.Add(1)
		return nil
	case errors.As(err, &named) && named.name == mlsapi.ErrConsumerTooSlow:
		s.tally.Slow.Add(1)
		return nil
	case errors.As(err, &named) && named.name == mlsapi.ErrFutureCursor:
		return &fatalError{err}
	case errors.As(err, &named):
		s.tally.Broke.Add(1)
		s.tally.reason(err)
	case websocket.CloseStatus(err) == websocket.StatusServiceRestart:
		s.tally.Restarted.Add(1)
	case !opened:
		s.tally.Failed.Add(1)
		s.tally.reason(err)
	default:
		s.tally.Broke.Add(1)
		s.tally.reason(err)
	}
	return err
}

// open dials, by ticket or with a token.
func (s *Subscriber) open(ctx context.Context, node *Client, params url.Values) (*websocket.Conn, error) {
	address := node.base + "/xrpc/" + nsidSubscribe.String()
	header := http.Header{}
	if s.By == byTicket || s.By == "" && s.rng.IntN(2) == 0 {
		ticket, err := node.ticket(ctx, s.Account)
		if err != nil {
			return nil, err
		}
		// The URL that comes with it is that of the service; here a node of it is wanted.
		u, err := url.Parse(ticket.URL)
		if err != nil || u.Path != "/xrpc/"+nsidSubscribe.String() || u.Query().Get("ticket") != ticket.Ticket {
			return nil, &fatalError{fmt.Errorf("the ticket's URL is %q", ticket.URL)}
		}
		params.Set("ticket", ticket.Ticket)
	} else {
		token, err := s.Account.Token(node.audience, nsidSubscribe)
		if err != nil {
			return nil, err
		}
		header.Set("Authorization", "Bearer "+token)
	}
	if len(params) > 0 {
		address += "?" + params.Encode()
	}
	dial, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	client := streamClient
	if s.Doze > 0 {
		client = narrowClient
	}
	conn, resp, err := websocket.Dial(dial, address, &websocket.DialOptions{
		HTTPHeader: header, HTTPClient: client, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, refusedUpgrade(resp, err)
	}
	conn.SetReadLimit(maxFrame)
	return conn, nil
}

// opens opens a stream and hears, for a moment, whether that is an error.
func (c *Client) opens(ctx context.Context, token string, params url.Values) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, resp, err := websocket.Dial(ctx, c.base+"/xrpc/"+nsidSubscribe.String()+"?"+params.Encode(), &websocket.DialOptions{HTTPHeader: header, HTTPClient: streamClient})
	if err != nil {
		return refusedUpgrade(resp, err)
	}
	defer func() { _ = conn.CloseNow() }()
	moment, cancel := context.WithTimeout(ctx, lull)
	defer cancel()
	_, frame, err := conn.Read(moment)
	if err != nil && moment.Err() != nil {
		return nil // it goes on
	}
	if err != nil {
		return err
	}
	_, err = readFrame(frame)
	return err
}

// streamClient opens a connection for every stream. Those of narrowClient take little that is not read.
var (
	streamClient = &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 2 << 10, WriteBufferSize: 1 << 10}}
	narrowClient = &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: dialNarrow}}
)

func dialNarrow(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) }), err)
	}}
	return d.DialContext(ctx, network, address)
}

// refusedUpgrade makes a verdict of an answer that is no upgrade, unless asking again may help.
func refusedUpgrade(resp *http.Response, err error) error {
	if resp == nil || resp.StatusCode/100 == 1 {
		return err
	}
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	named := readError(nsidSubscribe, resp, body)
	// A database that was killed has forgotten its tickets.
	if named.Name == mlsapi.ErrInvalidTicket || named.Status >= 500 || named.Status == http.StatusTooManyRequests {
		return named
	}
	return &fatalError{errors.Join(named, readErr)}
}

func (c *Client) ticket(ctx context.Context, who *Account) (*mlsapi.GetSubscriptionTicketOutput, error) {
	answer, err := c.Once(ctx, who, Call{Method: nsidTicket, Body: []byte("{}")})
	if err != nil {
		var named *CallError
		if errors.As(err, &named) && named.Status/100 == 4 && named.Status != http.StatusTooManyRequests {
			return nil, &fatalError{err}
		}
		return nil, err
	}
	out, err := mlsapi.DecodeGetSubscriptionTicketOutput(answer.Body)
	if err != nil {
		return nil, &fatalError{err}
	}
	return out, nil
}

func (s *Subscriber) opened() {
	s.tally.Connected.Add(1)
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// readFrames reads a WebSocket until it ends.
func (s *Subscriber) readFrames(ctx context.Context, node *Client, params url.Values) (opened bool, err error) {
	conn, err := s.open(ctx, node, params)
	if err != nil {
		return false, err
	}
	// An end without a word is what a phone's network has to offer.
	defer func() { _ = conn.CloseNow() }()
	since := time.Now()
	s.opened()
	var frame bytes.Buffer
	for {
		if s.Doze > 0 && s.rng.IntN(orDefault(s.DozeAfter, 100)) == 0 {
			s.sleep(ctx)
		}
		kind, r, err := conn.Reader(ctx)
		if err != nil {
			return true, err
		}
		frame.Reset()
		if _, err := frame.ReadFrom(r); err != nil {
			return true, err
		}
		at := time.Now()
		if kind != websocket.MessageBinary {
			return true, &fatalError{fmt.Errorf("a frame that is not binary: %.100q", frame.Bytes())}
		}
		h, err := readFrame(bytes.Clone(frame.Bytes()))
		var told *streamError
		if errors.As(err, &told) {
			return true, err
		}
		if err != nil {
			return true, &fatalError{err}
		}
		s.take(h, at, since)
	}
}

func (s *Subscriber) sleep(ctx context.Context) {
	timer := time.NewTimer(s.Doze)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.awake:
	case <-timer.C:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (s *Subscriber) take(h happening, at, since time.Time) {
	if s.Vigil.See(h) && s.Heard != nil {
		s.Heard(&h, at, h.at.After(since))
	}
}

// readServerSent reads text/event-stream until it ends.
func (s *Subscriber) readServerSent(ctx context.Context, node *Client, params url.Values, cursor int64, resume bool) (opened bool, err error) {
	token, err := s.Account.Token(node.audience, nsidStream)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, node.base+"/xrpc/"+nsidStream.String()+"?"+params.Encode(), nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	if resume {
		// It begins behind what it is given, and Resume says where to begin.
		req.Header.Set("Last-Event-ID", strconv.FormatInt(max(cursor-1, 0), 10))
	}
	since := time.Now()
	resp, err := streamClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, refusedUpgrade(resp, fmt.Errorf("%s: %s", nsidStream, resp.Status))
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return false, &fatalError{fmt.Errorf("%s: Content-Type %q", nsidStream, kind)}
	}
	s.opened()
	var id, event string
	var data []byte
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, maxFrame*2)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case scan.Text() == "" && event != "":
			h, err := readServerSent(id, event, data)
			if err != nil {
				return true, &fatalError{err}
			}
			if h.kind == toldInfo && h.name == mlsapi.ErrConsumerTooSlow {
				return true, &streamError{name: h.name}
			}
			if h.kind != toldInfo || h.name == "OutdatedCursor" {
				s.take(h, time.Now(), since)
			}
			event, data = "", nil
		case name == "id":
			id = value
		case name == "event":
			event = value
		case name == "data":
			data = append(data, value...)
		}
	}
	if err := scan.Err(); err != nil {
		return true, err
	}
	return true, io.ErrUnexpectedEOF
}
