package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/transparency"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tombstone"
	"mlsd/operator"
	"mlsd/operator/invariants"
	"mlsd/people/accounts"
)

// eraserEnv makes this test binary an eraser of the database that it names. It is killed after, or
// with the mark - before, the COMMIT of a batch, which killEnv numbers.
const (
	eraserEnv = "MLSD_TEST_ERASER"
	killEnv   = "MLSD_TEST_ERASER_KILL"
)

// newEraser is the eraser of another node. It calls batch after each batch.
func newEraser(db *pgxpool.Pool, faults *failpoint.Set, batch func()) (*erasure.Worker, error) {
	identities, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: "http://localhost",
		AllowLoopback: true, DB: db})
	if err != nil {
		return nil, err
	}
	store := accounts.NewStore(0, convos.HandOver)
	return erasure.NewWorker(erasure.Config{
		DB: db, Log: slog.New(slog.DiscardHandler), Jobs: erasure.NewStore(store), Accounts: store,
		Remover: convos.NewRemover(db, nil, transparency.Purge, attachments.Purge),
		Forget:  identities.Forget, EraseActions: operator.EraseActions, Wake: batch, Faults: faults,
		KeyRest: time.Millisecond,
	}), nil
}

// eraseAsChild erases until it is killed.
func eraseAsChild() error {
	db, err := pgpool.OpenMaintenance(context.Background(), os.Getenv(eraserEnv))
	if err != nil {
		return err
	}
	at, err := strconv.Atoi(os.Getenv(killEnv))
	if err != nil {
		return err
	}
	faults, n := failpoint.New(), 0
	next := func() error { // the batch that comes next
		switch n++; n {
		case -at:
			return faults.Arm(failpoint.BeforeCommit, erasure.NSID, failpoint.Kill)
		case at + 1:
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}
	if err := next(); err != nil {
		return err
	}
	var failed error
	w, err := newEraser(db, faults, func() { failed = errors.Join(failed, next()) })
	if err != nil {
		return err
	}
	return errors.Join(w.RunOnce(context.Background()), failed)
}

// erased is a world with an account that has a row in nearly every table, and others beside it.
type erased struct {
	*world
	database          string
	db                *pgxpool.Pool
	alice, bob, carol *user
	known             *convo // with a group that the server knows
	info              []byte // its GroupInfo
	bobs              *convo // bob has created it, and written to it
	left              *convo // bob has left it
	alone             *convo // bob is the only member
	report            string // bob's, of abuse
}

func newErased(t *testing.T) *erased {
	t.Helper()
	w, database := operated(t)
	e := &erased{world: w, database: database, alice: w.user(), bob: w.user(), carol: w.user()}
	var err error
	if e.db, err = pgpool.OpenMaintenance(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.db.Close)
	alice, bob, carol := e.alice, e.bob, e.carol
	r, group := alice.creation(bob)
	in := read[mlsapi.CreateConvoInput](t, r.body)
	e.info = mlstest.GroupInfo(t, group, 1, alice.Device, bob.Device)
	in.GroupInfo = e.info
	e.known = &convo{read[mlsapi.ConvoView](t, alice.procedure(mlsapi.NSIDCreateConvo, &in).must().ok()).ID, group, 1}
	e.bobs = bob.create(alice, carol)
	bob.addition(e.bobs, w.user()).must().ok()
	e.bobs.epoch++
	for _, u := range []*user{alice, bob, carol, bob} {
		in := u.message(e.bobs, "hello")
		if u == bob {
			embed := "at://" + bob.did().String() + "/app.bsky.feed.post/1"
			in.EmbedType, in.EmbedURI = new(string), &embed
			*in.EmbedType = "link"
		}
		u.procedure(mlsapi.NSIDSendMessage, in).must().ok()
	}
	e.left = alice.create(bob, carol)
	bob.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: e.left.id}).must().ok()
	reset := bob.create(alice) // and goes on in another convo
	bob.procedure(mlsapi.NSIDResetConvo, &mlsapi.ResetConvoInput{ConvoID: reset.id, Reason: "other",
		GroupInfo: mlstest.GroupInfo(t, []byte("bob's new group"), 0, bob.Device)}).must().ok()
	e.alone = &convo{id: read[mlsapi.ConvoView](t, bob.procedure(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString([]byte("bob alone")), CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey(),
	}).must().ok()).ID}
	bob.publication().must().ok()
	bob.claim(carol, alice)
	carol.publication().must().ok()
	bob.claim(carol)
	for _, block := range [][2]*user{{bob, w.user()}, {w.user(), bob}} {
		block[0].procedure(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: block[1].did()}).must().ok()
	}
	bob.procedure(mlsapi.NSIDSetInvitationPolicy, &mlsapi.SetInvitationPolicyInput{Policy: "shared"}).must().ok()
	e.report = bob.reports(e.left, "they made fun of me")
	w.closeReport(alice.reports(e.known, "bob is loud"), bob.did().String()+" was warned")
	bob.procedure(mlsapi.NSIDSetCursorPolicy, &mlsapi.SetCursorPolicyInput{ShareCursors: "members"}).must().ok()
	url := "https://push.example.com/"
	bob.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: bob.deviceID(), Kind: "webhook", URL: &url}).must().ok()
	bob.session()
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(e.bobs, "to be pushed")).must().ok()
	alice.query(mlsapi.NSIDGetWelcome, "convoId", e.bobs.id).must().ok()
	bob.query(mlsapi.NSIDGetWelcome, "convoId", e.known.id).must().ok()
	done[operator.Account](w, "account", "show", bob.did().String())
	done[operator.Withdrawn](w, "keypackages", "withdraw", bob.did().String(), "--device", "another")
	// A node stores keys some seconds after their tokens, all at once, and counts within a minute. An
	// erasure waits for that, but not in tests: another node goes on, which has none of bob's to store.
	last := w.user()
	last.query(mlsapi.NSIDGetConvos).must().ok()
	await.Until(t, "the node has stored its keys", func() bool { return e.keyIsStored(last, false) })
	e.booted.stop()
	w.serve(database)
	return e
}

