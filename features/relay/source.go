package relay

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"mlsd/internal/serviceauth"
)

// Kind is the protocol of a source.
type Kind string

// The kinds.
const (
	Repos     Kind = "repos"     // com.atproto.sync.subscribeRepos of a relay or a PDS
	Jetstream Kind = "jetstream" // https://github.com/bluesky-social/jetstream
)

const (
	reposPath     = "/xrpc/com.atproto.sync.subscribeRepos"
	jetstreamPath = "/subscribe"
)

// Source is the server that sends the events.
type Source struct {
	kind Kind
	url  url.URL // ws or wss, with the path of the subscription
}

// ParseSource reads the address of a relay, a PDS or a Jetstream. Its scheme is wss, https, ws or
// http. If its path ends with /subscribe, it is a Jetstream. If it has no path, it gets the path
// for a relay.
func ParseSource(address string) (Source, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return Source{}, errors.New("is not a URL") // the error of url.Parse would quote the URL with its password
	case u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return Source{}, errors.New("must have a scheme, a host, and nothing more than a port and a path")
	}
	switch u.Scheme {
	case "https", "wss":
		u.Scheme = "wss"
	case "http", "ws":
		u.Scheme = "ws"
	default:
		return Source{}, errors.New("must be a wss, https, ws or http URL")
	}
	path := strings.TrimRight(u.Path, "/")
	kind := Repos
	switch {
	case strings.HasSuffix(path, jetstreamPath):
		kind = Jetstream
	case path == "":
		path = reposPath
	}
	u.Path = path
	return Source{kind: kind, url: *u}, nil
}

// String returns the name of the source in the database and in the log.
func (s Source) String() string { return string(s.kind) + " " + s.url.String() }

// Exposed reports whether others could change the events on the way, because another machine sends
// them without TLS.
func (s Source) Exposed() bool {
	ip := net.ParseIP(s.url.Hostname())
	return s.url.Scheme == "ws" && s.url.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

// from returns the URL of the events after cursor. If cursor is 0, only new events are sent.
func (s Source) from(cursor int64) string {
	u, q := s.url, url.Values{}
	if s.kind == Jetstream {
		// Events about accounts and identities are always sent, whatever collections are wanted.
		q.Set("wantedCollections", serviceauth.ProfileNSID)
	}
	if cursor > 0 {
		q.Set("cursor", strconv.FormatInt(cursor, 10))
	}
	u.RawQuery = q.Encode()
	return u.String()
}
