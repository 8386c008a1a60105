package quota

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/worker"
)

// subjectKind says whose quota a count belongs to.
type subjectKind uint8

const (
	didSubject subjectKind = iota
	addressSubject
	convoSubject
	kinds
)

// subject is a person, an address or a convo whose use is counted, on one day.
type subject struct {
	kind subjectKind
	name string // the DID, the address or network, or the 16 bytes of the convo's id
	day  int64  // days since 1970, in UTC
}

// String returns the stored form of the subject.
func (s subject) String() string {
	switch s.kind {
	case didSubject:
		return s.name
	case addressSubject:
		return "ip:" + s.name
	}
	return "convo:" + uuid.UUID([]byte(s.name)).String()
}

const secondsOfDay = 24 * 60 * 60

func dayOf(t time.Time) int64 { return t.Unix() / secondsOfDay }

// startOf returns the beginning of a day.
func startOf(day int64) time.Time { return time.Unix(day*secondsOfDay, 0).UTC() }

// count is the use of one resource. written is the sum over all nodes when it was last read, fresh
// is the use that this node has not written yet.
type count struct{ written, fresh atomic.Int64 }

func (c *count) used() int64 { return c.written.Load() + c.fresh.Load() }

// account is the use of one subject.
type account struct {
	counts  [resources]count
	percent atomic.Int32 // percentage of the limits, when the subject last called
	active  atomic.Bool  // used since the last flush
	since   atomic.Int64 // Unix time in seconds of the first unwritten count; 0 means none
}

// take counts n of r, or refuses if that exceeds the limit. If two simultaneous calls exceed the
// limit together, both may be refused.
func (a *account) take(r Resource, n, limit, now int64) (used int64, ok bool) {
	c := &a.counts[r]
	fresh := c.fresh.Add(n)
	if total := c.written.Load() + fresh; total > limit && n > 0 {
		c.fresh.Add(-n)
		return total - n, false
	}
	a.unwritten(now)
	return 0, true
}

// count counts n of r, without a limit. n can be negative.
func (a *account) count(r Resource, n, now int64) {
	a.counts[r].fresh.Add(n)
	a.unwritten(now)
}

// unwritten records that the account has counts to write.
func (a *account) unwritten(now int64) {
	if a.since.Load() == 0 {
		a.since.CompareAndSwap(0, now)
	}
}

const (
	// maxAccounts bounds the subjects that a node remembers, with about 300 bytes each.
	maxAccounts = 100_000
	shards      = 64
)

// shard is a part of the accounts. There are many shards, so that requests seldom wait for the same
// lock.
type shard struct {
	mu       sync.RWMutex // guards accounts
	accounts map[subject]*account
}

// Counter counts and checks what callers use. Methods are safe for concurrent use.
//
// One node never exceeds a quota. Several nodes together can exceed it. Each other node can add
// what it admits within one FlushInterval, and one per cent of the limit that it holds back.
//
// A node that ends without a last flush loses its unwritten counts, to the advantage of the users.
type Counter struct {
	db          *pgxpool.Pool
	log         *slog.Logger
	now         func() time.Time
	use         func(quota string, share float64)
	percent     func(did syntax.DID) int
	limits      [kinds][resources]int64
	names       [kinds][resources]string
	invitations Invitations
	reports     int64 // limit of the bytes of open reports
	limited     bool  // there is a daily limit

	seed    maphash.Seed
	shards  [shards]shard
	most    int            // accounts in a shard
	crowded atomic.Bool    // many accounts wait to be written
	wake    worker.Trigger // asks for a flush, if crowded

	flushing sync.Mutex // held during a flush
}

// Option changes a Counter.
type Option func(*Counter)

// WithClock sets the clock, which is time.Now by default.
func WithClock(now func() time.Time) Option { return func(c *Counter) { c.now = now } }

// WithAccounts bounds the subjects that the counter remembers.
func WithAccounts(n int) Option { return func(c *Counter) { c.most = max(n/shards, 1) } }

// OnUse calls f at every flush with the highest used share of each quota, from 0 to 1.
func OnUse(f func(quota string, share float64)) Option { return func(c *Counter) { c.use = f } }

// ScaledBy sets the limits of a DID to percent(did) per cent of the usual limits.
func ScaledBy(percent func(did syntax.DID) int) Option {
	return func(c *Counter) { c.percent = percent }
}

// New returns a counter on db.
func New(db *pgxpool.Pool, limits Limits, log *slog.Logger, options ...Option) *Counter {
	c := &Counter{
		db: db, log: log, now: time.Now, use: func(string, float64) {}, percent: func(syntax.DID) int { return 100 },
		names: storedNames(), invitations: limits.invitations(), reports: limits[ReportBytes],
		seed: maphash.MakeSeed(), most: maxAccounts / shards, wake: worker.NewTrigger(),
	}
	for k := range c.limits {
		for r := range c.limits[k] {
			c.limits[k][r] = limits.of(subjectKind(k), Resource(r))
			c.limited = c.limited || c.limits[k][r] != 0
		}
	}
	for i := range c.shards {
		c.shards[i].accounts = map[subject]*account{}
	}
	for _, o := range options {
		o(c)
	}
	return c
}

