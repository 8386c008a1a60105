package api_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/messages"
)

// hub sends the events that its test gives it.
type hub struct {
	refuses  error
	outdated bool

	mu       sync.Mutex
	requests []events.Request
	begun    chan *subscription
}

// pretend replaces the server's hub with one of the test.
func (w *world) pretend() *hub {
	h := &hub{begun: make(chan *subscription, 2000)}
	w.server.Subscribe(h.subscribe)
	return h
}

func (h *hub) subscribe(_ context.Context, r events.Request) (api.Subscription, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, r)
	if h.refuses != nil {
		return nil, false, h.refuses
	}
	s := &subscription{events: make(chan *events.Event, 1000), fails: make(chan error, 1), slow: make(chan bool, 1),
		closed: make(chan bool), woken: make(chan bool, 1)}
	h.begun <- s
	return s, h.outdated, nil
}

// last returns the last request of a subscription.
func (h *hub) last() events.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests[len(h.requests)-1]
}

// next waits for the next subscription.
func (h *hub) next(t *testing.T) *subscription {
	t.Helper()
	select {
	case s := <-h.begun:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no subscription has begun")
		return nil
	}
}

type subscription struct {
	events chan *events.Event
	fails  chan error
	slow   chan bool
	closed chan bool
	woken  chan bool
	once   sync.Once

	event *events.Event // that ended Park
	fail  error

	believed atomic.Int32 // 1: trusted, -1: doubted, by the last call
}

func (s *subscription) Began() int64 { return 5 }

