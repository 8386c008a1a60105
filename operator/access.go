package operator

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"mlsd/internal/limit"
)

// Level is what a request to the admin listener must be allowed to do.
type Level int

const (
	// Open is for health checks, which reveal nothing: they need no token, and any Host is
	// accepted.
	Open Level = iota
	// Login is for the page that asks for the token, and for its files. It needs no token.
	Login
	// Metrics is for answers that reveal nothing about single people. It needs any of the tokens,
	// if tokens are set.
	Metrics
	// Read is for requests that change nothing. It needs Tokens.Read or Tokens.Write, if tokens are
	// set.
	Read
	// Write is for requests that change something, that can stop a node (profiles, failpoints), or
	// that return everything about a person. It needs Tokens.Write, if tokens are set.
	Write
)

// minToken is the shortest token, in characters.
const minToken = 16

// Tokens are the secrets of the admin listener. "" means that there is none.
type Tokens struct {
	Write   string // for all levels
	Read    string // for Read and Metrics only
	Metrics string // for Metrics only
}

// check returns an error unless the tokens can be used.
func (t Tokens) check() error {
	used := map[string]string{}
	for _, one := range [][2]string{{"MLSD_ADMIN_TOKEN", t.Write}, {"MLSD_ADMIN_READ_TOKEN", t.Read},
		{"MLSD_ADMIN_METRICS_TOKEN", t.Metrics}} {
		name, token := one[0], one[1]
		switch {
		case token == "":
			continue
		case len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
			return fmt.Errorf("%s must have at least %d characters, printable ASCII without spaces: openssl rand -hex 32 "+
				"makes one", name, minToken)
		case t.Write == "":
			return fmt.Errorf("%s is set and MLSD_ADMIN_TOKEN is not: without it nobody could write, so set both", name)
		case used[token] != "":
			return fmt.Errorf("%s and %s must differ", name, used[token])
		}
		used[token] = name
	}
	return nil
}

// Access decides which requests the admin listener answers. It refuses
//
//   - requests whose Host is not an address or name of the listener: see OwnHost.
//   - requests that a page of another site makes.
//   - requests without the token that they need.
type Access struct {
	hosts  []string                      // lower case, without ports
	tokens [Write + 1]*[sha256.Size]byte // hashes by level; nil if there is none
	wrong  *limit.Buckets[string]        // wrong tokens, by address
	log    *slog.Logger
}

// NewAccess returns the rules of a listener on the address listen (host:port). hosts are further
// names and addresses under which clients reach the listener. It returns an error if other machines
// can reach the listener and there is no token, or if a token cannot be used.
func NewAccess(listen string, hosts []string, t Tokens, log *slog.Logger) (*Access, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	addr, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("resolve the admin listener's address: %w", err)
	}
	if t.Write == "" && !addr.IP.IsLoopback() {
		return nil, fmt.Errorf("the admin listener %s can be reached from other machines: set MLSD_ADMIN_TOKEN, "+
			"or listen on 127.0.0.1", listen)
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("read the admin listener's address: %w", err)
	}
	a := &Access{log: log, wrong: limit.NewBuckets[string](maxAddresses, time.Now)}
	a.tokens[Write], a.tokens[Read], a.tokens[Metrics] = hashed(t.Write), hashed(t.Read), hashed(t.Metrics)
	for _, h := range append(slices.Clip(hosts), host) {
		if h != "" {
			a.hosts = append(a.hosts, strings.ToLower(h))
		}
	}
	return a, nil
}

func hashed(token string) *[sha256.Size]byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return &sum
}

