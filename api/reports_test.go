package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/features/reports"
	"mlsd/internal/pgtest"
	"mlsd/people/quota"
)

// report seals what u reveals about c.
func (u *user) report(c *convo, text string) *mlsapi.ReportConvoInput {
	u.w.t.Helper()
	content, err := json.Marshal(reports.Content{Text: text})
	if err != nil {
		u.w.t.Fatal(err)
	}
	return u.sealed(c, content)
}

func (u *user) sealed(c *convo, content []byte) *mlsapi.ReportConvoInput {
	u.w.t.Helper()
	key := u.w.operator.Public()
	sealed, err := key.Seal(reports.Binding(uuid.MustParse(c.id), u.did()), content)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return &mlsapi.ReportConvoInput{ConvoID: c.id, Reason: "harassment", SealedReport: sealed, KeyID: key.ID()}
}

// Who reads the key from the server can seal a report that the operator's private key opens. The
// reporter gets an id, and the row holds nothing that anybody else can read.
func TestReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	key := read[mlsapi.GetReportKeyOutput](t, bob.get(mlsapi.NSIDGetReportKey).ok())
	if own := w.operator.Public(); key.KeyID != own.ID() || string(key.PublicKey) != string(own.Bytes()) ||
		key.Algorithm != reports.Algorithm {
		t.Errorf("the key is %+v", key)
	}
	in, events := bob.report(c, "he threatens me"), w.count(`SELECT count(*) FROM outbox`)
	out := read[mlsapi.ReportConvoOutput](t, bob.post(mlsapi.NSIDReportConvo, in).ok())
	sealed, err := reports.Fetch(t.Context(), w.db, uuid.MustParse(out.ReportID))
	if err != nil || sealed.Reporter != bob.did() || sealed.Convo.String() != c.id || sealed.KeyID != key.KeyID {
		t.Fatalf("%+v, %v", sealed, err)
	}
	if err := sealed.Check(); err != nil {
		t.Error(err)
	}
	opened, err := w.operator.Open(sealed.Binding, sealed.Sealed)
	if err != nil || string(opened) != `{"text":"he threatens me","messages":null}` {
		t.Errorf("opened %s, %v", opened, err)
	}
	if n := w.count(`SELECT count(*) FROM abuse_reports t WHERE strpos(t::text, 'threatens') > 0`); n != 0 {
		t.Error("the server can read the report")
	}
	if n := w.count(`SELECT count(*) FROM outbox`); n != events {
		t.Errorf("%d events tell of the report", n-events)
	}
	// The same bytes without a key are the same report, also under another reason.
	in.Reason = "spam"
	if again := read[mlsapi.ReportConvoOutput](t, bob.post(mlsapi.NSIDReportConvo, in).ok()); again != out {
		t.Errorf("again %+v, first %+v", again, out)
	}
}

// Members report, invited people who have not accepted too, and former members for 30 days. For an
// outsider there is no convo, whatever else is wrong with its report.
func TestWhoReports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	alice.post(mlsapi.NSIDReportConvo, alice.report(c, "a member")).ok()
	bob.post(mlsapi.NSIDReportConvo, bob.report(c, "invited")).ok()
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	left := func(ago time.Duration) {
		w.exec(`UPDATE members SET left_at = clock_timestamp() - $1::interval WHERE did = $2`, ago, carol.did())
	}
	left(reports.FormerMember - time.Hour)
	carol.post(mlsapi.NSIDReportConvo, carol.report(c, "a former member")).ok()
	left(reports.FormerMember + time.Hour)
	carol.post(mlsapi.NSIDReportConvo, carol.report(c, "too late")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	outsider := w.user()
	in := outsider.report(c, "an outsider")
	message := outsider.post(mlsapi.NSIDReportConvo, in).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	in.KeyID, in.SealedReport, in.Reason = "another", []byte("short"), "dislike"
	if got := outsider.post(mlsapi.NSIDReportConvo, in).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound); got != message {
		t.Errorf("a wrong report tells %q, a good one %q", got, message)
	}
	nowhere := outsider.report(&convo{id: uuid.NewString()}, "nowhere")
	if got := outsider.post(mlsapi.NSIDReportConvo, nowhere).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound); got != message {
		t.Errorf("a convo that never existed tells %q, this one %q", got, message)
	}
	if n := w.count(`SELECT count(*) FROM abuse_reports`); n != 3 {
		t.Errorf("%d reports", n)
	}
}

