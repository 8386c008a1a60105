package network

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/golang-jwt/jwt/v5"

	"mlsd/internal/serviceauth"
)

const (
	// callTimeout bounds a call of another service, including the look-up. A service answers within
	// 9 s.
	callTimeout = 12 * time.Second
	// tokenLife is how long a token of this service is valid.
	tokenLife = time.Minute
	// maxAnswer is how many bytes of an answer are read.
	maxAnswer = 4 << 10
)

// refusedError says that a service will never take a request.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// busyError says that a service cannot take a request now.
type busyError struct {
	after  time.Duration // the pause that the service asks for; 0 means none
	reason string
	works  bool // the service itself works, but refuses because of a bound
}

func (e *busyError) Error() string { return e.reason }

// final are the errors with which a service refuses a request for good. Any other error may be
// temporary: an old version, a key that the service does not know yet, a defect.
var final = []string{"InvalidInvitation", "KeyPackageNotFound", "InvalidCipherSuite", "InvalidRequest", "NotPermitted",
	"Blocked"}

// requestClaims are the claims of a token with which this service calls another.
type requestClaims struct {
	jwt.RegisteredClaims
	Audience string `json:"aud"`
	Method   string `json:"lxm"`
}

// token returns a service-auth token of this service.
func (s *Service) token(aud syntax.DID, lxm string) (string, error) {
	key, err := s.signer()
	if err != nil {
		return "", err
	}
	now := s.cfg.Now()
	key.ID = "#atproto" // like a token of an account, so that the home verifies both in the same way
	return key.jws("JWT", requestClaims{
		RegisteredClaims: jwt.RegisteredClaims{Issuer: s.cfg.DID.String(), ID: rand.Text(), IssuedAt: jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(now.Add(tokenLife))},
		Audience: aud.String(), Method: lxm,
	})
}

// find finds a service that is to be called. Errors: *refusedError, and any other if the look-up
// failed.
func (s *Service) find(ctx context.Context, to syntax.DID) (serviceauth.Service, error) {
	if err := s.Deals(to); err != nil {
		return serviceauth.Service{}, &refusedError{err.Error()}
	}
	return s.cfg.Services.Service(ctx, to, serviceauth.Remembered)
}

// call calls a method of another service. Errors: *refusedError, *busyError, and any other if the
// service did not answer.
func (s *Service) call(ctx context.Context, service serviceauth.Service, lxm string, input any) error {
	token, err := s.token(service.DID, lxm)
	if err != nil {
		return err
	}
	body, err := json.Marshal(input)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, service.Endpoint+"/xrpc/"+lxm, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "mlsd")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	return outcome(resp, answer)
}

// outcome returns the error that an answer stands for, or nil.
func outcome(resp *http.Response, answer []byte) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var e struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(answer, &e) // an answer that is not from a delivery service names no error
	reason := fmt.Sprintf("status %d %s: %s", resp.StatusCode, e.Error, e.Message)
	if resp.StatusCode/100 == 4 && slices.Contains(final, e.Error) {
		return &refusedError{reason}
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		seconds = 0
	}
	return &busyError{time.Duration(min(seconds, int(lastDelay/time.Second))) * time.Second, reason,
		resp.StatusCode == http.StatusTooManyRequests}
}