// Open prepares to count one request of did from address. If the node does not know these subjects,
// Open reads what they have used. Errors: those of the database.
func (c *Counter) Open(ctx context.Context, did syntax.DID, address string) (*Spending, error) {
	now := c.now()
	s := &Spending{c: c, now: now.Unix(), day: dayOf(now), address: address}
	if !c.limited {
		return s, nil
	}
	both := [...]subject{{didSubject, did.String(), s.day}, {addressSubject, address, s.day}}
	var missing []subject
	for _, who := range both {
		if s.accounts[who.kind] = c.find(who); s.accounts[who.kind] == nil {
			missing = append(missing, who)
		}
	}
	if len(missing) > 0 {
		if err := c.remember(ctx, s, both[:], missing); err != nil {
			return nil, err
		}
	}
	s.accounts[didSubject].setPercent(c.percent(did))
	return s, nil
}

// setPercent sets which percentage of the limits applies to the subject.
func (a *account) setPercent(percent int) {
	if p := int32(percent); a.percent.Load() != p {
		a.percent.Store(p)
	}
}

// limit returns the limit of an account for a resource; 0 means none.
func (c *Counter) limit(k subjectKind, a *account, r Resource) int64 {
	if k != didSubject {
		return c.limits[k][r]
	}
	return Scaled(c.limits[k][r], int(a.percent.Load()))
}

// openAttempts is how often remember makes the accounts of a request, if one account is evicted for
// another.
const openAttempts = 4

// remember makes the missing accounts. It repeats this until all accounts of the request are
// remembered at the same time, because a forgotten account loses its counts.
func (c *Counter) remember(ctx context.Context, s *Spending, all, missing []subject) error {
	for attempt := 0; len(missing) > 0 && attempt < openAttempts; attempt++ {
		if err := c.addMissing(ctx, s, missing); err != nil {
			return err
		}
		missing = slices.DeleteFunc(slices.Clone(all), func(who subject) bool { return c.find(who) == s.accounts[who.kind] })
	}
	return nil
}

// addMissing makes the accounts of missing from their rows in the database.
func (c *Counter) addMissing(ctx context.Context, s *Spending, missing []subject) error {
	sums, err := c.read(ctx, s.day, missing)
	if err != nil {
		return fmt.Errorf("read what the caller has used: %w", err)
	}
	for _, who := range missing {
		who.name = strings.Clone(who.name) // does not keep the rest of the request in memory
		if s.accounts[who.kind], err = c.add(ctx, s, who, sums); err != nil {
			return err
		}
	}
	return nil
}

func (c *Counter) shardOf(who subject) *shard {
	return &c.shards[maphash.String(c.seed, who.name)%shards]
}

// find returns the subject's account, or nil.
func (c *Counter) find(who subject) *account {
	sh := c.shardOf(who)
	sh.mu.RLock()
	a := sh.accounts[who]
	sh.mu.RUnlock()
	if a != nil && !a.active.Load() {
		a.active.Store(true)
	}
	return a
}

// add makes an account from the sums that were read. If every account has unwritten counts, add
// writes them first.
func (c *Counter) add(ctx context.Context, s *Spending, who subject, sums map[row]int64) (*account, error) {
	a := &account{}
	a.percent.Store(100)
	a.active.Store(true)
	for r, name := range c.names[who.kind] {
		if name != "" {
			a.counts[r].written.Store(sums[row{who.String(), name}])
		}
	}
	if kept := c.keep(s, who, a); kept != nil {
		return kept, nil
	}
	if err := c.FlushAll(ctx); err != nil {
		return nil, err
	}
	if kept := c.keep(s, who, a); kept != nil {
		return kept, nil
	}
	return a, nil // other accounts took the place at once, so the request is checked but not counted
}

// keep remembers a, unless the subject has another account already. It returns the remembered
// account, or nil if there is no place. It does not evict the other accounts of the request.
func (c *Counter) keep(s *Spending, who subject, a *account) *account {
	sh := c.shardOf(who)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if other := sh.accounts[who]; other != nil {
		return other
	}
	if len(sh.accounts) >= c.most && !c.evict(sh, s.accounts[:]) {
		return nil
	}
	sh.accounts[who] = a
	return a
}

// evict forgets a fully written account, which the next request of the subject reads again. It
// prefers unused accounts. Accounts that used up a quota come last, so that nobody gains by filling
// the memory with other DIDs. evict never forgets accounts in spared. It reports whether it found
// an account.
func (c *Counter) evict(sh *shard, spared []*account) bool {
	var active, usedUp *subject
	unwritten := 0
	for who, a := range sh.accounts { // in random order
		switch {
		case a.since.Load() != 0:
			unwritten++
		case slices.Contains(spared, a):
		case c.usedUp(who.kind, a):
			usedUp = &who
		case a.active.Load():
			active = &who
		default:
			delete(sh.accounts, who)
			return true
		}
	}
	if 2*unwritten > len(sh.accounts) {
		c.crowded.Store(true)
		c.wake.Send()
	}
	for _, who := range []*subject{active, usedUp} {
		if who != nil {
			delete(sh.accounts, *who)
			return true
		}
	}
	return false
}

// usedUp reports whether the subject has used up a quota.
func (c *Counter) usedUp(k subjectKind, a *account) bool {
	for r := range a.counts {
		if limit := c.limit(k, a, Resource(r)); limit != 0 && a.counts[r].used() >= limit {
			return true
		}
	}
	return false
}
