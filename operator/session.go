package operator

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// SessionLife is how long a browser stays logged in.
	SessionLife = 12 * time.Hour
	// sessionCookie is the name of the cookie that a browser sends instead of a token.
	sessionCookie = "mlsd_admin"
)

// Login returns the cookie that a browser sends instead of a token, because a browser cannot send
// Authorization. It returns an error if the token is wrong, or is for metrics only.
//
// The cookie holds the level and the end of the session, with a MAC whose key is the token's hash.
// So all nodes with the same token accept the cookie, a new token ends the session, and no node
// stores anything. Logging out only removes the cookie from the browser.
func (a *Access) Login(r *http.Request, token string) (*http.Cookie, error) {
	level, err := a.levelOf(r, token)
	switch {
	case err != nil:
		return nil, err
	case level < Read:
		return nil, &Error{http.StatusForbidden, "MetricsOnly", "this token is for metrics only"}
	}
	text := fmt.Sprintf("%d.%d", level, time.Now().Add(SessionLife).Unix())
	c := a.cookie(r)
	c.Value, c.MaxAge = text+"."+a.mac(level, text), int(SessionLife/time.Second)
	return c, nil
}

// Logout returns the cookie that removes the cookie of Login from the browser.
func (a *Access) Logout(r *http.Request) *http.Cookie {
	c := a.cookie(r)
	c.MaxAge = -1
	return c
}

// cookie returns the cookie of a session without its value. It trusts a proxy that says that the
// browser uses TLS: a false claim only keeps the browser from sending the cookie.
func (a *Access) cookie(r *http.Request) *http.Cookie {
	secure := r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
	return &http.Cookie{Name: sessionCookie, Path: "/", HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode}
}

// LoginPath returns where to send a browser without a session. After the log-in, the browser goes
// to the page that it has asked for.
func LoginPath(r *http.Request) string {
	if r.Method != http.MethodGet {
		return "/login"
	}
	return "/login?next=" + url.QueryEscape(r.URL.RequestURI())
}

// NeedsToken reports whether the listener has a token.
func (a *Access) NeedsToken() bool { return a.tokens[Write] != nil }

// mac signs the text of a session with the token of its level.
func (a *Access) mac(level Level, text string) string {
	h := hmac.New(sha256.New, a.tokens[level][:])
	h.Write([]byte("mlsd admin session " + text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// session returns the level of the session in a request's cookie.
func (a *Access) session(r *http.Request) (Level, bool) {
	c, err := r.Cookie(sessionCookie)
	if err != nil {
		return 0, false
	}
	at := strings.LastIndexByte(c.Value, '.')
	if at < 0 {
		return 0, false
	}
	text, mac := c.Value[:at], c.Value[at+1:]
	number, end, _ := strings.Cut(text, ".")
	expiry, err := strconv.ParseInt(end, 10, 64)
	if err != nil || time.Now().Unix() >= expiry {
		return 0, false
	}
	for _, level := range []Level{Read, Write} {
		if number == strconv.Itoa(int(level)) && a.tokens[level] != nil {
			return level, hmac.Equal([]byte(mac), []byte(a.mac(level, text)))
		}
	}
	return 0, false
}

// levelKey is the key of the level in a request's context.
type levelKey struct{}

// LevelOf returns what the caller of a request to the admin listener may do: Read or Write, or
// Login if the caller has shown no token.
func LevelOf(ctx context.Context) Level {
	level, _ := ctx.Value(levelKey{}).(Level)
	return level
}
