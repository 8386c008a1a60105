package push

import (
	"cmp"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/ssrf"
)

// registerSQL registers a device.
//
//go:embed register.sql
var registerSQL string

// Kind is the way a device is called.
type Kind string

const (
	KindAPNs    Kind = "apns"
	KindWebhook Kind = "webhook"
	KindWebPush Kind = "webpush"
)

// Environments of APNs.
const (
	Production = "production"
	Sandbox    = "sandbox"
)

// DefaultTargets is how many devices of one DID can be registered if Policy.Targets is 0.
const DefaultTargets = 10

// ErrTooManyTargets says that the DID has as many targets as it may have.
var ErrTooManyTargets = errors.New("too many devices of the account are registered; unregisterPushTarget removes one")

// ErrNoWebPush says that the operator has set no VAPID key.
var ErrNoWebPush = errors.New("this server has no key for Web Push")

// InvalidError says why a target cannot be registered.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

// Target is where a device is called.
type Target struct {
	DID         syntax.DID
	DeviceID    string
	Kind        Kind
	Address     string // the APNs device token in hexadecimal, or the URL
	P256dh      []byte // Web Push: the subscription's public key, uncompressed
	Auth        []byte // Web Push: its secret
	Topic       string // APNs: the app's bundle id
	Environment string // APNs: Production or Sandbox
	Secret      string // webhook: the key of its signatures, made by Register
	State       State  // set by Register
	// Muted are the convos whose messages do not call the device.
	Muted []uuid.UUID

	registration uuid.UUID // a new one with each Register
}

// host is the host for which calls of a URL are counted. It is empty for APNs.
func (t Target) host() string {
	if t.Kind == KindAPNs {
		return ""
	}
	return hostOf(t.Address)
}

// Policy says which targets can be registered.
type Policy struct {
	APNs          bool // the server has a key for APNs
	Webhooks      bool
	AllowLoopback bool // URLs on this machine, also over http (development)
	Targets       int  // for one DID; 0 means DefaultTargets
	// WebPush is the public half of the server's VAPID key. Without one, there is no Web Push.
	WebPush []byte
}

// Check returns an *InvalidError unless t can be called.
func (p Policy) Check(t Target) error {
	switch t.Kind {
	case KindAPNs:
		return p.checkAPNs(t)
	case KindWebhook:
		if !p.Webhooks {
			return &InvalidError{"this server does not call webhooks"}
		}
		return p.checkURL(t)
	case KindWebPush:
		return p.checkWebPush(t)
	}
	return &InvalidError{"kind must be apns, webhook or webpush, and is none of them"}
}

const (
	maxToken = 200 // bytes; Apple only says that tokens vary in length
	maxTopic = 256
	maxURL   = 2048
)

