package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim"
)

// stage is what the load plays on: servers with one database, and accounts that they know.
type stage struct {
	home     string
	dir      *clientsim.Directory
	postgres *clientsim.Postmaster // nil with a database of somebody else's
	database string                // its URL
	servers  []*clientsim.Proc
	clients  []*clientsim.Client // for what is rare
	web      *http.Transport     // of the clients
	audience string
	curve    string
	mode     string // how the servers write
}

// newStage starts everything, and returns it even after an error, for close.
func newStage(ctx context.Context, c *Config) (*stage, error) {
	s := &stage{audience: clientsim.DefaultServiceDID, curve: c.Curve, database: c.Database, mode: clientsim.SendsTogether}
	s.web = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	var err error
	if s.dir, err = clientsim.NewDirectory("127.0.0.1:0"); err != nil {
		return s, err
	}
	if s.home, err = os.MkdirTemp("", "mlsd-bench-"); err != nil {
		return s, err
	}
	// A server started by root runs its database as another user, who has to get to the data directory.
	if err := os.Chmod(s.home, 0o755); err != nil {
		return s, err
	}
	binary, err := clientsim.FindServer(ctx, c.Binary, s.home)
	if err != nil {
		return s, err
	}
	if s.database == "" {
		// The private PostgreSQL of a server, made and set up by it, but running alone, so that the server can be killed.
		owner := clientsim.NewProc(binary, filepath.Join(s.home, "data"), s.dir.URL(), s.audience)
		if err := owner.Start(ctx, nil); err != nil {
			return s, err
		}
		postgres, err := owner.Detach(ctx)
		if err != nil {
			return s, errors.Join(err, owner.Stop())
		}
		if err := postgres.Start(ctx); err != nil {
			return s, err
		}
		s.postgres, s.database = postgres, postgres.URL()
		if err := season(ctx, s.database); err != nil {
			return s, err
		}
	}
	for i := range c.Servers {
		server := clientsim.NewProc(binary, filepath.Join(s.home, fmt.Sprintf("server-%d", i+1)), s.dir.URL(), s.audience)
		if err := server.Start(ctx, s.settings()); err != nil {
			return s, err
		}
		s.servers = append(s.servers, server)
		s.clients = append(s.clients, clientsim.NewClient(server.URL(), s.audience, s.web, &clientsim.Stats{}))
	}
	return s, nil
}

// season leaves a young database as one that has been at work for a while: with segments of WAL that are there to be written again. A
// young one makes a segment for each 16 MB, and commits nothing for the tenth of a second that it takes.
func season(ctx context.Context, url string) (err error) {
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

func (s *stage) settings() map[string]string {
	return map[string]string{"MLSD_DATABASE_URL": s.database}
}

// addr is where a server listens, as host:port.
func (s *stage) addr(node int) string {
	return strings.TrimPrefix(s.servers[node%len(s.servers)].URL(), "http://")
}

// setMode changes how all servers write messages.
func (s *stage) setMode(ctx context.Context, mode string) error {
	for _, server := range s.servers {
		if err := server.SetSends(ctx, mode); err != nil {
			return err
		}
	}
	s.mode = mode
	return nil
}

// restart kills a server, whatever it is doing, and starts it anew at the same address.
func (s *stage) restart(ctx context.Context, node int) error {
	server := s.servers[node]
	if err := server.Kill(); err != nil {
		return err
	}
	// Even if the benchmark has been interrupted: what is closed has to run.
	if err := server.Start(context.WithoutCancel(ctx), s.settings()); err != nil {
		return err
	}
	return server.SetSends(context.WithoutCancel(ctx), s.mode)
}

// close stops everything and removes what it has stored, but for a database of somebody else's.
func (s *stage) close(ctx context.Context) error {
	s.web.CloseIdleConnections()
	var errs []error
	for _, server := range s.servers {
		errs = append(errs, server.Stop())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close(context.WithoutCancel(ctx)))
	}
	if s.home != "" {
		errs = append(errs, os.RemoveAll(s.home))
	}
	return errors.Join(errs...)
}

