package attachments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// A copy of a database has the same rows, and so the same prefix in the store. The copy does not
// know the objects that were stored after it was made, and would take them for orphans. So one
// object of the store, the claim, says which running database may delete objects there. The claim
// holds two facts that a copy never shares with a running database: when its PostgreSQL was
// started, and the database's OID in that PostgreSQL.
//
//   - The database that the claim names renews it while it sweeps.
//   - After a restart, a failover or a restore in place, the claim names another database, but
//     nobody renews it. Once the claim is claimLife old, the running database takes it over.
//   - A copy that runs beside its original finds a claim that is renewed, and deletes nothing.
//   - A copy in another cluster of PostgreSQL, or of another service, never takes the claim over:
//     the operator decides.
//
// The claim also holds how far the WAL was. If an older copy of the database's files was put back,
// the claim shows it, and PostgreSQL does not.

// ErrOtherDatabase says that the store belongs to another database.
var ErrOtherDatabase = errors.New("the store belongs to another database, of which this one is a copy: nothing is " +
	"deleted")

const (
	// claims is the prefix of the names of claims.
	claims = "databases/"
	// claimLife is how long a claim is valid without renewal.
	claimLife = time.Hour
	// claimRenewal is how old a claim is when it is renewed.
	claimRenewal = claimLife / 6
	// claimSize is larger than any claim, in bytes.
	claimSize = 4096
)

// claim is the content of the claim object.
type claim struct {
	cluster  string // system identifier; unknownCluster if the role may not read it
	database uint32 // OID
	started  int64  // when this PostgreSQL was started, in µs since 1970
	service  string // DID
	renewed  time.Time
	timeline int64 // of the WAL; 0: not known
	wal      int64 // the end of the WAL on the disk
}

const unknownCluster = "unknown"

func (c claim) String() string {
	return fmt.Sprintf("%s %d %d %s %d %d %d", c.cluster, c.database, c.started, c.service, c.renewed.Unix(), c.timeline,
		c.wal)
}

// parseClaim parses a claim object.
func parseClaim(text string) (c claim, err error) {
	var renewed int64
	n, err := fmt.Sscan(text, &c.cluster, &c.database, &c.started, &c.service, &renewed, &c.timeline, &c.wal)
	if n == 5 { // of a node that does not know the WAL
		err = nil
	}
	c.renewed = time.Unix(renewed, 0)
	return c, errs.Wrap(err, "parse the claim of a store")
}

// is reports whether c and other are claims of the same running database.
func (c claim) is(other claim) bool {
	return c.database == other.database && c.started == other.started && c.mayReplace(other)
}

// mayReplace reports whether c may replace other once other is no longer renewed.
func (c claim) mayReplace(other claim) bool {
	sameCluster := c.cluster == other.cluster || c.cluster == unknownCluster || other.cluster == unknownCluster
	return sameCluster && (c.service == other.service || c.isLocal() && other.isLocal())
}

// wentBack reports whether the database of c lacks WAL that it had when it wrote other. After a
// failover or a restore from an archive, the timeline differs, and the nodes notice that.
func (c claim) wentBack(other claim) bool {
	return c.cluster == other.cluster && c.cluster != unknownCluster && c.database == other.database &&
		c.timeline == other.timeline && c.timeline != 0 && c.wal < other.wal
}

// isLocal reports whether the service is only for this machine. The DID of such a service contains
// its port, which can change at each start.
func (c claim) isLocal() bool { return strings.HasPrefix(c.service, "did:web:localhost") }

// claim reports whether the store belongs to this database. If it may take the store over, it does
// so, and reports true from the next round on. By then it would see another database that did the
// same at the same moment. Error: ErrOtherDatabase, if the claim of another database is renewed, or
// may not be replaced.
func (s *Sweeper) claim(ctx context.Context, conn *pgx.Conn) (ours bool, err error) {
	prefix, err := s.service.objects(ctx)
	if err != nil {
		return false, err
	}
	name := claims + strings.TrimSuffix(prefix, "/")
	own, err := s.ownClaim(ctx, conn)
	if err != nil {
		return false, err
	}
	text, err := s.readClaim(ctx, name)
	if errors.Is(err, ErrNoObject) { // a new store, or the operator has decided
		s.other = ""
		return true, s.writeClaim(ctx, name, own)
	}
	if err != nil {
		return false, fmt.Errorf("%w: read the claim: %w", ErrStore, err)
	}
	found, err := parseClaim(text)
	if err != nil {
		return false, err
	}
	age := own.renewed.Sub(found.renewed)
	if s.other == "" && own.wentBack(found) {
		s.log.WarnContext(ctx, "an older copy of the database's files was put back: run mlsd restored, unless you have done "+
			"so since", "lost_wal_bytes", found.wal-own.wal, "seen", found.renewed)
	}
	switch {
	case own.is(found):
		s.other = ""
		if age >= claimRenewal {
			err = s.writeClaim(ctx, name, own)
		}
		return err == nil, err
	case own.mayReplace(found) && age >= claimLife:
		s.log.WarnContext(ctx, "the store of attachments is taken over from a database that does not renew its claim",
			"claim", text)
		return false, s.writeClaim(ctx, name, own)
	case own.mayReplace(found) && (s.other == "" || s.other == text):
		if s.other == "" {
			s.log.InfoContext(ctx, "nothing is deleted from the store of attachments: PostgreSQL was started anew, or "+
				"another database uses the store",
				"claim", text, "for", claimLife-age)
		}
		s.other = text
		return false, nil
	}
	return false, fmt.Errorf("%w; if this database has taken the other's place, delete the object %s", ErrOtherDatabase,
		name)
}

// ownClaim is the claim that this database would write now.
func (s *Sweeper) ownClaim(ctx context.Context, conn *pgx.Conn) (c claim, err error) {
	c.service = s.service.cfg.ServiceDID.String()
	err = conn.QueryRow(ctx, `
		SELECT oid, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, clock_timestamp()
		FROM pg_database WHERE datname = current_database()`).Scan(&c.database, &c.started, &c.renewed)
	if err != nil {
		return c, fmt.Errorf("read which database this is: %w", err)
	}
	err = conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_control_system()`).Scan(&c.cluster)
	if pgpool.Code(err) == forbidden {
		c.cluster, err = unknownCluster, nil
	}
	if err != nil {
		return c, fmt.Errorf("read the system identifier: %w", err)
	}
	err = conn.QueryRow(ctx, `
		SELECT ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint,
			(pg_current_wal_flush_lsn() - '0/0')::bigint`).Scan(&c.timeline, &c.wal)
	if pgpool.Code(err) == forbidden {
		err = nil
	}
	return c, errs.Wrap(err, "read the end of the WAL")
}

// forbidden is PostgreSQL's code if a managed service forbids us to read the system identifier
// or the WAL's end.
const forbidden = "42501"

// readClaim reads a claim. Errors: ErrNoObject, errors of the store.
func (s *Sweeper) readClaim(ctx context.Context, name string) (string, error) {
	body, err := s.store.Open(ctx, name, 0, claimSize)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(body, claimSize))
	return string(text), errors.Join(err, body.Close())
}

func (s *Sweeper) writeClaim(ctx context.Context, name string, c claim) error {
	text := c.String()
	if err := s.store.Put(ctx, name, strings.NewReader(text), int64(len(text))); err != nil {
		return fmt.Errorf("%w: write the claim: %w", ErrStore, err)
	}
	return nil
}
