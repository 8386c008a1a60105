package invariants_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
)

const (
	alice syntax.DID = "did:plc:alice"
	bob   syntax.DID = "did:plc:bob"
	carol syntax.DID = "did:plc:carol"
)

type uncounted = idemtest.Uncounted

// validDatabase returns a database without violations, and the ids of its two convos. Both have the
// same members, so that a check which confuses the rows of two convos fails. Some events of the
// first convo are in the stream.
func validDatabase(t *testing.T) (*pgxpool.Pool, []uuid.UUID) {
	t.Helper()
	db := pgtest.Database(t)
	p := people{mlstest.NewDevice(t, alice.String()), mlstest.NewDevice(t, bob.String()),
		mlstest.NewDevice(t, carol.String())}
	ids := []uuid.UUID{p.makeConvo(t, db, "the group", "hello"), p.makeConvo(t, db, "the other group")}
	_, err := db.Exec(t.Context(), `
		DO $$
		BEGIN
			CREATE TABLE events_20200101 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-01-02');
			WITH moved AS (
				DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 6) RETURNING *
			)
			INSERT INTO events
			SELECT row_number() OVER (ORDER BY id), '2020-01-01', kind, convo_id, seq, did, size, detail, created_at FROM moved;
			UPDATE stream SET head = 6, day = '2020-01-01';
			INSERT INTO event_days VALUES ('2020-01-01', 1);
		END
		$$`)
	if err != nil {
		t.Fatal(err)
	}
	return db, ids
}

// people are the devices of the convos' members.
type people struct{ alices, bobs, carols *mlstest.Device }

// makeConvo makes a convo of alice with bob. Bob sends the greetings. Then alice adds carol, and
// removes her again with a GroupInfo. Then bob sends one more message.
func (p people) makeConvo(t *testing.T, db *pgxpool.Pool, name string, greetings ...string) uuid.UUID {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	writes := idem.New(db, uncounted{}, log, nil)
	group := []byte(name)
	do := func(nsid, scope, key string, input idem.Content, effect func(tx pgx.Tx) error) {
		t.Helper()
		_, err := writes.Do(t.Context(), idem.Request{Caller: alice, NSID: nsid, Scope: scope, Key: key, Input: input},
			func(_ context.Context, tx pgx.Tx) ([]byte, error) { return []byte("{}"), effect(tx) })
		if err != nil {
			t.Fatal(err)
		}
	}
	welcomeTo := func(did syntax.DID, device *mlstest.Device) []byte {
		t.Helper()
		body, ref := device.KeyPackage(t)
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := keypackages.Publish(t.Context(), tx,
				keypackages.Publication{Owner: did, Body: body, CipherSuite: mlstest.Suite})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return mlstest.Welcome(t, ref)
	}
	var convo convos.Convo
	creation := idem.Content{{Name: "groupId", JSON: []byte(`"g"`)}}
	toBob := welcomeTo(bob, p.bobs)
	do("blue.catbird.mls.createConvo", "", name+" create", creation, func(tx pgx.Tx) (err error) {
		convo, err = convos.Create(t.Context(), tx, convos.NewConvo{
			Creator: alice, GroupID: group, CipherSuite: mlstest.Suite, Members: []syntax.DID{bob}, Welcome: toBob,
			Key: name + " create",
		})
		return err
	})
	say := func(epoch int64, body string) {
		t.Helper()
		results, err := messages.NewLog(db, 0, uncounted{}, log, nil).Append(t.Context(), []messages.Draft{{
			ConvoID: convo.ID, GroupID: group, Sender: bob, Key: body, Kind: mls.ContentTypeApplication, Epoch: epoch,
			Body: mlstest.Message(group, epoch, body),
		}})
		if err != nil || results[0].Err != nil {
			t.Fatal(err, results[0].Err)
		}
	}
	for _, greeting := range greetings {
		say(1, greeting)
	}
	claim := idem.Content{{Name: "dids", JSON: []byte(`["did:plc:carol"]`)}}
	toCarol := welcomeTo(carol, p.carols)
	_, err := writes.Do(t.Context(),
		idem.Request{Caller: alice, NSID: "blue.catbird.mls.getKeyPackages", Key: name + " claim", Input: claim},
		func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			taken, err := keypackages.Claim(ctx, tx, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{carol}})
			if err != nil || len(taken.Claimed) != 1 {
				t.Fatalf("%+v, %v", taken, err)
			}
			ref, err := json.Marshal(taken.Claimed[0].Ref)
			return fmt.Appendf(nil, `{"at":1,"claimed":[{"did":%q,"refs":[%s]}]}`, carol, ref), err
		})
	if err != nil {
		t.Fatal(err)
	}
	addition := idem.Content{{Name: "commit", JSON: []byte(`"c"`)}}
	do("blue.catbird.mls.addMembers", convo.ID.String(), "add", addition, func(tx pgx.Tx) error {
		_, err := convos.Add(t.Context(), tx, convos.AddMembers{
			ConvoID: convo.ID, Caller: alice, DIDs: []syntax.DID{carol},
			Proposed: convos.Proposed{Commit: mlstest.Commit(group, 1, "add"), Welcome: toCarol, Key: "addMembers:add",
				Hash: addition.Hash()},
		})
		return err
	})
	removal := idem.Content{{Name: "commit", JSON: []byte(`"r"`)}}
	do("blue.catbird.mls.leaveConvo", convo.ID.String(), "rotate", removal, func(tx pgx.Tx) error {
		_, err := convos.Leave(t.Context(), tx, convos.Departure{
			ConvoID: convo.ID, Caller: alice, Target: carol,
			Proposed: convos.Proposed{
				Commit: mlstest.Commit(group, 2, "remove"), GroupInfo: mlstest.GroupInfo(t, group, 3, p.alices, p.bobs),
				Key: "leaveConvo:rotate", Hash: removal.Hash(),
			},
		})
		return err
	})
	say(3, "goodbye carol")
	return convo.ID
}

