package testbed

import (
	"errors"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	. "mlsd/clientsim/steps"
)

// onDatabase prepares another mlsd on a database.
func (p *Proc) onDatabase(database, suffix string) *Proc {
	s := p.another(suffix)
	s.env["MLSD_DATABASE_URL"] = database
	return s
}

// another prepares another mlsd with files, and by default a PostgreSQL, of its own.
func (p *Proc) another(suffix string) *Proc {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &Proc{binary: p.binary, data: p.data + suffix, log: newLastLines(40), env: maps.Clone(p.env)}
	s.env["MLSD_DATA_DIR"] = s.data
	s.env["MLSD_LISTEN"] = "127.0.0.1:0"
	return s
}

// database is the URL of the private PostgreSQL's database.
func (p *Proc) database() (_ string, err error) {
	defer Catch(&err)
	sockets := Must(p.sockets())
	query := url.Values{"host": {sockets}, "port": {"5432"}, "sslmode": {"disable"}}
	return "postgres://mlsd@/mlsd?" + query.Encode(), nil
}

// sockets finds the directory of the private PostgreSQL's socket. The directory is in the data
// directory, or a link there leads to it.
func (p *Proc) sockets() (string, error) {
	run := filepath.Join(p.data, "run")
	target, err := os.Readlink(run)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) { // run is no link
		return run, nil
	}
	return target, err
}
