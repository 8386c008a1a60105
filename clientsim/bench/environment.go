package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// environment is the servers that are measured, with their database.
type environment struct {
	*testbed.Environment
	pair     *testbed.Pair   // the database, if it has a standby; else nil
	database string          // its URL
	servers  []*testbed.Proc // those that run
	all      []*testbed.Proc // and those that do not
	client   *xrpc.Client    // for the few calls besides the load
	web      *http.Transport // of the client
	curve    string
	running  int // index of the binary that the servers run
}

// newEnvironment starts everything. After an error it returns what there is, for close.
func newEnvironment(ctx context.Context, c *Config) (*environment, error) {
	s := &environment{curve: c.Curve, database: c.Database,
		web: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	var err error
	if s.Environment, err = testbed.NewEnvironment(ctx, "127.0.0.1:0", c.Binaries...); err != nil {
		return s, err
	}
	if err := s.startDatabase(ctx, c.hasStandby()); err != nil {
		return s, err
	}
	if err := s.runServers(ctx, c.Servers, 0, false); err != nil {
		return s, err
	}
	s.client = xrpc.NewClient(s.servers[0].URL(), xrpc.DefaultServiceDID, s.web, &xrpc.Stats{})
	return s, nil
}

// startDatabase starts a PostgreSQL, unless one was given.
func (s *environment) startDatabase(ctx context.Context, standby bool) (err error) {
	switch {
	case standby:
		s.pair, err = testbed.StartPair(ctx, map[string]string{"max_connections": connections})
		if err != nil {
			return err
		}
		s.database = s.pair.PrimaryURL()
	case s.database == "":
		err = s.StartPostgres(ctx, func(postgres *testbed.Postmaster) {
			postgres.Set("max_connections", connections)
		})
		if err != nil {
			return err
		}
		s.database = s.Postgres.URL()
	default:
		return nil
	}
	return fillWAL(ctx, s.database)
}

// fillWAL makes the WAL files that a database has after some time of work. A new database must
// create a file for each 16 MB of WAL, and commits nothing for about 0.1 s then.
func fillWAL(ctx context.Context, url string) error {
	const segments = 64 // as many as max_wal_size lets it keep
	return testbed.InDatabase(ctx, url, func(db *pgx.Conn) error {
		for range segments {
			_, err := db.Exec(ctx, `SELECT pg_logical_emit_message(false, 'mlsd', 'so that the segment is not empty'),
					pg_switch_wal()`)
			if err != nil {
				return err
			}
		}
		_, err := db.Exec(ctx, `CHECKPOINT`)
		return err
	})
}

// settings are those of the servers of a binary.
func (s *environment) settings(ctx context.Context, binary int) (map[string]string, error) {
	settings, err := testbed.Unlimited(ctx, s.Binaries[binary].Path)
	if err != nil {
		return nil, err
	}
	settings["MLSD_DATABASE_URL"] = s.database
	return settings, nil
}

// addr returns where a server listens, as host:port.
func (s *environment) addr(node int) string {
	return strings.TrimPrefix(s.servers[node%len(s.servers)].URL(), "http://")
}

// runServers stops all servers, and starts n of a binary, each at the address that it had.
func (s *environment) runServers(ctx context.Context, n, binary int, standby bool) error {
	s.web.CloseIdleConnections()
	running := s.servers
	if err := eachOf(n, len(running), func(i int) error { return running[i].Stop() }); err != nil {
		return err
	}
	settings, err := s.settings(ctx, binary)
	if err != nil {
		return err
	}
	if standby {
		settings["MLSD_READ_DATABASE_URL"] = s.pair.StandbyURL()
	}
	for len(s.all) < n {
		s.all = append(s.all, s.Server(fmt.Sprintf("server-%d", len(s.all)+1)))
	}
	s.servers, s.running = s.all[:n], binary
	return eachOf(n, n, func(i int) error {
		s.servers[i].UseBinary(s.Binaries[binary].Path)
		return s.servers[i].Start(ctx, settings)
	})
}

// use makes the servers run a binary, and reports whether they ran another one.
func (s *environment) use(ctx context.Context, binary int) (changed bool, err error) {
	if s.running == binary {
		return false, nil
	}
	return true, s.runServers(ctx, len(s.servers), binary, false)
}

// restart kills a server and starts it again at the same address.
func (s *environment) restart(ctx context.Context, node int) error {
	settings, err := s.settings(ctx, s.running)
	if err != nil {
		return err
	}
	return errors.Join(s.servers[node].Kill(), s.servers[node].Start(ctx, settings))
}

// close stops everything and removes its files. It leaves a database that is not ours as it is.
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

// account makes an account that the servers can look up, with a key on the configured curve.
func (s *environment) account(serial int) (*xrpc.Account, error) {
	const k256, p256 = 0, 1
	switch s.curve {
	case "p256":
		serial = p256
	case "mixed":
	default:
		serial = k256
	}
	return s.Account(serial)
}

// accounts makes n accounts.
func (s *environment) accounts(n int) ([]*xrpc.Account, error) {
	all := make([]*xrpc.Account, n)
	for i := range all {
		var err error
		if all[i], err = s.account(i); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// convo is one convo on the servers.
type convo struct {
	id     string
	group  []byte
	epoch  uint64
	base   int64         // the last seq before the load
	reader *xrpc.Account // a member
}

// Bounds of the contract.
const (
	foundersAtOnce = 100 // that createConvo takes besides the creator
	addedAtOnce    = 50  // that addMembers takes
)

// newConvo makes a convo of the given members, the first of which creates it, and of as many extra
// accounts as size demands. It begins in epoch 1. createConvo and addMembers take a limited number
// of members, so fake commits add the rest. The server cannot see that they are fake.
func (s *environment) newConvo(ctx context.Context, members []*xrpc.Account, size int) (*convo, error) {
	founders := testbed.DIDsOf(members[1:min(len(members), 1+foundersAtOnce)])
	late := members[1+len(founders):]
	for n := len(members); n < size; n++ {
		extra, err := s.account(n)
		if err != nil {
			return nil, err
		}
		if len(founders) < foundersAtOnce {
			founders = append(founders, extra.DID)
			continue
		}
		late = append(late, extra)
	}
	c := &convo{epoch: 1, reader: members[0]}
	var err error
	if c.id, c.group, err = testbed.NewConvo(ctx, s.client, members[0], founders, nil); err != nil {
		return nil, err
	}
	for len(late) > 0 {
		some := late[:min(len(late), addedAtOnce)]
		late = late[len(some):]
		if err := s.add(ctx, c, members[0], some); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add adds accounts to a convo by a fake commit.
func (s *environment) add(ctx context.Context, c *convo, by *xrpc.Account, people []*xrpc.Account) error {
	refs := make([][]byte, len(people))
	err := eachOf(setupLanes, len(people), func(i int) (err error) {
		refs[i], err = s.lastResort(ctx, people[i])
		return err
	})
	if err != nil {
		return err
	}
	staged := &mlsclient.Staged{Commit: mlsclient.FakeCommit(c.group, c.epoch, 200),
		Welcome: mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs...)}
	call := xrpc.AddCall(c.id, testbed.DIDsOf(people), staged, xrpc.NewKey())
	out, err := xrpc.Ask[mlsapi.AddMembersOutput](ctx, s.client, by, call)
	if err != nil {
		return err
	}
	if out.Seq == nil || out.NewEpoch != int64(c.epoch)+1 {
		return fmt.Errorf("addMembers answered %+v", out)
	}
	c.epoch, c.base = c.epoch+1, *out.Seq
	return nil
}

// lastResort publishes a last-resort KeyPackage of a new device, which can be added any number of
// times, and returns its ref.
func (s *environment) lastResort(ctx context.Context, who *xrpc.Account) ([]byte, error) {
	published, err := testbed.Publish(ctx, s.client, who, 0, true)
	if err != nil {
		return nil, err
	}
	return hex.DecodeString(published[0].Ref)
}

// setupLanes is how many requests run at once during the preparation.
const setupLanes = 16

// eachOf calls do for 0 … n-1, some at once, until one fails.
func eachOf(lanes, n int, do func(i int) error) error {
	all, ctx := errgroup.WithContext(context.Background())
	all.SetLimit(lanes)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		all.Go(func() error { return do(i) })
	}
	return all.Wait()
}
