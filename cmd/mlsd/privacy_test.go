package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The page for privacy notices names every column in which a person's DID or address is found, after
// the person has done what there is to do; every column whose name says that it is a person's; and
// every table that could hold one.
func TestPrivacyPage(t *testing.T) {
	t.Parallel()
	e, page := newErased(t), pages(t)["docs/operating/PRIVACY.md"]
	for _, name := range e.columnsWith(e.bob.did().String(), "127.0.0.1") {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/operating/PRIVACY.md does not name %s", name)
		}
	}
	_, nobody, _ := strings.Cut(page, "\n## Tables that name nobody\n")
	all := e.textColumns()
	person := regexp.MustCompile(`(^|_)did$|_by$|_for$|^(actor|subject|address|operator)$`)
	for _, c := range all {
		if name := "`" + c[0] + "." + c[1] + "`"; person.MatchString(c[1]) && !strings.Contains(page, name) {
			t.Errorf("docs/operating/PRIVACY.md does not name %s", name)
		}
		if !strings.Contains(page, "`"+c[0]+".") && !strings.Contains(nobody, "`"+c[0]+"`") {
			t.Errorf("docs/operating/PRIVACY.md does not name the table %s", c[0])
		}
	}
	for _, m := range regexp.MustCompile("`([a-z_]+)\\.([a-z_]+)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(all, [2]string{m[1], m[2]}) {
			t.Errorf("docs/operating/PRIVACY.md names %s.%s, which is no column of texts", m[1], m[2])
		}
	}
}

// textColumns returns the tables and names of all columns that can hold a text.
func (e *erased) textColumns() [][2]string {
	e.t.Helper()
	rows, err := e.db.Query(e.t.Context(), `
		SELECT ARRAY[c.relname, a.attname]::text[]
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = current_schema()::regnamespace
			AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = ANY ('{text,varchar,bytea,json,jsonb,text[]}'::regtype[])
		ORDER BY 1`)
	if err != nil {
		e.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[2]string])
	if err != nil || len(all) < 50 {
		e.t.Fatalf("%d columns, %v", len(all), err)
	}
	return all
}

// columnsWith returns the columns, as table.column, that hold one of the texts somewhere.
func (e *erased) columnsWith(texts ...string) (found []string) {
	e.t.Helper()
	for _, c := range e.textColumns() {
		var n int64
		err := e.db.QueryRow(e.t.Context(), `
			SELECT count(*) FROM `+pgx.Identifier{c[0]}.Sanitize()+` t, unnest($1::text[]) AS of (text)
			WHERE strpos(t.`+pgx.Identifier{c[1]}.Sanitize()+`::text, text) > 0
				OR strpos(t.`+pgx.Identifier{c[1]}.Sanitize()+`::text, encode(convert_to(text, 'UTF8'), 'hex')) > 0`,
			texts).Scan(&n)
		if err != nil {
			e.t.Fatal(err)
		}
		if n > 0 {
			found = append(found, c[0]+"."+c[1])
		}
	}
	if len(found) < 15 {
		e.t.Fatalf("a person is found in %v only", found)
	}
	return found
}