func (s *subscription) Next(ctx context.Context) (*events.Event, error) {
	if e := s.More(); e != nil {
		return e, nil
	}
	select {
	case e := <-s.events:
		return e, nil
	case err := <-s.fails:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *subscription) Ready(context.Context) (*events.Event, error) {
	if e := s.More(); e != nil {
		return e, nil
	}
	select {
	case s.fail = <-s.fails:
		return s.More(), nil // the event that came before, if it did
	default:
		return nil, s.fail
	}
}

func (s *subscription) More() *events.Event {
	if e := s.event; e != nil {
		s.event = nil
		return e
	}
	select {
	case e := <-s.events:
		return e
	default:
		return nil
	}
}

func (s *subscription) Park(ctx context.Context, wake func()) bool {
	if ctx.Err() != nil || s.fail != nil || len(s.events)+len(s.fails) > 0 {
		return false
	}
	go func() {
		select {
		case s.event = <-s.events:
		case s.fail = <-s.fails:
			s.event = s.More()
		case <-s.woken:
		case <-s.closed:
			return
		}
		wake()
	}()
	return true
}

func (s *subscription) Wake() {
	select {
	case s.woken <- true:
	default:
	}
}

// Request says that every convo is accepted.
func (s *subscription) Request(context.Context) bool { return false }

func (s *subscription) Slow() { s.slow <- true }

func (s *subscription) Doubt() { s.believed.Store(-1) }

func (s *subscription) Trust() { s.believed.Store(1) }

func (s *subscription) Close() { s.once.Do(func() { close(s.closed) }) }

func (s *subscription) ended(t *testing.T) {
	t.Helper()
	select {
	case <-s.closed:
	case <-time.After(time.Minute):
		t.Fatal("the subscription was not ended")
	}
}

// listen serves the world's server over TCP, as cmd/mlsd does.
func (w *world) listen() (address string) {
	w.t.Helper()
	if w.address != "" {
		return w.address
	}
	web := httptest.NewUnstartedServer(w.server)
	web.Config.ReadTimeout, web.Config.WriteTimeout = w.deadline, w.deadline
	web.Start()
	w.t.Cleanup(web.Close)
	w.address = web.Listener.Addr().String()
	return w.address
}

// ticket fetches a ticket.
func (u *user) ticket() string {
	u.w.t.Helper()
	ticket, _, err := u.w.tickets.Issue(u.w.t.Context(), events.Holder{DID: u.did()}, mlsapi.NSIDSubscribeConvoEvents)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return ticket
}

// socket is a WebSocket whose peer is the test.
type socket struct {
	t      testing.TB
	ws     *websocket.Conn
	pinged chan struct{} // gets a value for each ping that the client answers, if there is room
}

// dial opens a WebSocket.
func (u *user) dial(params ...string) *socket {
	u.w.t.Helper()
	return u.w.dial(u.authorization(mlsapi.NSIDSubscribeConvoEvents), params...)
}

func (w *world) dial(authorization string, params ...string) *socket {
	w.t.Helper()
	h := http.Header{}
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	target := "ws://" + w.listen() + "/xrpc/" + mlsapi.NSIDSubscribeConvoEvents + "?" + query(params...).Encode()
	pinged := make(chan struct{}, 10)
	ws, resp, err := websocket.Dial(w.t.Context(), target, &websocket.DialOptions{
		HTTPHeader: h,
		OnPingReceived: func(context.Context, []byte) bool {
			select {
			case pinged <- struct{}{}:
			default:
			}
			return true
		},
	})
	if err != nil {
		body := []byte{}
		if resp != nil {
			body, _ = io.ReadAll(resp.Body)
		}
		w.t.Fatalf("dial: %v %s", err, body)
	}
	ws.SetReadLimit(-1)
	w.t.Cleanup(func() { _ = ws.CloseNow() })
	return &socket{w.t, ws, pinged}
}

// read returns the next frame.
func (k *socket) read() []byte {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	kind, frame, err := k.ws.Read(ctx)
	if err != nil || kind != websocket.MessageBinary {
		k.t.Fatalf("read: %v, %v", kind, err)
	}
	return frame
}

// wants expects a frame of this header and body.
func (k *socket) wants(header, body map[string]any) {
	k.t.Helper()
	if got, want := k.read(), encoded(k.t, header, body); string(got) != string(want) {
		k.t.Fatalf("\n got %.500x\nwant %.500x", got, want)
	}
}

// encoded is a frame as another implementation of DAG-CBOR writes it.
func encoded(t testing.TB, header, body map[string]any) []byte {
	t.Helper()
	var frame []byte
	for _, part := range []map[string]any{header, body} {
		bytes, err := atdata.MarshalCBOR(part)
		if err != nil {
			t.Fatal(err)
		}
		frame = append(frame, bytes...)
	}
	return frame
}

// closes expects the connection to be closed like this, and returns the reason.
func (k *socket) closes(code websocket.StatusCode) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	_, frame, err := k.ws.Read(ctx)
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != code {
		k.t.Fatalf("read: %.200x, %v; want a close frame with %d", frame, err, code)
	}
	return closed.Reason
}

// fails expects an error frame, and the connection to be closed with the error's name.
func (k *socket) fails(name, message string) {
	k.t.Helper()
	k.wants(map[string]any{"op": int64(-1)}, map[string]any{"error": name, "message": message})
	if reason := k.closes(websocket.StatusPolicyViolation); reason != name {
		k.t.Fatalf("the reason is %q", reason)
	}
}

// handshake answers an opening handshake without a WebSocket behind it. headers are pairs of name
// and value; "" is none.
func (w *world) handshake(nsid string, q url.Values, authorization string, headers ...string) answer {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+w.listen()+"/xrpc/"+nsid+"?"+q.Encode(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": base64.StdEncoding.EncodeToString(make([]byte, 16)), "Authorization": authorization,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	if verb := r.Header.Get("Verb"); verb != "" {
		r.Method = verb
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	a := answer{t: w.t, status: resp.StatusCode, header: resp.Header}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		a.body, _ = io.ReadAll(resp.Body)
	}
	return a
}

