package migrations

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// migration is a numbered pair of files.
type migration struct {
	version  uint
	name     string // 000024_upgrades
	up, down script
	// beforeDown runs right before down, in its transaction. It amends a landed down, which is not
	// edited. It can be empty.
	beforeDown script
}

// script is the SQL of one file.
type script struct {
	sql string
	// outside says that the statements cannot run in a transaction.
	outside bool
}

// outsideMark is the first line of a file whose statements cannot run in a transaction, such as
// CREATE INDEX CONCURRENTLY. They run one by one, and each must end with its line. After an
// interruption all of them run again, so each must be good for a second time.
const outsideMark = "-- mlsd: outside of a transaction\n"

// statements returns what is sent to the server at once.
func (s script) statements() []string {
	if !s.outside {
		return []string{s.sql}
	}
	var all []string
	for _, text := range strings.SplitAfter(s.sql, ";\n") {
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, text)
		}
	}
	return all
}

var fileName = regexp.MustCompile(`^((\d+)_\w+)\.(up|down|before_down)\.sql$`)

// load reads the migrations, in their order.
func load(files fs.FS) (all []migration, err error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	found := map[uint]*migration{}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read the migrations: %w", err)
		}
		if err := add(found, name, string(text)); err != nil {
			return nil, fmt.Errorf("read the migrations: %s: %w", name, err)
		}
	}
	for _, m := range found {
		if m.up.sql == "" || m.down.sql == "" {
			return nil, fmt.Errorf("read the migrations: %s has no up, or no down", m.name)
		}
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b migration) int { return cmp.Compare(a.version, b.version) })
	return all, nil
}

// add adds a file to the migration that its name says.
func add(found map[uint]*migration, name, sql string) error {
	parts := fileName.FindStringSubmatch(path.Base(name))
	if parts == nil {
		return errors.New("the name is not like 000007_events.up.sql")
	}
	version, err := strconv.ParseUint(parts[2], 10, 31)
	if err != nil || version == 0 {
		return errors.Join(errors.New("the number is not positive"), err)
	}
	m := found[uint(version)]
	if m == nil {
		m = &migration{version: uint(version), name: parts[1]}
		found[uint(version)] = m
	}
	if m.name != parts[1] {
		return fmt.Errorf("%s has the same number", m.name)
	}
	s := script{sql: sql, outside: strings.HasPrefix(sql, outsideMark)}
	switch parts[3] {
	case "up":
		m.up = s
	case "down":
		m.down = s
	default:
		m.beforeDown = s
	}
	return nil
}

// newest returns the number of the last migration, or 0.
func newest(all []migration) uint {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].version
}

// find returns the migration with a number, and the number of the one before it, or 0.
func find(all []migration, version uint) (m migration, before uint, known bool) {
	for _, m := range all {
		if m.version == version {
			return m, before, true
		}
		before = m.version
	}
	return migration{}, 0, false
}