func (p Policy) checkAPNs(t Target) error {
	token, err := hex.DecodeString(t.Address)
	switch {
	case !p.APNs:
		return &InvalidError{"this server has no key for APNs"}
	case err != nil || len(token) == 0 || len(token) > maxToken:
		return &InvalidError{"token must be an APNs device token in hexadecimal"}
	case t.Topic == "" || len(t.Topic) > maxTopic ||
		strings.ContainsFunc(t.Topic, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &InvalidError{"topic must be the app's bundle id"}
	case t.Environment != Production && t.Environment != Sandbox:
		return &InvalidError{"environment must be production or sandbox, and is neither"}
	}
	return nil
}

func (p Policy) checkWebPush(t Target) error {
	_, err := ecdh.P256().NewPublicKey(t.P256dh)
	switch {
	case p.WebPush == nil:
		return &InvalidError{ErrNoWebPush.Error()}
	case err != nil:
		return &InvalidError{"p256dh must be a public key of P-256: 65 bytes"}
	case len(t.Auth) != authBytes:
		return &InvalidError{fmt.Sprintf("auth must have %d bytes, got %d", authBytes, len(t.Auth))}
	}
	return p.checkURL(t)
}

func (p Policy) checkURL(t Target) error {
	if len(t.Address) > maxURL {
		return &InvalidError{fmt.Sprintf("url must have at most %d bytes, got %d", maxURL, len(t.Address))}
	}
	u, err := url.Parse(t.Address)
	if err != nil || u.Hostname() == "" || u.Opaque != "" {
		return &InvalidError{"url must be an absolute URL"}
	}
	if u.User != nil || u.Fragment != "" {
		return &InvalidError{"url must have neither user information nor a fragment"}
	}
	if p.AllowLoopback && (u.Scheme == "http" || u.Scheme == "https") && loopback(u.Hostname()) {
		return nil
	}
	if u.Scheme != "https" || u.Port() != "" && u.Port() != "443" {
		return &InvalidError{"url must be https, on port 443, and has another scheme or port"}
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil &&
		!ssrf.MayDial("tcp4", net.JoinHostPort(ip.String(), "443"), false) {
		return &InvalidError{"url must be at a public address"}
	}
	return nil
}

// loopback reports whether a host is this machine, judged by the name alone. The address that the
// name resolves to is checked at the call.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// mustAgree reports whether t must answer a challenge before it is called. An APNs device need not:
// by Apple's rules, the app asks its user. A push service need not: see webPushOutcome. 127.0.0.1 and
// ::1 need not: only a server for development takes these addresses, and they belong to its own
// machine.
func (t Target) mustAgree() bool {
	if t.Kind != KindWebhook {
		return false
	}
	u, err := url.Parse(t.Address)
	return err != nil || u.Hostname() != "127.0.0.1" && u.Hostname() != "::1"
}

// Register stores t as the only target of its device, and returns t with its secret and its state.
// Registering the same target again changes nothing, except that a failed target is challenged
// again. Any other webhook is pending until it has answered its challenge. Errors besides the
// database's: *InvalidError, ErrTooManyTargets.
func Register(ctx context.Context, tx pgx.Tx, p Policy, t Target) (Target, error) {
	if err := p.Check(t); err != nil {
		return t, err
	}
	t.Secret = ""
	if t.Kind == KindWebhook {
		t.Secret = newSecret()
	}
	if err := pgpool.LockPushTargets.Wait(ctx, tx, t.DID.String()); err != nil {
		return t, err
	}
	var others int
	var known bool // the device is registered already
	err := tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE device_id <> $2), count(*) FILTER (WHERE device_id = $2) > 0 FROM push_targets WHERE did
			= $1`,
		t.DID, t.DeviceID).Scan(&others, &known)
	if err != nil {
		return t, fmt.Errorf("count the devices: %w", err)
	}
	if !known && others >= cmp.Or(p.Targets, DefaultTargets) {
		return t, fmt.Errorf("%w: %d of %d", ErrTooManyTargets, others, cmp.Or(p.Targets, DefaultTargets))
	}
	err = tx.QueryRow(ctx, registerSQL, pgx.NamedArgs{
		"did": t.DID, "device": t.DeviceID, "kind": t.Kind, "address": t.Address, "topic": t.Topic,
		"environment": t.Environment, "secret": t.Secret, "challenge": t.mustAgree(),
		"p256dh": t.P256dh, "auth": t.Auth,
		"muted": t.Muted,
	}).Scan(&t.Secret, &t.State)
	return t, errs.Wrap(err, "register the device")
}

// newSecret returns 32 random bytes in base64.
func newSecret() string {
	var secret [32]byte
	rand.Read(secret[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(secret[:])
}

// Unregister deletes the target of a device, and reports whether there was one.
func Unregister(ctx context.Context, tx pgx.Tx, did syntax.DID, device string) (removed bool, err error) {
	tag, err := tx.Exec(ctx, `DELETE FROM push_targets WHERE did = $1 AND device_id = $2`, did, device)
	return tag.RowsAffected() == 1, errs.Wrap(err, "unregister the device")
}

// target reads the current target of a job's device. found is false if there is none.
func (w *Worker) target(ctx context.Context, j Job) (t Target, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	t.DID, t.DeviceID = j.DID, j.DeviceID
	err = w.cfg.DB.QueryRow(ctx, `
		SELECT kind, address, topic, environment, secret, state, registration, p256dh, auth FROM push_targets
		WHERE did = $1 AND device_id = $2`, j.DID, j.DeviceID).
		Scan(&t.Kind, &t.Address, &t.Topic, &t.Environment, &t.Secret, &t.State, &t.registration, &t.P256dh, &t.Auth)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, false, nil
	}
	if err != nil {
		return t, false, fmt.Errorf("read the target: %w", err)
	}
	return t, true, nil
}