// A report that cannot be opened is refused where the server can see it, by name.
func TestRefusedReports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	refused := func(status int, name string, change func(*mlsapi.ReportConvoInput)) string {
		t.Helper()
		in := bob.report(c, "he threatens me")
		change(in)
		return bob.post(mlsapi.NSIDReportConvo, in).fails(status, name)
	}
	refused(http.StatusBadRequest, mlsapi.ErrUnknownReportKey,
		func(in *mlsapi.ReportConvoInput) { in.KeyID = "0123456789abcdef" })
	refused(http.StatusBadRequest, "InvalidRequest", func(in *mlsapi.ReportConvoInput) { in.Reason = "dislike" })
	refused(http.StatusBadRequest, "InvalidRequest",
		func(in *mlsapi.ReportConvoInput) { in.SealedReport = make([]byte, 47) })
	refused(http.StatusBadRequest, "InvalidRequest",
		func(in *mlsapi.ReportConvoInput) { in.SealedReport = make([]byte, reports.MaxSealed+1) })
	largest := bob.sealed(c, make([]byte, reports.MaxSealed-48))
	if len(largest.SealedReport) != reports.MaxSealed {
		t.Fatalf("%d bytes", len(largest.SealedReport))
	}
	bob.post(mlsapi.NSIDReportConvo, largest).ok()
	w.operator = nil
	bob = bob.on(w.boot())
	bob.get(mlsapi.NSIDGetReportKey).fails(http.StatusBadRequest, mlsapi.ErrReportsDisabled)
	bob.post(mlsapi.NSIDReportConvo, largest).fails(http.StatusBadRequest, mlsapi.ErrReportsDisabled)
}

// All open reports together are bounded, also if many people send them at once. The answer does not
// say how many there are. Who repeats a report gets the first answer also then.
func TestReportBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	w.limits = quota.Limits{quota.ReportBytes: 5*16<<10 + 100}
	node := w.boot()
	alice, bob = alice.on(node), bob.on(node)
	first := alice.report(c, "0")
	kept := string(alice.post(mlsapi.NSIDReportConvo, first).ok())
	for range 3 {
		alice.post(mlsapi.NSIDReportConvo, alice.report(c, "more")).ok()
	}
	// There is room for one more. Of two at once, the second waits for the first one.
	last, more := alice.report(c, "the last one"), bob.report(c, "one too many")
	pair := w.inCommit(mlsapi.NSIDReportConvo, func() answer { return alice.post(mlsapi.NSIDReportConvo, last) },
		func() answer { return bob.post(mlsapi.NSIDReportConvo, more) })
	statuses := []int{pair[0].status, pair[1].status}
	slices.Sort(statuses)
	if n := w.count(`SELECT count(*) FROM abuse_reports`); n != 5 ||
		!slices.Equal(statuses, []int{http.StatusOK, http.StatusTooManyRequests}) {
		t.Errorf("%d reports, statuses %v", n, statuses)
	}
	a := bob.post(mlsapi.NSIDReportConvo, bob.report(c, "more"))
	if got := a.fails(http.StatusTooManyRequests, "QuotaExceeded"); got != "quota report-bytes is used up" {
		t.Error(got)
	}
	if got := a.header.Get("Retry-After"); got != "3600" {
		t.Errorf("Retry-After %q", got)
	}
	if again := string(alice.post(mlsapi.NSIDReportConvo, first).ok()); again != kept {
		t.Errorf("the repetition got %s, the first answer was %s", again, kept)
	}
	// A large report counts for what it is.
	w.exec(`DELETE FROM abuse_reports WHERE digest <> (SELECT digest FROM abuse_reports ORDER BY id LIMIT 1)`)
	alice.post(mlsapi.NSIDReportConvo,
		alice.sealed(c, []byte(strings.Repeat("x", 70<<10)))).fails(http.StatusTooManyRequests, "QuotaExceeded")
	alice.post(mlsapi.NSIDReportConvo, alice.sealed(c, []byte(strings.Repeat("x", 60<<10)))).ok()
}

