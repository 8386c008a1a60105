package push

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/SherClockHolmes/webpush-go"
	"github.com/sideshow/apns2/token"

	"mlsd/features/outgoing"
	"mlsd/internal/ssrf"
)

const (
	// webPushTTL is how long a push service keeps a call for a device that is off. There is at most
	// one, because each has the same topic.
	webPushTTL = 7 * 24 * time.Hour

	// webPushRecord is the size of each call's body, in bytes, so that it says nothing.
	webPushRecord = 256

	authBytes = 16 // RFC 8291, section 3.2
)

// VAPIDKey is the P-256 key that identifies this server to push services (RFC 8292). A browser's
// subscription is bound to its public half.
type VAPIDKey struct{ private, public []byte }

// ReadVAPIDKey reads a key from a PEM file in PKCS #8.
func ReadVAPIDKey(file string) (VAPIDKey, error) {
	key, err := token.AuthKeyFromFile(file)
	if err != nil {
		return VAPIDKey{}, fmt.Errorf("read the VAPID key: %w", err)
	}
	return newVAPIDKey(key)
}

// MakeVAPIDKey makes a key in a file that does not exist yet.
func MakeVAPIDKey(file string) (err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der}), f.Close())
}

func newVAPIDKey(key *ecdsa.PrivateKey) (VAPIDKey, error) {
	agreed, err := key.ECDH()
	if err != nil || agreed.Curve() != ecdh.P256() {
		return VAPIDKey{}, errors.New("the VAPID key must be one of the curve P-256")
	}
	return VAPIDKey{private: agreed.Bytes(), public: agreed.PublicKey().Bytes()}, nil
}

// Public returns the public key, uncompressed: the applicationServerKey of a subscription.
func (k VAPIDKey) Public() []byte { return k.public }

// WebPush calls push services: those of browsers and, through UnifiedPush, of Android (RFC 8030).
type WebPush struct {
	client  *http.Client
	options webpush.Options
}

// NewWebPush returns a caller of push services. contact is an https URL at which a push service
// finds the operator. Only a server for development allows push services on this machine.
func NewWebPush(key VAPIDKey, contact string, allowLoopback bool) *WebPush {
	text := base64.RawURLEncoding.EncodeToString
	w := &WebPush{client: outgoing.NewClient(allowLoopback, perHost, &pings)}
	w.options = webpush.Options{
		HTTPClient: w.client, RecordSize: webPushRecord, Subscriber: contact, Topic: collapseID,
		TTL: int(webPushTTL / time.Second), Urgency: webpush.UrgencyHigh,
		VAPIDPublicKey: text(key.public), VAPIDPrivateKey: text(key.private),
	}
	return w
}

func (w *WebPush) call(ctx context.Context, j Job, t Target) error {
	body, err := json.Marshal(struct {
		Type string `json:"type"`
	}{j.Reason})
	if err != nil {
		return err
	}
	text := base64.RawURLEncoding.EncodeToString
	resp, err := webpush.SendNotificationWithContext(ctx, body, &webpush.Subscription{
		Endpoint: t.Address, Keys: webpush.Keys{P256dh: text(t.P256dh), Auth: text(t.Auth)},
	}, &w.options)
	if errors.Is(err, ssrf.ErrForbidden) {
		return &callError{outcome: refused, reason: ssrf.ErrForbidden.Error()}
	}
	if err != nil {
		return withoutURL(err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	return webPushOutcome(resp)
}

// webPushOutcome returns the error that a status means, or nil. Anybody can name any URL, and only a
// push service answers 201 (RFC 8030, section 5). So every other final answer ends the target:
// a host that is no push service gets one call.
func webPushOutcome(resp *http.Response) error {
	reason := fmt.Sprintf("status %d", resp.StatusCode)
	switch code := resp.StatusCode; {
	case code == http.StatusCreated:
		return nil
	case code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return &callError{early, reason, retryAfter(resp.Header)}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		// The operator's key or clock may be wrong; or the subscription is bound to another key.
		return &callError{early, reason, lastDelay}
	case code == http.StatusRequestTimeout, code/100 == 5:
		return &callError{failing, reason, retryAfter(resp.Header)}
	}
	return &callError{outcome: gone, reason: reason}
}
