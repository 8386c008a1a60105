package migrations

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mlsd/internal/pgpool"
)

// Loss is what the down of one migration deletes.
type Loss struct {
	Migration string   // 000024_upgrades
	Tables    []string // whole tables
	Columns   []string // table.column
	Rows      []string // tables of which some rows are deleted or changed
}

// String lists it in a line.
func (l Loss) String() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"tables", l.Tables}, {"columns", l.Columns}, {"rows of", l.Rows}} {
		if len(p.names) > 0 {
			parts = append(parts, p.what+" "+strings.Join(p.names, ", "))
		}
	}
	if parts == nil {
		parts = []string{"no data"}
	}
	return l.Migration + ": " + strings.Join(parts, "; ")
}

// Losses returns what Down with the same n would delete, in its order.
func Losses(ctx context.Context, databaseURL string, n int) (all []Loss, err error) {
	err = with(ctx, databaseURL, nil, func(r *runner) error {
		steps, err := r.applied(ctx, n)
		for _, m := range steps {
			all = append(all, m.loss())
		}
		return err
	})
	return all, err
}

var (
	comment   = regexp.MustCompile(`--[^\n]*`)
	body      = regexp.MustCompile(`(?s)\$\$.*?\$\$`)
	dropTable = regexp.MustCompile(`^DROP TABLE (?:IF EXISTS )?(.+)$`)
	alter     = regexp.MustCompile(`^ALTER TABLE (?:ONLY )?(\w+) `)
	dropped   = regexp.MustCompile(`DROP COLUMN (?:IF EXISTS )?(\w+)`)
	created   = regexp.MustCompile(`^CREATE (?:UNLOGGED )?TABLE (\w+)`)
	someRows  = regexp.MustCompile(`^(?:DELETE FROM|UPDATE) (\w+)`)
)

// loss reads from the down what it deletes. A test compares that with what it does.
func (m migration) loss() Loss {
	l := Loss{Migration: m.name}
	sql := body.ReplaceAllString(comment.ReplaceAllString(m.beforeDown.sql+m.down.sql, ""), "")
	for statement := range strings.SplitSeq(sql, ";") {
		statement = strings.Join(strings.Fields(statement), " ")
		if found := dropTable.FindStringSubmatch(statement); found != nil {
			l.Tables = append(l.Tables, strings.Split(found[1], ", ")...)
		}
		if found := alter.FindStringSubmatch(statement); found != nil {
			for _, column := range dropped.FindAllStringSubmatch(statement, -1) {
				l.Columns = append(l.Columns, found[1]+"."+column[1])
			}
		}
		if found := created.FindStringSubmatch(statement); found != nil && slices.Contains(l.Tables, found[1]) {
			if l.Tables = slices.DeleteFunc(l.Tables, func(name string) bool { return name == found[1] }); len(l.Tables) == 0 {
				l.Tables = nil
			}
			l.Rows = append(l.Rows, found[1]) // it is there again, and empty
		}
		if found := someRows.FindStringSubmatch(statement); found != nil && !slices.Contains(l.Rows, found[1]) {
			l.Rows = append(l.Rows, found[1])
		}
	}
	return l
}

// Finding is which version a dirty database has.
type Finding struct {
	// Version is the version whose tables and columns the database has. Sure says whether they tell.
	Version uint
	Sure    bool
	Files   []string // whose effects a person must look for if they do not
}

// Inspect finds out which version a dirty database has. An earlier mlsd set the mark before it ran a
// file, and each file took effect as a whole or not at all. So either the up of the marked version
// was interrupted, and the database has that version or the one before. Or the down after it was,
// and the database has that version or the one after.
func Inspect(ctx context.Context, db pgpool.Queryer, marked uint) (f Finding, err error) {
	all, err := load(files)
	if err != nil {
		return f, err
	}
	f = Finding{Version: marked, Sure: true}
	if m, before, known := find(all, marked); known {
		there, tells, err := m.present(ctx, db)
		if err != nil {
			return f, err
		}
		if tells && !there {
			return Finding{Version: before, Sure: true}, nil
		}
		f.look(m.name+".up.sql", tells)
	}
	if i := slices.IndexFunc(all, func(m migration) bool { return m.version > marked }); i >= 0 {
		there, tells, err := all[i].present(ctx, db)
		if err != nil {
			return f, err
		}
		if tells && there {
			return Finding{Version: all[i].version, Sure: true}, nil
		}
		f.look(all[i].name+".down.sql", tells)
	}
	return f, nil
}

// look adds a file to those that a person must look at, unless the database tells.
func (f *Finding) look(file string, tells bool) {
	if !tells {
		f.Sure, f.Files = false, append(f.Files, file)
	}
}

// present reports whether the tables and columns that a migration made are in the database. tells
// is false if it made none, or if only some of them are there.
func (m migration) present(ctx context.Context, db pgpool.Queryer) (present, tells bool, err error) {
	l := m.loss()
	names := slices.Concat(l.Tables, l.Columns)
	there := 0
	for _, name := range names {
		table, column, _ := strings.Cut(name, ".")
		var found bool
		err := db.QueryRow(ctx, `
			SELECT to_regclass($1) IS NOT NULL AND ($2 = '' OR EXISTS (
				SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped))`, table, column).Scan(&found)
		if err != nil {
			return false, false, fmt.Errorf("look for %s: %w", name, err)
		}
		if found {
			there++
		}
	}
	return there == len(names), len(names) > 0 && (there == 0 || there == len(names)), nil
}
