package client

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
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// The methods of the event stream.
const (
	NSIDSubscribe = syntax.NSID(mlsapi.NSIDSubscribeConvoEvents)
	nsidTicket    = syntax.NSID(mlsapi.NSIDGetSubscriptionTicket)
	nsidStream    = syntax.NSID(mlsapi.NSIDStreamConvoEvents)
)

// Subscriber is a client that listens to events. It keeps its cursor. When a connection ends, it
// resumes on any of its servers.
type Subscriber struct {
	Name     string
	Account  *xrpc.Account
	Observer *history.Observer
	// Nodes are the servers that the subscriber may connect to.
	Nodes []*xrpc.Client
	// From is the cursor of the first connection. nil means the events from now on.
	From *int64
	// ReadAgain makes the subscriber read its convos again after OutdatedCursor. A client does so
	// after its server has lost events. Without ReadAgain, OutdatedCursor is a violation.
	ReadAgain bool
	// OnOutdated is called for each OutdatedCursor, before the convos are read again. It may be nil.
	OnOutdated func()
	// ServerSent makes the subscriber read streamConvoEvents.
	ServerSent bool
	// ConnectionLife is the approximate length of a connection; 0 means no limit. Pause is the length
	// of a pause in reading.
	ConnectionLife, Pause time.Duration
	// OnEvent gets every new event and its arrival time. live is set if the event happened while
	// this connection was open.
	OnEvent func(h *xrpc.Event, at time.Time, live bool)

	rng         *rand.Rand
	counts      *StreamCounts
	ready       chan struct{} // closed once the first connection is open
	stopPausing chan struct{} // closed to end all pauses
}

// StreamCounts counts how connections end.
type StreamCounts struct {
	Connected atomic.Int64
	Dropped   atomic.Int64 // ended by the client
	Slow      atomic.Int64 // ended with ConsumerTooSlow
	Restarted atomic.Int64 // closed with 1012
	Broke     atomic.Int64 // ended in another way
	Failed    atomic.Int64 // not opened

	mu      sync.Mutex // guards reasons
	reasons map[string]int
}