// Protect returns h, restricted to requests that are allowed at a level. Inside h, LevelOf says
// what the caller may do.
func (a *Access) Protect(level Level, h http.Handler) http.Handler {
	if level == Open {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed, err := a.allow(level, r)
		if err == nil {
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), levelKey{}, allowed)))
			return
		}
		a.log.Debug("a request to the admin listener was refused", "path", r.URL.Path, "from", r.RemoteAddr, "error",
			err.Message)
		if err.Status == http.StatusUnauthorized {
			if strings.Contains(r.Header.Get("Accept"), "text/html") { // a person with a browser
				http.Redirect(w, r, LoginPath(r), http.StatusSeeOther)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="mlsd admin"`)
		}
		writeJSON(w, a.log, err.Status, err)
	})
}

// allow returns what the caller of a request may do, or why the request is refused.
//
// It protects forms against requests from pages of other sites (CSRF): crossSite refuses such
// requests, and browsers do not send them the cookie, which is SameSite=Strict. So forms need no
// token of their own.
func (a *Access) allow(level Level, r *http.Request) (Level, *Error) {
	switch {
	case !OwnHost(r, a.hosts):
		return 0, unknownHost(r)
	case crossSite(r):
		return 0, &Error{http.StatusForbidden, "CrossSite", "the admin listener answers no page of another site"}
	case !a.NeedsToken():
		return Write, nil // the listener is on loopback
	}
	allowed, err := a.caller(r)
	switch {
	case level == Login:
		return max(allowed, Login), nil
	case err != nil:
		return 0, err
	case allowed == Metrics && level > Metrics:
		return 0, &Error{http.StatusForbidden, "MetricsOnly", "this token is for metrics only"}
	case allowed < level:
		return 0, &Error{http.StatusForbidden, "ReadOnly", "this token is for reading only"}
	}
	return allowed, nil
}

// caller returns the level that the token or the session of a request allows.
func (a *Access) caller(r *http.Request) (Level, *Error) {
	given, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		if level, valid := a.session(r); valid {
			return level, nil
		}
		return 0, &Error{http.StatusUnauthorized, "AuthenticationRequired",
			"the admin listener needs Authorization: Bearer, with its token"}
	}
	return a.levelOf(r, given)
}

const (
	// maxAddresses is how many addresses with wrong tokens the listener remembers.
	maxAddresses = 1000
	// wrongAtOnce and wrongPerSecond limit how many wrong tokens of an address get the answer that
	// they are wrong.
	wrongAtOnce, wrongPerSecond = 20, 1
)

// levelOf returns the level that a token allows. A correct token always passes, so that nobody can
// lock the operator out. So the token's length protects it, not the limit of wrong tokens.
func (a *Access) levelOf(r *http.Request, token string) (Level, *Error) {
	sum := sha256.Sum256([]byte(token))
	for level, hash := range a.tokens {
		if hash != nil && subtle.ConstantTimeCompare(sum[:], hash[:]) == 1 {
			return Level(level), nil
		}
	}
	address := r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = limit.Network(host)
	}
	if _, ok := a.wrong.Take(address, limit.Rate{PerSecond: wrongPerSecond, Burst: wrongAtOnce}, 1); !ok {
		return 0, &Error{http.StatusTooManyRequests, "TooManyAttempts",
			"too many wrong tokens came from this address: wait a second, then try again"}
	}
	return 0, &Error{http.StatusUnauthorized, "AuthenticationRequired", "this is not the admin listener's token"}
}

// maxHost is the longest name of a host, in bytes.
const maxHost = 253

// unknownHost refuses a request that OwnHost denies. It does not list the names, because a page that
// rebinds the DNS could read them.
func unknownHost(r *http.Request) *Error {
	host := hostOf(r)
	host = host[:min(len(host), maxHost)]
	return &Error{http.StatusForbidden, "UnknownHost", fmt.Sprintf("the Host of the request is %q; the admin listener "+
		"takes localhost, the address of the connection, and what MLSD_ADMIN_HOSTS names: ask by the address, or set "+
		"MLSD_ADMIN_HOSTS=%s", host, host)}
}

// hostOf returns the host that a request names, in lower case, without a port.
func hostOf(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// OwnHost reports whether the Host of a request is the listener's own: a name or an address of this
// machine itself, the address to which the connection was made, or one of names, which are in lower
// case. A page of a foreign name that resolves to the listener (DNS rebinding) sends the foreign
// name.
func OwnHost(r *http.Request, names []string) bool {
	host := hostOf(r)
	if host == "localhost" || slices.Contains(names, host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if ip.Unmap().IsLoopback() {
		return true
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !known {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap() == ip.Unmap()
}

// crossSite reports whether a page of another origin has caused the request. Programs other than
// browsers send neither header.
func crossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}
