// Package transparency keeps a Merkle tree over the log of each convo, and signs its heads, so that
// clients can check that all of them are shown the same log (docs/TRANSPARENCY.md).
//
// A leaf is the hash of what the log says of an entry (package verifier). So the tree follows from the
// committed log, and nothing is written when a message is appended: who wants a head reads the
// entries behind those that its node knows (load.sql), and hashes them.
//
//	getLogHead  ──▶ Head (heads.go) ──▶ catchUp (tree.go) ──▶ load.sql
//	sendMessage ──▶ AnswerHead (piggyback.go), which RunOnce prepares every second
//	getLogProof ──▶ Inclusion, Consistency (proofs.go) ──▶ log_tiles (tiles.go)
//	mlsd admin log-key ──▶ AddKey, RetireKey (rotate.go) ──▶ log_keys ──▶ ReadKeys (keys.go)
//
// Leaves stay when their messages go: Keep writes them into log_tiles before the retention deletes
// (keep.go), and the tag of a sender stays when the sender is erased (senders.go).
package transparency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/ratelog"
)

// Bounds.
const (
	// maxTrees are the convos of which a node remembers the end of the tree, 10 KiB each at most.
	maxTrees = 4096
	// stepEntries and stepBytes bound one reading of a log: its entries, and their bodies. The first
	// entry is read even if it is larger.
	stepEntries, stepBytes = 4096, 16 << 20
	// maxSteps bounds the readings of one request. If the tree is farther behind, the next request
	// goes on.
	maxSteps = 16
)

// Errors.
var (
	// ErrNotReady says that no head can be given yet: the tree of a long log is being computed, or
	// the stream has not begun the generation of a database that has just taken over. It passes.
	ErrNotReady = errors.New("the log's head is not ready yet")
	// ErrRange says that a proof is asked for beyond the log.
	ErrRange = errors.New("out of the log's range")
)

// Config configures a Service. All fields without a default are required.
type Config struct {
	DB      *pgxpool.Pool
	Service string // the server's DID: the name of its keys
	// Generation returns the id of the database's generation, read on conn. It fails if the database
	// has changed and its generation has not begun.
	Generation func(ctx context.Context, conn pgpool.Queryer) (int64, error)
	Log        *slog.Logger
	// Now is the clock of heads. Default: time.Now.
	Now func() time.Time
}

// Service computes and signs heads. Methods are safe for concurrent use.
type Service struct {
	cfg   Config
	log   *slog.Logger // of damaged logs, of which there can be many
	trees *lru.Cache[uuid.UUID, *tree]
	ring  atomic.Pointer[keyring] // nil before Load

	mu     sync.Mutex // guards wanted
	wanted map[uuid.UUID]struct{}
}

// New returns a service.
func New(c Config) (*Service, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	trees, err := lru.New[uuid.UUID, *tree](maxTrees)
	if err != nil {
		return nil, err
	}
	return &Service{cfg: c, log: ratelog.New(c.Log), trees: trees, wanted: map[uuid.UUID]struct{}{}}, nil
}

// begun returns the generation of the database that conn leads to. Error: ErrNotReady.
func (s *Service) begun(ctx context.Context, conn *pgxpool.Conn) (int64, error) {
	generation, err := s.cfg.Generation(ctx, conn)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return generation, nil
}

// treeOf returns what the node remembers of a convo's tree: nothing at first.
func (s *Service) treeOf(convo uuid.UUID) *tree {
	t := newTree(convo)
	if before, ok, _ := s.trees.PeekOrAdd(convo, t); ok {
		s.trees.Get(convo) // it was used now
		return before
	}
	return t
}
