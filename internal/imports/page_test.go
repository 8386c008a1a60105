package imports_test

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	tablesPage    = "docs/ARCHITECTURE.md"
	tablesHeading = "## Tables"
	columns       = "| table | owner | writers | readers | file |"
	unowned       = "?"
	byMigrations  = "migrations" // owns a table that the program only reads
)

// tableRow is a row of the page: who uses a table of the database.
type tableRow struct {
	table, owner string
	writers      []string // packages
	readers      []string // packages that do not write
	files        []string // of the owner, that write
}

func (r tableRow) String() string {
	code := func(names []string) string {
		if len(names) == 0 {
			return "–"
		}
		return "`" + strings.Join(names, "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | `%s` | %s | %s | %s |", r.table, r.owner, code(r.writers), code(r.readers), code(r.files))
}

var remark = regexp.MustCompile(`\([^)]*\)`)

// parseRow reads a row of the page. Remarks in parentheses do not count.
func parseRow(line string) (r tableRow, ok bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 5 {
		return r, false
	}
	var lists [5][]string
	for i, cell := range cells {
		for part := range strings.SplitSeq(remark.ReplaceAllString(cell, ""), ",") {
			if name := strings.Trim(strings.TrimSpace(part), "`"); name != "" && name != "–" {
				lists[i] = append(lists[i], name)
			}
		}
	}
	if len(lists[0]) != 1 || len(lists[1]) != 1 {
		return r, false
	}
	return tableRow{lists[0][0], lists[1][0], lists[2], lists[3], lists[4]}, true
}

// complaints says which cells of the page are wrong.
func complaints(rows, want []tableRow, seen []sighting) (found []string) {
	const help = "; correct it, or run go test ./internal/imports -run TestTables -update"
	byTable := map[string]tableRow{}
	for _, r := range rows {
		byTable[r.table] = r
	}
	for _, w := range want {
		r, there := byTable[w.table]
		delete(byTable, w.table)
		if !there {
			found = append(found, fmt.Sprintf("%s lacks the table %s%s", tablesPage, w.table, help))
			continue
		}
		if owners := w.writers; len(owners) == 0 && r.owner != byMigrations || len(owners) > 0 &&
			!slices.Contains(owners, r.owner) {
			found = append(found, fmt.Sprintf("%s: %s is owned by %s, which does not write it; name one of %v", tablesPage,
				w.table, r.owner, owners))
		}
		for _, cell := range []struct {
			column    string
			got, want []string
		}{{"writers", r.writers, w.writers}, {"readers", r.readers, w.readers}, {"file", r.files, w.files}} {
			if slices.Equal(cell.got, cell.want) {
				continue
			}
			found = append(found, fmt.Sprintf("%s: %s, column %s: it says %v, the SQL says %v%s%s",
				tablesPage, w.table, cell.column, cell.got, cell.want, evidence(w.table, cell.got, cell.want, seen), help))
		}
	}
	for _, table := range slices.Sorted(maps.Keys(byTable)) {
		found = append(found, fmt.Sprintf("%s has the table %s, which the migrations do not make%s", tablesPage, table, help))
	}
	return found
}

// evidence names one place for each package or file that the page lacks.
func evidence(table string, got, want []string, seen []sighting) string {
	var places []string
	for _, name := range want {
		if slices.Contains(got, name) {
			continue
		}
		for _, s := range seen {
			if s.table == table && (s.pkg == name || path.Join(s.pkg, s.file) == name) {
				places = append(places, fmt.Sprintf("%s/%s:%d", s.pkg, s.file, s.line))
				break
			}
		}
	}
	if len(places) == 0 {
		return ""
	}
	return " (see " + strings.Join(places, ", ") + ")"
}

// rowsOf makes the rows that are true. The owners are those of the page; a new table with one
// writer is that writer's.
func rowsOf(tables map[string]bool, owners map[string]string, seen []sighting) (rows []tableRow) {
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		r := tableRow{table: table, owner: owners[table]}
		for _, s := range seen {
			switch {
			case s.table != table:
			case s.write:
				r.writers = append(r.writers, s.pkg)
			default:
				r.readers = append(r.readers, s.pkg)
			}
		}
		r.writers, r.readers = sorted(r.writers), sorted(r.readers)
		r.readers = slices.DeleteFunc(r.readers, func(pkg string) bool { return slices.Contains(r.writers, pkg) })
		switch {
		case r.owner != "" && r.owner != unowned:
		case len(r.writers) == 0:
			r.owner = byMigrations
		case len(r.writers) == 1:
			r.owner = r.writers[0]
		default:
			r.owner = unowned
		}
		for _, s := range seen {
			if s.table == table && s.write && s.pkg == r.owner {
				r.files = append(r.files, path.Join(s.pkg, s.file))
			}
		}
		r.files = sorted(r.files)
		rows = append(rows, r)
	}
	return rows
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// page is a Markdown page around its table.
type page struct {
	before, after string
	rows          []tableRow
}

// splitPage finds the table below its heading.
func splitPage(text string) (p page, err error) {
	_, rest, found := strings.Cut(text, tablesHeading+"\n")
	if !found {
		return p, fmt.Errorf("%s has no heading %q", tablesPage, tablesHeading)
	}
	i := strings.Index(rest, columns)
	if i < 0 {
		return p, fmt.Errorf("%s has no table %q below the heading %q", tablesPage, columns, tablesHeading)
	}
	start := len(text) - len(rest) + i
	p.before, p.after = text[:start], text[start:]
	for line := range strings.Lines(text[start:]) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		p.after = p.after[len(line):]
		r, ok := parseRow(line)
		if !ok {
			return p, fmt.Errorf("%s: this row has not one table, one owner and five cells: %s", tablesPage, line)
		}
		p.rows = append(p.rows, r)
	}
	p.rows = p.rows[min(2, len(p.rows)):] // below the columns' names and the line
	return p, nil
}

func (p page) owners() map[string]string {
	owners := map[string]string{}
	for _, r := range p.rows {
		owners[r.table] = r.owner
	}
	return owners
}

// with returns the page with other rows.
func (p page) with(rows []tableRow) string {
	var b strings.Builder
	b.WriteString(p.before + columns + "\n|---|---|---|---|---|\n")
	for _, r := range rows {
		b.WriteString(r.String() + "\n")
	}
	return b.String() + p.after
}