// reason counts why a connection broke or did not open.
func (t *StreamCounts) reason(err error) {
	var named *xrpc.CallError
	if errors.As(err, &named) {
		err = named
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner // the innermost error has no addresses in its text
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

// Reasons returns the most frequent reasons as text.
func (t *StreamCounts) Reasons() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	texts := slices.SortedFunc(maps.Keys(t.reasons), func(a, b string) int { return t.reasons[b] - t.reasons[a] })
	for i, text := range texts {
		texts[i] = fmt.Sprintf("%d × %.150s", t.reasons[text], text)
	}
	return strings.Join(texts[:min(len(texts), 5)], "; ")
}

// eventsBetweenPauses is the average number of events between two pauses.
const eventsBetweenPauses = 100

// maxFrame is the largest frame that a subscriber reads, in bytes.
const maxFrame = 16 << 20

// Listen connects again and again until ctx ends. It returns an error if retrying cannot help.
func (s *Subscriber) Listen(ctx context.Context) error {
	wait := xrpc.FirstBackoff
	for ctx.Err() == nil {
		opened, err := s.connection(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if opened {
			wait = xrpc.FirstBackoff
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if err == nil {
			continue
		}
		xrpc.Sleep(ctx, wait/2+time.Duration(s.rng.Int64N(int64(wait))))
		wait = min(2*wait, xrpc.MaxBackoff)
	}
	return nil
}

// fatalError is an error that retrying does not change.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

func (s *Subscriber) connection(ctx context.Context) (opened bool, err error) {
	if s.ConnectionLife > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.ConnectionLife/2+time.Duration(s.rng.Int64N(int64(s.ConnectionLife))))
		defer cancel()
	}
	node := s.Nodes[s.rng.IntN(len(s.Nodes))]
	params := url.Values{}
	// Server-sent events begin after the cursor, so the last event cannot be asked for again.
	// ReadAgain excludes it too: a client that asks for its last event does not learn that the server
	// has lost exactly that event.
	again := !s.ServerSent && !s.ReadAgain && s.rng.IntN(4) > 0
	cursor, ok := s.Observer.Resume(again)
	position := s.Observer.Position()
	if !ok && s.From != nil {
		cursor, ok = *s.From, true
	}
	if s.ServerSent {
		opened, err = s.readServerSent(ctx, node, params, cursor, ok)
	} else {
		if ok {
			params.Set("cursor", strconv.FormatInt(cursor, 10))
		}
		if ok && !again && position != "" {
			params.Set("position", position)
		}
		opened, err = s.readFrames(ctx, node, params)
	}
	if node.ClockWrong(err) {
		err = errors.New(err.Error()) // not fatal: the next token is good
	}
	return opened, s.ended(ctx, opened, err)
}

// ended counts how a connection ended. It returns nil if the next connection may be opened at once.
func (s *Subscriber) ended(ctx context.Context, opened bool, err error) error {
	var named *xrpc.StreamError
	var fatal *fatalError
	switch {
	case errors.As(err, &fatal):
	case ctx.Err() != nil:
		s.counts.Dropped.Add(1)
		return nil
	case errors.As(err, &named) && named.Name == mlsapi.ErrConsumerTooSlow:
		s.counts.Slow.Add(1)
		return nil
	case errors.As(err, &named) && named.Name == mlsapi.ErrFutureCursor:
		return &fatalError{err}
	case errors.As(err, &named):
		s.counts.Broke.Add(1)
		s.counts.reason(err)
	case websocket.CloseStatus(err) == websocket.StatusServiceRestart:
		s.counts.Restarted.Add(1)
	case !opened:
		s.counts.Failed.Add(1)
		s.counts.reason(err)
	default:
		s.counts.Broke.Add(1)
		s.counts.reason(err)
	}
	return err
}

// open dials with a ticket or a token.
func (s *Subscriber) open(ctx context.Context, node *xrpc.Client, params url.Values) (_ *websocket.Conn, err error) {
	defer Catch(&err)
	address := node.Base + "/xrpc/" + NSIDSubscribe.String()
	header := http.Header{}
	if s.rng.IntN(2) == 0 {
		ticket := Must(Ticket(ctx, node, s.Account))
		// The URL names the service, but this subscriber wants a certain node of the service.
		u, err := url.Parse(ticket.URL)
		if err != nil || u.Path != "/xrpc/"+NSIDSubscribe.String() || u.Query().Get("ticket") != ticket.Ticket {
			return nil, &fatalError{fmt.Errorf("the ticket's URL is %q", ticket.URL)}
		}
		params.Set("ticket", ticket.Ticket)
	} else {
		token := Must(node.Token(s.Account, NSIDSubscribe))
		header.Set("Authorization", "Bearer "+token)
	}
	if len(params) > 0 {
		address += "?" + params.Encode()
	}
	dial, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	client := streamClient
	if s.Pause > 0 {
		client = slowClient
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

// OpenStream opens a stream, waits a moment for an error frame, and closes the stream. opened is
// the time at which the stream was open.
func OpenStream(ctx context.Context, c *xrpc.Client, token string, params url.Values) (opened time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, resp, err := websocket.Dial(ctx, c.Base+"/xrpc/"+NSIDSubscribe.String()+"?"+params.Encode(),
		&websocket.DialOptions{HTTPHeader: header, HTTPClient: streamClient})
	if err != nil {
		return opened, refusedUpgrade(resp, err)
	}
	opened = time.Now()
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxFrame)
	moment, cancel := context.WithTimeout(ctx, QuietTime)
	defer cancel()
	for {
		_, frame, err := conn.Read(moment)
		if err != nil && moment.Err() != nil {
			return opened, nil // no error came
		}
		if err == nil {
			_, err = xrpc.ReadFrame(frame)
		}
		if err != nil {
			return opened, err
		}
	}
}

// streamClient opens one connection per stream. slowClient has a small receive buffer, so that the
// server notices a reader that pauses.
var (
	streamClient = &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 2 << 10,
		WriteBufferSize: 1 << 10}}
	slowClient = &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: dialSlow}}
)

func dialSlow(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET,
				syscall.SO_RCVBUF, 4<<10)
		}), err)
	}}
	return d.DialContext(ctx, network, address)
}

// refusedUpgrade turns an HTTP answer into an error. The error is fatal unless retrying may help.
func refusedUpgrade(resp *http.Response, err error) error {
	if resp == nil || resp.StatusCode/100 == 1 {
		return err
	}
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	named := xrpc.ReadError(NSIDSubscribe, resp, body)
	// A killed database has lost its tickets.
	if named.Name == mlsapi.ErrInvalidTicket || named.Status >= 500 || named.Status == http.StatusTooManyRequests {
		return named
	}
	return &fatalError{errors.Join(named, readErr)}
}

// Ticket fetches a ticket for one connection.
func Ticket(ctx context.Context, c *xrpc.Client, who *xrpc.Account) (*mlsapi.GetSubscriptionTicketOutput, error) {
	answer, err := c.Once(ctx, who, xrpc.Call{Method: nsidTicket, Body: []byte("{}")})
	if err != nil {
		var named *xrpc.CallError
		if errors.As(err, &named) && named.Status/100 == 4 && named.Status != http.StatusTooManyRequests {
			return nil, &fatalError{err}
		}
		return nil, err
	}
	out, err := xrpc.Decode[mlsapi.GetSubscriptionTicketOutput](answer.Body)
	if err != nil {
		return nil, &fatalError{err}
	}
	return out, nil
}

