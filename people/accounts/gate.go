package accounts

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

const (
	// GateInterval is how often a node reads the changes of accounts.
	GateInterval = time.Second
	// gateTimeout bounds one reading of changes. askTimeout bounds one question to the database for
	// which a request waits.
	gateTimeout, askTimeout = 5 * time.Second, 5 * time.Second
	// maxRefused is how many refused accounts a node remembers, at about 200 bytes each. If there
	// are more, the node asks the database about each caller.
	maxRefused = 100_000
	// remembered is the number of callers for which a node remembers the database's answer.
	remembered = 65_536
	// answerFresh is how long such an answer is used. knownFresh is how long a node remembers that
	// this service knows an account.
	answerFresh = time.Second
	knownFresh  = 10 * time.Minute
)

// GateConfig configures a Gate.
type GateConfig struct {
	DB pgpool.DB // for Load and RunOnce
	// Lookups is the database for questions for which a request waits. Default: DB.
	Lookups pgpool.DB
	// Mode says which accounts the node admits. Default: Open.
	Mode Mode
	// List holds the accounts that ModeAllowlist admits.
	List *Allowlist
	// OnRefused is called for each account that may no longer use the node. It must not block.
	// Default: nothing is called.
	OnRefused func(did syntax.DID, why error)
	Log       *slog.Logger
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// MaxRefused is how many refused accounts are remembered. Default: 100,000.
	MaxRefused int
}

// Gate says whether an account may use this node, and with which limit. It remembers the refused
// and the limited accounts, which are few, and reads changes every GateInterval. Its methods are
// safe for concurrent use.
type Gate struct {
	cfg   GateConfig
	asked *lru.Cache[syntax.DID, answer] // answers of the database, if too many are refused to remember
	known *lru.Cache[syntax.DID, answer] // whether this service knows an account; used in ModeClosed
	Wake  worker.Trigger                 // makes the next RunOnce begin at once

	mu      sync.RWMutex // guards the fields below
	loaded  bool
	refused map[syntax.DID]error // nil if there are too many to remember
	hashed  int                  // how many entries of refused are blocked accounts that were erased
	limited map[syntax.DID]limit
	version int64 // of account_clock; all changes up to it have been read
}

// answer is an answer of the database. err is nil if the account may use the node.
type answer struct {
	err error
	at  time.Time
}

