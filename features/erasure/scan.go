package erasure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// scan is a step that reads a whole table with its partitions, or every table.
//
// All jobs in this step read together: a batch reads a part once, and looks for the DIDs of all of
// them. A job that comes later joins the others at their present place. It reads to the end, and
// then from the beginning to the place where it has joined. So a hundred simultaneous erasures cost
// about as much reading as one. That matters, because accounts are free, and one person can have
// many erased.
type scan struct {
	table string // "" means every table
	// erase puts the tombstone of a person into a part of the table, and counts the rows. It is nil
	// if the step is the search. If the count is not 0, another pass begins, up to maxPasses,
	// because others can have named the person meanwhile.
	erase func(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error)
}

// batch reads the next part for up to most jobs: j, and the jobs that read with j.
func (s *scan) batch(ctx context.Context, j *job, most int) error {
	all, err := s.columns(ctx, j.tx)
	if err != nil {
		return err
	}
	l, err := s.gather(ctx, j, most)
	if err != nil {
		return err
	}
	b, next, err := part(ctx, j.tx, all, l.at, j.w.blocks)
	if err != nil {
		return err
	}
	found := map[string]int64{}
	if b.Table != "" {
		if found, err = named(ctx, j.tx, all, b, j.together()); err != nil {
			return err
		}
	}
	for _, each := range j.together() {
		if n := found[each.person.DID.String()]; n > 0 && s.erase == nil {
			each.remains[b.Table] += n
		} else if n > 0 {
			if n, err = s.erase(ctx, j.tx, each.person, b); err != nil {
				return err
			}
			each.add(s.table, n)
		}
		s.move(each, next)
	}
	return nil
}

// move moves a job to the next part, or to the next step.
func (s *scan) move(j *job, next place) {
	l := parseLap(j.position)
	switch {
	case !l.move(next):
		j.position = l.String()
	case s.erase == nil && len(j.remains) > 0 && j.pass < maxPasses:
		j.pass++
		j.step, j.position = j.w.steps[0].name, ""
	default:
		j.next()
	}
}

// gather locks the jobs that read with j. Jobs that have not begun to read begin where the others
// are, or at the beginning. gather returns where j is.
func (s *scan) gather(ctx context.Context, j *job, most int) (lap, error) {
	l := parseLap(j.position)
	if !l.begun {
		var at string
		err := j.tx.QueryRow(ctx, `
			SELECT split_part(position, ' ', 1) FROM erasures
			WHERE state = 'running' AND step = $1 AND position <> '' AND not_before <= clock_timestamp()
			ORDER BY moved_at DESC LIMIT 1`, j.step).Scan(&at)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return l, fmt.Errorf("look where others read: %w", err)
		}
		l = begin(parsePlace(at))
		s.begin(j, l)
	}
	rows := pgpool.Rows(ctx, j.tx, `
		SELECT id, did, salt, position, pass, counts, remains, services FROM erasures
		WHERE state = 'running' AND step = $1 AND id <> $2 AND not_before <= clock_timestamp()
			AND (position = '' OR split_part(position, ' ', 1) = $3)
		ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED`, j.step, j.id, l.at.String(), most-1)
	var err error
	j.with, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*job, error) {
		k := &job{w: j.w, tx: j.tx, step: j.step}
		err := row.Scan(&k.id, &k.person.DID, &k.person.Salt, &k.position, &k.pass, &k.counts, &k.remains, &k.services)
		if k.position == "" {
			s.begin(k, begin(l.at))
		}
		return k, err
	})
	return l, errs.Wrap(err, "look for jobs that read here")
}

// begin makes a job begin to read.
func (s *scan) begin(j *job, l lap) {
	j.position = l.String()
	if s.erase == nil {
		j.remains = map[string]int64{}
	}
}

// objects are the columns that the search skips. They hold MLS objects, or the content of such
// objects, which other members have signed or encrypted: only these members can change them.
// docs/ERASURE.md says how long such an object can name the person.
var objects = map[string]bool{
	"messages.body": true, "public_groups.state": true, "public_groups.group_info": true,
	"public_groups.external_senders": true, "welcome_bodies.body": true,
}

// kept are the tables whose rows name the person until the job ends.
var kept = map[string]bool{"erasures": true, "accounts": true}

// column is a column that can hold a DID.
type column struct {
	Table, Name string
	Bytes       bool
}

// columns returns the columns that can hold a DID, in the order of tables. Partitions count as
// tables.
func (s *scan) columns(ctx context.Context, tx pgx.Tx) ([]column, error) {
	all, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[column], `
		SELECT c.relname, a.attname, a.atttypid = 'bytea'::regtype
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
		WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
			AND (a.atttypid IN ('text'::regtype, 'varchar'::regtype, 'bytea'::regtype, 'json'::regtype, 'jsonb'::regtype)
				OR a.atttypid = 'text[]'::regtype)
			AND ($1 = '' OR $1::text IN (c.relname, i.inhparent::regclass::text))
		ORDER BY c.relname, a.attnum`, s.table)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	return slices.DeleteFunc(all, func(c column) bool { return kept[c.Table] || objects[c.Table+"."+c.Name] }), nil
}