// keyIsStored reports whether a user's key is in the database, or is there again after it was forgotten.
func (e *erased) keyIsStored(u *user, again bool) bool {
	e.t.Helper()
	var stored bool
	err := e.db.QueryRow(e.t.Context(), `
		SELECT EXISTS (
			SELECT FROM identity_keys
			WHERE did = $1 AND key IS NOT NULL AND (forgotten_at IS NOT NULL OR NOT $2))`, u.did(), again).Scan(&stored)
	if err != nil {
		e.t.Fatal(err)
	}
	return stored
}

// keyReturns makes bob call until a node that has forgotten his key has stored it again.
func (e *erased) keyReturns(call request) {
	e.t.Helper()
	polls := 0
	await.Until(e.t, "bob's key is stored again", func() bool {
		if polls%20 == 0 { // below bob's rate limit
			call.must()
		}
		polls++
		return e.keyIsStored(e.bob, true)
	})
}

// found searches every column of every table for an account, without the program's help.
func (e *erased) found(u *user) map[string]int64 {
	e.t.Helper()
	rows, err := e.db.Query(e.t.Context(),
		`SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1`)
	if err != nil {
		e.t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			e.t.Fatal(err)
		}
		tables = append(tables, name)
	}
	found := map[string]int64{}
	for _, table := range tables {
		var n int64
		err := e.db.QueryRow(e.t.Context(),
			`SELECT count(*) FROM `+table+` t WHERE strpos(t::text, $1) > 0 OR strpos(t::text, $2) > 0`,
			u.did().String(), hex.EncodeToString([]byte(u.did()))).Scan(&n)
		if err != nil {
			e.t.Fatal(err)
		}
		if n > 0 && !strings.HasPrefix(table, "events_") {
			found[table] = n
		}
	}
	return found
}

// hurry ends every pause of the erasures that run.
func (e *erased) hurry() {
	e.t.Helper()
	if _, err := e.db.Exec(e.t.Context(),
		`UPDATE erasures SET not_before = clock_timestamp() WHERE state = 'running'`); err != nil {
		e.t.Fatal(err)
	}
}

