package localpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ConnString returns the URL of a database of this server, for pgx. It connects
// over the socket, as superuser. PG* variables in the environment of this process do not change its
// meaning.
func (s *Server) ConnString(database string) string {
	return connString(s.socketDir, s.service, database)
}

func connString(socketDir, service, database string) string {
	q := url.Values{"host": {socketDir}, "port": {port}, "sslmode": {"disable"}}
	for env, p := range neutral() {
		if os.Getenv(env) != "" {
			q.Set(p.name, p.value)
		}
	}
	if service != "" {
		q.Set("servicefile", service)
	}
	// PostgreSQL clients do not read + as a space.
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: query}
	return u.String()
}

type param struct{ name, value string }

// neutral lists the variables from which pgx takes settings that a URL does not have, each with the
// parameter that overrides it. The variables for TLS do not apply to a unix socket.
func neutral() map[string]param {
	return map[string]param{
		"PGPASSWORD":           {"password", ""},
		"PGPASSFILE":           {"passfile", ""},
		"PGAPPNAME":            {"application_name", "mlsd"},
		"PGCONNECT_TIMEOUT":    {"connect_timeout", "0"},
		"PGSSLCERTMODE":        {"sslcertmode", "disable"},
		"PGSSLNEGOTIATION":     {"sslnegotiation", "postgres"},
		"PGTARGETSESSIONATTRS": {"target_session_attrs", "any"},
		"PGTZ":                 {"timezone", "UTC"},
		"PGOPTIONS":            {"options", ""},
		"PGMINPROTOCOLVERSION": {"min_protocol_version", "3.0"},
		"PGMAXPROTOCOLVERSION": {"max_protocol_version", "3.0"},
		"PGCHANNELBINDING":     {"channel_binding", "disable"},
		"PGREQUIREAUTH":        {"require_auth", ""},
	}
}

// writeServiceFile makes PGSERVICE have no effect. The variable must name a section of the service
// file, and no value means "none". So this function writes a service file with an empty section of
// that name, and returns its path. It returns "" if the variable is not set.
func writeServiceFile(dir string) (string, error) {
	service := os.Getenv("PGSERVICE")
	if service == "" {
		return "", nil
	}
	path := filepath.Join(dir, serviceName)
	if err := os.WriteFile(path, []byte("["+service+"]\n"), 0o600); err != nil {
		return "", fmt.Errorf("service file: %w", err)
	}
	return path, nil
}

// EnsureDatabase makes the database if there is none with this name. It has UTF-8 and the locale C,
// which compares by code point. That order is the same everywhere, also after an upgrade of the C
// library.
func (s *Server) EnsureDatabase(ctx context.Context, name string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make database %q: %w", name, err)
		}
	}()
	if name == "" || strings.ContainsAny(name, "/?%") {
		return errors.New("not a name for a database")
	}
	conn, err := pgx.Connect(ctx, s.ConnString("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	var exists bool
	const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	if err := conn.QueryRow(ctx, q, name).Scan(&exists); err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+
		` TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P04" || pgErr.Code == "23505") {
		return nil // duplicate_database, or unique_violation in a race: another process made it
	}
	return err
}
