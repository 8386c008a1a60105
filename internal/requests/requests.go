// Package requests keeps what became of requests: counts of all callers by the hour, and single
// requests, as an access line in the log and a row of the table requests. Single requests are those
// that were refused or failed, slow ones, and a sample of the others.
//
// A request only appends to a buffer, which a worker writes once in a second. The buffer is
// bounded, and so is the share of one caller, so that a flood fills neither the log nor the table.
// A line says how many were left out.
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
	maxSampled = 10  // of those, samples of successes
	maxFailed  = 10  // of those, with a status of 500 or more: in an outage all fail, for one reason
	maxOthers  = 4   // requests of everybody else: they leave a line, and no row

	// serverFault is the first status of HTTP that is a fault of the server.
	serverFault = 500
	// perCaller is how many requests of one caller are recorded in a minute.
	perCaller = 50
	// Slow is the duration from which on every request is recorded.
	Slow = time.Second
	// maxMessage is how much of an error's message is kept, in bytes.
	maxMessage = 500
)

// Request is one request, after its answer.
type Request struct {
	At      time.Time // of the answer
	ID      string    // X-Request-Id
	NSID    string    // "other": no known method
	Status  int       // of HTTP
	Error   string    // the error's name; "": it succeeded
	Message string    // of the error, as the client got it
	Detail  []byte    // the other fields of the error, a JSON object; nil: none
	// Caller is who sent it, "" if that is not known. Known says that a row may name the caller: the
	// node serves it, and it is not being erased.
	Caller string
	Known  bool
	// Admitted says that the caller's token was good and its rate limit left the request: it counts.
	Admitted bool
	Key      string // the idempotency key; "": none
	KeyUsed  bool   // a write was made under the key, or refused because of it
	// Conflict says that the error refuses the request because of another one.
	Conflict bool
	Convo    uuid.UUID // that the request names; uuid.Nil: none
	// Replayed says that the answer was the first one of its key, Expired that the key was used anew
	// after its record's lifetime.
	Replayed, Expired bool
	Bytes             int64 // of the answer
	Took              time.Duration
	Trace             string // id of the trace that it belongs to; "": none
}

// failed reports whether the request failed by a fault of the server.
func (q *Request) failed() bool { return q.Status >= serverFault }

// Config is what a Recorder uses.
type Config struct {
	DB   *pgxpool.Pool // the maintenance pool
	Log  *slog.Logger
	Node string // names this node in rows
	// Sample is the share of successes that are recorded: one in Sample. 0: none.
	Sample int
	// Keep is how long rows are kept.
	Keep time.Duration
	// KeyConflict is the name of the error that says that a key was used for another request. The
	// audit log gets the first such request of a caller, method and hour, at most 100 rows in an hour.
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
	minute  time.Time      // for which callers counts
	callers map[string]int // recorded requests of this minute; at most maxKnown in each Interval
}

// pending is what the next round writes.
type pending struct {
	known, others   []Request
	sampled, failed int // of known
	leftOut         int
}

// New returns a recorder. Call Load before it is used.
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
// somebody with the database finds the DID in it.
func (r *Recorder) Hash(did string) string {
	if did == "" {
		return ""
	}
	mac := hmac.New(sha256.New, r.hashKey)
	mac.Write([]byte(did))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// Add counts the request, and records it if it is one to be recorded. It does not block.
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
	// keeps nothing else of the request
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

// sampled decides about one success.
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

// Flush writes what has been added since the last time. What cannot be written is dropped.
func (r *Recorder) Flush(ctx context.Context) error {
	return errors.Join(r.flushRows(ctx), r.counts.flush(ctx))
}
