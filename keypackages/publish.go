package keypackages

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Publication is a KeyPackage as its owner offers it.
type Publication struct {
	Owner       syntax.DID
	Device      string // device that the KeyPackage must belong to; "" means any
	Body        []byte
	CipherSuite mls.CipherSuite
	Expires     *time.Time // when it is served no longer; nil means as long as ServedLife is left
	Key         string     // the idempotency key if it covers only this publication, else ""

	checked *checked // nil until PublishAll sets it
}

// Published is the outcome of one publication.
type Published struct {
	Ref       mls.KeyPackageRef // nil if Err is set
	Duplicate bool              // the same KeyPackage was published before
	Err       error             // *InvalidError, ErrTooMany or ErrExpirationTooFar
	Early     bool              // Err does not depend on the signatures, as with the wrong clock of a device
}

// Publish is PublishAll for one publication. It also returns the error of Published.
func Publish(ctx context.Context, tx pgx.Tx, p Publication) (mls.KeyPackageRef, error) {
	published, err := PublishAll(ctx, tx, []Publication{p})
	if err != nil {
		return nil, err
	}
	return published[0].Ref, published[0].Err
}

// UnverifiedError says that the signatures of a batch must be verified outside a transaction. The
// caller of this package ends the transaction, calls Verify, and tries again with the same batch.
type UnverifiedError struct {
	Bytes  int    // size of the KeyPackages
	Verify func() // stores the results in the batch
}

func (*UnverifiedError) Error() string {
	return "the signatures of a batch of KeyPackages are not verified inside a transaction"
}

// PublishAll judges each publication on its own and makes the valid ones available. All must have
// the same owner. To publish the same KeyPackage again changes nothing, whatever its state: its
// KeyPackageRef identifies it.
//
// Errors: *UnverifiedError, errors of the database. The former is returned if the batch has several
// publications, and one that could be published is not verified yet.
func PublishAll(ctx context.Context, tx pgx.Tx, batch []Publication) ([]Published, error) {
	out := make([]Published, len(batch))
	var initKeys [][]byte
	for i := range batch {
		if err := batch[i].parse(); err != nil {
			out[i] = Published{Err: err, Early: true}
		} else {
			initKeys = append(initKeys, batch[i].checked.kp.InitKey)
		}
	}
	if len(initKeys) == 0 {
		return out, nil
	}
	if len(batch) == 1 { // verify the two signatures before the lock is taken
		batch[0].verify()
	}
	s, err := lockStock(ctx, tx, batch[0].Owner, initKeys)
	if err != nil {
		return nil, err
	}
	for i := range batch {
		if out[i].Err != nil {
			continue
		}
		if err := batch[i].validAt(s.now); err != nil {
			out[i] = Published{Err: err, Early: true}
		}
	}
	if err := s.unverified(batch, out); err != nil {
		return nil, err
	}
	var fresh []admitted
	for i, p := range batch {
		if out[i].Err != nil {
			continue
		}
		if out[i] = s.admit(p.checked); out[i].Err == nil && !out[i].Duplicate {
			fresh = append(fresh, admitted{p, p.checked.kp})
		}
	}
	return out, insert(ctx, tx, fresh)
}

// checked is a parsed KeyPackage and the result of the verification of its signatures.
type checked struct {
	kp           *mls.KeyPackage // if nil, parseErr says why
	parseErr     error
	verified     bool
	signatureErr error // result of the verification; nil if the signatures are good
}

// parse parses the KeyPackage, once.
func (p *Publication) parse() error {
	if p.checked == nil {
		p.checked = &checked{}
		kp, err := mls.ParseKeyPackage(p.Body)
		if p.checked.kp = kp; err != nil {
			p.checked.parseErr = &InvalidError{Reason: err.Error()}
		}
	}
	return p.checked.parseErr
}

// verify verifies the signatures of a KeyPackage that its publisher can publish.
func (p *Publication) verify() {
	if p.checkPublisher() != nil {
		return
	}
	if err := p.checked.kp.VerifySignatures(); err != nil {
		p.checked.signatureErr = &InvalidError{Reason: err.Error()}
	}
	p.checked.verified = true
}

// checkPublisher checks that the publisher can publish this KeyPackage.
func (p *Publication) checkPublisher() error {
	kp := p.checked.kp
	switch {
	case kp.CipherSuite != p.CipherSuite:
		return &InvalidError{Reason: fmt.Sprintf("cipherSuite is %s, and the KeyPackage of %s", p.CipherSuite,
			kp.CipherSuite)}
	case kp.CredentialType != mls.CredentialTypeBasic:
		return &InvalidError{Reason: fmt.Sprintf("credential: of type %s; only a basic credential names an account: its "+
			"identity is the DID, %s (RFC 9420 §5.3)", kp.CredentialType, p.Owner)}
	case !kp.BelongsTo(p.Owner.String()):
		return &InvalidError{Reason: "credential: its identity is not the caller's DID, " + p.Owner.String()}
	case p.Device != "" && kp.DeviceID() != p.Device:
		return &InvalidError{Reason: "signature_key: of device " + kp.DeviceID() + ", and the session is of " + p.Device}
	}
	return nil
}

// validAt checks the KeyPackage at the time of its publication, except its signatures.
func (p *Publication) validAt(now time.Time) error {
	switch {
	case p.Expires != nil && p.Expires.Sub(now) > MaxLifetime:
		return fmt.Errorf("%w: it is %s, and the server's time %s", ErrExpirationTooFar, p.Expires.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339))
	case p.Expires != nil && !p.Expires.After(now):
		return &InvalidError{Reason: fmt.Sprintf("expires is %s, and must be after the server's time, %s",
			p.Expires.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))}
	}
	if err := p.checkPublisher(); err != nil {
		return err
	}
	if err := p.checked.kp.Check(now); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if end := p.checked.kp.NotAfter; end.Sub(now) < ServedLife {
		return &InvalidError{Reason: fmt.Sprintf("Lifetime.not_after is %s, and must be %s after the server's time, %s; "+
			"give it a longer lifetime", end.Format(time.RFC3339), ServedLife, now.UTC().Format(time.RFC3339))}
	}
	return nil
}

