package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// environment is the servers with their database, and the directory that they look accounts up in.
type environment struct {
	home     string
	dir      *testbed.Directory
	postgres *testbed.Postmaster // nil if the database is not ours
	pair     *testbed.Pair       // the database, if it has a standby; else nil
	database string              // its URL
	servers  []*testbed.Proc     // those that run
	all      []*testbed.Proc     // and those that do not
	clients  []*xrpc.Client      // for the few calls besides the load
	web      *http.Transport     // of the clients
	audience string
	curve    string
	binaries []string          // paths
	running  int               // index of the binary that the servers run
	mode     testbed.SendsMode // how the servers write
	shares   *shares           // nil: everything has the whole machine
	arranged arrangement       // what scale has arranged last
}

// newEnvironment starts everything. After an error it returns what there is, for close.
func newEnvironment(ctx context.Context, c *Config) (*environment, error) {
	s := &environment{audience: xrpc.DefaultServiceDID, curve: c.Curve, database: c.Database, mode: testbed.SendsTogether}
	s.web = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	var err error
	if s.dir, err = testbed.NewDirectory("127.0.0.1:0"); err != nil {
		return s, err
	}
	if s.home, err = os.MkdirTemp("", "mlsd-bench-"); err != nil {
		return s, err
	}
	// A server started by root runs its database as another user, who needs access to the data
	// directory.
	if err := os.Chmod(s.home, 0o755); err != nil {
		return s, err
	}
	if s.binaries, err = findBinaries(ctx, c, s.home); err != nil {
		return s, err
	}
	binary := s.binaries[0]
	if c.Shares != (Shares{}) {
		if s.shares, err = newShares(c); err != nil {
			return s, err
		}
	}
	switch {
	case s.shares != nil && s.shares.standby != nil:
		s.pair, err = testbed.StartPair(ctx, map[string]string{"max_connections": connections}, s.shares.database, s.shares.standby)
		if err != nil {
			return s, err
		}
		s.database = s.pair.PrimaryURL()
		if err := fillWAL(ctx, s.database); err != nil {
			return s, err
		}
	case s.database == "":
		// One server makes and migrates a private PostgreSQL. That then runs alone, so that servers
		// can be killed.
		owner := testbed.NewProc(binary, filepath.Join(s.home, "data"), s.dir.URL(), s.audience)
		if err := owner.Start(ctx, nil); err != nil {
			return s, err
		}
		postgres, err := owner.Detach(ctx)
		if err != nil {
			return s, errors.Join(err, owner.Stop())
		}
		if s.shares != nil {
			postgres.UseShare(s.shares.database)
			postgres.Set("max_connections", connections)
		}
		if err := postgres.Start(ctx); err != nil {
			return s, err
		}
		s.postgres, s.database = postgres, postgres.URL()
		if err := fillWAL(ctx, s.database); err != nil {
			return s, err
		}
	}
	settings, err := s.settings(ctx, 0)
	if err != nil {
		return s, err
	}
	for range c.Servers {
		server := s.addServer()
		if err := server.Start(ctx, settings); err != nil {
			return s, err
		}
		s.servers = s.all
		s.clients = append(s.clients, xrpc.NewClient(server.URL(), s.audience, s.web, &xrpc.Stats{}))
	}
	return s, nil
}

// addServer prepares a server that is not started yet.
func (s *environment) addServer() *testbed.Proc {
	n := len(s.all)
	server := testbed.NewProc(s.binaries[0], filepath.Join(s.home, fmt.Sprintf("server-%d", n+1)), s.dir.URL(), s.audience)
	if s.shares != nil {
		server.UseShare(s.shares.nodes[n])
	}
	s.all = append(s.all, server)
	return server
}

// findBinaries returns the paths of the servers to start. A server that has to know several ways to
// write messages is built for that, unless one is given.
func findBinaries(ctx context.Context, c *Config, dir string) (paths []string, err error) {
	for _, binary := range c.Binaries {
		path, err := exec.LookPath(binary.Path)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	if len(paths) > 0 {
		return paths, nil
	}
	var path string
	if c.modes {
		path, err = testbed.BuildServer(ctx, dir, testbed.BenchTag)
	} else {
		path, err = testbed.FindServer(ctx, "", dir)
	}
	return []string{path}, err
}

// fillWAL makes the WAL files that a database has after some time of work. A new database must
// create a file for each 16 MB of WAL, and commits nothing for about 0.1 s then.
func fillWAL(ctx context.Context, url string) (err error) {
	const segments = 64 // as many as max_wal_size lets it keep
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }()
	for range segments {
		if _, err := db.Exec(ctx, `SELECT pg_logical_emit_message(false, 'mlsd', 'so that the segment is not empty'), pg_switch_wal()`); err != nil {
			return fmt.Errorf("make WAL: %w", err)
		}
	}
	if _, err := db.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("make WAL: %w", err)
	}
	return nil
}

