package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// environment holds the measured servers and their database.
type environment struct {
	*testbed.Environment
	pair     *testbed.Pair   // the database with its standby; nil if there is no standby
	database string          // URL of the database
	servers  []*testbed.Proc // running servers
	all      []*testbed.Proc // all servers, running or not
	client   *xrpc.Client    // for the few calls outside the load
	web      *http.Transport // the client's transport
	running  int             // index of the binary that the servers run
}

// start starts everything. If it fails, close ends what was started.
func (s *environment) start(ctx context.Context, c *Config) {
	s.database, s.web = c.Database, &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	s.Environment = Must(testbed.NewEnvironment(ctx, "127.0.0.1:0", c.Binaries...))
	s.startDatabase(ctx, c.hasStandby())
	s.runServers(ctx, c.Servers, 0, false)
	s.client = xrpc.NewClient(s.servers[0].URL(), xrpc.DefaultServiceDID, s.web, &xrpc.Stats{})
}

// startDatabase starts a PostgreSQL, unless one was given.
func (s *environment) startDatabase(ctx context.Context, standby bool) {
	switch {
	case standby:
		s.pair = Must(testbed.StartPair(ctx, map[string]string{"max_connections": connections}))
		s.database = s.pair.PrimaryURL()
	case s.database == "":
		Check(s.StartPostgres(ctx, func(postgres *testbed.Postmaster) {
			postgres.Set("max_connections", connections)
		}))
		s.database = s.Postgres.URL()
	default:
		return
	}
	Check(testbed.InDatabase(ctx, s.database, fillWAL(ctx)))
}

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

// settings returns the settings for the servers of a binary.
func (s *environment) settings(ctx context.Context, binary int) map[string]string {
	settings := Must(testbed.Unlimited(ctx, s.Binaries[binary].Path))
	settings["MLSD_DATABASE_URL"] = s.database
	return settings
}

// addr returns where a server listens, as host:port.
func (s *environment) addr(node int) string {
	return strings.TrimPrefix(s.servers[node%len(s.servers)].URL(), "http://")
}

// runServers stops all servers, and starts n servers of a binary. Each server keeps its old
// address.
func (s *environment) runServers(ctx context.Context, n, binary int, standby bool) {
	s.web.CloseIdleConnections()
	running := s.servers
	Each(n, len(running), func(i int) { Check(running[i].Stop()) })
	settings := s.settings(ctx, binary)
	if standby {
		settings["MLSD_READ_DATABASE_URL"] = s.pair.StandbyURL()
	}
	for len(s.all) < n {
		s.all = append(s.all, s.Server(fmt.Sprintf("server-%d", len(s.all)+1)))
	}
	s.servers, s.running = s.all[:n], binary
	Each(n, n, func(i int) {
		s.servers[i].UseBinary(s.Binaries[binary].Path)
		Check(s.servers[i].Start(ctx, settings))
	})
}

// use makes the servers run a binary, and reports whether they ran another binary before.
func (s *environment) use(ctx context.Context, binary int) (changed bool) {
	if changed = s.running != binary; changed {
		s.runServers(ctx, len(s.servers), binary, false)
	}
	return changed
}

// close stops everything and removes its files. It does not change a database that was given.
func (s *environment) close(ctx context.Context) (err error) {
	s.web.CloseIdleConnections()
	if s.Environment != nil {
		err = s.Close(ctx)
	}
	if s.pair != nil {
		err = errors.Join(err, s.pair.Close())
	}
	return err
}

// k256 is the serial of accounts whose keys are on the curve K-256.
const k256 = 0

// accounts makes n accounts.
func (s *environment) accounts(n int) []*xrpc.Account {
	all := make([]*xrpc.Account, n)
	for i := range all {
		all[i] = Must(s.Account(k256))
	}
	return all
}

// convo is one convo on the servers.
type convo struct {
	id     string
	group  []byte
	epoch  uint64
	base   int64         // the last seq before the load
	reader *xrpc.Account // the member whose account reads the log
}

// Bounds of the contract.
const (
	foundersAtOnce = 100 // members that createConvo accepts besides the creator
	addedAtOnce    = 50  // members that addMembers accepts
)

// newConvo makes a convo of the given members and of as many other accounts as size requires. The
// first member creates it. It begins in epoch 1. createConvo and addMembers accept a limited number
// of members, so fake commits add the rest. The server cannot detect that they are fake.
func (s *environment) newConvo(ctx context.Context, members []*xrpc.Account, size int) *convo {
	all := slices.Concat(members, s.accounts(max(size-len(members), 0)))
	founders := all[1:min(len(all), 1+foundersAtOnce)]
	c := &convo{epoch: 1, reader: members[0]}
	c.id, c.group = Must2(testbed.NewConvo(ctx, s.client, members[0], testbed.DIDsOf(founders), nil))
	for some := range slices.Chunk(all[1+len(founders):], addedAtOnce) {
		s.add(ctx, c, members[0], some)
	}
	return c
}

// add adds accounts to a convo by a fake commit.
func (s *environment) add(ctx context.Context, c *convo, by *xrpc.Account, people []*xrpc.Account) {
	refs := make([][]byte, len(people))
	Each(setupLanes, len(people), func(i int) { refs[i] = s.lastResort(ctx, people[i]) })
	staged := &mlsclient.Staged{Commit: mlsclient.FakeCommit(c.group, c.epoch, 200),
		Welcome: mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs...)}
	call := xrpc.AddCall(c.id, testbed.DIDsOf(people), staged, xrpc.NewKey())
	out := Must(xrpc.Ask[mlsapi.AddMembersOutput](ctx, s.client, by, call))
	if out.Seq == nil || out.NewEpoch != int64(c.epoch)+1 {
		Fail("addMembers answered %+v", out)
	}
	c.epoch, c.base = c.epoch+1, *out.Seq
}

// lastResort publishes a last-resort KeyPackage of a new device, and returns its ref. The device
// can be added any number of times.
func (s *environment) lastResort(ctx context.Context, who *xrpc.Account) []byte {
	published := Must(testbed.Publish(ctx, s.client, who, 0, true))
	return Must(hex.DecodeString(published[0].Ref))
}

// setupLanes is how many requests run at one time during the preparation.
const setupLanes = 16
