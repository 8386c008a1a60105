package operator_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mlsd/operator"
)

const (
	writeToken = "the-admin-token-of-this-test"
	readToken  = "the-read-token-of-this-test"

	metricsToken = "the-metrics-token-of-this-test"
)

func newAccess(t *testing.T, tokens operator.Tokens) *operator.Access {
	t.Helper()
	a, err := operator.NewAccess("127.0.0.1:8081", nil, tokens, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request makes a request of a browser on the listener's own page.
func request(verb, path string, cookies ...*http.Cookie) *http.Request {
	r := httptest.NewRequest(verb, "http://127.0.0.1:8081"+path, nil)
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return r
}

// ask sends a request to a handler of a level, and returns the answer.
func ask(a *operator.Access, level operator.Level, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.Protect(level, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if operator.LevelOf(r.Context()) < level {
			w.WriteHeader(http.StatusTeapot)
		}
	})).ServeHTTP(w, r)
	return w
}

func logIn(t *testing.T, a *operator.Access, token string) *http.Cookie {
	t.Helper()
	c, err := a.Login(request(http.MethodPost, "/login"), token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A session allows what its token allows, on every node with the token, until it ends.
func TestSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := operator.Tokens{Write: writeToken, Read: readToken}
		a, other := newAccess(t, tokens), newAccess(t, tokens)
		write, read := logIn(t, a, writeToken), logIn(t, a, readToken)
		for _, c := range []struct {
			name   string
			cookie *http.Cookie
			level  operator.Level
			want   int
		}{
			{"write, to write", write, operator.Write, http.StatusOK},
			{"write, to read", write, operator.Read, http.StatusOK},
			{"read, to read", read, operator.Read, http.StatusOK},
			{"read, to write", read, operator.Write, http.StatusForbidden},
		} {
			if got := ask(other, c.level, request(http.MethodPost, "/", c.cookie)).Code; got != c.want {
				t.Errorf("%s: %d", c.name, got)
			}
		}
		renewed := newAccess(t, operator.Tokens{Write: writeToken + "2", Read: readToken})
		if got := ask(renewed, operator.Read, request(http.MethodGet, "/", write)).Code; got != http.StatusUnauthorized {
			t.Errorf("after a change of the token: %d", got)
		}
		time.Sleep(operator.SessionLife - time.Second)
		if got := ask(a, operator.Read, request(http.MethodGet, "/", write)).Code; got != http.StatusOK {
			t.Errorf("before its end: %d", got)
		}
		time.Sleep(time.Second)
		if got := ask(a, operator.Read, request(http.MethodGet, "/", write)).Code; got != http.StatusUnauthorized {
			t.Errorf("after its end: %d", got)
		}
	})
}

// Scripts do not see the cookie, and other sites' pages do not send it.
func TestSessionCookie(t *testing.T) {
	t.Parallel()
	a := newAccess(t, operator.Tokens{Write: writeToken})
	c := logIn(t, a, writeToken)
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || c.MaxAge != 12*60*60 ||
		strings.Contains(c.Value, writeToken) {
		t.Errorf("%+v", c)
	}
	proxied := request(http.MethodPost, "/login")
	proxied.Header.Set("X-Forwarded-Proto", "https")
	if c, err := a.Login(proxied, writeToken); err != nil || !c.Secure {
		t.Errorf("behind TLS: %+v, %v", c, err)
	}
	if c := a.Logout(proxied); c.MaxAge >= 0 || c.Value != "" {
		t.Errorf("to log out: %+v", c)
	}
}

// Nobody makes a session without a token, or a better one of another.
func TestForgedSessions(t *testing.T) {
	t.Parallel()
	a := newAccess(t, operator.Tokens{Write: writeToken, Read: readToken})
	write, read := logIn(t, a, writeToken), logIn(t, a, readToken)
	part := func(c *http.Cookie) []string { return strings.Split(c.Value, ".") }
	w, r := part(write), part(read)
	for _, forged := range []string{
		"", ".", "..", "2.99999999999.", "3.99999999999.", w[0] + "." + w[1] + ".", w[0] + ".99999999999." + w[2],
		w[0] + "." + w[1] + "." + r[2],
		w[0] + "." + r[1] + "." + r[2], "1." + w[1] + "." + w[2], "0." + w[1] + "." + w[2],
		w[0] + "." + w[1] + "." + w[2] + "x", "9." + w[1] + "." + w[2],
	} {
		for _, level := range []operator.Level{operator.Read, operator.Write} {
			if got := ask(a, level, request(http.MethodGet, "/",
				&http.Cookie{Name: write.Name, Value: forged})).Code; got != http.StatusUnauthorized {
				t.Errorf("%q: %d", forged, got)
			}
		}
	}
	only := newAccess(t, operator.Tokens{Write: writeToken})
	if got := ask(only, operator.Read, request(http.MethodGet, "/", read)).Code; got != http.StatusUnauthorized {
		t.Errorf("the session of a token that there is no more: %d", got)
	}
}