// NewGate returns a gate. Until Load, the gate refuses everybody with ErrUnavailable.
func NewGate(c GateConfig) (*Gate, error) {
	if c.OnRefused == nil {
		c.OnRefused = func(syntax.DID, error) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Lookups == nil {
		c.Lookups = c.DB
	}
	if c.MaxRefused == 0 {
		c.MaxRefused = maxRefused
	}
	g := &Gate{cfg: c, Wake: worker.NewTrigger()}
	var err error
	if g.asked, err = lru.New[syntax.DID, answer](remembered); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	g.known, err = lru.New[syntax.DID, answer](remembered)
	return g, errs.Wrap(err, "accounts")
}

// Check returns an error unless the account may use the node now. Errors: ErrBlocked,
// *InactiveError, ErrNotAdmitted, ErrUnavailable, those of the database.
func (g *Gate) Check(ctx context.Context, did syntax.DID) error {
	g.mu.RLock()
	loaded, remembers, why := g.loaded, g.refused != nil, g.why(did)
	g.mu.RUnlock()
	switch {
	case !loaded:
		return ErrUnavailable
	case !remembers:
		why = g.ask(ctx, did)
	}
	if why != nil {
		return why
	}
	switch g.cfg.Mode {
	case ModeAllowlist:
		if !g.cfg.List.Has(did) {
			return ErrNotAdmitted
		}
	case ModeClosed:
		return g.checkKnown(ctx, did)
	}
	return nil
}

// Withheld returns the accounts among dids that may not use the node, in the order of dids. To
// other people, such accounts must look like accounts that have nothing here. dids usually has at
// most 100 entries.
func (g *Gate) Withheld(ctx context.Context, dids []syntax.DID) (withheld []syntax.DID, err error) {
	reasons := make(map[syntax.DID]error, len(dids))
	g.mu.RLock()
	loaded, remembers := g.loaded, g.refused != nil
	for _, did := range dids {
		reasons[did] = g.why(did)
	}
	g.mu.RUnlock()
	switch {
	case !loaded:
		return nil, ErrUnavailable
	case !remembers:
		if reasons, err = g.read(ctx, dids); err != nil {
			return nil, err
		}
	}
	for _, did := range dids {
		if reasons[did] != nil || g.cfg.Mode == ModeAllowlist && !g.cfg.List.Has(did) {
			withheld = append(withheld, did)
		}
	}
	return withheld, nil
}

// why returns the reason to refuse an account: its own row, or a block of the same DID from before
// an erasure. The caller holds mu.
func (g *Gate) why(did syntax.DID) error {
	if why := g.refused[did]; why != nil || g.hashed == 0 {
		return why
	}
	return g.refused[tombstone.Hash(did)]
}

// ask asks the database about one account, or uses the last answer.
func (g *Gate) ask(ctx context.Context, did syntax.DID) error {
	now := g.cfg.Now()
	if a, ok := g.asked.Get(did); ok && now.Sub(a.at) < answerFresh {
		return a.err
	}
	reasons, err := g.read(ctx, []syntax.DID{did})
	if err != nil {
		return err
	}
	g.asked.Add(did, answer{reasons[did], now})
	return reasons[did]
}

// read reads from the database why the accounts are refused.
func (g *Gate) read(ctx context.Context, dids []syntax.DID) (map[syntax.DID]error, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hashes := make([]syntax.DID, len(dids))
	for i, did := range dids {
		hashes[i] = tombstone.Hash(did)
	}
	reasons, err := reasonsOf(ctx, g.cfg.Lookups, `
		SELECT did, status, blocked_at IS NOT NULL, erasing_at IS NOT NULL FROM accounts
		WHERE did = ANY($1::text[] || $2::text[]) AND (status <> 'active' OR blocked_at IS NOT NULL OR erasing_at IS NOT
			NULL)`, dids, hashes)
	if err != nil {
		return nil, err
	}
	for i, did := range dids {
		if reasons[did] == nil && reasons[hashes[i]] != nil {
			reasons[did] = reasons[hashes[i]]
		}
	}
	return reasons, nil
}

// reasonsOf returns why accounts are refused; the value is nil for an account that is not. The
// statement returns the did, the status, whether the operator has blocked the account, and whether
// the account is being erased.
func reasonsOf(ctx context.Context, db pgpool.Queryer, sql string, args ...any) (map[syntax.DID]error, error) {
	reasons := map[syntax.DID]error{}
	var did syntax.DID
	var status Status
	var blocked, erasing bool
	rows := pgpool.Rows(ctx, db, sql, args...)
	_, err := pgx.ForEachRow(rows, []any{&did, &status, &blocked, &erasing}, func() error {
		switch {
		case blocked:
			reasons[did] = ErrBlocked
		case erasing:
			reasons[did] = &InactiveError{Erasing}
		case status != Active:
			reasons[did] = &InactiveError{status}
		default:
			reasons[did] = nil
		}
		return nil
	})
	return reasons, errs.Wrap(err, "read which accounts are refused")
}

// Load reads which accounts are refused or limited. Until then the node must not serve requests. A
// later call reads everything again.
func (g *Gate) Load(ctx context.Context) error {
	// The version is read first, so that a change between the two statements is read twice and not
	// missed.
	version, err := g.readVersion(ctx)
	if err != nil {
		return err
	}
	refused, err := reasonsOf(ctx, g.cfg.DB, `
		SELECT did, status, blocked_at IS NOT NULL, erasing_at IS NOT NULL FROM accounts
		WHERE status <> 'active' OR blocked_at IS NOT NULL OR erasing_at IS NOT NULL LIMIT $1`, g.cfg.MaxRefused+1)
	if err != nil {
		return err
	}
	limited, err := g.readLimited(ctx)
	if err != nil {
		return err
	}
	if len(refused) > g.cfg.MaxRefused {
		refused = nil
		g.cfg.Log.WarnContext(ctx, "there are too many refused accounts to remember: the database is asked about each caller",
			"most", g.cfg.MaxRefused)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loaded, g.refused, g.hashed, g.limited, g.version = true, refused, countHashed(refused), limited, version
	return nil
}

func (g *Gate) readVersion(ctx context.Context) (version int64, err error) {
	err = g.cfg.DB.QueryRow(ctx, `SELECT version FROM account_clock`).Scan(&version)
	return version, errs.Wrap(err, "read the version of the accounts")
}

// RunOnce reads the changes since the last call. Only one call may run at a time. If an older copy
// has replaced the database, RunOnce loads everything again.
func (g *Gate) RunOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	g.mu.RLock()
	since := g.version
	g.mu.RUnlock()
	version, err := g.readVersion(ctx)
	switch {
	case err != nil:
		return err
	case version < since:
		g.cfg.Log.ErrorContext(ctx, "the accounts of the database are older than those that this node has read", "version",
			version, "read", since)
		return g.Load(ctx)
	case version == since:
		return nil
	}
	changed, err := reasonsOf(ctx, g.cfg.DB,
		`SELECT did, status, blocked_at IS NOT NULL, erasing_at IS NOT NULL FROM accounts WHERE version > $1`, since)
	if err != nil {
		return err
	}
	limited, err := g.readLimited(ctx)
	if err != nil {
		return err
	}
	overflown := g.apply(changed, limited, version)
	for did, why := range changed {
		g.asked.Remove(did)
		if why != nil {
			g.cfg.OnRefused(did, why)
		}
	}
	if overflown {
		g.cfg.Log.WarnContext(ctx, "there are too many refused accounts to remember: the database is asked about each caller",
			"most", g.cfg.MaxRefused)
	}
	return nil
}

// dropErased forgets the reasons of refused accounts that have been erased: a change in the row of
// the account's hash says so. From then on, the row under the hash holds the reason. The caller
// holds mu.
func (g *Gate) dropErased(changed map[syntax.DID]error) {
	if countHashed(changed) == 0 {
		return
	}
	for did := range g.refused {
		if _, erased := changed[tombstone.Hash(did)]; erased && !tombstone.Is(did) {
			delete(g.refused, did)
		}
	}
}

// countHashed counts the accounts whose row is under the hash of the DID.
func countHashed(accounts map[syntax.DID]error) (n int) {
	for did := range accounts {
		if tombstone.Is(did) {
			n++
		}
	}
	return n
}

// apply remembers changes up to version, and all limits. It reports whether there are now too many
// refused accounts to remember. Changes with a later version are read again.
func (g *Gate) apply(changed map[syntax.DID]error, limited map[syntax.DID]limit, version int64) (overflown bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.version, g.limited = version, limited
	if g.refused == nil {
		return false
	}
	g.dropErased(changed)
	for did, why := range changed {
		if why == nil {
			delete(g.refused, did)
		} else {
			g.refused[did] = why
		}
	}
	g.hashed = countHashed(g.refused)
	if len(g.refused) <= g.cfg.MaxRefused {
		return false
	}
	g.refused = nil
	return true
}