func TestKeptPromises(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	if violations, err := invariants.Check(t.Context(), db); err != nil || len(violations) > 0 {
		t.Fatalf("%q, %v", violations, err)
	}
	for _, id := range append(ids, uuid.New()) { // also of a convo that does not exist
		if violations, err := invariants.CheckConvo(t.Context(), db, id); err != nil || len(violations) > 0 {
			t.Fatalf("%q, %v", violations, err)
		}
	}
}

// A message that shares a row of events has its event, before the row is indexed and after. If the
// index lacks it, the checks of all convos and of its own notice.
func TestSharedRows(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	for _, step := range []struct {
		sql  string
		kept bool
	}{
		{`UPDATE events SET convo_ids = ARRAY[convo_id], seqs = ARRAY[seq], sizes = ARRAY[size], convo_id = NULL, seq = NULL,
				size = 0 WHERE kind = 1`, true},
		{`UPDATE convo_events_end SET last = 6`, false},
		{`CREATE TABLE convo_events_20200101 PARTITION OF convo_events FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')`,
			false},
		{`
			INSERT INTO convo_events (convo_id, last, day, places, seqs, sizes)
			SELECT convo_ids[1], stream_seq, day, ARRAY[stream_seq], seqs, sizes FROM events WHERE seqs IS NOT NULL`, true},
		{`UPDATE convo_events SET seqs = ARRAY[seqs[1] + 1]`, false},
		{`UPDATE convo_events SET seqs = ARRAY[seqs[1] - 1]`, true},
		{`INSERT INTO convo_events SELECT convo_id, last + 100, day, ARRAY[last + 100], seqs, sizes FROM convo_events`,
			false},
	} {
		tag, err := db.Exec(t.Context(), step.sql)
		if err != nil {
			t.Fatal(err)
		}
		violations, err := invariants.Check(t.Context(), db)
		if err != nil || (len(violations) == 0) != step.kept {
			t.Errorf("after %s (%s): %q, %v", step.sql, tag, violations, err)
		}
		violations, err = invariants.CheckConvo(t.Context(), db, ids[0])
		if err != nil || (len(violations) == 0) != step.kept {
			t.Errorf("of the convo, after %s: %q, %v", step.sql, violations, err)
		}
	}
}