// Reports are kept for 180 days, open or closed, and no longer.
func TestReportsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	for _, text := range []string{"open", "closed"} {
		out := read[mlsapi.ReportConvoOutput](t, bob.post(mlsapi.NSIDReportConvo, bob.report(c, text)).ok())
		if text == "closed" {
			w.exec(`UPDATE abuse_reports SET state = 'closed', closed_at = now(), closed_by = 'olga', note = '' WHERE id = $1`,
				out.ReportID)
		}
	}
	for _, want := range []struct {
		after time.Duration
		left  int
	}{{0, 2}, {reports.Keep - time.Hour, 2}, {2 * time.Hour, 0}} {
		pgtest.Age(t, w.db, "abuse_reports", want.after)
		pgtest.Sweep(t, reports.Sweeps(w.db, 0)...)
		if n := w.count(`SELECT count(*) FROM abuse_reports`); n != want.left {
			t.Errorf("after %s %d reports are left", want.after, n)
		}
	}
}

// sendReport sends a report, and returns its id.
func (u *user) sendReport(c *convo, text string) uuid.UUID {
	u.w.t.Helper()
	return uuid.MustParse(read[mlsapi.ReportConvoOutput](u.w.t,
		u.post(mlsapi.NSIDReportConvo, u.report(c, text)).ok()).ReportID)
}

// closeReport closes a report some time ago.
func (w *world) closeReport(id uuid.UUID, ago time.Duration) {
	w.t.Helper()
	w.exec(`UPDATE abuse_reports SET state = 'closed', closed_at = now() - $2::interval, closed_by = 'olga', note = ''
			WHERE id = $1`, id, ago)
}

// A flood of reports ends when the operator closes or deletes them: only open ones count.
func TestClosedReportsMakeRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	w.limits = quota.Limits{quota.ReportBytes: 2 * 16 << 10}
	node := w.boot()
	alice, bob = alice.on(node), bob.on(node)
	full := func() {
		t.Helper()
		bob.post(mlsapi.NSIDReportConvo, bob.report(c, "more")).fails(http.StatusTooManyRequests, "QuotaExceeded")
	}
	first := alice.sendReport(c, "flood")
	alice.sendReport(c, "flood")
	full()
	w.closeReport(first, 0)
	bob.sendReport(c, "after one was closed")
	full()
	w.exec(`DELETE FROM abuse_reports WHERE state = 'closed'`)
	full()
	if n, err := clearReports(t.Context(), w, alice); err != nil || n != 1 {
		t.Fatalf("%d reports deleted, %v", n, err)
	}
	bob.sendReport(c, "after the others were deleted")
	full()
}

func clearReports(ctx context.Context, w *world, reporter *user) (n int64, err error) {
	err = pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) (err error) {
		n, err = reports.Clear(ctx, tx, reporter.did())
		return err
	})
	return n, err
}

// A report that is refused as there are too many is not written first, and counts for its sender.
func TestRefusedReportsCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.sendReport(c, "the last one")
	w.limits = quota.Limits{quota.ReportBytes: 16 << 10, "reports-per-day": 3, quota.AddressShare: 100}
	bob = bob.on(w.boot())
	size := w.count(`SELECT pg_table_size('abuse_reports')`)
	for range 3 {
		a := bob.post(mlsapi.NSIDReportConvo, bob.sealed(c, make([]byte, 200<<10)))
		if got := a.fails(http.StatusTooManyRequests, "QuotaExceeded"); got != "quota report-bytes is used up" {
			t.Error(got)
		}
	}
	if now := w.count(`SELECT pg_table_size('abuse_reports')`); now != size {
		t.Errorf("refused reports have written %d bytes", now-size)
	}
	got := bob.post(mlsapi.NSIDReportConvo, bob.report(c, "more")).fails(http.StatusTooManyRequests, "QuotaExceeded")
	if !strings.HasPrefix(got, "quota reports-per-day is used up: 3 of 3; ") {
		t.Error(got)
	}
}

