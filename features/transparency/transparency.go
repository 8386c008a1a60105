// Package transparency keeps a Merkle tree over the log of each convo, and signs its heads, so that
// clients can check that all of them are shown the same log (docs/TRANSPARENCY.md).
//
// A leaf is the hash of what the log says about an entry (package verifier). So the tree follows
// from the committed log, and nothing is written when a message is appended. To make a head, a node
// reads the entries after those that it knows (load.sql), and hashes them.
//
//	getLogHead  ──▶ Head (heads.go) ──▶ catchUp (tree.go) ──▶ load.sql
//	getLogProof ──▶ Inclusion, Consistency (proofs.go) ──▶ log_tiles (tiles.go)
//	mlsd admin log-key ──▶ AddKey, RetireKey (rotate.go) ──▶ log_keys ──▶ ReadKeys (keys.go)
//
// Leaves stay when their messages are deleted: Keep writes them into log_tiles before the retention
// deletes the messages (keep.go). The tag of a sender stays when the sender is erased (senders.go).
package transparency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// maxTrees is how many ends of trees a node remembers, with at most 10 KiB each.
	maxTrees = 4096
	// stepEntries and stepBytes bound how many entries, and how many bytes of their bodies, one
	// read of a log takes. The first entry is read even if it is larger.
	stepEntries, stepBytes = 4096, 16 << 20
	// maxSteps bounds the reads of one request. If the tree is further behind, the next request
	// continues.
	maxSteps = 16
)

// Errors.
var (
	// ErrNotReady says that no head can be given yet: the tree of a long log is being computed, or
	// a database has just taken over and its generation has not begun. It is temporary.
	ErrNotReady = errors.New("the log's head is not ready yet")
	// ErrRange says that a proof is asked for beyond the log.
	ErrRange = errors.New("out of the log's range")
)

// Config configures a Service. All fields without a default are required.
type Config struct {
	DB      *pgxpool.Pool
	Service string // the server's DID, which is the name of its keys
	// Generation returns the id of the database's generation, read on conn. It fails if the
	// database has changed and its generation has not begun.
	Generation func(ctx context.Context, conn pgpool.Queryer) (int64, error)
	Log        *slog.Logger
	// Now is the clock of heads. nil means time.Now.
	Now func() time.Time
}

// Service computes and signs heads. Methods are safe for concurrent use.
type Service struct {
	cfg   Config
	log   *slog.Logger // for damaged logs, which can be many
	trees *lru.Cache[uuid.UUID, *tree]
	ring  atomic.Pointer[keyring] // nil before Load
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
	return &Service{cfg: c, log: ratelog.New(c.Log), trees: trees}, nil
}

// begun returns the generation of the database that conn leads to. Errors: ErrNotReady, errors of
// the database.
func (s *Service) begun(ctx context.Context, conn *pgxpool.Conn) (int64, error) {
	generation, err := s.cfg.Generation(ctx, conn)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return generation, nil
}

// treeOf returns the remembered tree of a convo, which is empty at first.
func (s *Service) treeOf(convo uuid.UUID) *tree {
	t := newTree(convo)
	if before, ok, _ := s.trees.PeekOrAdd(convo, t); ok {
		s.trees.Get(convo) // marks the tree as just used
		return before
	}
	return t
}
