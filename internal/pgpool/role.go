package pgpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// otherConns is how many connections a node opens at most besides its request pool: the reserved and
// the maintenance pool, listeners, and single sessions that hold locks or watch the primary.
const otherConns = 24

// account is what the database says about the role of a connection.
type account struct {
	Role, Login, Database string // Login has connected; Role is another one if a setting says so
	Superuser, BypassRLS  bool
	RoleConns             int // how many connections the role may have; -1: any number
	DatabaseConns         int // the same for the database
	ServerConns           int // how many connections the server has for all roles that are no superusers
}

// Check judges what a role, its database and their server have set. The error names what a node
// cannot work with, and the command that mends it. The doubts name what it can work with, but should
// not. requests is the configuration of the request pool.
func Check(ctx context.Context, conn *pgx.Conn, requests *pgxpool.Config) (doubts []string, err error) {
	const q = `
		SELECT current_user AS role, session_user AS login, current_database() AS database,
			r.rolsuper AS superuser, r.rolbypassrls AS bypass_rls, l.rolconnlimit AS role_conns,
			d.datconnlimit AS database_conns,
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int -
				coalesce(current_setting('reserved_connections', true), '0')::int AS server_conns
		FROM pg_roles r, pg_roles l, pg_database d
		WHERE r.rolname = current_user AND l.rolname = session_user AND d.datname = current_database()`
	a, err := pgx.CollectExactlyOneRow(Rows(ctx, conn, q), pgx.RowToStructByName[account])
	if err != nil {
		return nil, fmt.Errorf("ask what the role may: %w", err)
	}
	doubts, fault := a.judge(int(requests.MaxConns) + otherConns)
	for _, s := range settings {
		if s.rule != required && s.rule != advised {
			continue
		}
		text, err := s.judge(ctx, conn, a)
		switch {
		case err != nil:
			return nil, err
		case text != "" && s.rule == required:
			fault = errors.Join(fault, errors.New(text))
		case text != "":
			doubts = append(doubts, text)
		}
	}
	return doubts, fault
}

// judge judges the rights of a role that opens so many connections.
func (a account) judge(conns int) (doubts []string, fault error) {
	login, database := quote(a.Login), quote(a.Database)
	limited := func(what string, limit int, mend string, args ...any) {
		if limit >= 0 && limit < conns {
			fault = errors.Join(fault, fmt.Errorf("%s %d connections, and each node opens up to %d: %s", what, limit, conns,
				fmt.Sprintf(mend, args...)))
		}
	}
	limited("the server has", a.ServerConns, "set max_connections = %d, or more for several nodes, and restart PostgreSQL",
		2*conns)
	if !a.Superuser {
		limited("the role may have", a.RoleConns, "ALTER ROLE %s CONNECTION LIMIT %d, or more for several nodes",
			login, 2*conns)
		limited("the database may have", a.DatabaseConns, "ALTER DATABASE %s CONNECTION LIMIT %d, or more for several nodes",
			database, 2*conns)
	}
	role := quote(a.Role)
	switch {
	case a.Superuser:
		doubts = append(doubts, fmt.Sprintf("the database role %s is a superuser: an attacker who takes over a "+
			"node has the whole PostgreSQL; make a role that owns its database and no more "+
			"(docs/operating/POSTGRESQL.md)", role))
	case a.BypassRLS:
		doubts = append(doubts, fmt.Sprintf("the database role %s bypasses row-level security: ALTER ROLE %[1]s NOBYPASSRLS",
			role))
	}
	return doubts, fault
}

// judge returns what is wrong with a setting of the session, and the command that mends it. "" means
// nothing.
func (s setting) judge(ctx context.Context, conn *pgx.Conn, a account) (string, error) {
	var value, source string
	const q = `SELECT setting, source FROM pg_settings WHERE name = $1`
	if err := conn.QueryRow(ctx, q, s.name).Scan(&value, &source); err != nil {
		return "", fmt.Errorf("read the setting %s: %w", s.name, err)
	}
	if value == s.value || value == s.also {
		return "", nil
	}
	role, database := quote(a.Login), quote(a.Database)
	mend := map[string]string{
		"user":          "ALTER ROLE " + role + " RESET " + s.name,
		"database":      "ALTER DATABASE " + database + " RESET " + s.name,
		"database user": "ALTER ROLE " + role + " IN DATABASE " + database + " RESET " + s.name,
		"global":        "ALTER ROLE ALL RESET " + s.name,
		"client":        "take it out of the database URL",
		"session":       "take it out of the database URL",
	}[source]
	if mend == "" { // a file or the command line of the server
		mend = fmt.Sprintf("ALTER SYSTEM SET %s = %s, and SELECT pg_reload_conf()", s.name, s.value)
	}
	return fmt.Sprintf("the database has %s = %s, so %s: %s", s.name, value, s.why, mend), nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