// A repetition waits for no other report, unless that one is the same.
func TestRepeatedReportsWaitForNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	first, both := alice.report(c, "first"), bob.report(c, "twice at once")
	kept := string(alice.post(mlsapi.NSIDReportConvo, first).ok())
	send := func() answer { return bob.post(mlsapi.NSIDReportConvo, both) }
	pair := w.inCommit(mlsapi.NSIDReportConvo, send, func() answer { // the first one has the lock
		if again := alice.post(mlsapi.NSIDReportConvo, first); string(again.body) != kept {
			t.Errorf("the repetition got %s, the first answer was %s", again.body, kept)
		}
		return send()
	})
	if a, b := string(pair[0].ok()), string(pair[1].ok()); a != b {
		t.Errorf("the same report has the answers %s and %s", a, b)
	}
	if n := w.count(`SELECT count(*) FROM abuse_reports`); n != 2 {
		t.Errorf("%d reports", n)
	}
}

// A repetition counts as a report of the day, but not its bytes.
func TestRepeatedReportsCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	in := bob.sealed(c, make([]byte, 200<<10))
	w.limits = quota.Limits{"reports-per-day": 3, "bytes-per-day": 500 << 10, quota.AddressShare: 100}
	bob = bob.on(w.boot())
	for range 3 {
		bob.post(mlsapi.NSIDReportConvo, in).ok()
	}
	got := bob.post(mlsapi.NSIDReportConvo, in).fails(http.StatusTooManyRequests, "QuotaExceeded")
	if !strings.HasPrefix(got, "quota reports-per-day is used up: 3 of 3; ") {
		t.Error(got)
	}
}

// The same report under new keys is one report, and each key has a record that counts.
func TestRepeatedReportsTakeRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	w.limits = quota.Limits{"records-per-day": 3, "reports-per-day": 4, quota.AddressShare: 100}
	bob = bob.on(w.boot())
	in := bob.report(c, "again and again")
	for range 3 {
		in.IdempotencyKey = newKey()
		bob.post(mlsapi.NSIDReportConvo, in).ok()
	}
	in.IdempotencyKey = newKey()
	got := bob.post(mlsapi.NSIDReportConvo, in).fails(http.StatusTooManyRequests, "QuotaExceeded")
	if !strings.HasPrefix(got, "quota records-per-day is used up: 3 of 3; ") {
		t.Error(got)
	}
	if n := w.count(`SELECT count(*) FROM abuse_reports`); n != 1 {
		t.Errorf("%d reports", n)
	}
}

// What a closed report reveals is deleted after 30 days. It goes sooner, those first that were
// closed first, while all closed reports are more than the limit. Open ones stay.
func TestClosedReportsAreCleared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	open := bob.sendReport(c, "open")
	old, first, second, last := bob.sendReport(c, "1"), bob.sendReport(c, "2"), bob.sendReport(c, "3"),
		bob.sendReport(c, "4")
	w.closeReport(old, reports.KeepSealed+time.Hour)
	w.closeReport(first, reports.KeepSealed-time.Hour)
	w.closeReport(second, time.Hour)
	w.closeReport(last, time.Minute)
	for _, step := range []struct {
		most    int64
		cleared []uuid.UUID
	}{{0, []uuid.UUID{old}}, {3 * 16 << 10, []uuid.UUID{old}}, {2 * 16 << 10, []uuid.UUID{old, first}}} {
		pgtest.Sweep(t, reports.Sweeps(w.db, step.most)...)
		for _, id := range []uuid.UUID{open, old, first, second, last} {
			_, err := reports.Fetch(t.Context(), w.db, id)
			if want := slices.Contains(step.cleared, id); errors.Is(err, reports.ErrCleared) != want || !want && err != nil {
				t.Errorf("limit %d: %v", step.most, err)
			}
		}
	}
}
