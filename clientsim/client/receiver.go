package client

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
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Receiver is the webhook that the server pushes to. It runs on this machine and has one path per
// device. It records every call; Faults checks them later. It is safe for concurrent use.
type Receiver struct {
	*xrpc.Site

	mu      sync.Mutex // guards the fields below
	targets map[string]*PushTarget
	unknown []string // calls to paths that do not exist
}

// PushTarget is one device's path at the receiver.
type PushTarget struct {
	Device string
	URL    string

	r *Receiver
	// r.mu guards the fields below.
	secrets []string // secrets that may sign calls
	answers []int    // statuses of the next answers; later answers are 200
	pushes  []Push
}

// HangUp makes the receiver close the connection without an answer.
const HangUp = -1

// Push is one call, with the status that answered it.
type Push struct {
	At     time.Time
	header http.Header
	body   []byte
	Answer int
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
	status := r.take(req, body)
	if status == HangUp {
		panic(http.ErrAbortHandler)
	}
	if status == http.StatusServiceUnavailable {
		rw.Header().Set("Retry-After", strconv.Itoa(int(AskedRetryAfter/time.Second)))
	}
	rw.WriteHeader(status)
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

// AskedRetryAfter is the Retry-After of a 503 answer.
const AskedRetryAfter = 2 * time.Second

func (r *Receiver) take(req *http.Request, body []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.targets[req.URL.RequestURI()]
	if !ok || req.Method != http.MethodPost {
		r.unknown = append(r.unknown, req.Method+" "+req.URL.RequestURI())
		return http.StatusNotFound
	}
	status := http.StatusOK
	if len(b.answers) > 0 {
		status, b.answers = b.answers[0], b.answers[1:]
	}
	b.pushes = append(b.pushes, Push{At: time.Now(), header: req.Header.Clone(), body: body, Answer: status})
	return status
}

// Answer sets the statuses of the next calls. Later calls get 200.
func (b *PushTarget) Answer(status ...int) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	b.answers = append(b.answers, status...)
}

// Pushes returns the calls so far.
func (b *PushTarget) Pushes() []Push {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return slices.Clone(b.pushes)
}

// acceptSecret adds a secret that may sign calls from now on.
func (b *PushTarget) acceptSecret(secret string) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if !slices.Contains(b.secrets, secret) {
		b.secrets = append(b.secrets, secret)
	}
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

// Faults compares every call with docs/PUSH.md: the call is signed and fresh, its key names its
// job, and its body does not say what there is to fetch. No call may contain one of the secrets.
// Each fault is one sentence.
func (r *Receiver) Faults(secrets []string) (found []string) {
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lost := range r.unknown {
		report("the receiver was called with %s, which was never registered", lost)
	}
	for _, b := range r.targets {
		bodies := map[string]string{}
		for i := range b.pushes {
			g := &b.pushes[i]
			for _, fault := range g.faults(b) {
				report("a push for %s: %s: %.300q", b.Device, fault, g.body)
			}
			dump := strings.ToLower(fmt.Sprint(g.header) + string(g.body))
			for _, secret := range secrets {
				if strings.Contains(dump, strings.ToLower(secret)) {
					report("a push for %s has %q in it: %.300q", b.Device, secret, dump)
				}
			}
			if before, ok := bodies[g.Key()]; ok && before != string(g.body) {
				report("a push for %s has two bodies under %s: %q and %q", b.Device, g.Key(), before, g.body)
			}
			bodies[g.Key()] = string(g.body)
		}
	}
	return found
}

// replayWindow is the largest allowed difference between a call's timestamp and the clock.
const replayWindow = 5 * time.Minute

// faults returns what is wrong with a call for b.
func (g *Push) faults(b *PushTarget) (faults []string) {
	note, err := g.Note()
	if err != nil {
		faults = append(faults, err.Error())
	}
	if note.Type != "message" && note.Type != "welcome" {
		faults = append(faults, "its type is "+note.Type)
	}
	if note.DeviceID != b.Device {
		faults = append(faults, "its device is "+note.DeviceID)
	}
	if _, err := uuid.Parse(note.JobID); err != nil || g.Key() != "mlsd-"+note.JobID {
		faults = append(faults, "its key is "+g.Key())
	}
	for name := range g.header {
		if !slices.Contains([]string{
			"Content-Type", "Content-Length", "Accept-Encoding", "User-Agent", "Idempotency-Key", "X-Mlsd-Timestamp",
			"X-Mlsd-Signature",
		}, name) {
			faults = append(faults, "it has a header "+name)
		}
	}
	stamp := g.header.Get("X-Mlsd-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || g.At.Sub(time.Unix(seconds, 0)).Abs() > replayWindow {
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

// Registered takes the answer to registerPushTarget, and returns the secret that signs the pushes.
func (p *Phone) Registered(b *PushTarget, call xrpc.Call, answer xrpc.Answer) (secret string, err error) {
	out, err := xrpc.Decode[mlsapi.RegisterPushTargetOutput](answer.Body)
	if err != nil {
		return "", fmt.Errorf("%s: registerPushTarget: %w", p.Name, err)
	}
	if out.Secret == nil || len(*out.Secret) != 43 {
		return "", fmt.Errorf("%s: registerPushTarget: no secret in %q", p.Name, answer.Body)
	}
	p.Model.Acknowledged(p.Account, call)
	b.acceptSecret(*out.Secret)
	return *out.Secret, nil
}

// Register registers b for the phone's device, and returns the secret that signs the pushes.
func (p *Phone) Register(ctx context.Context, b *PushTarget) (secret string, err error) {
	defer Catch(&err)
	call := xrpc.RegisterCall(b.Device, b.URL, xrpc.NewKey())
	answer := Must(p.Net.Do(ctx, p.Account, call))
	return p.Registered(b, call, answer)
}

// Unregister removes the device's push target, and reports whether there was one.
func (p *Phone) Unregister(ctx context.Context, b *PushTarget) (removed bool, err error) {
	defer Catch(&err)
	call := xrpc.UnregisterCall(b.Device, xrpc.NewKey())
	out := Must(ask[mlsapi.UnregisterPushTargetOutput](ctx, p, call))
	p.Model.Acknowledged(p.Account, call)
	return out.Removed, nil
}

// RegisterAt registers a new target at r for the phone's device.
func (p *Phone) RegisterAt(ctx context.Context, r *Receiver) (*PushTarget, error) {
	b := r.NewTarget(p.DeviceID())
	_, err := p.Register(ctx, b)
	return b, err
}

// HasRead reports whether the phone has decrypted a text.
func (p *Phone) HasRead(convo, text string) (bool, error) {
	inbox, err := p.Inbox(convo)
	return slices.ContainsFunc(inbox, func(i history.Item) bool { return i.Text == text }), err
}
