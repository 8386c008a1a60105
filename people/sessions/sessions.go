// Package sessions keeps the sessions of clients that call this server directly. A service-auth
// token buys a session for one account and one device. For an hour, the session's bearer then
// replaces service-auth tokens. The server checks a bearer without the database and without an
// asymmetric signature.
//
//	createSession ──▶ Create (grant.go) ──▶ row of sessions, bearer (token.go)
//	a request     ──▶ Verify (verify.go): form, HMAC, expiry, is it among the ended ones?
//	its end       ──▶ End (end.go) ──▶ row, session_clock ──▶ RunOnce (follow.go) on each node
//
// The keys of the HMAC are in the database, and change every day (keys.go). Each node reads the
// keys and the ended sessions every [Interval]. If a node could not read them for [trustFor], it
// refuses all sessions with [serviceauth.ErrUnavailable], because it may have missed the end of a
// session.
//
// A session ends when its client or its account ends it, when a relay or the operator says that the
// account may not use the service, when the account is erased, and when the account's key is
// forgotten or replaced.
package sessions

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/worker"
)

const (
	// bearerLife is how long a bearer is valid, and sessionLife how long its session lasts. After
	// that, a service-auth token must show that the account's host still serves the account, so the
	// service does not depend on a relay to say so.
	bearerLife  = time.Hour
	sessionLife = 6 * time.Hour
	// maxSessions is how many sessions an account can have. If there are more, the oldest sessions
	// end.
	maxSessions = 50
	// repeatFor is how long a used refresh token still gets the first answer.
	repeatFor = 2 * time.Minute
)

const (
	// Interval is how often a node reads keys and ended sessions.
	Interval = 750 * time.Millisecond
	// trustFor is how long a node trusts sessions after it last began to read which sessions have
	// ended.
	trustFor = 5 * time.Second
	// roundTimeout bounds one round of reading. askTimeout bounds a question that a request waits
	// for.
	roundTimeout, askTimeout = 5 * time.Second, 5 * time.Second
	// maxEnded is how many ended sessions a node remembers, with about 100 bytes each. If there are
	// more, it asks the database about each request with a session.
	maxEnded = 200_000
)

const (
	// RotateInterval is how often Rotate should be called.
	RotateInterval = time.Minute
	// keepExpired is how long the row of a session is kept after its last bearer has expired.
	keepExpired = 10 * time.Minute
)

// Identities looks up keys of accounts. *serviceauth.CachedDirectory asks the network.
type Identities interface {
	Current(ctx context.Context, did syntax.DID, from string) (serviceauth.Identity, error)
}

// DB is a pool.
type DB interface {
	pgpool.DB
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Config configures a Service. All fields without a default are required.
type Config struct {
	DB         *pgxpool.Pool // for RunOnce, Rotate and Sweep
	Lookups    DB            // for queries that a request waits for; nil means DB
	Identities Identities
	Log        *slog.Logger
	// Now is the clock of bearers. nil means time.Now.
	Now func() time.Time
	// MaxEnded is how many ended sessions are remembered. 0 means 200,000.
	MaxEnded int
}

// Service makes, checks and ends sessions. Methods are safe for concurrent use.
type Service struct {
	cfg  Config
	Wake worker.Trigger // makes the next RunOnce begin at once

	mu      sync.RWMutex // guards the fields below
	keys    keys
	ended   map[uuid.UUID]time.Time // until their bearers have expired; nil if they are too many to remember
	version int64                   // version of session_clock up to which changes have been read
	read    time.Time               // when the newest reading began; zero if none has succeeded
	watched map[uuid.UUID]map[*watch]struct{}
}

// New returns a service. It refuses all sessions until Load.
func New(c Config) *Service {
	if c.Lookups == nil {
		c.Lookups = c.DB
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.MaxEnded = cmp.Or(c.MaxEnded, maxEnded)
	return &Service{cfg: c, Wake: worker.NewTrigger(), watched: map[uuid.UUID]map[*watch]struct{}{}}
}

// Session is a bearer that was verified.
type Session struct {
	ID      uuid.UUID
	DID     syntax.DID
	Device  string    // in lower-case hexadecimal
	Expires time.Time // end of the bearer
}
