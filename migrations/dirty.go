package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mlsd/internal/pgpool"
)

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
