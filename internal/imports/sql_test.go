package imports_test

import (
	"regexp"
	"slices"
	"strings"
)

// use is what a piece of SQL does with a table.
type use struct {
	table string
	write bool
	line  int // of the SQL, from 0
}

// sqlWord is a word or a punctuation mark of SQL.
type sqlWord struct {
	text string
	line int
}

var sqlPattern = regexp.MustCompile(`--[^\n]*|'(?:[^']|'')*'|[A-Za-z_][\w.]*|\n|[(),;]`)

// sqlWords splits SQL. It leaves out comments, texts in quotes, numbers and operators.
func sqlWords(sql string) (found []sqlWord) {
	line := 0
	for _, text := range sqlPattern.FindAllString(sql, -1) {
		switch {
		case text == "\n":
			line++
		case strings.HasPrefix(text, "--"):
		case strings.HasPrefix(text, "'"):
			line += strings.Count(text, "\n")
		default:
			found = append(found, sqlWord{text, line})
		}
	}
	return found
}

// endsList are the keywords after which a comma no longer separates tables.
var endsList = []string{
	"WHERE", "ORDER", "GROUP", "HAVING", "LIMIT", "OFFSET", "RETURNING", "UNION", "EXCEPT", "WINDOW", "SET", "SELECT",
	"VALUES", "FOR", "DO", ";",
}

// uses finds which tables SQL reads and writes. Keywords must be in capitals, so that a sentence of
// English is not taken for SQL.
func uses(sql string, isTable func(string) bool) (found []use) {
	all := sqlWords(sql)
	at := func(i int) string {
		if i < 0 || i >= len(all) {
			return ""
		}
		return all[i].text
	}
	// add records the table at i, if there is one.
	add := func(i int, write bool) {
		for at(i) == "ONLY" || at(i) == "LATERAL" {
			i++
		}
		if isTable(at(i)) {
			found = append(found, use{at(i), write, all[i].line})
		}
	}
	for i := range all {
		switch at(i) {
		case "INTO":
			if at(i-1) == "INSERT" || at(i-1) == "MERGE" {
				add(i+1, true)
			}
		case "UPDATE":
			if before := at(i - 1); before != "FOR" && before != "KEY" && before != "DO" {
				add(i+1, true)
			}
		case "TRUNCATE":
			add(i+1, true)
		case "JOIN":
			add(i+1, false)
		case "FROM", "USING":
			if at(i-1) == "DELETE" {
				add(i+1, true)
				continue
			}
			if at(i-1) == "DISTINCT" || at(i) == "USING" && at(i+1) == "(" {
				continue // IS DISTINCT FROM; the columns of a JOIN
			}
			for _, first := range listStarts(all, i+1) {
				add(first, false)
			}
		}
	}
	return found
}

// listStarts returns where the items of a list of tables begin. The list begins at i.
func listStarts(all []sqlWord, i int) (starts []int) {
	starts = []int{i}
	for depth := 0; i < len(all); i++ {
		switch text := all[i].text; {
		case text == "(":
			depth++
		case text == ")":
			if depth--; depth < 0 {
				return starts
			}
		case depth > 0:
		case slices.Contains(endsList, text):
			return starts
		case text == ",":
			starts = append(starts, i+1)
		}
	}
	return starts
}

var tableChange = regexp.MustCompile(`(?m)^\s*(CREATE (?:UNLOGGED )?TABLE|DROP TABLE)(?: IF (?:NOT )?EXISTS)? (\w+)`)

// tablesAfter returns the tables that exist after the migrations, which are in their order.
func tablesAfter(migrations []string) map[string]bool {
	tables := map[string]bool{}
	for _, text := range migrations {
		for _, change := range tableChange.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(change[1], "DROP") {
				delete(tables, change[2])
			} else {
				tables[change[2]] = true
			}
		}
	}
	return tables
}
