package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// environment holds the measured servers and their database.
type environment struct {
	*testbed.Environment
	pair       *testbed.Pair // the database with its standby; nil if there is no standby
	database   string        // URL of the database
	postmaster int           // id of PostgreSQL's main process; 0 if it runs elsewhere
	at         place
	client     *xrpc.Client    // for the few calls outside the load
	web        *http.Transport // the client's transport
	killed     time.Duration   // processor time of killed servers
}

// place says what the servers are.
type place struct {
	binary  int  // index of the binary that they run
	nodes   int  // how many there are
	standby bool // they read from the standby
}

// start starts everything. If it fails, close ends what was started.
func (s *environment) start(ctx context.Context, c *Config) {
	s.database, s.web = c.Database, &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	s.Environment = Must(testbed.NewEnvironment(ctx, "127.0.0.1:0", c.Binaries...))
	for _, standby := range c.Standby {
		if standby && s.pair == nil {
			s.pair = Must(testbed.StartPair(ctx, map[string]string{"max_connections": connections}))
			s.database = s.pair.PrimaryURL()
		}
	}
	if s.database == "" {
		Check(s.StartPostgres(ctx, func(postgres *testbed.Postmaster) { postgres.Set("max_connections", connections) }))
		s.database = s.Postgres.URL()
	}
	if c.Database == "" {
		Check(testbed.InDatabase(ctx, s.database, fillWAL(ctx)))
	}
	s.use(ctx, place{0, c.Servers, false})
	s.client = xrpc.NewClient(s.Nodes[0].URL(), xrpc.DefaultServiceDID, s.web, &xrpc.Stats{})
}

// connections is the number of connections that a PostgreSQL of ours allows. It is enough for
// sixteen nodes.
const connections = "600"

// fillWAL creates the WAL files that a database has after some time of work. A new database must
// create a file for each 16 MB of WAL, and meanwhile commits nothing for about 0.1 s.
func fillWAL(ctx context.Context) func(*pgx.Conn) error {
	const segments = 64 // as many as max_wal_size permits
	return func(db *pgx.Conn) error {
		return Attempt(func() {
			for range segments {
				Must(db.Exec(ctx, `SELECT pg_logical_emit_message(false, 'mlsd', 'so that the segment is not empty'),
						pg_switch_wal()`))
			}
			Must(db.Exec(ctx, `CHECKPOINT`))
		})
	}
}

// inspect finds PostgreSQL's main process on this machine, and returns its version and the settings
// that decide what a COMMIT means.
func (s *environment) inspect(ctx context.Context) (description string) {
	var backend int
	Check(testbed.Scan(ctx, s.database, `
		SELECT pg_backend_pid(), format('%s, fsync %s, synchronous_commit %s', current_setting('server_version'),
			current_setting('fsync'), current_setting('synchronous_commit'))`, nil, &backend, &description))
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", backend))
	if err == nil && strings.HasPrefix(string(name), "postgres") {
		s.postmaster = testbed.Parent(backend)
	}
	return description
}

// spent returns the processor time until now. Without /proc it is zero.
func (s *environment) spent() Spent {
	spent := Spent{Server: s.killed, Database: testbed.TreeTime(s.postmaster), Load: testbed.ProcessTime(os.Getpid())}
	for _, server := range s.Nodes {
		spent.Server += testbed.ProcessTime(server.PID())
	}
	return spent
}

// settings returns the settings for the servers.
func (s *environment) settings(ctx context.Context) map[string]string {
	settings := Must(testbed.Unlimited(ctx, s.Binaries[s.at.binary].Path))
	settings["MLSD_DATABASE_URL"] = s.database
	if s.at.standby {
		settings["MLSD_READ_DATABASE_URL"] = s.pair.StandbyURL()
	}
	return settings
}

// addr returns where a server listens, as host:port.
func (s *environment) addr(node int) string {
	return strings.TrimPrefix(s.Nodes[node%len(s.Nodes)].URL(), "http://")
}

// use restarts the servers as at says, unless they run so already, and reports whether it did. Each
// server keeps its address.
func (s *environment) use(ctx context.Context, at place) (changed bool) {
	if s.at == at {
		return false
	}
	s.web.CloseIdleConnections()
	s.at = at
	Check(s.RunNodes(ctx, at.nodes, s.Binaries[at.binary], s.settings(ctx)))
	return true
}

// kill kills a server and starts it again.
func (s *environment) kill(ctx context.Context, node int) (err error) {
	defer CatchIn(&err, "kill server %d", node+1)
	server := s.Nodes[node]
	s.killed += testbed.ProcessTime(server.PID())
	Check(server.Kill())
	return server.Start(ctx, s.settings(ctx))
}

// close stops everything and removes its files. It does not change a database that was given.
func (s *environment) close(ctx context.Context) (err error) {
	if s.Environment != nil {
		s.web.CloseIdleConnections()
		err = s.Close(ctx)
	}
	if s.pair != nil {
		err = errors.Join(err, s.pair.Close())
	}
	return err
}

// accounts makes n accounts, whose keys are on the curve K-256.
func (s *environment) accounts(n int) []*xrpc.Account {
	const k256 = 0 // the serial
	all := make([]*xrpc.Account, n)
	for i := range all {
		all[i] = Must(s.Account(k256))
	}
	return all
}
