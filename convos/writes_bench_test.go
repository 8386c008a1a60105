package convos_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/welcome"
)

// BenchmarkWrites measures the writes besides sendMessage, as their methods make them: calls a
// second, median time and round trips of a call, with one and with 128 in flight.
func BenchmarkWrites(b *testing.B) {
	for _, write := range []struct {
		name string
		make func(w *writes, b *testing.B, n int) func(ctx context.Context, i int) error
	}{
		{"updateCursor", (*writes).updateCursor},
		{"updateCursor-one-reader", (*writes).updateCursorOneReader},
		{"getWelcome", (*writes).getWelcome},
		{"getWelcome-again", (*writes).getWelcomeAgain},
		{"confirmWelcome", (*writes).confirmWelcome},
		{"publishKeyPackage", (*writes).publishKeyPackage},
		{"publishKeyPackage-keyed", (*writes).publishKeyPackageKeyed},
		{"getKeyPackages", (*writes).getKeyPackages},
		{"getKeyPackages-keyed", (*writes).getKeyPackagesKeyed},
		{"createConvo", (*writes).createConvo},
	} {
		for _, inFlight := range []int{1, 128} {
			b.Run(fmt.Sprintf("%s/in-flight=%d", write.name, inFlight), func(b *testing.B) {
				n := b.N
				w := newWrites(b)
				const warm = 128
				call := write.make(w, b, n+warm)
				pgtest.Run(b, min(inFlight, 32), warm, call)
				trips := w.trips.Count()
				b.ResetTimer()
				load := pgtest.Run(b, inFlight, n, func(ctx context.Context, i int) error { return call(ctx, warm+i) })
				b.StopTimer()
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(load.Rate, "calls/s")
				b.ReportMetric(float64(load.P50.Microseconds()), "µs-p50")
				b.ReportMetric(float64(w.trips.Count()-trips)/float64(n), "trips/call")
			})
		}
	}
}

// writes is a database, and what the methods write to it with.
type writes struct {
	db      *pgxpool.Pool
	trips   pgtest.Trips
	store   *idem.Store
	cursors *convos.Cursors
	service *welcome.Service
}

func newWrites(b *testing.B) *writes {
	w := &writes{}
	w.db = pgtest.Database(b, pgtest.MaxConns(32), pgtest.CountTrips(&w.trips))
	w.store = idem.New(w.db, uncounted{}, slog.New(slog.DiscardHandler), nil)
	w.cursors = convos.NewCursors(w.db, nil, notShown)
	w.service = welcome.New(w.db, welcome.Policy{Grace: time.Hour, OnExpiry: welcome.Release}, func(welcome.Outcome) {},
		slog.New(slog.DiscardHandler), nil)
	return w
}

func (w *writes) exec(b *testing.B, sql string, args ...any) {
	b.Helper()
	if _, err := w.db.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

func nth(i int) uuid.UUID { return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)) }

func reader(i int) syntax.DID { return syntax.DID(fmt.Sprintf("did:plc:reader%d", i)) }

// convos makes n convos with a member each.
func (w *writes) convos(b *testing.B, n int) {
	ids, dids := make([]uuid.UUID, n), make([]string, n)
	for i := range n {
		ids[i], dids[i] = nth(i), reader(i).String()
	}
	w.exec(b, `
		WITH new AS (SELECT * FROM unnest($1::uuid[], $2::text[]) AS n (id, did)), convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
			SELECT id, uuid_send(id), did, 1, 1, 1 << 50, now() FROM (SELECT id, did FROM new) n
		)
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq) SELECT id, did, 'creator', now(), 0 FROM new`, ids,
		dids)
	w.exec(b, `VACUUM ANALYZE convos, members`)
}

func (w *writes) moveCursor(ctx context.Context, convo uuid.UUID, did syntax.DID, seq int64) error {
	_, err := w.cursors.UpdateRead(ctx, convo, did, seq)
	return err
}

func (w *writes) updateCursor(b *testing.B, _ int) func(context.Context, int) error {
	const readers = 1000
	w.convos(b, readers)
	return func(ctx context.Context, i int) error {
		return w.moveCursor(ctx, nth(i%readers), reader(i%readers), int64(1+i/readers))
	}
}

func (w *writes) updateCursorOneReader(b *testing.B, _ int) func(context.Context, int) error {
	w.convos(b, 1)
	return func(ctx context.Context, i int) error { return w.moveCursor(ctx, nth(0), reader(0), int64(1+i)) }
}

// welcomes makes n convos with a Welcome in each.
func (w *writes) welcomes(b *testing.B, n int, fetched bool) {
	w.convos(b, n)
	ids, dids := make([]uuid.UUID, n), make([]string, n)
	for i := range n {
		ids[i], dids[i] = nth(i), reader(i).String()
	}
	w.exec(b, `
		INSERT INTO welcome_bodies (convo_id, epoch, body, created_at) SELECT unnest($1::uuid[]), 1, repeat('w', 800)::bytea,
			now()`, ids)
	w.exec(b, `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
		SELECT id, id, did, 'phone', 'ref', 1, now() FROM unnest($1::uuid[], $2::text[]) AS n (id, did)`, ids, dids)
	if fetched {
		w.exec(b, `UPDATE welcomes SET state = 'in_flight', attempts = 1, version = 1, grace_expires_at = now() + interval
				'1 hour'`)
	}
	w.exec(b, `VACUUM ANALYZE welcomes, welcome_bodies`)
}

