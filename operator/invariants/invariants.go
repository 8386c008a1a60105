// Package invariants verifies the promises of docs/INVARIANTS.md in the stored data. Tests and the
// simulator call it after each step. Operators call it through the admin listener. The package only
// reads, and does not depend on the code that writes.
package invariants

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// erasedPrefix is the prefix of the names of erased members. Their leaves stay in the group until a
// member removes them.
const erasedPrefix = "did:erased:"

// maxListed is how many violations of one promise get a text. Further violations are only counted.
const maxListed = 100

// Check verifies everything, and returns the violations as texts. For each promise it returns the
// first hundred violations, and the number of further violations. The cost is linear in the size of
// the stored data.
func Check(ctx context.Context, db *pgxpool.Pool) (violations []string, err error) {
	v := verification{sizes: usualSizes}
	for at := (Cursor{}); !at.Done(); {
		if at, err = v.page(ctx, db, at); err != nil {
			return nil, err
		}
	}
	return v.violations(), nil
}

// CheckConvo verifies one convo, and returns the violations as Check does.
func CheckConvo(ctx context.Context, db *pgxpool.Pool, id uuid.UUID) (violations []string, err error) {
	v := verification{sizes: usualSizes}
	err = v.logs(ctx, db, func(ctx context.Context, tx pgx.Tx) ([]piece, error) {
		return pgpool.Collect(ctx, tx, scanPiece, `SELECT id, 0, last_seq FROM convos WHERE id = $1`, id)
	})
	return v.violations(), errs.Wrap(err, "convo %s", id)
}

// CheckSample verifies n convos that it chooses at random, and the KeyPackages of people in them. Of
// each log it verifies the newest entries, and it verifies at most MaxSample convos and people. So
// its cost does not grow with the stored data. It returns the violations as Check does.
func CheckSample(ctx context.Context, db *pgxpool.Pool, n int) (violations []string, err error) {
	n = min(n, MaxSample)
	v := verification{sizes: usualSizes}
	var people []string
	err = v.logs(ctx, db, func(ctx context.Context, tx pgx.Tx) ([]piece, error) {
		all, err := pgpool.Collect(ctx, tx, scanPiece, `
			SELECT id, greatest(last_seq - $2, 0), last_seq FROM convos ORDER BY random() LIMIT $1`, n, v.sizes.entries)
		if err != nil {
			return nil, err
		}
		ids := make([]uuid.UUID, len(all))
		for i, p := range all {
			ids[i] = p.convo
		}
		people, err = pgpool.Collect(ctx, tx, pgx.RowTo[string], `
			SELECT DISTINCT did FROM members WHERE convo_id = ANY($1) LIMIT $2`, ids, MaxSample)
		return all, err
	})
	for some := range slices.Chunk(people, v.sizes.people) {
		if err == nil {
			err = read(ctx, db, func(ctx context.Context, tx pgx.Tx) error { return v.run(ctx, tx, peopleChecks, some) })
		}
	}
	if err == nil {
		err = read(ctx, db, v.facts)
	}
	return v.violations(), errs.Wrap(err, "sample of %d convos", n)
}

// verification is what a check has found so far.
type verification struct {
	sizes    pageSizes
	promises []string             // in the order in which they were verified
	found    map[string]*findings // by promise
}

// verify verifies a promise with check.
func (v *verification) verify(promise string, check func(*findings) error) error {
	if v.found[promise] == nil {
		if v.found == nil {
			v.found = map[string]*findings{}
		}
		v.promises, v.found[promise] = append(v.promises, promise), &findings{}
	}
	return errs.Wrap(check(v.found[promise]), "%s", promise)
}

// violations returns the violations of all promises.
func (v *verification) violations() (all []string) {
	for _, promise := range v.promises {
		all = append(all, v.found[promise].list(promise)...)
	}
	return all
}