// sequencer is that of another node.
func (e *erased) sequencer() *events.Sequencer {
	return events.NewSequencer(events.SequencerConfig{
		DB: e.db, Log: slog.New(slog.DiscardHandler), Metrics: api.NewStreamMetrics(prometheus.NewRegistry()),
		Retention: time.Hour, Moved: func(int64) {},
	})
}

// finish carries an erasure out with workers at once, and returns its report.
func (e *erased) finish(id fmt.Stringer, workers int) erasure.Erasure {
	e.t.Helper()
	for began := time.Now(); time.Since(began) < deadline; { // a step waits for the stream, which the server moves
		e.hurry()
		var nodes sync.WaitGroup
		for range workers {
			w, err := newEraser(e.db, nil, nil)
			if err != nil {
				e.t.Fatal(err)
			}
			nodes.Go(func() {
				if err := w.RunOnce(e.t.Context()); err != nil {
					e.t.Error(err)
				}
			})
		}
		nodes.Wait()
		if report := done[erasure.Erasure](e.world, "erasure", "show", id.String()); report.State == erasure.Finished ||
			e.t.Failed() {
			return report
		}
	}
	e.t.Fatal("the erasure does not end")
	return erasure.Erasure{}
}

// wantErased fails the test unless only MLS objects of others name bob, the others' convos are whole,
// and every promise holds.
func (e *erased) wantErased() {
	e.t.Helper()
	if diff := cmp.Diff(map[string]int64{"public_groups": 2}, e.found(e.bob)); diff != "" {
		e.t.Errorf("rows that name bob (-want +got):\n%s", diff)
	}
	e.wantSound()
	for _, c := range []*convo{e.known, e.bobs, e.left} {
		if members := e.alice.members(c); strings.Contains(members, e.bob.did().String()) ||
			strings.Contains(members, tombstone.Prefix) {
			e.t.Errorf("members: %s", members)
		}
	}
	stones := map[string]int{}
	for _, m := range e.alice.log(e.bobs) {
		if tombstone.Is(m.Sender) {
			stones[m.Sender.String()]++
			if m.EmbedURI != nil && *m.EmbedURI != "at://"+m.Sender.String()+"/app.bsky.feed.post/1" {
				e.t.Errorf("an embed is %s", *m.EmbedURI)
			}
		}
	}
	if len(stones) != 1 {
		e.t.Errorf("tombstones in one log: %v", stones)
	}
	for stone, n := range stones {
		if n != 3 {
			e.t.Errorf("%d entries of %s", n, stone)
		}
	}
	// No two convos have the same tombstone.
	var shared int
	err := e.db.QueryRow(e.t.Context(),
		`SELECT count(*) - count(DISTINCT did) FROM members WHERE did LIKE 'did:erased:%'`).Scan(&shared)
	if err != nil || shared != 0 {
		e.t.Errorf("%d memberships can be linked, %v", shared, err)
	}
	e.alice.query(mlsapi.NSIDGetConvo, "convoId", e.alone.id).must().fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	e.alice.procedure(mlsapi.NSIDSendMessage, e.alice.message(e.bobs, "it goes on")).must().ok()
}

