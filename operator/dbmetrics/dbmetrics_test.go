package dbmetrics_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/await"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/testdir"
	"mlsd/operator/dbmetrics"
)

func execute(t *testing.T, db *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// scrape returns the metrics of a collector by name and label value.
func scrape(t *testing.T, c *dbmetrics.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := []string{f.GetName()}
			for _, l := range m.Label {
				name = append(name, l.GetValue())
			}
			got[strings.Join(name, " ")] = m.GetGauge().GetValue()
		}
	}
	return got
}

// want compares the metrics that want names.
func want(t *testing.T, got, want map[string]float64) {
	t.Helper()
	found := map[string]float64{}
	for name := range want {
		if value, ok := got[name]; ok {
			found[name] = value
		}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)
	want(t, scrape(t, c), map[string]float64{
		"mlsd_database_up": 1, "mlsd_reservations processing": 0, "mlsd_reservations_stuck": 0, "mlsd_records_expired": 0,
		"mlsd_welcomes available": 0, "mlsd_welcome_oldest_in_flight_seconds": 0, "mlsd_key_packages available": 0,
		"mlsd_key_package_signals low": 0, "mlsd_overdue_rows welcomes": 0, "mlsd_welcomes_many_attempts": 0,
		"mlsd_erasures_running": 0, "mlsd_erasure_oldest_batch_seconds": 0,
		"mlsd_wal_archive_failing": 0, "mlsd_outbox_events": 0, "mlsd_abuse_reports_open": 0,
		"mlsd_abuse_report_oldest_seconds": 0,
		"mlsd_attachment_uploads":          0, "mlsd_attachment_deletions": 0, "mlsd_attachment_deletion_bytes": 0,
		"mlsd_attachment_deletion_oldest_seconds": 0,
	})
	execute(t, db, `
		INSERT INTO outbox (kind, convo_id, seq, created_at) VALUES (3, gen_random_uuid(), 1, now());
		INSERT INTO outbox (kind, convo_ids, seqs, sizes, created_at)
		VALUES (1, ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{1,1,1}', '{1,1,1}', now())`)
	execute(t, db, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at, state, started_at, lease_expires_at)
		SELECT 'mlsd', 'push', '', n::text, '', '{}', '', now(), now() + interval '1 day', 'processing', now(),
			now() + CASE WHEN n > 3 THEN interval '1 hour' ELSE - n * interval '1 minute' END
		FROM generate_series(1, 5) n`, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at)
		SELECT 'did:plc:a', 'add', '', n::text, '', '{}', 'x', now(), now() - CASE WHEN n > 4 THEN interval '2 days' ELSE
			interval '1 hour' END
		FROM generate_series(1, 6) n`, `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, fetched_at,
			grace_expires_at, created_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'did:plc:a', '', '', 1, 'in_flight', now() - n * interval '10 minutes',
			now() - n * interval '10 minutes' + interval '5 minutes', now()
		FROM generate_series(0, 3) n`, `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, attempts, confirmed_at,
			created_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'did:plc:b', '', '', 1, CASE WHEN n < 7 THEN 'available' ELSE 'consumed'
			END, n,
			CASE WHEN n >= 7 THEN now() END, now()
		FROM generate_series(3, 8) n`, `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		SELECT 'did:plc:a', n::text::bytea, '', 1, '', now(), n > 7, 'available', now() FROM generate_series(1, 9) n`, `
		INSERT INTO key_package_signals VALUES ('did:plc:a', '', 1, 'low', 7, now())`, `
		INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version, at)
		SELECT 'welcome', '', '', '', '', '', 1, now() - n * interval '25 minutes' FROM generate_series(0, 3) n`)
	execute(t, db, `
		INSERT INTO erasures (id, did, salt, requested_by, reason, state, not_before, begun_at, moved_at, finished_at)
		VALUES (gen_random_uuid(), 'did:plc:a', '', 'account', '', 'running', now(), now() - interval '9 hours', now() -
			interval '10 minutes', NULL),
			(gen_random_uuid(), 'did:plc:b', '', 'account', '', 'running', now(), now() - interval '20 minutes', NULL, NULL),
			(gen_random_uuid(), 'did:plc:c', NULL, 'account', '', 'finished', now(), now() - interval '9 hours', now() - interval
				'8 hours', now())`)
	execute(t, db, `
		INSERT INTO abuse_reports (id, convo_id, reporter, reason, key_id, binding, digest, sealed, reported_at, state,
			closed_at, closed_by, note)
		SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, gen_random_uuid(), 'did:plc:a', 'spam', 'k',
			sha256(n::text::bytea), sha256(''), '',
			now() - (10 - n) * interval '1 hour', CASE WHEN n > 2 THEN 'open' ELSE 'closed' END,
			CASE WHEN n <= 2 THEN now() END, CASE WHEN n <= 2 THEN 'olga' END, CASE WHEN n <= 2 THEN '' END
		FROM generate_series(1, 5) n`)
	execute(t, db, `
		INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size, state, seq, failure, kept_from,
			touched_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'did:plc:a', n * 1000, sha256(''), 100, state, 1, CASE state WHEN
			'failed' THEN 'why' END, now(),
			now() - n * interval '1 hour'
		FROM unnest(ARRAY['deleted', 'deleted', 'uploading', 'uploading', 'checking', 'failed', 'complete']) WITH ORDINALITY
			AS a (state, n)`)
	got := scrape(t, c)
	want(t, got, map[string]float64{
		"mlsd_reservations processing": 5, "mlsd_reservations_stuck": 3, "mlsd_records push": 5, "mlsd_records add": 6,
		"mlsd_records_expired": 6, "mlsd_welcomes in_flight": 4, "mlsd_welcomes available": 4,
		"mlsd_welcomes_many_attempts": 2, "mlsd_key_packages available": 7,
		"mlsd_key_packages last_resort": 2, "mlsd_key_package_signals low": 1, "mlsd_audit_rows_last_hour welcome": 3,
		"mlsd_overdue_rows welcomes": 3, "mlsd_overdue_rows records": 2, "mlsd_overdue_rows key_packages": 0,
		"mlsd_erasures_running": 2, "mlsd_outbox_events": 4, "mlsd_abuse_reports_open": 3,
		"mlsd_attachment_uploads": 3, "mlsd_attachment_deletions": 2, "mlsd_attachment_deletion_bytes": 3000,
	})
	for name, least := range map[string]float64{
		"mlsd_welcome_oldest_in_flight_seconds": 1800, "mlsd_reservation_oldest_lapsed_seconds": 180,
		"mlsd_erasure_oldest_batch_seconds": 1200, "mlsd_abuse_report_oldest_seconds": 7 * 3600,
		"mlsd_attachment_deletion_oldest_seconds": 2 * 3600,
	} {
		if got[name] < least || got[name] > least+60 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

// Finding S8: messages whose bytes were sent before are counted, the first one is not. Those of
// other senders, convos and epochs are others.
func TestRepeatedMessages(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)
	want(t, scrape(t, c), map[string]float64{"mlsd_messages_repeated": 0})
	execute(t, db, `CREATE TABLE events_20200101 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')`, `
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT lpad(convo::text, 32, '0')::uuid, seq, kind, sender, epoch, body::bytea, seq::text, '', now()
		FROM (VALUES
			(1, 1, 1, 'a', 1, 'same'), (1, 2, 1, 'a', 1, 'same'), (1, 3, 1, 'a', 1, 'same'), (1, 4, 1, 'b', 1, 'same'), (1, 5, 1,
				'a', 2, 'same'),
			(1, 6, 1, 'a', 1, 'other'), (1, 7, 2, 'a', 1, 'proposal'), (1, 8, 2, 'a', 1, 'proposal'), (2, 1, 1, 'a', 1, 'same'),
			(2, 2, 1, 'c', 1, repeat('x', 3000)), (2, 3, 1, 'c', 1, repeat('x', 3000)), (2, 4, 1, 'c', 1, repeat('x', 2999))
		) AS m (convo, seq, kind, sender, epoch, body)`, `
		INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at)
		SELECT row_number() OVER (), '2020-01-01', kind, convo_id, seq, 0, now() FROM messages`)
	want(t, scrape(t, c), map[string]float64{"mlsd_messages_repeated": 3})
}

