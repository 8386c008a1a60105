package push

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sideshow/apns2"
	"github.com/sideshow/apns2/token"
)

// payload is the content of every call. It is the same for all devices.
const payload = `{"aps":{"alert":{"loc-key":"new-message"},"content-available":1,"mutable-content":1}}`

// collapseID makes a device that was off show one notification for all convos.
const collapseID = "mlsd"

// pings detect that the other side of an HTTP/2 connection is silent. Without pings, all calls
// would use that connection until the operating system closes it, after many minutes.
var pings = http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second}

// APNsKey is the key that an operator gets from Apple.
type APNsKey struct {
	File   string // path of the .p8 file
	KeyID  string
	TeamID string
}

// APNs calls Apple's service over HTTP/2 with token authentication.
type APNs struct {
	clients map[string]*apns2.Client // by environment
}

// NewAPNs returns a caller of APNs. If host is not "", it replaces Apple's hosts; if roots is not
// nil, it replaces the system's certificate authorities. Both are for tests.
func NewAPNs(key APNsKey, host string, roots *x509.CertPool) (*APNs, error) {
	return newAPNs(key, host, roots, pings)
}

func newAPNs(key APNsKey, host string, roots *x509.CertPool, pings http.HTTP2Config) (*APNs, error) {
	if key.KeyID == "" || key.TeamID == "" {
		return nil, errors.New("the APNs key needs its id and the id of its team")
	}
	private, err := token.AuthKeyFromFile(key.File)
	if err != nil {
		return nil, fmt.Errorf("read the APNs key: %w", err)
	}
	bearer := &token.Token{AuthKey: private, KeyID: key.KeyID, TeamID: key.TeamID}
	if _, err := bearer.Generate(); err != nil {
		return nil, fmt.Errorf("sign with the APNs key: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 3 * time.Second,
		MaxResponseHeaderBytes: 16 << 10, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Minute,
		HTTP2: &pings,
	}
	client := func(apple string) *apns2.Client {
		if host != "" {
			apple = host
		}
		return &apns2.Client{Host: apple, Token: bearer, HTTPClient: &http.Client{Transport: keyed{transport}}}
	}
	return &APNs{map[string]*apns2.Client{
		Production: client(apns2.HostProduction), Sandbox: client(apns2.HostDevelopment),
	}}, nil
}

func (a *APNs) call(ctx context.Context, j Job, t Target) error {
	resp, err := a.clients[t.Environment].PushWithContext(ctx, &apns2.Notification{
		ApnsID: j.ID.String(), DeviceToken: t.Address, Topic: t.Topic, CollapseID: collapseID,
		Payload: json.RawMessage(payload),
	})
	if err != nil {
		return withoutURL(err)
	}
	reason := fmt.Sprintf("status %d %s", resp.StatusCode, resp.Reason)
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusGone, resp.Reason == apns2.ReasonBadDeviceToken,
		resp.Reason == apns2.ReasonDeviceTokenNotForTopic:
		return &callError{outcome: gone, reason: reason}
	case code == http.StatusForbidden, code == http.StatusTooManyRequests, code/100 == 5:
		return errors.New(reason) // 403 means that the operator's key or clock is wrong, not the device
	}
	return &callError{outcome: refused, reason: reason}
}

// keyed adds the idempotency key to the library's request, and bounds the answer. Apple does not
// read the key.
type keyed struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (k keyed) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Idempotency-Key", "mlsd-"+req.Header.Get("apns-id"))
	resp, err := k.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}