func (s *Subscriber) countOpened() {
	s.counts.Connected.Add(1)
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// readFrames reads a WebSocket until it ends.
func (s *Subscriber) readFrames(ctx context.Context, node *xrpc.Client, params url.Values) (opened bool, err error) {
	defer Catch(&err)
	conn := Must(s.open(ctx, node, params))
	// A phone's connection also ends without a closing handshake.
	defer func() { _ = conn.CloseNow() }()
	since := time.Now()
	s.countOpened()
	var frame bytes.Buffer
	for {
		if s.Pause > 0 && s.rng.IntN(eventsBetweenPauses) == 0 {
			s.pause(ctx)
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
		h, err := xrpc.ReadFrame(frame.Bytes())
		var streamErr *xrpc.StreamError
		if errors.As(err, &streamErr) {
			return true, err
		}
		if err != nil {
			return true, &fatalError{err}
		}
		if err := s.observe(ctx, node, h, at, since); err != nil {
			return true, err
		}
	}
}

func (s *Subscriber) pause(ctx context.Context) {
	timer := time.NewTimer(s.Pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.stopPausing:
	case <-timer.C:
	}
}

func (s *Subscriber) observe(ctx context.Context, node *xrpc.Client, h xrpc.Event, at, since time.Time) error {
	if h.Kind == xrpc.EventInfo && h.Name == outdatedCursor && s.ReadAgain {
		if s.OnOutdated != nil {
			s.OnOutdated()
		}
		read, err := readConvos(ctx, node, s.Account)
		if err == nil {
			s.Observer.ReadAgain(read)
		}
		return err
	}
	if h.Kind != xrpc.EventInfo && !h.Kept() {
		return nil // the server does not keep it
	}
	if s.Observer.Observe(h) && s.OnEvent != nil {
		s.OnEvent(&h, at, h.At.After(since))
	}
	return nil
}

// outdatedCursor is the name of the info event that says that events were missed.
const outdatedCursor = "OutdatedCursor"

// readConvos reads the logs of all convos of an account, and returns the last seq of each log.
func readConvos(ctx context.Context, node *xrpc.Client, who *xrpc.Account) (_ map[string]int64, err error) {
	defer Catch(&err)
	read, cursor := map[string]int64{}, ""
	for {
		answer := Must(node.Once(ctx, who, xrpc.ConvosCall(cursor, pageSize)))
		page, err := xrpc.Decode[mlsapi.GetConvosOutput](answer.Body)
		if err != nil {
			return nil, &fatalError{err}
		}
		for _, convo := range page.Conversations {
			read[convo.ID] = Must(readLog(ctx, node, who, convo.ID))
		}
		if page.Cursor == nil {
			return read, nil
		}
		cursor = *page.Cursor
	}
}

// readLog reads the log of a convo, and returns its last seq.
func readLog(ctx context.Context, node *xrpc.Client, who *xrpc.Account, convo string) (last int64, err error) {
	defer Catch(&err)
	for {
		answer := Must(node.Once(ctx, who, xrpc.MessagesCall(convo, "all", last, pageSize)))
		page, err := xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body)
		if err != nil {
			return 0, &fatalError{err}
		}
		if n := len(page.Messages); n > 0 {
			last = page.Messages[n-1].Seq
		}
		if page.Cursor == nil || len(page.Messages) == 0 {
			return last, nil
		}
	}
}

// readServerSent reads text/event-stream until it ends.
func (s *Subscriber) readServerSent(ctx context.Context, node *xrpc.Client, params url.Values, cursor int64,
	resume bool) (opened bool, err error) {
	defer Catch(&err)
	token := Must(node.Token(s.Account, nsidStream))
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, node.Base+"/xrpc/"+nsidStream.String()+"?"+params.Encode(),
		nil))
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	if resume {
		// The server sends the events after this id. Resume has returned the first cursor that is wanted.
		req.Header.Set("Last-Event-ID", strconv.FormatInt(max(cursor-1, 0), 10))
	}
	since := time.Now()
	resp := Must(streamClient.Do(req))
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, refusedUpgrade(resp, fmt.Errorf("%s: %s", nsidStream, resp.Status))
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return false, &fatalError{fmt.Errorf("%s: Content-Type %q", nsidStream, kind)}
	}
	s.countOpened()
	var id, event string
	var data []byte
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, maxFrame*2)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case scan.Text() == "" && event != "":
			h, err := xrpc.ReadServerSent(id, event, data)
			if err != nil {
				return true, &fatalError{err}
			}
			if h.Kind == xrpc.EventInfo && h.Name == mlsapi.ErrConsumerTooSlow {
				return true, &xrpc.StreamError{Name: h.Name}
			}
			if h.Kind != xrpc.EventInfo || h.Name == outdatedCursor {
				if err := s.observe(ctx, node, h, time.Now(), since); err != nil {
					return true, err
				}
			}
			id, event, data = "", "", nil
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

// QuietTime is how long no event may come after all events have arrived.
const QuietTime = 200 * time.Millisecond
