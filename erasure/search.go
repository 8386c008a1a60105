package erasure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// objects are the columns that the search of a job passes over. They hold MLS objects, which other
// members have signed or encrypted: nobody but they can change them. docs/ERASURE.md says how long
// such an object can name the person.
var objects = map[string]bool{
	"messages.body": true, "public_groups.state": true, "public_groups.group_info": true, "welcome_bodies.body": true,
}

// kept are the rows that name the person until the job ends.
var kept = map[string]bool{"erasures": true, "accounts": true}

// column is a column that can hold a DID.
type column struct {
	Table, Name string
	Bytes       bool
}

// columns returns all columns of our tables that can hold a DID, in the order of tables. Partitions
// are tables here.
func columns(ctx context.Context, tx pgx.Tx) ([]column, error) {
	rows, err := tx.Query(ctx, `
		SELECT c.relname, a.attname, a.atttypid = 'bytea'::regtype
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
			AND (a.atttypid IN ('text'::regtype, 'varchar'::regtype, 'bytea'::regtype, 'json'::regtype, 'jsonb'::regtype)
				OR a.atttypid = 'text[]'::regtype)
		ORDER BY c.relname, a.attnum`)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	return all, nil
}

// search reads every table for the DID, a part of one in each batch. The position is a table and a
// block. If something is found at the end, the job begins another pass, up to maxPasses: others can
// have named the person meanwhile. What is left then stands in remains.
func search(ctx context.Context, j *job) (bool, error) {
	all, err := columns(ctx, j.tx)
	if err != nil {
		return false, err
	}
	if j.position == "" {
		j.remains = map[string]int64{}
	}
	table, block, err := j.searched(all)
	if err != nil {
		return false, err
	}
	if table == "" {
		if len(j.remains) > 0 && j.pass < maxPasses {
			j.pass++
			j.step, j.position = j.w.steps[0].name, ""
			return false, nil
		}
		return true, nil
	}
	blocks, next, err := pgpool.NextBlocks(ctx, j.tx, pgx.Identifier{table}.Sanitize(), block, batchBlocks)
	if err != nil {
		return false, err
	}
	var found int64
	err = j.tx.QueryRow(ctx, statement(table, all), blocks.From, blocks.To, j.person.DID.String(), j.person.Pattern()).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("search %s: %w", table, err)
	}
	if found > 0 {
		j.remains[table] += found
	}
	if next == 0 {
		table += " end"
	}
	j.position = table + " " + strconv.FormatInt(next, 10)
	return false, nil
}

// searched returns the table and the block to be searched next. The table is "" if none is left.
func (j *job) searched(all []column) (table string, block int64, err error) {
	last, rest, _ := strings.Cut(j.position, " ")
	there := slices.ContainsFunc(all, func(c column) bool { return c.Table == last }) // a partition can go meanwhile
	if text, ended := strings.CutPrefix(rest, "end "); there && !ended {
		if block, err = strconv.ParseInt(text, 10, 64); err != nil {
			return "", 0, fmt.Errorf("read the position: %w", err)
		}
		return last, block, nil
	}
	for _, c := range all {
		if c.Table > last && !kept[c.Table] && !objects[c.Table+"."+c.Name] {
			return c.Table, 0, nil
		}
	}
	return "", 0, nil
}

// statement counts the rows of a part of a table that name a DID. The names of tables and columns are
// data here, so this statement alone is put together.
func statement(table string, all []column) string {
	var conditions []string
	for _, c := range all {
		name := pgx.Identifier{c.Name}.Sanitize()
		switch {
		case c.Table != table || objects[c.Table+"."+c.Name]:
		case c.Bytes:
			conditions = append(conditions, "position(convert_to($3, 'UTF8') IN "+name+") > 0 AND encode("+name+", 'escape') ~ $4")
		default:
			conditions = append(conditions, "strpos("+name+"::text, $3) > 0 AND "+name+"::text ~ $4")
		}
	}
	return "SELECT count(*) FROM " + pgx.Identifier{table}.Sanitize() + " WHERE ctid >= $1::tid AND ctid < $2::tid AND (" +
		strings.Join(conditions, " OR ") + ")"
}