func TestAdminAccountErase(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	e := newErased(t)
	did := e.bob.did().String()
	before := e.found(e.bob)
	for _, table := range []string{
		"convos", "members", "messages", "key_packages", "key_package_init_keys", "welcomes", "idempotency_keys",
		"push_targets",
		"identity_keys", "audit_log", "events", "admin_actions", "public_groups", "push_jobs", "sessions", "abuse_reports",
	} {
		if before[table] == 0 && table != "identity_keys" && table != "push_jobs" { // these are written in the background
			t.Errorf("the world has nothing of bob in %s", table)
		}
	}
	begun := done[operator.Erasing](e.world, "account", "erase", did)
	if again := done[operator.Erasing](e.world, "account", "erase", did); !begun.Begun || again.Begun ||
		again.ID != begun.ID {
		t.Errorf("begun %+v, then %+v", begun, again)
	}
	look := e.bob.query(mlsapi.NSIDGetConvos)
	await.Until(t, "bob is refused", func() bool { return look.must().status == http.StatusForbidden })
	look.must().fails(http.StatusForbidden, "AccountInactive")
	if refusal := string(look.must().body); !strings.Contains(refusal, "is being erased") {
		t.Errorf("bob is told %s", refusal)
	}
	e.keyReturns(look)
	report := e.finish(begun.ID, 2)
	if len(report.Remains) > 0 || report.Failures > 0 || report.Pass != 1 {
		t.Errorf("report: %+v", report)
	}
	for _, table := range []string{"members", "messages", "key_packages", "welcomes", "idempotency_keys", "push_jobs",
		"audit_log", "events", "admin_actions", "sessions"} {
		if report.Counts[table] == 0 {
			t.Errorf("the report counts nothing in %s: %v", table, report.Counts)
		}
	}
	e.wantErased()
	if got := e.openReport(e.report); got.Content.Text != "they made fun of me" || !tombstone.Is(got.Reporter) ||
		report.Counts["abuse_reports"] != 2 {
		t.Errorf("bob's report is %+v, %d were changed", got, report.Counts["abuse_reports"])
	}
	// Others can remove the leaf, and then nothing names bob.
	remove := e.alice.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
		ConvoID: e.known.id, TargetDID: new(e.bob.did()), IdempotencyKey: newKey(),
		Commit: e.alice.Device.PublicCommit(t, e.info, 0, true, mlstest.ByValue(mlstest.Remove(1))),
	})
	remove.must().ok()
	e.wantSound()
	// The account begins anew, with nothing.
	await.Until(t, "bob is served", func() bool { return look.must().status == http.StatusOK })
	if mine := read[mlsapi.GetConvosOutput](t, look.must().ok()); len(mine.Conversations) != 0 {
		t.Errorf("bob has %d convos", len(mine.Conversations))
	}
	e.alice.create(e.bob)
	e.wantSound()
}

// TestErasureOfManyWelcomes: the Welcomes of a person in one convo are erased in batches.
func TestErasureOfManyWelcomes(t *testing.T) {
	t.Parallel()
	e := newErased(t)
	did := e.bob.did()
	const n = 1100
	for _, sql := range []string{
		`CREATE SCHEMA test; CREATE TABLE test.changed (n integer);
		CREATE FUNCTION test.count_changed() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO test.changed SELECT count(*) FROM changed; RETURN NULL; END $$;
		CREATE TRIGGER count_changed AFTER UPDATE ON welcomes REFERENCING NEW TABLE AS changed
			FOR EACH STATEMENT EXECUTE FUNCTION test.count_changed()`,
		fmt.Sprintf(`
			INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at, state)
			SELECT '%s', gen_random_uuid(), '%s', 'phone', 'ref', 1, clock_timestamp(), 'superseded'
			FROM generate_series(1, %d)`, e.left.id, did, n),
	} {
		if _, err := e.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	report := e.finish(done[operator.Erasing](e.world, "account", "erase", did.String()).ID, 2)
	if len(report.Remains) > 0 || report.Failures > 0 || report.Pass != 1 || report.Counts["welcomes"] < n ||
		report.Counts["members"] == 0 {
		t.Errorf("report: %+v", report)
	}
	e.wantErased()
	var most int
	if err := e.db.QueryRow(t.Context(), `SELECT max(n) FROM test.changed`).Scan(&most); err != nil || most != 500 {
		t.Errorf("%d Welcomes in one batch, %v", most, err)
	}
}

// An eraser that is killed at any point loses nothing and repeats nothing.
func TestErasureKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	e := newErased(t)
	begun := done[operator.Erasing](e.world, "account", "erase", e.bob.did().String())
	e.booted.stop() // its eraser would carry out batches between the kills; the stream goes on
	stopped, sequence := context.WithCancel(t.Context())
	var stream sync.WaitGroup
	stream.Go(func() { e.sequencer().Run(stopped) })
	t.Cleanup(func() { sequence(); stream.Wait() })
	jobs := erasure.NewStore(accounts.NewStore(0, convos.HandOver))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := func(at int) bool {
		t.Helper()
		e.hurry()
		child := exec.CommandContext(t.Context(), exe)
		child.Env = append(os.Environ(), eraserEnv+"="+e.database, fmt.Sprintf("%s=%d", killEnv, at))
		out, err := child.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || len(out) > 0 {
			t.Fatalf("an eraser to be killed at %d: %v, %s", at, err, out)
		}
		return exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	}
	at, kills := []int{1, -1, 2, -2, 3, -4, 4, 4, -2, 2, -1, 2, -3, 3, -4, 2, -2, 3, -1}, 0
	began := time.Now()
	for tries, step := 0, ""; ; tries++ {
		n := at[tries%len(at)]
		switch step {
		case "push", "blocks", "reports", "log": // each batch of the log is looked at
			n = 1
		case "search": // which has a batch for each table
			n *= 3
		}
		dead := killed(n) // or it came to a pause before
		report, err := jobs.Get(t.Context(), e.db, begun.ID)
		if err != nil || time.Since(began) > deadline {
			t.Fatalf("%v after %d tries: %+v", err, tries, report)
		}
		if step = report.Step; report.State == erasure.Finished {
			break
		}
		if !dead {
			continue
		}
		kills++
		violations, err := invariants.Check(t.Context(), e.db)
		if err != nil || len(violations) > 0 {
			t.Errorf("after kill %d, in step %s with %v: %v %v", kills, step, report.Counts, violations, err)
		}
	}
	if kills < len(at) {
		t.Errorf("only %d kills", kills)
	}
	sequence()
	stream.Wait()
	e.serve(e.database)
	report := e.finish(begun.ID, 1)
	if len(report.Remains) > 0 || report.Failures > 0 {
		t.Errorf("report: %+v", report)
	}
	e.wantErased()
	handed := readHandedOver(t, e.db, e.bobs.id)
	if len(handed.Admins) != 1 || !maps.Equal(handed.Told, map[string]int{handed.Admins[0].String() + " promoted": 1}) {
		t.Errorf("bob was the only admin of his convo, and now %+v", handed)
	}
}