// The records of all callers are counted, even if row-level security applies to the server's
// account.
func TestUnderRowSecurity(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	execute(t, pgtest.Connect(t, url), `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at)
		SELECT 'did:plc:' || n, 'add', '', '', '', '{}', 'x', now(), now() FROM generate_series(1, 6) n`)
	db := pgtest.Connect(t, url, pgtest.Role("mlsd_app"))
	want(t, scrape(t, dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)), map[string]float64{
		"mlsd_database_up": 1, "mlsd_records add": 6, "mlsd_records_expired": 6,
	})
}

// The metrics of a large table are counted in a sample and are about right.
func TestSample(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	const n = 60000
	execute(t, db, `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		SELECT 'did:plc:a', n::text::bytea, '', 1, repeat('x', 200)::bytea, now(), false,
			CASE WHEN n % 4 = 0 THEN 'consumed' ELSE 'available' END, now() FROM generate_series(1, 60000) n`)
	collector := dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)
	got := scrape(t, collector)
	for state, share := range map[string]float64{"available": .75, "consumed": .25} {
		if counted := got["mlsd_key_packages "+state]; counted < .7*n*share || counted > 1.3*n*share {
			t.Errorf("%v are %s, of %v", counted, state, n*share)
		}
	}
	// A sample can hit the true count by chance, but not each time.
	for range 20 {
		if scrape(t, collector)["mlsd_key_packages available"] != .75*n {
			return
		}
	}
	t.Error("all rows are counted each time")
}

