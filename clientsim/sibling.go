package clientsim

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Sibling prepares another mlsd on the database of this one, which has to be
// running and has to be stopped last: any number of processes may share one
// database, and this one has a private PostgreSQL.
func (p *Proc) Sibling() (*Proc, error) {
	database, err := p.database()
	if err != nil {
		return nil, fmt.Errorf("server: sibling: %w", err)
	}
	return p.sharing(database, "-sibling"), nil
}

// sharing prepares another mlsd on a database.
func (p *Proc) sharing(database, suffix string) *Proc {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &Proc{binary: p.binary, data: p.data + suffix, log: newTail(40), env: maps.Clone(p.env)}
	s.env["MLSD_DATA_DIR"] = s.data
	s.env["MLSD_DATABASE_URL"] = database
	s.env["MLSD_LISTEN"] = "127.0.0.1:0"
	return s
}

// database is the URL of the private PostgreSQL's database.
func (p *Proc) database() (string, error) {
	sockets, err := p.sockets()
	if err != nil {
		return "", err
	}
	query := url.Values{"host": {sockets}, "port": {"5432"}, "sslmode": {"disable"}}
	return "postgres://mlsd@/mlsd?" + query.Encode(), nil
}

// sockets finds the directory of the private PostgreSQL's socket: in the data
// directory, or where a note there says.
func (p *Proc) sockets() (string, error) {
	note, err := os.ReadFile(filepath.Join(p.data, "postgres.socketdir"))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(p.data, "run"), nil
	}
	return strings.TrimSpace(string(note)), err
}