// An export has a line for each row that is held about the account, and nobody else's ciphertext. It has
// a limit, and neither who has set it nor why.
func TestAdminAccountExport(t *testing.T) {
	t.Parallel()
	e := newErased(t)
	done[operator.Limited](e.world, "account", "limit", e.bob.did().String(), "50")
	s := e.operate("account", "export", e.bob.did().String())
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	lines := map[string]int64{}
	for line := range strings.Lines(s.stdout.String()) {
		got := read[struct {
			Type string
			Data map[string]any
		}](t, []byte(line))
		table, _, _ := strings.Cut(got.Type, " ")
		lines[table]++
		if sender, is := got.Data["sender_did"]; is && sender != e.bob.did().String() {
			t.Errorf("a message of another: %s", line)
		}
		if table == "accounts" &&
			(got.Data["limit_percent"] != 50.0 || got.Data["limited_by"] != nil || got.Data["limited_reason"] != nil) {
			t.Errorf("the limit: %s", line)
		}
	}
	if lines["accounts"] != 1 {
		t.Errorf("%d rows of accounts", lines["accounts"])
	}
	found := e.found(e.bob)
	delete(found, "public_groups") // the objects of a group are not the person's own
	for table := range found {
		if lines[table] == 0 {
			t.Errorf("%s has %d rows with the DID, and the export none: %v", table, found[table], lines)
		}
	}
	if lines["messages"] != 5 || lines["members"] != 6 {
		t.Errorf("lines: %v", lines)
	}
}

// The pages of exportMyData join to what the operator's export has.
func TestExportMyData(t *testing.T) {
	t.Parallel()
	e := newErased(t)
	type record struct {
		Type string
		Data map[string]any
	}
	// What changes by the reading itself, or in the background, is not compared.
	moving := map[string]bool{"caller_counts": true, "quota_counts": true, "identity_keys": true, "push_jobs": true,
		"push_targets": true, "push_convos": true, "admin_actions": true}
	e.bob.query(mlsapi.NSIDExportMyData).must().ok() // the audit log gets one row in an hour
	operators := func() (all []record) {
		s := e.operate("account", "export", e.bob.did().String())
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(s.stdout.String()) {
			if r := read[record](t, []byte(line)); !moving[r.Type] && r.Type != "outbox" {
				all = append(all, r)
			}
		}
		return all
	}
	var last []record
	await.Until(t, "the outbox is empty", func() bool {
		before := last
		last = operators()
		return before != nil && cmp.Equal(before, last)
	})
	var own []record
	params := []string{"limit", "3"}
	for {
		out := read[mlsapi.ExportMyDataOutput](t, e.bob.query(mlsapi.NSIDExportMyData, params...).must().ok())
		for _, row := range out.Records {
			if !moving[row.Type] && row.Type != "outbox" {
				own = append(own, record{row.Type, read[map[string]any](t, []byte(row.Data))})
			}
		}
		if out.Cursor == nil {
			break
		}
		params = []string{"limit", "3", "cursor", *out.Cursor}
	}
	if diff := cmp.Diff(last, own); diff != "" {
		t.Errorf("the pages (-operator +own):\n%s", diff)
	}
	if len(own) < 50 {
		t.Errorf("only %d rows", len(own))
	}
}

