package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// Receiver is the webhook that the server pushes to. It runs on this machine and has one path per
// device, and records every call. It is safe for concurrent use.
type Receiver struct {
	*xrpc.Site

	mu      sync.Mutex // guards the fields below
	targets map[string]*PushTarget
}

// PushTarget is one device's path at the receiver.
type PushTarget struct {
	Device string
	URL    string

	r      *Receiver
	pushes []Push // r.mu guards it
}

// Push is one call.
type Push struct {
	header http.Header
	body   []byte
}

// Key is the idempotency key of the call.
func (g *Push) Key() string { return g.header.Get("Idempotency-Key") }

// pushNote is everything that a call may say.
type pushNote struct {
	Type     string `json:"type"`
	DeviceID string `json:"deviceId"`
	JobID    string `json:"jobId"`
}

// Note decodes the body of the call. Unknown fields are an error.
func (g *Push) Note() (n pushNote, err error) {
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

// NewReceiver serves on a loopback port until Close.
func NewReceiver() (_ *Receiver, err error) {
	r := &Receiver{targets: map[string]*PushTarget{}}
	if r.Site, err = xrpc.Serve("127.0.0.1:0", r); err != nil {
		return nil, err
	}
	return r, nil
}

// NewTarget makes a path for a device. The path does not name the device.
func (r *Receiver) NewTarget(device string) *PushTarget {
	path := "/" + rand.Text()
	b := &PushTarget{Device: device, URL: r.URL + path, r: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets[path] = b
	return b
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 64<<10))
	if err != nil {
		return // the caller closed the connection
	}
	if text, ok := r.challenge(req, body); ok {
		if _, err := io.WriteString(rw, text); err != nil {
			return // the caller closed the connection
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.targets[req.URL.RequestURI()]
	if !ok {
		rw.WriteHeader(http.StatusNotFound)
		return
	}
	b.pushes = append(b.pushes, Push{header: req.Header.Clone(), body: body})
}

// challenge returns the answer to a challenge of a target. It does not check the signature: the
// first challenge can come before the answer to registerPushTarget, which has the secret.
func (r *Receiver) challenge(req *http.Request, body []byte) (text string, ok bool) {
	var call struct{ Type, DeviceID, Challenge string }
	r.mu.Lock()
	defer r.mu.Unlock()
	b, known := r.targets[req.URL.RequestURI()]
	err := json.Unmarshal(body, &call)
	if !known || req.Method != http.MethodPost || err != nil || call.Type != "challenge" || call.DeviceID != b.Device {
		return "", false
	}
	return call.Challenge, true
}

// Pushes returns the calls so far.
func (b *PushTarget) Pushes() []Push {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return slices.Clone(b.pushes)
}

// Await waits until cond accepts the calls, and returns them.
func (b *PushTarget) Await(ctx context.Context, cond func([]Push) bool) (pushes []Push, err error) {
	err = xrpc.Until(ctx, PushTimeout, func() (bool, error) {
		pushes = b.Pushes()
		return cond(pushes), nil
	})
	return pushes, err
}

// PushTimeout is how long a push may take on a busy machine.
const PushTimeout = 45 * time.Second

// ByKey counts the calls of each key.
func ByKey(pushes []Push) map[string]int {
	keys := map[string]int{}
	for _, g := range pushes {
		keys[g.Key()]++
	}
	return keys
}

// DeviceID returns the phone's device id, which follows from its signature key.
func (p *Phone) DeviceID() string {
	sum := sha256.Sum256(p.Device.SignatureKey())
	return hex.EncodeToString(sum[:])
}

// Register registers b for the phone's device.
func (p *Phone) Register(ctx context.Context, b *PushTarget) error {
	call := xrpc.RegisterCall(b.Device, b.URL, xrpc.NewKey())
	_, err := p.Net.Do(ctx, p.Account, call)
	if err == nil {
		p.Model.Acknowledged(p.Account, call)
	}
	return err
}

// RegisterAt registers a new target at r for the phone's device.
func (p *Phone) RegisterAt(ctx context.Context, r *Receiver) (*PushTarget, error) {
	b := r.NewTarget(p.DeviceID())
	return b, p.Register(ctx, b)
}

// HasRead reports whether the phone has decrypted a text.
func (p *Phone) HasRead(convo, text string) (bool, error) {
	inbox, err := p.Inbox(convo)
	return slices.ContainsFunc(inbox, func(i history.Item) bool { return i.Text == text }), err
}
