package quota

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

const (
	// FlushInterval is how often a node writes its counts and reads the counts of other nodes.
	FlushInterval = 5 * time.Second
	// heldBack is how long counts of less than one per cent of their limit can wait. So the many
	// people who send little cost few rows.
	heldBack = time.Minute
	// batchRows bounds the rows of one statement.
	batchRows = 5000
	// keepDays is how many days are kept, including today.
	keepDays = 2
)

// row names a row of one day.
type row struct{ subject, quota string }

// pending is a count to write.
type pending struct {
	row
	day   int64
	n     int64
	count *count
	of    *account
}

// known is an account whose sums must be read.
type known struct {
	subject
	*account
}

// Run flushes after every FlushInterval until ctx ends. Then it writes all counts.
func (c *Counter) Run(ctx context.Context, rounds *worker.Rounds) {
	rounds.Every("quota counter", FlushInterval, c.log, c.flushDue, worker.AfterInterval(), worker.AtEnd(c.FlushAll),
		worker.Wake(c.wake, 0)).Run(ctx)
}

// flushDue writes all counts if many accounts have unwritten counts; otherwise it writes the due
// counts.
func (c *Counter) flushDue(ctx context.Context) error { return c.flush(ctx, c.crowded.Swap(false)) }

// FlushAll writes all counts, and reads the sums of all subjects that were active since the last
// flush.
func (c *Counter) FlushAll(ctx context.Context) error { return c.flush(ctx, true) }

func (c *Counter) flush(ctx context.Context, all bool) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	now := c.now()
	writes, reads := c.collect(now, all)
	for i := 0; i < len(writes); i += batchRows {
		if err := c.write(ctx, writes[i:min(i+batchRows, len(writes))]); err != nil {
			for _, p := range writes[i:] {
				p.of.unwritten(now.Unix())
			}
			return fmt.Errorf("write what callers have used: %w", err)
		}
	}
	for batch := range slices.Chunk(reads, batchRows) {
		if err := c.refresh(ctx, dayOf(now), batch); err != nil {
			return fmt.Errorf("read what callers have used: %w", err)
		}
	}
	c.forgetPast(dayOf(now))
	return nil
}

// collect returns the counts to write, in the order in which all nodes write counts. It also
// returns the accounts of today that were active since the last flush.
func (c *Counter) collect(now time.Time, all bool) (writes []pending, reads []known) {
	today := dayOf(now)
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.RLock()
		for who, a := range sh.accounts {
			if since := a.since.Load(); since != 0 &&
				(all || who.day < today || now.Unix()-since >= int64(heldBack.Seconds()) || c.many(who.kind, a)) {
				writes = append(writes, c.pending(who, a)...)
			}
			if a.active.Swap(false) && who.day == today {
				reads = append(reads, known{who, a})
			}
		}
		sh.mu.RUnlock()
	}
	slices.SortFunc(writes, func(a, b pending) int {
		return cmp.Or(cmp.Compare(a.day, b.day), cmp.Compare(a.subject, b.subject), cmp.Compare(a.quota, b.quota))
	})
	return writes, reads
}

// many reports whether the subject's counts are too large to wait.
func (c *Counter) many(k subjectKind, a *account) bool {
	for r := range a.counts {
		if limit := c.limit(k, a, Resource(r)); limit != 0 && a.counts[r].fresh.Load() >= max(limit/100, 1) {
			return true
		}
	}
	return false
}

func (c *Counter) pending(who subject, a *account) (writes []pending) {
	a.since.Store(0) // set before the counts are read, because a count that is made meanwhile sets it again
	for r := range a.counts {
		if n := a.counts[r].fresh.Load(); n != 0 {
			writes = append(writes, pending{row{who.String(), c.names[who.kind][r]}, who.day, n, &a.counts[r], a})
		}
	}
	return writes
}

var (
	//go:embed write.sql
	writeSQL string
	//go:embed read.sql
	readSQL string
)

