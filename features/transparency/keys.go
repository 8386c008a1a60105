package transparency

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/mr-tron/base58"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgpool"
)

// KeysInterval is how often ReadKeys should be called.
const KeysInterval = time.Second

// Key is a key that signs heads, or has signed heads.
type Key struct {
	ID        int32     `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
	Signs     bool      `json:"signs"`    // the key has a seed
	Withheld  bool      `json:"withheld"` // not given to clients without a key, because its seed has leaked
	Text      string    `json:"key"`      // the form for clients: name, hash and key
	Multikey  string    `json:"multikey"` // the form in DID documents
}

// keyring is the content of log_keys at one moment. It is immutable.
type keyring struct {
	keys    []Key
	signers []note.Signer
	at      time.Time // by the database's clock
}

// Load reads the keys that sign heads, and makes the first key. The keys are in the database, so
// all nodes have the same keys. If several keys have a seed, all of them sign. Then a client that
// knows only the older key accepts the newer key too.
func (s *Service) Load(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, s.cfg.DB, func(tx pgx.Tx) error {
		ring, err := s.lockKeys(ctx, tx)
		if err != nil || len(ring.signers) > 0 {
			return err
		}
		_, err = insertKey(ctx, tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("make the key of log heads: %w", err)
	}
	return s.ReadKeys(ctx)
}

// lockKeys reads the keys, and locks them until the end of the transaction.
func (s *Service) lockKeys(ctx context.Context, tx pgx.Tx) (*keyring, error) {
	if err := pgpool.LockLogKeys.Wait(ctx, tx, ""); err != nil {
		return nil, err
	}
	return s.loadKeys(ctx, tx) // after the lock, so that it sees what others have committed
}

func insertKey(ctx context.Context, tx pgx.Tx) (id int32, err error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	err = tx.QueryRow(ctx, `INSERT INTO log_keys (seed, public, created_at) VALUES ($1, $2, clock_timestamp()) RETURNING
			id`, seed, []byte(public)).Scan(&id)
	return id, err
}

// ReadKeys reads the keys again. If a database without a key has taken over, ReadKeys makes a key.
func (s *Service) ReadKeys(ctx context.Context) error {
	ring, err := s.loadKeys(ctx, s.cfg.DB)
	if err != nil {
		return fmt.Errorf("read the keys of log heads: %w", err)
	}
	if len(ring.signers) == 0 {
		return s.Load(ctx)
	}
	if before := s.ring.Load(); before == nil || !slices.Equal(before.keys, ring.keys) {
		s.ring.Store(ring)
	}
	return nil
}

func (s *Service) loadKeys(ctx context.Context, q pgpool.DB) (*keyring, error) {
	rows := pgpool.Rows(ctx, q,
		`SELECT id, created_at, withheld, seed, public, clock_timestamp() FROM log_keys ORDER BY id`)
	ring := &keyring{}
	var k Key
	var seed, public []byte
	_, err := pgx.ForEachRow(rows, []any{&k.ID, &k.CreatedAt, &k.Withheld, &seed, &public, &ring.at}, func() (err error) {
		k.CreatedAt, k.Signs, k.Multikey = k.CreatedAt.UTC(), seed != nil, multikey(public)
		if k.Text, err = verifier.PublicKey(s.cfg.Service, public); err != nil {
			return err
		}
		ring.keys = append(ring.keys, k)
		if seed == nil {
			return nil
		}
		signer, err := verifier.Signer(s.cfg.Service, ed25519.NewKeyFromSeed(seed))
		ring.signers = append(ring.signers, signer)
		return err
	})
	return ring, err
}

// multikey returns the form of a key in DID documents: the code of Ed25519 and the key, in base58.
func multikey(public ed25519.PublicKey) string {
	return "z" + base58.Encode(append([]byte{0xed, 0x01}, public...))
}

// Keys returns the keys that check heads, including keys that no longer sign. It leaves out
// withheld keys.
func (s *Service) Keys() (texts []string) {
	for _, k := range s.given() {
		texts = append(texts, k.Text)
	}
	return texts
}

// Published returns the keys that sign and are not withheld. The service's DID document has these
// keys.
func (s *Service) Published() []Key {
	return slices.DeleteFunc(s.given(), func(k Key) bool { return !k.Signs })
}

// given returns the keys that clients get. Before Load there are none.
func (s *Service) given() []Key {
	ring := s.ring.Load()
	if ring == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ring.keys), func(k Key) bool { return k.Withheld })
}

// keepsPromise checks a tree that was read again from the database. The tree must begin with the
// last head that this node has signed in the generation. Otherwise somebody has changed the log in
// the database. Then the node signs no second head, because it would only prove the change. Error:
// ErrNotReady.
func (s *Service) keepsPromise(ctx context.Context, q pgpool.DB, t *tree) error {
	if h := t.promised; !t.checked && h != nil && h.Generation == t.generation && h.Size > 0 {
		if h.Size > t.edge.Size {
			return s.broken(t)
		}
		root, err := tlog.TreeHash(h.Size,
			storedHashes{ctx: ctx, q: q, convo: t.convo, tail: t.tail, base: t.edge.Size - int64(len(t.tail))})
		if err != nil {
			return fmt.Errorf("compare with the last head: %w", err)
		}
		if root != h.Root {
			return s.broken(t)
		}
	}
	t.checked = true
	return nil
}

func (s *Service) broken(t *tree) error {
	s.log.Error("the log in the database is not the one of which a head was signed", "convo", t.convo, "signed",
		t.promised.Size, "now", t.edge.Size)
	return fmt.Errorf("%w: the log is not the one of which a head was signed", ErrNotReady)
}

// sign returns the text of the signed present head of the tree. Errors: ErrNotReady, errors of the
// database.
func (s *Service) sign(ctx context.Context, q pgpool.DB, t *tree) (string, error) {
	if err := s.keepsPromise(ctx, q, t); err != nil {
		return "", err
	}
	ring := s.ring.Load()
	if ring == nil {
		return "", errors.New("sign a head: the keys were not read")
	}
	h := &verifier.Head{
		Service: s.cfg.Service, ConvoID: t.convo.String(), Size: t.edge.Size, Root: t.edge.Root(), Generation: t.generation,
		At: s.cfg.Now(),
	}
	text, err := verifier.Sign(h, ring.signers...)
	if err != nil {
		return "", fmt.Errorf("sign a head: %w", err)
	}
	t.promised = h
	return text, nil
}
