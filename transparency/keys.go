package transparency

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/transparency/verifier"
)

// Load reads the keys that sign heads, and makes the first one. The key is in the database, so all
// nodes have the same one. If there are several with a seed, all of them sign: a client that knows
// the older one accepts the newer one with it.
func (s *Service) Load(ctx context.Context) error {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	err := pgx.BeginFunc(ctx, s.cfg.DB, func(tx pgx.Tx) error {
		const keyLock, lockSpace = 31, 0x6d6c7364 // "mlsd"
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockSpace, keyLock); err != nil {
			return err
		}
		// A statement of its own, so that it sees what the lock has waited for.
		_, err := tx.Exec(ctx, `
			INSERT INTO log_keys (seed, public, created_at)
			SELECT $1, $2, clock_timestamp() WHERE NOT EXISTS (SELECT FROM log_keys WHERE seed IS NOT NULL)`, seed, []byte(public))
		return err
	})
	if err != nil {
		return fmt.Errorf("make the key of log heads: %w", err)
	}
	return s.readKeys(ctx)
}

func (s *Service) readKeys(ctx context.Context) error {
	rows, err := s.cfg.DB.Query(ctx, `SELECT seed, public FROM log_keys ORDER BY id`)
	if err != nil {
		return fmt.Errorf("read the keys of log heads: %w", err)
	}
	var signers []note.Signer
	var texts []string
	var seed, public []byte
	_, err = pgx.ForEachRow(rows, []any{&seed, &public}, func() error {
		text, err := verifier.PublicKey(s.cfg.Service, public)
		if err != nil {
			return err
		}
		texts = append(texts, text)
		if seed != nil {
			signer, err := verifier.Signer(s.cfg.Service, ed25519.NewKeyFromSeed(seed))
			if err != nil {
				return err
			}
			signers = append(signers, signer)
		}
		seed, public = nil, nil // the next row has memory of its own
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the keys of log heads: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signers, s.public = signers, texts
	return nil
}

// Keys are the keys that check heads, also those that sign no more.
func (s *Service) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.public
}

// keepsPromise checks that a tree that was begun anew begins with the last head that this node has
// signed in the generation. Otherwise somebody has changed the log in the database, and a second head
// would only prove it: there is none. Error: ErrNotReady.
func (s *Service) keepsPromise(ctx context.Context, q querier, t *tree) error {
	if h := t.promised; !t.checked && h != nil && h.Generation == t.generation && h.Size > 0 {
		if h.Size > t.edge.Size {
			return s.broken(t)
		}
		root, err := tlog.TreeHash(h.Size, storedHashes{ctx: ctx, q: q, convo: t.convo, tail: t.tail, base: t.edge.Size - int64(len(t.tail))})
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
	s.cfg.Log.Error("the log in the database is not the one of which a head was signed", "convo", t.convo, "signed", t.promised.Size, "now", t.edge.Size)
	return fmt.Errorf("%w: the log is not the one of which a head was signed", ErrNotReady)
}

// sign signs what the tree is now. Errors: ErrNotReady.
func (s *Service) sign(ctx context.Context, q querier, t *tree) error {
	if err := s.keepsPromise(ctx, q, t); err != nil {
		return err
	}
	s.mu.Lock()
	signers := s.signers
	s.mu.Unlock()
	if len(signers) == 0 {
		return errors.New("sign a head: the keys were not read")
	}
	h := &verifier.Head{
		Service: s.cfg.Service, ConvoID: t.convo.String(), Size: t.edge.Size, Root: t.edge.Root(), Generation: t.generation, At: s.cfg.Now(),
	}
	text, err := verifier.Sign(h, signers...)
	if err != nil {
		return fmt.Errorf("sign a head: %w", err)
	}
	t.head, t.rides, t.promised = &Signed{Text: text, Size: h.Size, at: h.At}, 0, h
	return nil
}
