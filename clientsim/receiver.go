package clientsim

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Receiver is where the server's pushes arrive: a webhook on this machine, with
// a path of its own for each device. It writes every call down and judges it
// later. It is safe for concurrent use.
type Receiver struct {
	server *http.Server
	listen net.Listener
	done   chan error // Serve's result, once

	mu    sync.Mutex // guards what follows
	bells map[string]*Bell
	lost  []string // calls for nobody
}

// Bell is one device's place at the receiver.
type Bell struct {
	Device string
	URL    string

	r *Receiver
	// What follows is guarded by r.mu.
	secrets []string // that calls may be signed with
	answers []int    // to the next calls; then 200
	rings   []ring
}

// hangUp is no answer at all.
const hangUp = -1

// ring is one call, and what it was answered.
type ring struct {
	at     time.Time
	header http.Header
	body   []byte
	answer int
}

func (g *ring) key() string { return g.header.Get("Idempotency-Key") }

// pushNote is all that a call may say.
type pushNote struct {
	Type     string `json:"type"`
	DeviceID string `json:"deviceId"`
	JobID    string `json:"jobId"`
}

func (g *ring) note() (n pushNote, err error) {
	d := json.NewDecoder(strings.NewReader(string(g.body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return n, err
	}
	if d.More() {
		return n, errors.New("something follows")
	}
	return n, nil
}

// NewReceiver serves on a port of loopback until Close.
func NewReceiver() (*Receiver, error) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("receiver: %w", err)
	}
	r := &Receiver{listen: listen, done: make(chan error, 1), bells: map[string]*Bell{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() { r.done <- r.server.Serve(listen) }()
	return r, nil
}

// Close stops serving, also calls under way, and waits for it.
func (r *Receiver) Close() error {
	err := r.server.Close()
	if served := <-r.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Bell makes a place for a device. Its path says nothing of whose it is.
func (r *Receiver) Bell(device string) *Bell {
	path := "/" + rand.Text()
	b := &Bell{Device: device, URL: "http://" + r.listen.Addr().String() + path, r: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bells[path] = b
	return b
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 64<<10))
	if err != nil {
		return // it hung up
	}
	status := r.take(req, body)
	if status == hangUp {
		panic(http.ErrAbortHandler)
	}
	if status == http.StatusServiceUnavailable {
		rw.Header().Set("Retry-After", strconv.Itoa(int(askedWait/time.Second)))
	}
	rw.WriteHeader(status)
}

// askedWait is what a receiver asks for that answers 503.
const askedWait = 2 * time.Second

func (r *Receiver) take(req *http.Request, body []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.bells[req.URL.RequestURI()]
	if !ok || req.Method != http.MethodPost {
		r.lost = append(r.lost, req.Method+" "+req.URL.RequestURI())
		return http.StatusNotFound
	}
	status := http.StatusOK
	if len(b.answers) > 0 {
		status, b.answers = b.answers[0], b.answers[1:]
	}
	b.rings = append(b.rings, ring{at: time.Now(), header: req.Header.Clone(), body: body, answer: status})
	return status
}

// Answer has the next calls answered so.
func (b *Bell) Answer(status ...int) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	b.answers = append(b.answers, status...)
}

// Rings are the calls so far.
func (b *Bell) Rings() []ring {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return slices.Clone(b.rings)
}

// signedWith notes a secret that calls may be signed with from now on.
func (b *Bell) signedWith(secret string) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if !slices.Contains(b.secrets, secret) {
		b.secrets = append(b.secrets, secret)
	}
}

// await waits until the calls are as cond wants them, and returns them.
func (b *Bell) await(ctx context.Context, cond func([]ring) bool) (rings []ring, err error) {
	err = until(ctx, pushPatience, func() (bool, error) {
		rings = b.Rings()
		return cond(rings), nil
	})
	return rings, err
}

// pushPatience is how long a push may take, on a machine that is busy.
const pushPatience = 45 * time.Second

// checkPushes holds every call against what docs/PUSH.md promises: signed,
// fresh, named by its job, and without a word about what there is to fetch.
// secrets are words that no call may have in it.
func (w *World) checkPushes(r *Receiver, secrets []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lost := range r.lost {
		w.Broken("the receiver was called with %s, which was never registered", lost)
	}
	for _, b := range r.bells {
		bodies := map[string]string{}
		for i := range b.rings {
			g := &b.rings[i]
			for _, fault := range g.faults(b) {
				w.Broken("a push for %s: %s: %.300q", b.Device, fault, g.body)
			}
			dump := strings.ToLower(fmt.Sprint(g.header) + string(g.body))
			for _, secret := range secrets {
				if strings.Contains(dump, strings.ToLower(secret)) {
					w.Broken("a push for %s has %q in it: %.300q", b.Device, secret, dump)
				}
			}
			if before, ok := bodies[g.key()]; ok && before != string(g.body) {
				w.Broken("a push for %s has two bodies under %s: %q and %q", b.Device, g.key(), before, g.body)
			}
			bodies[g.key()] = string(g.body)
		}
	}
}

// replayWindow is how far a call's timestamp may be from the clock.
const replayWindow = 5 * time.Minute

// faults are what is wrong with a call for b.
func (g *ring) faults(b *Bell) (faults []string) {
	note, err := g.note()
	if err != nil {
		faults = append(faults, err.Error())
	}
	if note.Type != "message" && note.Type != "welcome" {
		faults = append(faults, "its type is "+note.Type)
	}
	if note.DeviceID != b.Device {
		faults = append(faults, "its device is "+note.DeviceID)
	}
	if _, err := uuid.Parse(note.JobID); err != nil || g.key() != "mlsd-"+note.JobID {
		faults = append(faults, "its key is "+g.key())
	}
	for name := range g.header {
		if !slices.Contains([]string{
			"Content-Type", "Content-Length", "Accept-Encoding", "User-Agent", "Idempotency-Key", "X-Mlsd-Timestamp", "X-Mlsd-Signature",
		}, name) {
			faults = append(faults, "it has a header "+name)
		}
	}
	stamp := g.header.Get("X-Mlsd-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || g.at.Sub(time.Unix(seconds, 0)).Abs() > replayWindow {
		faults = append(faults, "its timestamp is "+stamp)
	}
	if !slices.ContainsFunc(b.secrets, func(secret string) bool {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "."))
		mac.Write(g.body)
		return g.header.Get("X-Mlsd-Signature") == "sha256="+hex.EncodeToString(mac.Sum(nil))
	}) {
		faults = append(faults, "its signature is wrong")
	}
	return faults
}

// byKey counts the calls under each key.
func byKey(rings []ring) map[string]int {
	keys := map[string]int{}
	for _, g := range rings {
		keys[g.key()]++
	}
	return keys
}