// Expired events are no violation. The newest event does not expire.
func TestExpiredEvents(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	for _, sql := range []string{
		`UPDATE messages m SET created_at = '2020-01-01' FROM events e
			WHERE e.convo_id = m.convo_id AND e.seq = m.seq AND stream_seq < 6`,
		`CREATE TABLE events_20200102 PARTITION OF events FOR VALUES FROM ('2020-01-02') TO ('2020-01-03')`,
		`UPDATE events SET day = '2020-01-02' WHERE stream_seq = 6`,
		`UPDATE stream SET day = '2020-01-02'`,
		`INSERT INTO event_days VALUES ('2020-01-02', 6)`,
		`DELETE FROM events WHERE day = '2020-01-01'`,
		`DELETE FROM event_days WHERE day = '2020-01-01'`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	violations, err := invariants.Check(t.Context(), db)
	if err != nil || len(violations) > 0 {
		t.Fatalf("%q, %v", violations, err)
	}
	for _, id := range ids {
		wantAlone(t, db, id, violations)
	}
	wantEveryWay(t, db, violations)
}

// Finding S5: a record that was deleted after the shortest lifetime that an operator can set is no
// violation.
func TestShortLifetime(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	pgtest.Age(t, db, "messages", 25*time.Hour)
	if _, err := db.Exec(t.Context(), `DELETE FROM idempotency_keys`); err != nil {
		t.Fatal(err)
	}
	violations, err := invariants.Check(t.Context(), db)
	if err != nil || len(violations) > 0 {
		t.Fatalf("%q, %v", violations, err)
	}
	wantAlone(t, db, ids[0], violations)
}

// A claimed KeyPackage that was deleted is no violation if its owner is erased, or after a month. A
// claim that got nothing is none either.
func TestDeletedKeyPackages(t *testing.T) {
	t.Parallel()
	db, _ := validDatabase(t)
	for _, step := range []struct {
		sql  string
		kept bool
	}{
		{`INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
				expires_at)
			SELECT caller_did, nsid, scope, 'nothing', request_hash, field_hashes,
				'{"at":1,"claimed":null,"missing":["did:plc:carol"]}', created_at, expires_at
			FROM idempotency_keys WHERE key = 'the group claim'`, true},
		{`DELETE FROM key_packages`, false},
		{`INSERT INTO erasures (id, did, salt, requested_by, reason, not_before, begun_at)
			VALUES (gen_random_uuid(), 'did:plc:carol', 'salt', 'account', '', now(), now())`, true},
		{`UPDATE erasures SET state = 'finished', did = 'did:erased:carol', salt = NULL, finished_at = now()`, false},
		{`UPDATE idempotency_keys SET created_at = now() - interval '30 days'`, true},
	} {
		if _, err := db.Exec(t.Context(), step.sql); err != nil {
			t.Fatal(err)
		}
		violations, err := invariants.Check(t.Context(), db)
		if err != nil || (len(violations) == 0) != step.kept {
			t.Errorf("after %s: %q, %v", step.sql, violations, err)
		}
	}
}

// leafOfFirst stores the right leaf of the first entry.
const leafOfFirst = `
	INSERT INTO log_senders SELECT convo_id, sender_did, '0123456789abcdef', sha256('tag') FROM messages WHERE seq = 1;
	INSERT INTO log_tiles SELECT convo_id, 0, 0, sha256('\x00'::bytea || convert_to(concat_ws(E'\n', 'mlsd log entry', seq,
		kind, epoch,
		(extract(epoch FROM created_at) * 1000)::bigint, encode(sha256(body), 'hex'), encode(sha256('tag'), 'hex'), ''),
			'UTF8'))
	FROM messages WHERE seq = 1;`

// TestBrokenPromises breaks each promise in a database. The check must find each violation. After
// each the rows are as before.
func TestBrokenPromises(t *testing.T) {
	t.Parallel()
	other := mlstest.Message([]byte("another group"), 3, "x")
	cases := []struct {
		promise string
		sql     string
		args    []any
	}{
		{"dense log", `DELETE FROM messages WHERE seq = 1`, nil},
		{"dense log", `DELETE FROM messages WHERE seq = 4`, nil},
		{"dense log", `INSERT INTO log_floors SELECT id, 9 FROM convos`, nil},
		{"what has expired is gone", `INSERT INTO log_floors SELECT id, 1 FROM convos`, nil},
		{"dense log", `UPDATE convos SET last_seq = 5`, nil},
		{"the leaf of entry 1 is not that of the entry",
			`INSERT INTO log_tiles SELECT id, 0, 0, sha256('another') FROM convos`, nil},
		{"the leaf of entry 1 is not that of the entry",
			leafOfFirst + `UPDATE messages SET created_at = created_at + interval '1 ms' WHERE seq = 1`, nil},
		{"the leaf of entry 1 is not that of the entry", leafOfFirst + `DELETE FROM log_senders`, nil},
		{"5 leaves are stored of a log of 4 entries",
			`INSERT INTO log_tiles SELECT id, 0, 0, repeat('x', 160)::bytea FROM convos`, nil},
		{"row 0 of level 1 has 1 hashes, and 0 rows are complete below",
			leafOfFirst + `INSERT INTO log_tiles SELECT id, 1, 0, sha256('root') FROM convos`, nil},
		{"one commit per epoch", `UPDATE messages SET epoch = 9 WHERE seq = 3`, nil},
		{"one commit per epoch", `
			DROP INDEX messages_one_commit_per_epoch;
			UPDATE messages SET epoch = 2 WHERE seq = 3`, nil},
		{"the epoch is the last commit's", `UPDATE convos SET epoch = 4`, nil},
		{"the group that is known is the convo's", `UPDATE public_groups SET epoch = 2`, nil},
		{"the public group: ", `UPDATE public_groups SET state = 'garbage'`, nil},
		{"or another group's", `UPDATE convos SET group_id = 'another'`, nil},
		{"is of no member", `DELETE FROM members WHERE did = 'did:plc:bob'`, nil},
		{"the GroupInfo is not the public group's", `UPDATE public_groups SET group_info = $1`,
			[]any{mlstest.GroupInfo(t, []byte("the group"), 3, mlstest.NewDevice(t, alice.String()))}},
		{"no message from a later epoch", `UPDATE messages SET epoch = 2 WHERE seq = 1`, nil},
		{"entry 4 is of epoch 9, while the convo was in 3", `UPDATE messages SET epoch = 9 WHERE seq = 4`, nil},
		{"entry 4 is of epoch 9, while the convo was in 3", `
			DELETE FROM messages WHERE kind = 3;
			UPDATE messages SET epoch = 9 WHERE seq = 4`, nil},
		{"every sender was a member", `DELETE FROM members WHERE did = 'did:plc:bob'`, nil},
		{"a closed convo ends with its commit", `UPDATE convos SET closed_at = now(), successor_group_id = 'next'`, nil},
		{"a reset has two sides", `UPDATE convos SET closed_at = now(), successor_group_id = 'next', successor_id =
			gen_random_uuid()`, nil},
		{"a reset has two sides", `UPDATE convos SET predecessor_id = gen_random_uuid()`, nil},
		{"a roster that can be", `UPDATE members SET left_at = now(), left_seq = 4, left_epoch = 3`, nil},
		{"a roster that can be", `UPDATE members SET role = 'creator'`, nil},
		{"a convo with members has an admin", `UPDATE members SET role = 'member'`, nil},
		{"a convo with members has an admin", `UPDATE members SET role = 'member' WHERE left_at IS NULL`, nil},
		{"positions within the log", `UPDATE members SET cursor_seq = 99 WHERE did = 'did:plc:bob'`, nil},
		{"positions within the log", `UPDATE members SET left_epoch = NULL`, nil},
		{"no Welcome before its commit", `UPDATE welcomes SET epoch = 7 WHERE recipient_did = 'did:plc:bob'`, nil},
		{"no Welcome before its commit", `
			DELETE FROM messages WHERE kind = 3;
			UPDATE welcomes SET epoch = 7 WHERE recipient_did = 'did:plc:bob'`, nil},
		{"no Welcome before its commit", `
			DELETE FROM messages WHERE seq = 3;
			UPDATE welcomes SET epoch = 3 WHERE recipient_did = 'did:plc:bob'`, nil},
		{"a deliverable Welcome has its bytes", `DELETE FROM welcome_bodies`, nil},
		{"one deliverable Welcome per device", `
			DROP INDEX welcomes_live;
			INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
			SELECT convo_id, gen_random_uuid(), recipient_did, device_id, 'another', epoch, now() FROM welcomes`, nil},
		{"Welcomes reach members", `
			UPDATE members SET left_at = now(), left_seq = 4, left_epoch = 3 WHERE did = 'did:plc:bob'`, nil},
		{"a commit's record and its effect are one", `DELETE FROM idempotency_keys WHERE nsid LIKE '%addMembers'`, nil},
		{"a commit's record and its effect are one", `DELETE FROM idempotency_keys WHERE nsid LIKE '%leaveConvo'`, nil},
		{"a commit's record and its effect are one", `UPDATE messages SET request_hash = 'x' WHERE seq = 2`, nil},
		{"addMembers without its commit", `UPDATE messages SET request_hash = 'x' WHERE seq = 2`, nil},
		{"a convo's record and its effect are one", `UPDATE convos SET idempotency_key = 'another'`, nil},
		{"a complete attachment has all its parts", `
			INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size, state, seq, kept_from, checked_parts)
			SELECT gen_random_uuid(), id, 'did:plc:bob', 11, sha256('x'), 10, 'complete', 1, now(), 2 FROM convos`, nil},
		{"every record has its answer", `UPDATE idempotency_keys SET response = ''`, nil},
		{"every record has its answer", `
			UPDATE idempotency_keys SET response = '', started_at = now(), lease_expires_at = now(), completed_at = now()`, nil},
		{"a KeyPackage is used once", `UPDATE key_packages SET state = 'available'`, nil},
		{"a KeyPackage is used once", `
			WITH other AS (
				INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
				SELECT gen_random_uuid(), recipient_did, 'member', now(), 0 FROM welcomes RETURNING convo_id, did
			)
			INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
			SELECT other.convo_id, gen_random_uuid(), did, device_id, key_package_ref, epoch, now()
			FROM welcomes JOIN other ON did = recipient_did`, nil},
		{"an init_key is used once", `DELETE FROM key_package_init_keys`, nil},
		{"a KeyPackage's state and its columns agree", `UPDATE key_packages SET claimed_by = NULL`, nil},
		{"a KeyPackage's state and its columns agree", `UPDATE key_packages SET consumed_at = NULL`, nil},
		{"a KeyPackage's state and its columns agree",
			`UPDATE key_packages SET state = 'claimed', consumed_at = NULL, claim_expires_at = NULL`, nil},
		{"a KeyPackage's state and its columns agree", `UPDATE key_packages SET state = 'expired', consumed_at = NULL`, nil},
		{"a KeyPackage's state and its columns agree", `UPDATE key_packages SET last_resort = true`, nil},
		{"a Welcome's failures and its columns agree", `UPDATE welcomes SET failures = 1`, nil},
		{"a Welcome's failures and its columns agree", `UPDATE welcomes SET last_failure = 'no such key'`, nil},
		{"a Welcome's failures and its columns agree",
			`UPDATE welcomes SET failures = 9, last_failure = 'no such key', last_failed_at = now()`, nil},
		{"a Welcome's failures and its columns agree", `UPDATE welcomes SET silent = true`, nil},
		{"was handed to another than its claimer", `UPDATE key_packages SET claimed_by = 'did:plc:mallory'`, nil},
		{"of a record is gone", `
			DELETE FROM key_packages;
			INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
				expires_at)
			SELECT 'did:plc:mallory', nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at
			FROM idempotency_keys WHERE key = 'the group claim'`, nil},
		{"is in 2 answers", `
			INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
				expires_at)
			SELECT caller_did, nsid, scope, 'another', request_hash, field_hashes, response, created_at, expires_at
			FROM idempotency_keys WHERE key = 'the group claim'`, nil},
		{"no caller exceeds its budget of a device", `
			INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, claimed_by,
				claimed_at,
				claim_expires_at, created_at)
			SELECT did, int4send(n), device_id, cipher_suite, body, not_after, last_resort, 'claimed', claimed_by,
				claimed_at - n * interval '47 minutes', claim_expires_at, created_at
			FROM (SELECT * FROM key_packages WHERE claimed_at IS NOT NULL LIMIT 1) one, generate_series(1, 30) AS n`, nil},
		{"one push job of a device waits, and one is sent", `
			DROP INDEX push_jobs_pending;
			INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
			SELECT 'did:plc:bob', gen_random_uuid(), 'phone', 'message', now(), now() FROM generate_series(1, 2)`, nil},
		{"nobody is pushed to for requests alone", `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq, requested_at)
			SELECT id, 'did:plc:eve', 'member', now(), 0, now() - interval '1 minute' FROM convos LIMIT 1;
			INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
			VALUES ('did:plc:eve', gen_random_uuid(), 'phone', 'message', now(), now())`, nil},
		{"a push job's state and its columns agree", `
			INSERT INTO push_jobs (did, id, device_id, reason, state, next_attempt_at, created_at, ended_at)
			SELECT 'did:plc:bob', gen_random_uuid(), 'phone', 'message', 'done', now(), now(), now()`, nil},
		{"a push job's record and its effect are one", `
			WITH job AS (
				INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
				VALUES ('did:plc:bob', gen_random_uuid(), 'phone', 'message', now(), now()) RETURNING id
			)
			INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
				expires_at)
			SELECT 'mlsd', 'mlsd.push', '', id::text, '', '{}', 'done', now(), now() FROM job`, nil},
		{"a KeyPackage is in one invitation of another service, which has consumed it", `
			INSERT INTO received_invitations (did, id, service, domain, convo_id, ref, device_id, cipher_suite, inviter, epoch,
				request, hidden, created_at)
			SELECT did, gen_random_uuid(), 'did:web:mls.example.net', 'example.net', gen_random_uuid(), ref, device_id,
				cipher_suite, 'did:plc:eve', 1, true, false, now()
			FROM (SELECT * FROM key_packages WHERE NOT last_resort LIMIT 1) k, generate_series(1, 2)`, nil},
		{"an invitation's record and its effect are one", `
			WITH job AS (
				INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch,
					created_at, queued_at, next_attempt_at)
				VALUES (gen_random_uuid(), 'did:plc:bob', '', false, 'did:web:mls.example.net', 'phone', 1, gen_random_uuid(),
					'did:plc:alice', 1, now(), now(), now()) RETURNING id
			)
			INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
				expires_at)
			SELECT 'mlsd', 'mlsd.invitation', '', id || ' invited', '', '{}', 'done', now(), now() FROM job`, nil},
		{"every log entry has its event", `DELETE FROM events WHERE kind = 1`, nil},
		{"every log entry has its event", `DELETE FROM outbox WHERE kind <= 3`, nil},
		{"every log entry has its event", `
			INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT kind, convo_id, seq, size, created_at FROM outbox
				WHERE kind <= 3`, nil},
		{"events in the log's order", `
			ALTER TABLE outbox ALTER id DROP IDENTITY;
			UPDATE outbox SET id = id + 100 WHERE id = (SELECT min(id) FROM outbox WHERE kind <= 3)`, nil},
		{"events say who is a member",
			`UPDATE outbox SET detail = '{"change": "joined"}' WHERE kind = 4 AND did = 'did:plc:carol'`, nil},
		{"a dense stream", `DELETE FROM events WHERE stream_seq = 2`, nil},
		{"a dense stream", `DELETE FROM events WHERE stream_seq = 1`, nil},
		{"a dense stream", `UPDATE stream SET head = 7`, nil},
		{"the newest event is 0, and the stream ends at 6", `DELETE FROM events; DELETE FROM event_days`, nil},
		{"the stream has not gone back", `UPDATE generations SET after_seq = 1000`, nil},
		{"the stream's generation is that of this database", `UPDATE generations SET system_identifier = 1, timeline = 1`,
			nil},
		{"is of another group", `UPDATE messages SET body = $1 WHERE seq = 4`, []any{other}},
		{"says application of epoch 3", `UPDATE messages SET kind = 2 WHERE seq = 4`, nil},
		{"log entry 4", `UPDATE messages SET body = 'garbage' WHERE seq = 4`, nil},
	}
	shared, idsOfShared := validDatabase(t)
	restore := keep(t, shared)
	for _, c := range cases {
		t.Run(c.promise, func(t *testing.T) {
			db, ids := shared, idsOfShared
			if strings.Contains(c.sql, "DROP ") { // more than rows changes
				db, ids = validDatabase(t)
			} else {
				t.Cleanup(func() { restore(t) })
			}
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				// No trigger fires.
				if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
					return err
				}
				return without(t.Context(), tx, ids[1], func() error {
					_, err := tx.Exec(t.Context(), c.sql, c.args...)
					return err
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			violations, err := invariants.Check(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(violations, "\n"), c.promise) {
				t.Fatalf("not found: %q", violations)
			}
			if strings.Contains(strings.Join(violations, "\n"), ids[1].String()) {
				t.Errorf("a violation in the other convo: %q", violations)
			}
			for _, id := range ids {
				wantAlone(t, db, id, violations)
			}
			wantEveryWay(t, db, violations)
		})
	}
	if violations, err := invariants.Check(t.Context(), shared); err != nil || len(violations) > 0 {
		t.Errorf("the last case has left %q, %v", violations, err)
	}
}

// keep copies all rows of the database. restore puts them back in place of those that are there then.
func keep(t *testing.T, db *pgxpool.Pool) (restore func(*testing.T)) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		CREATE SCHEMA kept;
		CREATE TABLE kept.tables AS
		SELECT relname AS name, string_agg(quote_ident(attname), ', ' ORDER BY attnum) AS columns
		FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
		  AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
		GROUP BY relname;
		DO $$
		DECLARE t kept.tables;
		BEGIN
			FOR t IN SELECT * FROM kept.tables LOOP
				EXECUTE format('CREATE TABLE kept.rows_of_%1$s AS SELECT %2$s FROM %1$I', t.name, t.columns);
			END LOOP;
		END
		$$;
		CREATE PROCEDURE kept.restore() LANGUAGE plpgsql AS $$
		DECLARE t kept.tables;
		BEGIN
			SET LOCAL session_replication_role = replica; -- no trigger fires
			FOR t IN SELECT * FROM kept.tables LOOP
				EXECUTE format('DELETE FROM %I', t.name);
				EXECUTE format('INSERT INTO %1$I (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM kept.rows_of_%1$s', t.name,
					t.columns);
			END LOOP;
		END
		$$`)
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		if _, err := db.Exec(context.Background(), `CALL kept.restore()`); err != nil {
			t.Fatal(err)
		}
	}
}

// without calls do while the rows of a convo are in temporary tables. So do does not change that
// convo.
func without(ctx context.Context, tx pgx.Tx, id uuid.UUID, do func() error) error {
	of := map[string]string{
		"convos": "id", "members": "convo_id", "messages": "convo_id", "welcomes": "convo_id", "welcome_bodies": "convo_id",
		"public_groups": "convo_id", "outbox": "convo_id", "idempotency_keys": "scope",
	}
	for table, column := range of {
		_, err := tx.Exec(ctx, fmt.Sprintf(`
			CREATE TEMP TABLE saved_%[1]s ON COMMIT DROP AS SELECT * FROM %[1]s WHERE %[2]s = '%[3]s';
			DELETE FROM %[1]s WHERE %[2]s = '%[3]s'`, table, column, id))
		if err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	for table := range of {
		if _, err := tx.Exec(ctx,
			fmt.Sprintf(`INSERT INTO %[1]s OVERRIDING SYSTEM VALUE SELECT * FROM saved_%[1]s`, table)); err != nil {
			return err
		}
	}
	return nil
}

// wantAlone checks one convo. It wants the violations of that convo among those of all convos.
func wantAlone(t *testing.T, db *pgxpool.Pool, id uuid.UUID, among []string) {
	t.Helper()
	alone, err := invariants.CheckConvo(t.Context(), db, id)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(slices.Clone(among),
		func(text string) bool { return !strings.HasPrefix(text, "convo "+id.String()) })
	if diff := cmp.Diff(want, alone, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("convo %s among all (-) and alone (+):\n%s", id, diff)
	}
}

// Of many violations of one promise, only the first hundred get a text.
func TestManyBrokenPromises(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	_, err := db.Exec(t.Context(), `
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT $1, 'did:plc:' || n, 'member', now(), 99 FROM generate_series(1, 150) AS n`, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	all, err := invariants.Check(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	const more = "positions within the log: 50 more violations"
	if len(all) != 101 || all[100] != more {
		t.Errorf("%d texts: %q", len(all), all)
	}
	alone, err := invariants.CheckConvo(t.Context(), db, ids[0])
	if err != nil || len(alone) != 101 || alone[100] != more {
		t.Errorf("%d texts: %q, %v", len(alone), alone, err)
	}
}