// A collector reads once in its interval. If it cannot read, it reports no old values, and a line
// names the metric that it could not read (G14: and not how the metric is described).
func TestReadingIsRareAndHonest(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	var lines strings.Builder
	rare, often := dbmetrics.New(db, slog.New(slog.DiscardHandler), time.Hour, time.Now),
		dbmetrics.New(db, slog.New(slog.NewTextHandler(&lines, nil)), 0, time.Now)
	for _, c := range []*dbmetrics.Collector{rare, often} {
		want(t, scrape(t, c), map[string]float64{"mlsd_database_up": 1, "mlsd_key_package_signals low": 0})
	}
	execute(t, db, `INSERT INTO key_package_signals VALUES ('did:plc:a', '', 1, 'low', 7, now())`)
	want(t, scrape(t, rare), map[string]float64{"mlsd_key_package_signals low": 0})
	want(t, scrape(t, often), map[string]float64{"mlsd_key_package_signals low": 1})
	execute(t, db, `DROP TABLE key_package_signals`)
	if diff := cmp.Diff(map[string]float64{"mlsd_database_up": 0}, scrape(t, often)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(lines.String(), `error="mlsd_key_package_signals: ERROR: `) {
		t.Errorf("the line does not name the metric: %s", lines.String())
	}
}

// The age of the oldest transaction id grows with each write, and falls with a freeze.
func TestTransactionIDAge(t *testing.T) {
	t.Parallel()
	own, err := localpg.Start(t.Context(), localpg.Config{DataDir: pgtest.DataDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	db, err := pgpool.OpenMaintenance(t.Context(), own.ConnString(localpg.Database))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)
	age := func() float64 {
		t.Helper()
		got, found := scrape(t, c)["mlsd_transaction_id_age"]
		if !found {
			t.Fatal("there is no metric")
		}
		return got
	}
	before := age()
	for range 100 {
		execute(t, db, `SELECT pg_current_xact_id()`)
	}
	if got := age(); got < before+100 {
		t.Errorf("the age is %v after 100 transactions, and was %v", got, before)
	}
	execute(t, db, `VACUUM (FREEZE)`)
	if got := age(); got > 50 {
		t.Errorf("the age is %v after a freeze", got)
	}
}

// A private PostgreSQL whose archive cannot be written says so.
func TestArchiveFails(t *testing.T) {
	t.Parallel()
	archive := filepath.Join(testdir.For(t), "archive")
	own, err := localpg.Start(t.Context(), localpg.Config{DataDir: pgtest.DataDir(t), Archive: archive})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	db, err := pgpool.OpenMaintenance(t.Context(), own.ConnString(localpg.Database))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := dbmetrics.New(db, slog.New(slog.DiscardHandler), 0, time.Now)
	want(t, scrape(t, c), map[string]float64{"mlsd_wal_archive_failing": 0})
	if err := os.RemoveAll(archive); err != nil {
		t.Fatal(err)
	}
	execute(t, db, `SELECT pg_switch_wal()`)
	await.Until(t, "the failure is reported", func() bool { return scrape(t, c)["mlsd_wal_archive_failing"] == 1 })
}
