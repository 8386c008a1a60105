package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// ErrNotRunning means that no private PostgreSQL runs in a data directory.
var ErrNotRunning = errors.New("no mlsd is running on this data directory")

// Running returns the URL of a database of the server that another process runs in dataDir. The URL
// is as [Server.ConnString] of that server returns it. Running starts no server. Only the account
// of that server and root can open its socket.
func Running(dataDir, database string) (string, error) {
	c := cluster{dir: filepath.Join(dataDir, "postgres")}
	file, err := c.readPIDFile()
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("look for the private PostgreSQL: %w", err)
	}
	if err != nil || !file.ready || errors.Is(syscall.Kill(file.pid, 0), syscall.ESRCH) {
		return "", fmt.Errorf("%s: %w", dataDir, ErrNotRunning)
	}
	return connString(file.socketDir, database), ignoreEnvironment()
}

// HasCluster reports whether dataDir has a cluster, running or not. It makes nothing.
func HasCluster(dataDir string) (bool, error) {
	major, err := (&cluster{dir: filepath.Join(dataDir, "postgres")}).major()
	return major != 0, err
}

// ConnString returns the URL of a database of this server, for pgx. The connection is over the
// socket, as superuser.
func (s *Server) ConnString(database string) string {
	return connString(s.socketDir, database)
}

func connString(socketDir, database string) string {
	q := url.Values{"host": {socketDir}, "port": {port}, "sslmode": {"disable"}}
	// PostgreSQL clients do not read + as a space.
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: query}
	return u.String()
}

// ignoreEnvironment removes PGPASSWORD, PGOPTIONS, PGSERVICE and the like from the environment of
// this process. These variables are about other servers, and pgx takes from them what a URL does
// not say.
func ignoreEnvironment() error {
	var errs []error
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}

// EnsureDatabase makes the database of mlsd if there is none. The database has UTF-8 and the locale
// C, which compares by code point. The order of code points is the same everywhere, even after an
// upgrade of the C library.
func (s *Server) EnsureDatabase(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make the database %s: %w", Database, err)
		}
	}()
	conn, err := pgx.Connect(ctx, s.ConnString("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	var exists bool
	const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	if err := conn.QueryRow(ctx, q, Database).Scan(&exists); err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE `+Database+` TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`)
	return err
}