func (w *writes) fetch(ctx context.Context, i int) error {
	_, err := w.service.Fetch(ctx, nth(i), device(i))
	return err
}

func device(i int) welcome.Device { return welcome.Device{DID: reader(i), DeviceID: "phone"} }

func (w *writes) getWelcome(b *testing.B, n int) func(context.Context, int) error {
	w.welcomes(b, n, false)
	return func(ctx context.Context, i int) error { return w.fetch(ctx, i) }
}

func (w *writes) getWelcomeAgain(b *testing.B, _ int) func(context.Context, int) error {
	const recipients = 1000
	w.welcomes(b, recipients, true)
	return func(ctx context.Context, i int) error { return w.fetch(ctx, i%recipients) }
}

func (w *writes) confirmWelcome(b *testing.B, n int) func(context.Context, int) error {
	w.welcomes(b, n, true)
	return func(ctx context.Context, i int) error {
		_, _, err := w.service.Confirm(ctx, nth(i), device(i), true, "")
		return err
	}
}

func (w *writes) publish(b *testing.B, n int, key func(i int) string) func(context.Context, int) error {
	const owners = 64
	bodies, devices := make([][]byte, n), [owners]*mlstest.Device{}
	for i := range devices {
		devices[i] = mlstest.NewDevice(b, reader(i).String())
	}
	for i := range bodies {
		bodies[i], _ = devices[i%owners].KeyPackage(b)
	}
	return func(ctx context.Context, i int) error {
		if i/owners%400 == 399 && i%owners == 0 { // before the owners have too many
			if _, err := w.db.Exec(ctx, `DELETE FROM key_packages`); err != nil {
				return err
			}
		}
		req := idem.Request{Caller: reader(i % owners), NSID: "blue.catbird.mls.publishKeyPackage", Key: key(i),
			Input: content}
		_, err := w.store.Do(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			p := keypackages.Publication{Owner: reader(i % owners), Body: bodies[i], CipherSuite: mlstest.Suite}
			_, err := keypackages.Publish(ctx, tx, p)
			return make([]byte, 90), err
		})
		return err
	}
}

var content = idem.Content{{Name: "keyPackage", JSON: []byte(`"the KeyPackage"`)},
	{Name: "cipherSuite", JSON: []byte(`"suite"`)}}

func noKey(int) string { return "" }

func aKey(i int) string { return fmt.Sprint("key ", i) }

func (w *writes) publishKeyPackage(b *testing.B, n int) func(context.Context, int) error {
	return w.publish(b, n, noKey)
}

func (w *writes) publishKeyPackageKeyed(b *testing.B, n int) func(context.Context, int) error {
	return w.publish(b, n, aKey)
}

// stock gives n owners three KeyPackages each, and a signal that these are few.
func (w *writes) stock(b *testing.B, n int) {
	dids := make([]string, n)
	for i := range n {
		dids[i] = reader(i).String()
	}
	w.exec(b, `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
		SELECT did, decode(md5(did || k), 'hex'), 'phone', $2, decode(repeat('ab', 300), 'hex'), now() + interval '30 days',
			false, now()
		FROM unnest($1::text[]) AS did, generate_series(1, 3) AS k`, dids, int32(mlstest.Suite))
	w.exec(b, `
		INSERT INTO key_package_signals SELECT did, 'phone', $2, 'low', 2, now() FROM unnest($1::text[]) AS did`, dids,
		int32(mlstest.Suite))
	w.exec(b, `VACUUM ANALYZE key_packages, key_package_signals`)
}

func (w *writes) claim(b *testing.B, n int, key func(i int) string) func(context.Context, int) error {
	w.stock(b, n)
	return func(ctx context.Context, i int) error {
		caller := syntax.DID(fmt.Sprintf("did:plc:caller%d", i))
		req := idem.Request{Caller: caller, NSID: "blue.catbird.mls.getKeyPackages", Key: key(i), Input: content}
		_, err := w.store.Do(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			taken, err := keypackages.Claim(ctx, tx,
				keypackages.ClaimRequest{Caller: caller, DIDs: []syntax.DID{reader(i)}, CipherSuite: mlstest.Suite})
			if err == nil && len(taken.Claimed) != 1 {
				err = fmt.Errorf("claimed %+v", taken)
			}
			return make([]byte, 600), err
		})
		return err
	}
}

func (w *writes) getKeyPackages(b *testing.B, n int) func(context.Context, int) error {
	return w.claim(b, n, noKey)
}

func (w *writes) getKeyPackagesKeyed(b *testing.B, n int) func(context.Context, int) error {
	return w.claim(b, n, aKey)
}

func (w *writes) createConvo(b *testing.B, _ int) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		req := idem.Request{Caller: reader(i % 1000), NSID: "blue.catbird.mls.createConvo", Key: aKey(i), Input: content}
		_, err := w.store.Do(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			group := nth(i)
			_, err := convos.Create(ctx, tx,
				convos.NewConvo{Creator: req.Caller, GroupID: group[:], CipherSuite: mlstest.Suite, Key: req.Key})
			return make([]byte, 400), err
		})
		return err
	}
}