// Finding S14: of the wrong tokens of an address, twenty are answered as such, and then one a second, in
// Authorization and in the log-in. They lock nobody out: a right one passes, also from that address,
// and other addresses have their own.
func TestWrongTokensAreSlowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAccess(t, operator.Tokens{Write: writeToken, Read: readToken})
		attempt := func(from, token string) (login, bearer int) {
			r := request(http.MethodPost, "/login")
			r.RemoteAddr = from
			_, err := a.Login(r, token)
			login = http.StatusOK
			if refused, is := operator.AsError(err); is {
				login = refused.Status
			}
			r.Header.Set("Authorization", "Bearer "+token)
			return login, ask(a, operator.Read, r).Code
		}
		const hostile, sameNetwork, other = "[2001:db8::1]:7", "[2001:db8::2]:7", "192.0.2.7:7"
		for range 10 {
			if login, bearer := attempt(hostile, "wrong"); login != 401 || bearer != 401 {
				t.Fatalf("wrong tokens: %d, %d", login, bearer)
			}
		}
		for _, from := range []string{hostile, sameNetwork} {
			if login, bearer := attempt(from, "wrong"); login != 429 || bearer != 429 {
				t.Errorf("too many wrong tokens: %d, %d", login, bearer)
			}
			for range 10 {
				if login, bearer := attempt(from, readToken); login != 200 || bearer != 200 {
					t.Errorf("a right token of the same address: %d, %d", login, bearer)
				}
			}
		}
		if login, bearer := attempt(other, "wrong"); login != 401 || bearer != 401 {
			t.Errorf("another address: %d, %d", login, bearer)
		}
		time.Sleep(time.Second)
		if login, bearer := attempt(hostile, "wrong"); login != 401 || bearer != 429 {
			t.Errorf("a second later: %d, %d", login, bearer)
		}
	})
}

// Finding S10: the token for metrics reads metrics and nothing else, and gets no session.
func TestMetricsToken(t *testing.T) {
	t.Parallel()
	a := newAccess(t, operator.Tokens{Write: writeToken, Read: readToken, Metrics: metricsToken})
	for _, c := range []struct {
		token string
		level operator.Level
		want  int
	}{
		{metricsToken, operator.Metrics, 200}, {metricsToken, operator.Read, 403}, {metricsToken, operator.Write, 403},
		{readToken, operator.Metrics, 200}, {readToken, operator.Read, 200}, {writeToken, operator.Metrics, 200},
		{"", operator.Metrics, 401},
	} {
		r := request(http.MethodGet, "/metrics")
		r.Header.Set("Authorization", "Bearer "+c.token)
		if got := ask(a, c.level, r).Code; got != c.want {
			t.Errorf("%q at level %d: %d, want %d", c.token, c.level, got, c.want)
		}
	}
	if _, err := a.Login(request(http.MethodPost, "/login"), metricsToken); err == nil {
		t.Error("it gets a session")
	}
}

// A page of another site can neither read nor write, whatever cookie the browser would send.
func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	for _, tokens := range []operator.Tokens{{}, {Write: writeToken}} {
		a := newAccess(t, tokens)
		r := request(http.MethodPost, "/actions/call")
		if tokens.Write != "" {
			r.AddCookie(logIn(t, a, writeToken))
		}
		if got := ask(a, operator.Write, r).Code; got != http.StatusOK {
			t.Fatalf("the listener's own page: %d", got)
		}
		for _, header := range [][2]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"},
			{"Origin", "null"},
			{"Origin", "http://127.0.0.1:9999"},
		} {
			foreign := r.Clone(t.Context())
			foreign.Header.Set(header[0], header[1])
			for _, level := range []operator.Level{operator.Login, operator.Read, operator.Write} {
				if got := ask(a, level, foreign).Code; got != http.StatusForbidden {
					t.Errorf("%v: %d", header, got)
				}
			}
		}
	}
}

// A browser without a session is asked for the token. A program gets an error.
func TestBrowsersAreSentToLogIn(t *testing.T) {
	t.Parallel()
	a := newAccess(t, operator.Tokens{Write: writeToken})
	r := request(http.MethodGet, "/queues?after=1")
	if got := ask(a, operator.Read, r); got.Code != http.StatusUnauthorized || got.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("a program: %d", got.Code)
	}
	r.Header.Set("Accept", "text/html,*/*")
	got := ask(a, operator.Read, r)
	if want := "/login?next=" + url.QueryEscape("/queues?after=1"); got.Code != http.StatusSeeOther ||
		got.Header().Get("Location") != want {
		t.Errorf("a browser: %d, to %s", got.Code, got.Header().Get("Location"))
	}
	if got := ask(a, operator.Login, r).Code; got != http.StatusOK {
		t.Errorf("the page that asks for the token: %d", got)
	}
}