// part returns up to n blocks of a table, from a place on, and the place after them: the zero place
// if nothing is left. Partitions come and go: if the table is gone, part returns the next table, or
// "".
func part(ctx context.Context, tx pgx.Tx, all []column, at place, n int64) (b pgpool.Blocks, next place, err error) {
	here := slices.IndexFunc(all, func(c column) bool { return c.Table >= at.table })
	if here < 0 {
		return b, next, nil
	}
	table := all[here].Table
	if table != at.table {
		at = place{table: table}
	}
	b, block, err := pgpool.NextBlocks(ctx, tx, table, at.block, n)
	if err != nil {
		return b, next, err
	}
	if block > 0 {
		return b, place{table, block}, nil
	}
	if behind := slices.IndexFunc(all, func(c column) bool { return c.Table > table }); behind >= 0 {
		next.table = all[behind].Table
	}
	return b, next, nil
}

// named returns, by DID, how many rows of a part of a table name the person of each job. A DID ends
// before the first character that cannot be part of a DID. A full stop at the end belongs to the
// sentence.
//
// The names of tables and columns are data here, so this is the only statement that is assembled.
func named(ctx context.Context, tx pgx.Tx, all []column, b pgpool.Blocks, jobs []*job) (map[string]int64, error) {
	var texts []string
	for _, c := range all {
		name := "t." + pgx.Identifier{c.Name}.Sanitize()
		switch {
		case c.Table != b.Table:
			continue
		case c.Bytes:
			name = "CASE WHEN position('did:' IN " + name + ") > 0 THEN encode(" + name + ", 'escape') END"
		default:
			name += "::text"
		}
		texts = append(texts, "SELECT unnest((string_to_array("+name+` COLLATE "C", 'did:'))[2:])`)
	}
	var dids []string
	for _, j := range jobs {
		dids = append(dids, j.person.DID.String())
	}
	rows := pgpool.Rows(ctx, tx, `
		SELECT p.did, count(DISTINCT t.ctid)
		FROM `+pgx.Identifier{b.Table}.Sanitize()+` AS t CROSS JOIN LATERAL (`+strings.Join(texts, " UNION ALL ")+
		`) AS piece (rest)
			JOIN unnest($3::text[]) AS p (did) ON p.did = 'did:' || substring(piece.rest FROM
				'^[a-zA-Z0-9._:%-]*[a-zA-Z0-9_:%-]')
		WHERE t.ctid >= $1::tid AND t.ctid < $2::tid
		GROUP BY p.did`, b.From, b.To, dids)
	found := map[string]int64{}
	var did string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&did, &n}, func() error {
		found[did] = n
		return nil
	})
	return found, errs.Wrap(err, "search %s", b.Table)
}

// place is a block of a table. The zero place is the beginning of the first table.
type place struct {
	table string
	block int64
}

func (p place) String() string { return p.table + ":" + strconv.FormatInt(p.block, 10) }

// parsePlace parses a result of String. For any other text it returns the zero place.
func parsePlace(text string) place {
	table, number, _ := strings.Cut(text, ":")
	block, err := strconv.ParseInt(number, 10, 64)
	if err != nil || block < 0 {
		return place{}
	}
	return place{table, block}
}

func (p place) compare(q place) int {
	return cmp.Or(strings.Compare(p.table, q.table), cmp.Compare(p.block, q.block))
}

// lap is a job's way through what a scan reads: from joined to the end, and then from the beginning
// to joined.
type lap struct {
	at, joined place
	again      bool // the lap has passed the end
	begun      bool
}

// begin returns a lap that begins at a place.
func begin(at place) lap { return lap{at: at, joined: at, begun: true} }

// String returns the position of a job. It begins with the place, so that a statement can find the
// jobs at that place.
func (l lap) String() string { return fmt.Sprintf("%s %s %t", l.at, l.joined, l.again) }

// parseLap parses a position. An empty position is that of a lap that has not begun.
func parseLap(position string) lap {
	words := strings.Split(position, " ")
	if len(words) != 3 {
		return lap{}
	}
	return lap{at: parsePlace(words[0]), joined: parsePlace(words[1]), again: words[2] == "true", begun: true}
}

// move goes to the next place. The zero place means the end. done says that everything was read.
func (l *lap) move(next place) (done bool) {
	l.at = next
	if next == (place{}) {
		done = l.again || l.joined == place{}
		l.again = true
		return done
	}
	return l.again && next.compare(l.joined) >= 0
}
