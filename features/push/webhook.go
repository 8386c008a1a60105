package push

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"mlsd/features/outgoing"
	"mlsd/internal/ssrf"
)

// maxAnswer is how much of an answer's body is read, in bytes. Only the answer to a challenge has a
// meaning.
const maxAnswer = 4 << 10

// Webhooks calls webhooks: over https at public addresses, and on this machine if that is allowed.
type Webhooks struct{ client *http.Client }

// NewWebhooks returns a caller of webhooks.
func NewWebhooks(allowLoopback bool) *Webhooks {
	return &Webhooks{outgoing.NewClient(allowLoopback, perHost, &pings)}
}

func (h *Webhooks) call(ctx context.Context, j Job, t Target) error {
	body, err := json.Marshal(struct {
		Type     string `json:"type"`
		DeviceID string `json:"deviceId"`
		JobID    string `json:"jobId"`
	}{j.Reason, j.DeviceID, j.ID.String()})
	if err != nil {
		return err
	}
	_, err = h.post(ctx, t, j.key(), body)
	return err
}

// post makes a signed call and returns the beginning of the answer's body.
func (h *Webhooks) post(ctx context.Context, t Target, key string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Address, bytes.NewReader(body))
	if err != nil {
		return nil, &callError{outcome: refused, reason: "the URL cannot be called"}
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "mlsd")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("X-Mlsd-Timestamp", timestamp)
	req.Header.Set("X-Mlsd-Signature", sign(t.Secret, timestamp, body))
	resp, err := h.client.Do(req)
	if errors.Is(err, ssrf.ErrForbidden) {
		return nil, &callError{outcome: refused, reason: ssrf.ErrForbidden.Error()}
	}
	if err != nil {
		return nil, withoutURL(err)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // reading to the end lets the connection be reused
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	return answer, outcome(resp)
}

// sign returns the signature of a webhook's request. See docs/PUSH.md.
func sign(secret, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(timestamp))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// outcome returns the error that a status means, or nil.
func outcome(resp *http.Response) error {
	reason := fmt.Sprintf("status %d", resp.StatusCode)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusGone:
		return &callError{outcome: gone, reason: reason}
	case code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return &callError{early, reason, retryAfter(resp.Header)}
	case code == http.StatusRequestTimeout, code/100 == 5:
		return &callError{failing, reason, retryAfter(resp.Header)}
	}
	return &callError{outcome: refused, reason: reason}
}

// retryAfter is the delay that the receiver asks for, or 0.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, int(lastDelay/time.Second))) * time.Second
}