// raw opens a WebSocket, and leaves everything after the handshake to the test.
func (u *user) raw(buffer int) (net.Conn, *bufio.Reader) {
	u.w.t.Helper()
	conn, err := net.Dial("tcp", u.w.listen())
	if err != nil {
		u.w.t.Fatal(err)
	}
	u.w.t.Cleanup(func() { _ = conn.Close() })
	if buffer > 0 {
		if err := conn.(*net.TCPConn).SetReadBuffer(buffer); err != nil {
			u.w.t.Fatal(err)
		}
	}
	_, err = fmt.Fprintf(conn,
		"GET /xrpc/%s HTTP/1.1\r\nHost: mls.example.com\r\nConnection: Upgrade\r\nUpgrade: "+
			"websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: %s\r\n\r\n", mlsapi.NSIDSubscribeConvoEvents,
		u.authorization(mlsapi.NSIDSubscribeConvoEvents))
	if err != nil {
		u.w.t.Fatal(err)
	}
	r := bufio.NewReaderSize(conn, 512)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		u.w.t.Fatalf("handshake: %v, %v", resp, err)
	}
	return conn, r
}

// sent is one server-sent event.
type sent struct{ event, id, data, retry, comment string }

// reader reads server-sent events.
type reader struct {
	t     testing.TB
	resp  *http.Response
	lines *bufio.Reader
}

// stream asks for server-sent events. headers are pairs of name and value.
func (u *user) stream(q url.Values, headers ...string) *reader {
	u.w.t.Helper()
	ctx, cancel := context.WithTimeout(u.w.t.Context(), time.Minute)
	u.w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+u.w.listen()+"/xrpc/"+mlsapi.NSIDStreamConvoEvents+"?"+q.Encode(), nil)
	if err != nil {
		u.w.t.Fatal(err)
	}
	r.Header.Set("Authorization", u.authorization(mlsapi.NSIDStreamConvoEvents))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Transport{DisableCompression: true, ReadBufferSize: 512}).RoundTrip(r)
	if err != nil {
		u.w.t.Fatal(err)
	}
	u.w.t.Cleanup(func() { _ = resp.Body.Close() })
	return &reader{u.w.t, resp, bufio.NewReader(resp.Body)}
}

// typed is how the data of an event begins: with its type, as members of a union have it in JSON.
func typed(event string) string {
	return `{"$type":"` + mlsapi.NSIDStreamConvoEvents + "#" + event + `",`
}

// next reads one event, or one comment.
func (r *reader) next() (s sent) {
	r.t.Helper()
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			r.t.Fatalf("%q: %v", line, err)
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return s
		}
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			s.event = value
		case "id":
			s.id = value
		case "data":
			s.data = value
		case "retry":
			s.retry = value
		case "":
			s.comment = value
		default:
			r.t.Fatalf("the line %q", line)
		}
	}
}

// event reads on to the next event.
func (r *reader) event() sent {
	r.t.Helper()
	for {
		if s := r.next(); s.event != "" {
			return s
		}
	}
}

// ends expects nothing more.
func (r *reader) ends() {
	r.t.Helper()
	if rest, err := io.ReadAll(r.lines); err != nil || len(rest) != 0 {
		r.t.Fatalf("%q, %v", rest, err)
	}
}

// live runs the world's own event stream.
func live(w *world) { w.live = true }

// events returns the hub of the server, and a function that stops it.
func (w *world) events() (*events.Hub, func(), messages.Option) {
	metrics := api.NewStreamMetrics(prometheus.NewRegistry())
	log := slog.New(slog.DiscardHandler)
	hub := events.NewHub(events.HubConfig{DB: w.db, Presence: events.NewPresence(w.db, slog.New(slog.DiscardHandler)),
		Log: log, Metrics: metrics})
	if !w.live {
		return hub, func() {}, func(*messages.Log) {}
	}
	sequencer := events.NewSequencer(events.SequencerConfig{DB: w.db, Log: log, Metrics: metrics,
		Retention: 24 * time.Hour, Moved: hub.Grown})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { sequencer.Run(ctx) })
	running.Go(func() { hub.Run(ctx) })
	w.t.Cleanup(func() {
		hub.Close()
		cancel()
		running.Wait()
	})
	return hub, sequencer.Wake, messages.In(events.Stream{Hub: hub, Sequencer: sequencer})
}

// object decodes JSON without a type.
func object(t testing.TB, text string) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}
