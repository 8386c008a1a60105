// Package sessions keeps the sessions of clients that call this server directly. A service-auth
// token buys a session for one account and one device. Its bearer then stands for service-auth
// tokens for an hour. It is checked without the database and without an asymmetric signature.
//
//	createSession ──▶ Create (grant.go) ──▶ row of sessions, bearer (token.go)
//	a request     ──▶ Verify (verify.go): form, HMAC, expiry, is it among the ended ones?
//	its end       ──▶ End (end.go) ──▶ row, session_clock ──▶ RunOnce (follow.go) on each node
//
// The keys of the HMAC are in the database, and change every day (keys.go). Each node reads keys and
// ended sessions every [Interval]. A node that could not read them for [trustFor] refuses all
// sessions with [serviceauth.ErrUnavailable], because it could have missed an end.
//
// A session ends when its client or its account says so, when a relay or the operator says that the
// account may not use the service, when the account is erased, and when its key is forgotten or
// replaced.
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
	// bearerLife is how long a bearer is good. sessionLife is how long its session is: then the account
	// must show again, by a service-auth token, that its host still serves it. No relay has to say so.
	bearerLife  = time.Hour
	sessionLife = 6 * time.Hour
	// maxSessions are the sessions of one account. If there are more, the oldest end.
	maxSessions = 50
	// repeatFor is how long a repetition with a used refresh token gets the first answer.
	repeatFor = 2 * time.Minute
)

const (
	// Interval is how often a node reads keys and ended sessions.
	Interval = 750 * time.Millisecond
	// trustFor is how long a node trusts sessions since it began to read the ends that it knows.
	trustFor = 5 * time.Second
	// roundTimeout bounds one reading. askTimeout bounds a question that a request waits for.
	roundTimeout, askTimeout = 5 * time.Second, 5 * time.Second
	// maxEnded are the ended sessions that a node remembers, about 100 bytes each. If there are
	// more, it asks the database about each request with a session.
	maxEnded = 200_000
)

const (
	// RotateInterval is how often Rotate is to be called.
	RotateInterval = time.Minute
	// keepExpired is how long the row of a session is kept after its last bearer has expired.
	keepExpired = 10 * time.Minute
)

// Identities looks keys of accounts up. *serviceauth.CachedDirectory is the one that asks the
// network.
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
	Lookups    DB            // for what a request waits for. Default: DB
	Identities Identities
	Log        *slog.Logger
	// Now is the clock of bearers. Default: time.Now.
	Now func() time.Time
	// MaxEnded is how many ended sessions are remembered. Default: 200,000.
	MaxEnded int
}

// Service makes, checks and ends sessions. Methods are safe for concurrent use.
type Service struct {
	cfg  Config
	Wake worker.Signal // makes the next RunOnce begin at once

	mu      sync.RWMutex // guards what follows
	keys    keys
	ended   map[uuid.UUID]time.Time // until their bearers have expired; nil: too many to remember
	version int64                   // of session_clock; changes up to it have been read
	read    time.Time               // when the newest reading began; zero: none has succeeded
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
	return &Service{cfg: c, Wake: worker.NewSignal(), watched: map[uuid.UUID]map[*watch]struct{}{}}
}

// Session is a bearer that was verified.
type Session struct {
	ID      uuid.UUID
	DID     syntax.DID
	Device  string    // in lower-case hexadecimal
	Expires time.Time // the bearer
}
