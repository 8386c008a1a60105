package migrations

import (
	"context"
	"regexp"
	"slices"
	"strings"
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
