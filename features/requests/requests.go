// Package requests records what became of requests. It counts the requests of all callers by the
// hour. It records single requests, as an access line in the log and a row of the table requests:
// requests that were refused or failed, slow requests, and a sample of the others.
//
// A request only appends to a buffer, which a worker writes once a second. The buffer is bounded,
// and so is the share of one caller, so that a flood fills neither the log nor the table. A line in
// the log says how many requests were left out.
package requests

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/worker"
)

const (
	// Interval is how often the worker writes. The bounds below are for one interval.
	Interval = time.Second

	maxKnown   = 200 // requests of known callers
	maxSampled = 10  // sampled successes of known callers
	maxFailed  = 10  // requests of known callers with a status of 500 or more: in an outage all fail, for one reason
	maxOthers  = 4   // requests of all other callers, which leave a line and no row

	// serverFault is the first status of HTTP that is a fault of the server.
	serverFault = 500
	// perCaller is how many requests of one caller are recorded in a minute.
	perCaller = 50
	// Slow is a duration. Every request that takes this long or longer is recorded.
	Slow = time.Second
	// maxMessage is how much of an error's message is kept, in bytes.
	maxMessage = 500
)

// Request is one request, after its answer.
type Request struct {
	At      time.Time // when it was answered
	ID      string    // X-Request-Id
	NSID    string    // "other" means no known method
	Status  int       // HTTP status
	Error   string    // name of the error; "" means success
	Message string    // text of the error, as the client got it
	Detail  []byte    // the other fields of the error, a JSON object; nil means none
	// Caller is the DID of the sender, or "" if it is not known. Known says that a row may name the
	// caller: the node serves the caller, and is not erasing the account.
	Caller string
	Known  bool
	// Admitted says that the request counts: the token was good, and the rate limit allowed it.
	Admitted bool
	Key      string // the idempotency key; "" means none
	KeyUsed  bool   // a write was made under the key, or was refused because of the key
	// Conflict says that the error refuses the request because of another request.
	Conflict bool
	Convo    uuid.UUID // the convo that the request names; uuid.Nil means none
	// Replayed says that the answer repeated the first answer of the key. Expired says that the key
	// was used again after the lifetime of its record.
	Replayed, Expired bool
	Bytes             int64 // size of the answer
	Took              time.Duration
	Trace             string // id of its trace; "" means none
}

// failed reports whether the request failed by a fault of the server.
func (q *Request) failed() bool { return q.Status >= serverFault }

// Config is what a Recorder uses.
type Config struct {
	DB   *pgxpool.Pool // the maintenance pool
	Log  *slog.Logger
	Node string // names this node in rows
	// Sample is the share of successes that are recorded: one in Sample. 0 means none.
	Sample int
	// Keep is how long rows are kept.
	Keep time.Duration
	// KeyConflict is the name of the error that says that a key was used for another request. The
	// audit log gets a row for the first such request of a caller, method and hour, but at most 100
	// rows in an hour.
	KeyConflict string
	Now         func() time.Time // default: time.Now
}

// Recorder records requests. Methods are safe for concurrent use.
type Recorder struct {
	cfg     Config
	hashKey []byte // set by Load, before the first Add
	served  atomic.Uint64
	counts  *counter
	counted time.Time // when the worker wrote the counts last

	mu      sync.Mutex // guards what follows
	pending pending
	minute  time.Time      // the minute of the numbers in callers
	callers map[string]int // recorded requests of this minute; at most maxKnown in each Interval
}

// pending is what the next round writes.
type pending struct {
	known, others   []Request
	sampled, failed int // how many of known are samples, and how many failed
	leftOut         int
}

// New returns a recorder. Call Load before you use it.
func New(cfg Config) *Recorder {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Recorder{cfg: cfg, counts: newCounter(cfg.DB, cfg.KeyConflict), callers: map[string]int{}}
}

// Load reads the key with which callers are hashed.
func (r *Recorder) Load(ctx context.Context) error {
	err := r.cfg.DB.QueryRow(ctx, `SELECT hash_key FROM installation`).Scan(&r.hashKey)
	return errs.Wrap(err, "read the key of callers' hashes")
}

// Hash is the name of a caller in access lines: 12 hexadecimal digits, the same on all nodes. Only
// somebody with the database can find the DID that belongs to it.
func (r *Recorder) Hash(did string) string {
	if did == "" {
		return ""
	}
	mac := hmac.New(sha256.New, r.hashKey)
	mac.Write([]byte(did))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// Add counts the request, and decides whether to record it. It does not block.
func (r *Recorder) Add(q Request) {
	if q.Admitted {
		r.counts.add(&q)
	}
	sample := q.Error == "" && q.Took < Slow
	if sample && !r.sampled() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fits(q, sample) {
		r.pending.leftOut++
		return
	}
	// The clones let the rest of the request be freed.
	q.Key, q.Caller, q.ID = strings.Clone(q.Key), strings.Clone(q.Caller), strings.Clone(q.ID)
	if !q.Known {
		r.pending.others = append(r.pending.others, q)
		return
	}
	r.callers[q.Caller]++
	if sample {
		r.pending.sampled++
	}
	if q.failed() {
		r.pending.failed++
	}
	r.pending.known = append(r.pending.known, q)
}

// sampled counts a success, and reports whether it is in the sample.
func (r *Recorder) sampled() bool {
	return r.cfg.Sample > 0 && r.served.Add(1)%uint64(r.cfg.Sample) == 0
}

// fits reports whether the bounds leave space for the request. Call with mu locked.
func (r *Recorder) fits(q Request, sample bool) bool {
	if !q.Known {
		return len(r.pending.others) < maxOthers
	}
	if minute := q.At.Truncate(time.Minute); !minute.Equal(r.minute) {
		r.minute = minute
		clear(r.callers)
	}
	return len(r.pending.known) < maxKnown && r.callers[q.Caller] < perCaller &&
		(!sample || r.pending.sampled < maxSampled) && (!q.failed() || r.pending.failed < maxFailed)
}

// Run writes until ctx ends, and then once more.
func (r *Recorder) Run(ctx context.Context, rounds *worker.Rounds) {
	rounds.Every("request recorder", Interval, r.cfg.Log, r.round, worker.AfterInterval(), worker.AtEnd(r.Flush)).Run(ctx)
}

// round writes what is due.
func (r *Recorder) round(ctx context.Context) error {
	if time.Since(r.counted) < CountsInterval {
		return r.flushRows(ctx)
	}
	r.counted = time.Now()
	return r.Flush(ctx)
}

// Flush writes what has been added since the last Flush. What cannot be written is dropped.
func (r *Recorder) Flush(ctx context.Context) error {
	return errors.Join(r.flushRows(ctx), r.counts.flush(ctx))
}