// settings are those of the servers of a binary.
func (s *environment) settings(ctx context.Context, binary int) (map[string]string, error) {
	settings, err := testbed.Unlimited(ctx, s.binaries[binary])
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

// use makes the servers run a binary. If they run another one, all stop and start with this one, at
// the same addresses. changed reports whether they did.
func (s *environment) use(ctx context.Context, binary int) (changed bool, err error) {
	if s.running == binary {
		return false, nil
	}
	settings, err := s.settings(context.WithoutCancel(ctx), binary)
	if err != nil {
		return false, err
	}
	s.web.CloseIdleConnections()
	for _, server := range s.servers {
		if err := server.Stop(); err != nil {
			return false, err
		}
		server.UseBinary(s.binaries[binary])
	}
	for _, server := range s.servers {
		if err := server.Start(context.WithoutCancel(ctx), settings); err != nil {
			return false, err
		}
	}
	s.running, s.mode = binary, testbed.SendsTogether
	return true, nil
}

// setMode changes how all servers write messages.
func (s *environment) setMode(ctx context.Context, mode testbed.SendsMode) error {
	if s.mode == mode {
		return nil
	}
	for _, server := range s.servers {
		if err := server.SetSends(ctx, mode); err != nil {
			return err
		}
	}
	s.mode = mode
	return nil
}

// restart kills a server and starts it again at the same address.
func (s *environment) restart(ctx context.Context, node int) error {
	settings, err := s.settings(context.WithoutCancel(ctx), s.running)
	if err != nil {
		return err
	}
	server := s.servers[node]
	if err := server.Kill(); err != nil {
		return err
	}
	// Also after an interrupt: close expects a running server.
	if err := server.Start(context.WithoutCancel(ctx), settings); err != nil {
		return err
	}
	if s.mode == testbed.SendsTogether {
		return nil // every server begins like this
	}
	return server.SetSends(context.WithoutCancel(ctx), s.mode)
}

// close stops everything and removes its files. It leaves a database that is not ours as it is.
func (s *environment) close(ctx context.Context) error {
	s.web.CloseIdleConnections()
	var errs []error
	for _, server := range s.all {
		errs = append(errs, server.Stop())
	}
	if s.pair != nil {
		errs = append(errs, s.pair.Close())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	if s.shares != nil {
		errs = append(errs, s.shares.remove(context.WithoutCancel(ctx)))
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close(context.WithoutCancel(ctx)))
	}
	if s.home != "" {
		errs = append(errs, os.RemoveAll(s.home))
	}
	return errors.Join(errs...)
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
	a, err := xrpc.NewAccount(serial)
	if err != nil {
		return nil, err
	}
	return a, s.dir.Register(a)
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

// call makes a procedure's call, which must succeed.
func (s *environment) call(ctx context.Context, who *xrpc.Account, method string, in any) ([]byte, error) {
	answer, err := s.clients[0].Once(ctx, who, xrpc.Call{Method: syntax.NSID(method), Body: xrpc.Encode(in)})
	return answer.Body, err
}

// convo is one convo on the servers.
type convo struct {
	index   int
	id      string
	group   []byte
	epoch   uint64
	members int
	base    int64         // the last seq before the load
	reader  *xrpc.Account // a member
}

// Bounds of the contract.
const (
	foundersAtOnce = 100 // that createConvo takes besides the creator
	addedAtOnce    = 50  // that addMembers takes
)

// newConvo makes a convo of the given members, the first of which creates it, and of as many extra
// accounts as size demands. It begins in epoch 1. createConvo and addMembers take a limited number
// of members, so fake commits add the rest. The server cannot see that they are fake.
func (s *environment) newConvo(ctx context.Context, index int, members []*xrpc.Account, size int) (*convo, error) {
	var rest []syntax.DID
	for _, m := range members[1:] {
		rest = append(rest, m.DID)
	}
	founders := rest[:min(len(rest), foundersAtOnce)]
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
	c := &convo{index: index, group: mlsclient.RandomBytes(16), epoch: 1, members: max(size, len(members)), reader: members[0]}
	epoch := int64(c.epoch)
	body, err := s.call(ctx, members[0], mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(c.group), CipherSuite: mlsclient.SuiteX25519.Name(), InitialMembers: founders, CurrentEpoch: &epoch,
		IdempotencyKey: newKey(),
	})
	if err != nil {
		return nil, err
	}
	out, err := xrpc.Decode[mlsapi.CreateConvoOutput](body)
	if err != nil {
		return nil, err
	}
	c.id = out.ID
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
	refs, dids := make([][]byte, len(people)), make([]syntax.DID, len(people))
	err := eachOf(setupLanes, len(people), func(i int) error {
		dids[i] = people[i].DID
		published, err := s.lastResort(ctx, people[i])
		if err != nil {
			return err
		}
		refs[i], err = hex.DecodeString(published.Ref)
		return err
	})
	if err != nil {
		return err
	}
	body, err := s.call(ctx, by, mlsapi.NSIDAddMembers, &mlsapi.AddMembersInput{
		ConvoID: c.id, DIDList: dids, IdempotencyKey: newKey(),
		Commit: mlsclient.FakeCommit(c.group, c.epoch, 200), WelcomeMessage: mlsclient.FakeWelcome(mlsclient.SuiteX25519, refs...),
	})
	if err != nil {
		return err
	}
	out, err := xrpc.Decode[mlsapi.AddMembersOutput](body)
	if err != nil {
		return err
	}
	if out.Seq == nil || out.NewEpoch != int64(c.epoch)+1 {
		return fmt.Errorf("addMembers answered %s", body)
	}
	c.epoch, c.base = c.epoch+1, *out.Seq
	return nil
}

// lastResort publishes a last-resort KeyPackage of a new device, which can be added any number of
// times.
func (s *environment) lastResort(ctx context.Context, who *xrpc.Account) (mlsclient.KeyPackage, error) {
	device, err := mlsclient.NewDevice(who.DID.String(), mlsclient.SuiteX25519)
	if err != nil {
		return mlsclient.KeyPackage{}, err
	}
	kp, err := device.LastResort()
	if err != nil {
		return mlsclient.KeyPackage{}, err
	}
	_, err = s.call(ctx, who, mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
		KeyPackage: kp.Message, CipherSuite: mlsclient.SuiteX25519.Name(), IdempotencyKey: newKey(),
	})
	return kp, err
}

// setupLanes is how many requests run at once during the preparation.
const setupLanes = 16

func newKey() *string {
	key := uuid.Must(uuid.NewV7()).String()
	return &key
}
