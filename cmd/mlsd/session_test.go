package main

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/mls"
)

// session buys a session of the user's device.
func (u *user) session() mlsapi.CreateSessionOutput {
	u.w.t.Helper()
	body, _ := u.KeyPackage(u.w.t)
	kp, err := mls.ParseKeyPackage(body)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return read[mlsapi.CreateSessionOutput](u.w.t,
		u.procedure(mlsapi.NSIDCreateSession, &mlsapi.CreateSessionInput{DeviceID: kp.DeviceID()}).must().ok())
}

// under calls a method of a server with a bearer, and returns the status.
func (w *world) under(s *server, bearer, verb, nsid, body string) int {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), verb, s.public+"/xrpc/"+nsid, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+bearer)
	if verb == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode
}

// refusedWithin waits until a server refuses a session that it has accepted, and returns how
// long that took.
func (w *world) refusedWithin(s *server, bearer string, most time.Duration) time.Duration {
	w.t.Helper()
	for begun := time.Now(); ; {
		status, took := w.under(s, bearer, http.MethodGet, mlsapi.NSIDGetConvos, ""), time.Since(begun)
		switch {
		case status == http.StatusUnauthorized:
			return took
		case status != http.StatusOK, took > most:
			w.t.Fatalf("after %s another node answers with %d", took, status)
		}
	}
}

// A session that one node ends is refused by the other within five seconds. If another key of the
// account verifies on one node, the other refuses the sessions of the key before within five,
// which is two for the key and neither has a part of a session, at any level.
func TestSessionsOfTwoNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url, fast := pgtest.URL(t), []string{"MLSD_RATE_DID=100000/100000"}
	first := boot(t, fast, w.flags("--database-url", url, "--log-level", "debug", "--log-format", "json")...)
	second := boot(t, fast, w.flags("--database-url", url, "--log-level", "debug", "--log-format", "json")...)
	w.use(first.admin, first.public)
	alice := w.user()
	ended, forgotten := alice.session(), alice.session()
	for _, s := range []*server{first, second} {
		if status := w.under(s, ended.Session, http.MethodGet, mlsapi.NSIDGetConvos, ""); status != http.StatusOK {
			t.Fatalf("a session is answered with %d", status)
		}
		if status := w.under(s, ended.Session+"A", http.MethodGet, mlsapi.NSIDGetConvos,
			""); status != http.StatusUnauthorized {
			t.Fatalf("a forged session is answered with %d", status)
		}
	}
	if status := w.under(first, ended.Session, http.MethodPost, mlsapi.NSIDRefreshSession,
		`{"refreshToken":"`+ended.RefreshToken+`"}`); status != http.StatusOK {
		t.Fatalf("a refresh is answered with %d", status)
	}
	if status := w.under(first, ended.Session, http.MethodPost, mlsapi.NSIDDeleteSession, `{}`); status != http.StatusOK {
		t.Fatalf("deleteSession is answered with %d", status)
	}
	t.Logf("the other node refuses a deleted session after %s", w.refusedWithin(second, ended.Session, 5*time.Second))

	alice.Key = authtest.K256(t)
	w.plc.publish(t, alice.Identity)
	alice.query(mlsapi.NSIDGetConvos).must().ok()
	t.Logf("the other node refuses the session of a replaced key after %s",
		w.refusedWithin(second, forgotten.Session, 5*time.Second))
	first.stop()
	second.stop()
	for _, s := range []*server{first, second} {
		log := s.stderr.String()
		if !strings.Contains(log, mlsapi.NSIDRefreshSession) && s == first {
			t.Errorf("the requests are not in the log:\n%s", log)
		}
		for name, token := range map[string]string{"bearer": ended.Session, "refresh token": ended.RefreshToken,
			"other bearer": forgotten.Session} {
			content, err := base64.RawURLEncoding.DecodeString(token[6:])
			if err != nil {
				t.Fatal(err)
			}
			mac := base64.RawURLEncoding.EncodeToString(content[len(content)-30:])
			for _, part := range []string{token[:40], token[len(token)-20:], mac[:20]} {
				if strings.Contains(log, part) {
					t.Errorf("the %s is in the log:\n%s", name, log)
				}
			}
		}
	}
}