// An account erases itself, over two nodes. Nothing names it afterwards, and a repetition of the
// second step gets the first answer.
func TestEraseMyAccount(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	e := newErased(t)
	second := boot(t, nil, e.flags("--database-url", e.database)...)
	first := read[mlsapi.EraseMyAccountOutput](t,
		e.bob.procedure(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{IdempotencyKey: newKey()}).must().ok())
	if first.Erasing || first.Held == nil || first.Held.Convos != 5 || first.ConfirmationToken == nil {
		t.Fatalf("the first step answers %+v", first)
	}
	admin, public := e.admin, e.public
	e.use(second.admin, second.public)
	confirm := e.bob.procedure(mlsapi.NSIDEraseMyAccount,
		&mlsapi.EraseMyAccountInput{ConfirmationToken: first.ConfirmationToken, IdempotencyKey: newKey()})
	begun := confirm.must()
	begun.ok()
	e.use(admin, public)
	look := e.bob.query(mlsapi.NSIDGetConvos)
	await.Until(t, "the other node refuses bob", func() bool { return look.must().status == http.StatusForbidden })
	again := func() {
		t.Helper()
		if a := confirm.must(); string(a.ok()) != string(begun.body) || !a.replayed() {
			t.Errorf("the repetition gets %s, the first answer was %s", a.body, begun.body)
		}
	}
	again()
	e.keyReturns(look)
	report := e.finish(textOf(*read[mlsapi.EraseMyAccountOutput](t, begun.body).ErasureID), 2)
	if len(report.Remains) > 0 || report.Failures > 0 || report.RequestedBy != erasure.ByAccount {
		t.Errorf("report: %+v", report)
	}
	e.wantErased()
	await.Until(t, "bob is served", func() bool { return look.must().status == http.StatusOK })
	again()
	e.wantSound()
}

// textOf is a text as a fmt.Stringer.
type textOf string

func (t textOf) String() string { return string(t) }

// An account that was deleted is erased after the delay, unless it comes back before.
func TestDeletedAccountIsErased(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	alice.create(bob, carol)
	db, err := pgpool.OpenMaintenance(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	states := accounts.NewStore(time.Hour, convos.HandOver)
	state := func(seq int64, status accounts.Status, users ...*user) {
		t.Helper()
		var changes []accounts.Change
		for _, u := range users {
			changes = append(changes, accounts.Change{DID: u.did(), Status: status, At: time.Now(), Seq: seq})
		}
		if _, err := states.SetStatus(t.Context(), db, "relay", changes); err != nil {
			t.Fatal(err)
		}
	}
	state(1, accounts.Deleted, bob, carol)
	state(2, accounts.Active, carol)
	for _, step := range []struct {
		later time.Duration
		jobs  int
	}{{59 * time.Minute, 0}, {61 * time.Minute, 1}, {61 * time.Minute, 1}} {
		eraser := erasure.NewWorker(erasure.Config{
			DB: db, Log: slog.New(slog.DiscardHandler), Jobs: erasure.NewStore(states), Accounts: states,
			Now: func() time.Time { return time.Now().Add(step.later) },
		})
		if err := eraser.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all, bobs int
		err := db.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE did = $1) FROM erasures`,
			bob.did()).Scan(&all, &bobs)
		if err != nil || all != step.jobs || bobs != step.jobs {
			t.Errorf("after %v: %d erasures, %d of bob, %v", step.later, all, bobs, err)
		}
	}
}