// account makes an account that the servers can look up, with a key on the curve that was asked for.
func (s *stage) account(serial int) (*clientsim.Account, error) {
	const k256, p256 = 0, 1
	switch s.curve {
	case "p256":
		serial = p256
	case "mixed":
	default:
		serial = k256
	}
	a, err := clientsim.NewAccount(serial)
	if err != nil {
		return nil, err
	}
	return a, s.dir.Register(a)
}

// accounts makes n of them.
func (s *stage) accounts(n int) ([]*clientsim.Account, error) {
	all := make([]*clientsim.Account, n)
	for i := range all {
		var err error
		if all[i], err = s.account(i); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// call makes a procedure's call, which must succeed.
func (s *stage) call(ctx context.Context, who *clientsim.Account, method string, in mlsapi.Appender) ([]byte, error) {
	answer, err := s.clients[0].Once(ctx, who, clientsim.Call{Method: syntax.NSID(method), Body: in.AppendJSON(nil)})
	return answer.Body, err
}

// convo is one convo on the servers.
type convo struct {
	index   int
	id      string
	group   []byte
	epoch   uint64
	members int
	base    int64              // the last seq before the load
	reader  *clientsim.Account // a member
}

// Bounds of the contract.
const (
	foundersAtOnce = 100 // members besides the creator that createConvo takes
	addedAtOnce    = 50  // that addMembers takes
)

// newConvo makes a convo of the given members, the first of which creates it, and of as many extras as make it so large. It begins in
// epoch 1; the members that one request cannot bring are added by hollow commits. The server reads no further into them than it can.
func (s *stage) newConvo(ctx context.Context, index int, members []*clientsim.Account, size int) (*convo, error) {
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
	c := &convo{index: index, group: randomBytes(16), epoch: 1, members: max(size, len(members)), reader: members[0]}
	epoch := int64(c.epoch)
	body, err := s.call(ctx, members[0], mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(c.group), CipherSuite: clientsim.SuiteX25519.Name(), InitialMembers: founders, CurrentEpoch: &epoch,
		IdempotencyKey: newKey(),
	})
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeCreateConvoOutput(body)
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

// add brings people into a convo by a hollow commit.
func (s *stage) add(ctx context.Context, c *convo, by *clientsim.Account, people []*clientsim.Account) error {
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
		Commit: clientsim.HollowCommit(c.group, c.epoch, 200), WelcomeMessage: clientsim.HollowWelcome(clientsim.SuiteX25519, refs...),
	})
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeAddMembersOutput(body)
	if err != nil {
		return err
	}
	if out.Seq == nil || out.NewEpoch != int64(c.epoch)+1 {
		return fmt.Errorf("addMembers answered %s", body)
	}
	c.epoch, c.base = c.epoch+1, *out.Seq
	return nil
}

// lastResort publishes a KeyPackage of an account's new device, with which it can be added as often as one likes.
func (s *stage) lastResort(ctx context.Context, who *clientsim.Account) (clientsim.KeyPackage, error) {
	device, err := clientsim.NewDevice(who.DID.String(), clientsim.SuiteX25519)
	if err != nil {
		return clientsim.KeyPackage{}, err
	}
	kp, err := device.LastResort()
	if err != nil {
		return clientsim.KeyPackage{}, err
	}
	_, err = s.call(ctx, who, mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
		KeyPackage: kp.Message, CipherSuite: clientsim.SuiteX25519.Name(), IdempotencyKey: newKey(),
	})
	return kp, err
}

// setupLanes is how many requests are under way at once while the benchmark is prepared.
const setupLanes = 16

func newKey() *string {
	key := uuid.Must(uuid.NewV7()).String()
	return &key
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}