// ownerStock is the data that decides whether an owner can publish more.
type ownerStock struct {
	now       time.Time                    // by the database's clock
	initKeys  map[string]mls.KeyPackageRef // the KeyPackage that used the init_key; missing if none did
	available int
	unclaimed int
}

// lockStock locks the owner's stock and reads it. Publications of one owner run one after the
// other, so that the bounds hold and no init_key is used twice.
func lockStock(ctx context.Context, tx pgx.Tx, owner syntax.DID, initKeys [][]byte) (ownerStock, error) {
	s := ownerStock{initKeys: map[string]mls.KeyPackageRef{}}
	var b pgx.Batch
	pgpool.LockStocks.Queue(&b, owner.String())
	b.Queue(`SELECT init_key, ref FROM key_package_init_keys WHERE did = $1 AND init_key = ANY($2)`, owner, initKeys).
		Query(func(rows pgx.Rows) error {
			var initKey, ref []byte
			_, err := pgx.ForEachRow(rows, []any{&initKey, &ref}, func() error {
				s.initKeys[string(initKey)] = ref
				return nil
			})
			return err
		})
	b.Queue(`
		SELECT count(*) FILTER (WHERE state = 'available' AND not_after > clock_timestamp()), count(*), clock_timestamp()
		FROM key_packages WHERE did = $1 AND state IN ('available', 'expired')`, owner).
		QueryRow(func(row pgx.Row) error { return row.Scan(&s.available, &s.unclaimed, &s.now) })
	err := tx.SendBatch(ctx, &b).Close()
	return s, errs.Wrap(err, "read the owner's stock")
}

// has reports whether the KeyPackage was published before. Its signatures were verified at that
// time.
func (s *ownerStock) has(kp *mls.KeyPackage) bool {
	ref, used := s.initKeys[string(kp.InitKey)]
	return used && ref.String() == kp.Ref.String()
}

// unverified returns an *UnverifiedError for the valid publications that are new and not verified,
// or nil if there are none. out has the errors of invalid publications.
func (s *ownerStock) unverified(batch []Publication, out []Published) error {
	var todo []*Publication
	n := 0
	for i := range batch {
		if p := &batch[i]; out[i].Err == nil && !p.checked.verified && !s.has(p.checked.kp) {
			todo = append(todo, p)
			n += len(p.Body)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	return &UnverifiedError{Bytes: n, Verify: func() {
		for _, p := range todo {
			p.verify()
		}
	}}
}

// admit decides whether a valid KeyPackage can be published. If so, it counts the KeyPackage.
func (s *ownerStock) admit(c *checked) Published {
	kp := c.kp
	_, used := s.initKeys[string(kp.InitKey)]
	switch {
	case s.has(kp):
		return Published{Ref: kp.Ref, Duplicate: true}
	case c.signatureErr != nil:
		return Published{Err: c.signatureErr}
	case used:
		return Published{Err: &InvalidError{Reason: "init_key: used by another KeyPackage before (RFC 9420 §10)"}}
	case s.available >= MaxAvailable || s.unclaimed >= MaxUnclaimed:
		return Published{Err: ErrTooMany}
	}
	s.initKeys[string(kp.InitKey)] = kp.Ref
	s.available++
	s.unclaimed++
	return Published{Ref: kp.Ref}
}

// admitted is a publication to be stored.
type admitted struct {
	Publication
	kp *mls.KeyPackage
}

// notAfter returns the time from which the KeyPackage is not served.
func (a admitted) notAfter() time.Time {
	served := a.kp.NotAfter.Add(-ServedLife)
	if a.Expires != nil && a.Expires.Before(served) {
		return *a.Expires
	}
	return served
}

func insert(ctx context.Context, tx pgx.Tx, fresh []admitted) error {
	if len(fresh) == 0 {
		return nil
	}
	n := len(fresh)
	refs, initKeys, bodies := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	devices, keys := make([]string, n), make([]string, n)
	suites, notAfter, lastResort := make([]int32, n), make([]time.Time, n), make([]bool, n)
	for i, a := range fresh {
		refs[i], initKeys[i], bodies[i] = a.kp.Ref, a.kp.InitKey, a.Body
		devices[i], keys[i] = a.kp.DeviceID(), a.Key
		suites[i], notAfter[i], lastResort[i] = int32(a.kp.CipherSuite), a.notAfter(), a.kp.LastResort
	}
	owner := fresh[0].Owner
	var b pgx.Batch
	b.Queue(`
		WITH used_init_keys AS (
			INSERT INTO key_package_init_keys (did, ref, init_key) SELECT $1, * FROM unnest($2::bytea[], $3::bytea[])
		)
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, idempotency_key,
			created_at)
		SELECT $1, ref, device_id, cipher_suite, body, not_after, last_resort, nullif(key, ''), clock_timestamp()
		FROM unnest($2::bytea[], $4::text[], $5::integer[], $6::bytea[], $7::timestamptz[], $8::boolean[], $9::text[])
			AS o (ref, device_id, cipher_suite, body, not_after, last_resort, key)`,
		owner, refs, initKeys, devices, suites, bodies, notAfter, lastResort, keys)
	b.Queue(endSignals, owner, devices, suites, Threshold)
	return errs.Wrap(tx.SendBatch(ctx, &b).Close(), "insert the KeyPackages")
}