// asMaintenance lets a transaction see the table, which belongs to no caller.
const asMaintenance = `SELECT set_config('mlsd.maintenance', 'on', true)`

// write adds counts to their rows. If it is not known whether they were added, this node assumes
// that they were, until it reads the rows again.
func (c *Counter) write(ctx context.Context, batch []pending) error {
	n := len(batch)
	days, subjects, quotas, ns := make([]time.Time, n), make([]string, n), make([]string, n), make([]int64, n)
	for i, p := range batch {
		days[i], subjects[i], quotas[i], ns[i] = startOf(p.day), p.subject, p.quota, p.n
	}
	sums := map[row]int64{}
	err := pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(asMaintenance)
		b.Queue(writeSQL, days, subjects, quotas, ns).Query(collectInto(sums))
		return tx.SendBatch(ctx, b).Close()
	})
	for _, p := range batch {
		switch {
		case err == nil:
			p.count.fresh.Add(-p.n) // for a moment the count is too low, and never too high
			p.count.written.Store(sums[p.row])
		case pgpool.OutcomeUnknown(err):
			p.count.fresh.Add(-p.n)
			p.count.written.Add(p.n)
		}
	}
	return err
}

// refresh reads the sums of accounts.
func (c *Counter) refresh(ctx context.Context, day int64, batch []known) error {
	subjects := make([]subject, len(batch))
	for i, k := range batch {
		subjects[i] = k.subject
	}
	sums, err := c.read(ctx, day, subjects)
	if err != nil {
		return err
	}
	for _, k := range batch {
		for r, name := range c.names[k.kind] {
			k.counts[r].written.Store(sums[row{k.String(), name}])
		}
	}
	return nil
}

// read returns the sums of subjects on a day, in one round trip. If a row does not exist, its sum
// is 0.
func (c *Counter) read(ctx context.Context, day int64, subjects []subject) (map[row]int64, error) {
	names := make([]string, len(subjects))
	for i, who := range subjects {
		names[i] = who.String()
	}
	sums := map[row]int64{}
	b := &pgx.Batch{}
	b.Queue(asMaintenance)
	b.Queue(readSQL, startOf(day), names).Query(collectInto(sums))
	return sums, c.db.SendBatch(ctx, b).Close()
}

func collectInto(sums map[row]int64) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var at row
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&at.subject, &at.quota, &n}, func() error {
			sums[at] = n
			return nil
		})
		return err
	}
}

// forgetPast forgets accounts of past days whose counts are written, and reports the highest uses.
func (c *Counter) forgetPast(today int64) {
	highest := map[string]float64{}
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.Lock()
		for who, a := range sh.accounts {
			if who.day < today {
				if a.since.Load() == 0 {
					delete(sh.accounts, who)
				}
				continue
			}
			for r, name := range c.names[who.kind] {
				if limit := c.limit(who.kind, a, Resource(r)); limit != 0 {
					highest[name] = max(highest[name], float64(a.counts[r].used())/float64(limit))
				}
			}
		}
		sh.mu.Unlock()
	}
	for k := range c.names {
		for r, name := range c.names[k] {
			if c.limits[k][r] != 0 {
				c.use(name, highest[name])
			}
		}
	}
}

// Sweep deletes days that are older than keepDays.
func Sweep(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "quota_counts", `
		DELETE FROM quota_counts WHERE (day, subject, quota) IN (
			SELECT day, subject, quota FROM quota_counts WHERE day <= (now() AT TIME ZONE 'UTC')::date - $2::integer
			ORDER BY day LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepDays)
}

// Erase deletes the counts of a person, and returns how many it deleted. For up to a minute after
// the person's last request, nodes may still write counts from memory. The transaction must be one
// of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM quota_counts WHERE subject = $1`, p.DID)
	return tag.RowsAffected(), errs.Wrap(err, "erase counts of quotas")
}