// run verifies promises that are not about single convos.
func (v *verification) run(ctx context.Context, tx pgx.Tx, checks []check, args ...any) error {
	for _, c := range checks {
		err := v.verify(c.promise, func(found *findings) error {
			var text string
			return each(ctx, tx, c.sql, args, []any{&text}, func() { found.add("%s: %s", c.promise, text) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// runConvos verifies promises about convos.
func (v *verification) runConvos(ctx context.Context, tx pgx.Tx, checks []check, args ...any) error {
	for _, c := range checks {
		err := v.verify(c.promise, func(found *findings) error {
			var convo uuid.UUID
			var text string
			return each(ctx, tx, c.sql, args, []any{&convo, &text},
				func() { found.add("convo %s: %s: %s", convo, c.promise, text) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// facts verifies the promises for which little is read.
func (v *verification) facts(ctx context.Context, tx pgx.Tx) error {
	err := v.verify(generationPromise, func(found *findings) error { return checkGeneration(ctx, tx, found) })
	if err != nil {
		return err
	}
	return v.run(ctx, tx, factChecks)
}

// pageTimeout is the longest time of one page of a check.
const pageTimeout = 10 * time.Minute

// read runs look in a read-only transaction. Each statement has its own snapshot, because each
// statement checks one promise. A single snapshot would keep deleted rows from being vacuumed, and
// all rows of the outbox are deleted sooner or later.
//
// Unlike mlsd's other statements, those of a check join thousands of rows, so read enables plans for
// that, and makes the planner plan for the given arguments. A check uses one core of the database.
func read(ctx context.Context, db *pgxpool.Pool, look func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, fmt.Sprintf(`
			SET LOCAL mlsd.maintenance = 'on';
			SET LOCAL statement_timeout = %d;
			SET LOCAL plan_cache_mode = force_custom_plan;
			SET LOCAL enable_seqscan = on;
			SET LOCAL jit = off;
			SET LOCAL max_parallel_workers_per_gather = 0;
			SET LOCAL enable_bitmapscan = on;
			SET LOCAL enable_hashjoin = on;
			SET LOCAL enable_mergejoin = on`, pageTimeout.Milliseconds()))
			if err != nil {
				return fmt.Errorf("prepare the check: %w", err)
			}
			return look(ctx, tx)
		})
}

// Promises that more than one statement checks.
const (
	generationPromise = "the stream's generation is that of this database"
	logPromise        = "log entries"
	groupsPromise     = "public groups"
)

// checkGeneration compares the present database with the database that has written the stream's
// newest generation. It leaves out what the role may not read.
func checkGeneration(ctx context.Context, tx pgx.Tx, found *findings) error {
	var text string
	add := func() { found.add("%s: %s", generationPromise, text) }
	err := each(ctx, tx, `
		SELECT format('generation %s was written by the database %s with the table %s, this is %s with %s',
			g.id, g.database_oid, g.table_oid, d.oid, 'generations'::regclass::oid)
		FROM (SELECT * FROM generations ORDER BY id DESC LIMIT 1) g, pg_database d
		WHERE d.datname = current_database()
			AND (g.database_oid, g.table_oid) <> (d.oid::bigint, 'generations'::regclass::oid::bigint)`, nil, []any{&text}, add)
	if err != nil {
		return err
	}
	var may bool
	err = tx.QueryRow(ctx, `
		SELECT bool_and(has_function_privilege(f, 'execute'))
		FROM unnest('{pg_control_system(), pg_walfile_name(pg_lsn), pg_current_wal_lsn()}'::text[]) AS f`).Scan(&may)
	if err != nil || !may {
		return err
	}
	return each(ctx, tx, `
		SELECT format('generation %s was written by PostgreSQL %s on timeline %s, this is %s on timeline %s',
			g.id, g.system_identifier, g.timeline, here.system_identifier, here.timeline)
		FROM (SELECT * FROM generations ORDER BY id DESC LIMIT 1) g, (
			SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline
			FROM pg_control_system()
		) here
		WHERE (g.system_identifier, g.timeline) <> (here.system_identifier, here.timeline)`, nil, []any{&text}, add)
}

// checkObjects compares the columns of spans of logs with the headers of their MLS objects.
func checkObjects(ctx context.Context, tx pgx.Tx, spans []any, found *findings) error {
	var convo uuid.UUID
	var seq, epoch int64
	var kind int16
	var body, groupID pgtype.DriverBytes
	row := []any{&convo, &seq, &kind, &epoch, &body, &groupID}
	return each(ctx, tx, `
		SELECT c.id, m.seq, m.kind, m.epoch, m.body, c.group_id
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN convos c ON c.id = span.id
		JOIN messages m ON m.convo_id = c.id AND m.seq > span.after AND m.seq <= span.upto AND m.kind <> 9`, spans, row,
		func() {
			if mls.ContentType(kind) == mls.ContentTypeCommit {
				epoch-- // the row has the epoch that the commit creates, its header the epoch before
			}
			h, err := mls.ParseHeader(body)
			switch {
			case err != nil:
				found.add("convo %s: log entry %d: %v", convo, seq, err)
			case !bytes.Equal(h.GroupID, groupID):
				found.add("convo %s: log entry %d is of another group", convo, seq)
			case int16(h.ContentType) != kind || int64(h.Epoch) != epoch:
				found.add("convo %s: log entry %d says %s of epoch %d", convo, seq, h.ContentType, h.Epoch)
			}
		})
}

// checkGroups compares the stored public state of a convo's group with the convo, its roster and
// the GroupInfo that clients get.
func checkGroups(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, found *findings) error {
	var convo uuid.UUID
	var groupID, state, groupInfo pgtype.DriverBytes
	var epoch int64
	var people []string
	row := []any{&convo, &groupID, &epoch, &state, &groupInfo, &people}
	return each(ctx, tx, `
		SELECT c.id, c.group_id, c.epoch, g.state, g.group_info, (SELECT array_agg(did ORDER BY did) FROM members WHERE
			convo_id = c.id)
		FROM convos c JOIN public_groups g ON g.convo_id = c.id WHERE c.id = ANY($1::uuid[])`, []any{ids}, row,
		func() {
			group, err := mls.ParseGroup(state)
			if err != nil {
				found.add("convo %s: the public group: %v", convo, err)
				return
			}
			if !bytes.Equal(group.GroupID, groupID) || int64(group.Epoch) != epoch {
				found.add("convo %s: the public group is of epoch %d, or another group's", convo, group.Epoch)
			}
			erased, outsiders := 0, map[string]bool{}
			for _, did := range people {
				if strings.HasPrefix(did, erasedPrefix) {
					erased++
				}
			}
			for m := range group.Tree.Members() {
				if _, known := slices.BinarySearch(people, m.DID()); known {
					continue
				}
				if outsiders[m.DID()] = true; len(outsiders) > erased {
					found.add("convo %s: leaf %d of the public group is of no member", convo, m.Leaf)
				}
			}
			if groupInfo == nil {
				return
			}
			info, err := mls.ParseGroupInfo(groupInfo)
			if err == nil {
				err = group.Matches(&info)
			}
			if err != nil {
				found.add("convo %s: the GroupInfo is not the public group's: %v", convo, err)
			}
		})
}

// each calls see for every row of a result as the row arrives, because all rows together can exceed
// the memory.
func each(ctx context.Context, tx pgx.Tx, sql string, args, row []any, see func()) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, row, func() error {
		see()
		return nil
	})
	return err
}

// findings are the violations of one promise.
type findings struct {
	texts []string
	more  int // number of further violations, which have no text
}

func (f *findings) add(format string, args ...any) {
	if len(f.texts) == maxListed {
		f.more++
		return
	}
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

// list returns the texts, followed by the number of further violations of what.
func (f *findings) list(what string) []string {
	if f.more == 0 {
		return f.texts
	}
	return append(f.texts, fmt.Sprintf("%s: %d more violations", what, f.more))
}

// lookBack bounds what ClientFaults reads: the newest events, or the newest entries of one convo.
const lookBack = 10000

// repeatedMessages finds application messages that their sender had already sent to the convo. It
// searches the newest $2 events, or the newest $2 entries of the convo $1.
//
// An MLS client encrypts each message with a key and a nonce of its own, so the bytes of two
// messages are never the same (RFC 9420 §6.3). Equal bytes are a retry whose client has lost its
// idempotency key.
//
// Messages count as equal if they have the same sender, epoch, length and last 32 bytes, because a
// PrivateMessage ends with an authentication tag. So PostgreSQL reads only the end of a long body.
const repeatedMessages = `
	WITH newest AS (
		SELECT convo_id, seq FROM (
			SELECT kind, convo_id, seq FROM single_events WHERE $1::uuid IS NULL AND row_seq > (SELECT head FROM stream) - $2
		) e WHERE kind = 1
		UNION ALL
		SELECT convo_id, seq FROM (
			SELECT kind, convo_id, seq FROM messages WHERE convo_id = $1 ORDER BY seq DESC LIMIT $2
		) m WHERE kind = 1
	)
	SELECT format('convo %s: a client has lost its keys: entries %s have the same bytes', n.convo_id,
		string_agg(n.seq::text, ', ' ORDER BY n.seq))
	FROM newest n JOIN messages m ON m.convo_id = n.convo_id AND m.seq = n.seq
	GROUP BY n.convo_id, m.sender_did, m.epoch, octet_length(m.body), substring(m.body FROM greatest(octet_length(m.body) -
		31, 1))
	HAVING count(*) > 1
	ORDER BY n.convo_id, min(n.seq)`

// ClientFaults returns mistakes of clients, as texts. Check does not list them, because the server
// has kept its promises. ClientFaults reads the newest 10,000 events or, if id is not nil, the
// newest 10,000 entries of that convo. So its cost does not grow with the stored data.
func ClientFaults(ctx context.Context, db *pgxpool.Pool, id *uuid.UUID) (faults []string, err error) {
	err = read(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		var found findings
		var text string
		err := each(ctx, tx, repeatedMessages, []any{id, lookBack}, []any{&text}, func() { found.add("%s", text) })
		faults = found.list("clients that have lost their keys")
		return err
	})
	return faults, errs.Wrap(err, "faults of clients")
}
