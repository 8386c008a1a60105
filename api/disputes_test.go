package api_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/convos/disputes"
	"mlsd/internal/pgtest"
	"mlsd/internal/ratelog"
	"mlsd/messages"
)

// fails reports that u could not process the commit that created the epoch.
func (u *user) failed(c *convo, epoch int64) mlsapi.ReportCommitOutput {
	u.w.t.Helper()
	return read[mlsapi.ReportCommitOutput](u.w.t, u.post(mlsapi.NSIDReportCommit, failure(c, epoch)).ok())
}

func failure(c *convo, epoch int64) *mlsapi.ReportCommitInput {
	return &mlsapi.ReportCommitInput{ConvoID: c.id, Epoch: epoch, Reason: "undecryptable"}
}

// entered reports that u has entered the epoch, with an authenticator.
func (u *user) entered(c *convo, epoch int64, authenticator string) mlsapi.ReportEpochOutput {
	u.w.t.Helper()
	return read[mlsapi.ReportEpochOutput](u.w.t, u.post(mlsapi.NSIDReportEpoch, entry(c, epoch, authenticator)).ok())
}

func entry(c *convo, epoch int64, authenticator string) *mlsapi.ReportEpochInput {
	hash := sha256.Sum256([]byte(authenticator))
	return &mlsapi.ReportEpochInput{ConvoID: c.id, Epoch: epoch, AuthenticatorHash: hash[:]}
}

// accepted makes all accept the convo.
func (c *convo) accepted(all ...*user) {
	for _, u := range all {
		u.accept(c)
	}
}

// told are the forks and disputes that the convo's members were told of.
func (w *world) told(c *convo) string {
	w.t.Helper()
	var all string
	err := w.db.QueryRow(w.t.Context(), `
		SELECT coalesce(string_agg(concat_ws(' ', detail->>'change', detail->>'epoch', detail->>'by'), ', ' ORDER BY id), '')
		FROM outbox WHERE kind = 7 AND convo_id = $1`, c.id).Scan(&all)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// A liar cannot dispute an honest member's commit: not with many reports, not with many devices,
// not with accounts that it adds itself, before the commit or after it.
func TestOneLiarDisputesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, liar := w.user(), w.user(), w.user()
	c := alice.create(bob, liar)
	c.accepted(bob, liar)
	var own []*user
	for range 6 {
		own = append(own, w.user())
	}
	liar.add(c, own[:3]...)
	own[0].accept(c)
	own[0].add(c, own[3:5]...) // they may add others in turn
	c.accepted(own[1:5]...)
	bob.rotate(c)
	epoch := c.epoch
	liar.add(c, own[5]) // too late
	own[5].accept(c)
	for range 3 {
		for _, u := range append([]*user{liar, liar.device(), liar.device()}, own...) {
			if out := u.failed(c, epoch); out.Disputed {
				t.Fatalf("disputed by a report of %s", u.did())
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM commit_reports`); n != 7 {
		t.Errorf("%d reports are recorded, want one of each of 7 accounts", n)
	}
	if got := w.told(c); got != "" {
		t.Errorf("the members were told %q", got)
	}
	alice.rotate(c)
	// One more counted report, of whom the creator added, is a real dispute: the liar's helpers count
	// once.
	if out := alice.failed(c, epoch); !out.Disputed {
		t.Error("two counted reports of three do not dispute the commit")
	}
	if n := w.count(`SELECT voices * 10 + reports FROM disputes`); n != 22 {
		t.Errorf("voices and reports are %d, want 2 and 2", n)
	}
}

// A creator who is no admin any more counts as every other member does: once, with the accounts that
// it adds. A member whom another admin has added counts apart from that admin.
func TestDisputesFollowTheAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, own, more := w.user(), w.user(), w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	c.accepted(bob, carol)
	alice.post(mlsapi.NSIDPromoteAdmin, &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: bob.did()}).ok()
	bob.post(mlsapi.NSIDDemoteAdmin, &mlsapi.DemoteAdminInput{ConvoID: c.id, DID: alice.did()}).ok()
	alice.add(c, own, more)
	bob.add(c, dave)
	c.accepted(own, more, dave)
	carol.rotate(c)
	for _, u := range []*user{alice, own, more} {
		if out := u.failed(c, c.epoch); out.Disputed {
			t.Fatalf("disputed by a report of %s, which alice has added", u.did())
		}
	}
	if out := dave.failed(c, c.epoch); !out.Disputed {
		t.Error("the reports of alice and of dave do not dispute the commit")
	}
	if n := w.count(`SELECT voices * 10 + reports FROM disputes`); n != 32 {
		t.Errorf("voices and reports are %d, want 3 and 2", n)
	}
}

// A disputed commit stays. Ordinary commits are refused, and those of the committer; external ones
// of the others are accepted. The dispute ends when those who reported it are back.
func TestDispute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, mallory := w.phone(), w.phone(), w.phone(), w.phone(), w.phone()
	all := []*phone{alice, bob, carol, dave, mallory}
	c := alice.found(all[1:]...)
	mallory.mls.HideHandshakes(true)
	staged := must(mallory.group.StageUpdate())(w)
	mallory.post(mlsapi.NSIDSubmitCommit, submit(c, staged)).ok()
	c.epoch++
	for _, p := range []*phone{alice, dave, mallory} { // bob and carol cannot process it
		must(p.group.Process(staged.Commit))(w)
	}
	if out := bob.failed(c, c.epoch); !out.Recorded || out.Disputed {
		t.Errorf("after one report: %+v", out)
	}
	if again := bob.failed(c, c.epoch); again.Disputed {
		t.Error("the same account has reported twice")
	}
	out := carol.failed(c, c.epoch)
	if !out.Disputed || *out.DisputedEpoch != c.epoch || *out.Committer != mallory.did() {
		t.Fatalf("after two reports of four: %+v", out)
	}
	if again := carol.failed(c, c.epoch); !again.Disputed {
		t.Error("a repetition says that there is no dispute")
	}
	refused := alice.post(mlsapi.NSIDSubmitCommit, submit(c, must(alice.group.StageUpdate())(w)))
	refused.fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	if !strings.Contains(string(refused.body), mallory.did().String()) ||
		!strings.Contains(string(refused.body), fmt.Sprintf("epoch %d", c.epoch)) {
		t.Errorf("the refusal names neither committer nor epoch: %s", refused.body)
	}
	alice.group.Discard()
	// What can never be accepted is not kept for later.
	old := *c
	old.epoch--
	alice.post(mlsapi.NSIDSubmitCommit, alice.rotation(&old)).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	fresh := mallory.phone()
	info := read[mlsapi.GetGroupInfoOutput](t, mallory.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok()).GroupInfo
	mallory.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, must(fresh.mls.JoinExternal(info, mlsclient.NoLeaf))(w))).
		fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	dave.user.send(c, "messages go on")
	// One is back: the other alone does not make a dispute.
	bob.comeBack(c)
	c.epoch++
	if got := w.told(c); got != fmt.Sprintf("disputed %d %s, ended %d %[2]s", c.epoch-1, mallory.did(), c.epoch-1) {
		t.Errorf("the members were told %q", got)
	}
	if carol.failed(c, c.epoch-1).Disputed {
		t.Error("a commit was disputed twice")
	}
	carol.comeBack(c)
	c.epoch++
	follow(c, alice, dave, mallory)
	follow(c, alice, bob, carol, dave, mallory)
	first := alice.group.Authenticator()
	for _, p := range all {
		if !bytes.Equal(p.group.Authenticator(), first) {
			t.Errorf("%s is in another epoch", p.did())
		}
	}
	names := map[string]*user{"mallory": mallory.user, "bob": bob.user, "carol": carol.user}
	want := []string{"none → open by carol (reportCommit)", "open → ended by bob (processExternalCommit)"}
	if diff := cmp.Diff(want, disputeLines(w, names)); diff != "" {
		t.Errorf("audit log: -want +got\n%s", diff)
	}
	w.counts(1, "mlsd_disputes_total")
}

// All members get the events of forks and disputes, and nobody else does: over an open connection,
// and one that comes later.
func TestDisputeEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live)
	alice, bob, carol, outsider := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	c.accepted(bob, carol)
	k := carol.dial()
	outsider.create()
	other := outsider.dial("cursor", "0")
	alice.entered(c, 1, "one")
	bob.entered(c, 1, "another")
	alice.rotate(c)
	bob.failed(c, c.epoch)
	carol.failed(c, c.epoch)
	for _, k := range []*socket{k, carol.dial("cursor", "0")} {
		for _, change := range []string{"forked", "disputed"} {
			k.until("#disputeEvent", change)
		}
	}
	outsider.send(outsider.create(), "the end")
	if frames := other.until("#messageEvent", ""); bytes.Contains(frames, []byte("#disputeEvent")) {
		t.Error("an outsider was told")
	}
}

// until reads up to the next frame of a kind that has a text, and returns all that it has read.
func (k *socket) until(kind, text string) (frames []byte) {
	k.t.Helper()
	for {
		frame := k.read()
		frames = append(frames, frame...)
		if bytes.Contains(frame, []byte(kind)) && bytes.Contains(frame, []byte(text)) {
			return frames
		}
	}
}

// The report of a person who joined after a commit, or has not accepted the convo, does not count.
func TestLateComersHaveNoVoice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, request, dave, erin := w.user(), w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, request)
	bob.accept(c)
	bob.rotate(c)
	epoch := c.epoch
	alice.add(c, dave, erin)
	c.accepted(dave, erin)
	for _, u := range []*user{request, dave, erin} {
		if u.failed(c, epoch).Disputed {
			t.Errorf("disputed by %s", u.did())
		}
	}
	request.accept(c)
	if !alice.failed(c, epoch).Disputed {
		t.Error("two counted reports of two do not dispute the commit")
	}
}

// disputeLines are the transitions of disputes in the audit log.
func disputeLines(w *world, names map[string]*user) (lines []string) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(),
		`SELECT from_state, to_state, actor, reason FROM audit_log WHERE entity = 'dispute' ORDER BY id`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var from, to, actor, reason string
		if err := rows.Scan(&from, &to, &actor, &reason); err != nil {
			w.t.Fatal(err)
		}
		for name, u := range names {
			if u.did().String() == actor {
				actor = name
			}
		}
		lines = append(lines, fmt.Sprintf("%s → %s by %s (%s)", from, to, actor, reason[strings.LastIndex(reason, ".")+1:]))
	}
	return lines
}

// A dispute ends after its time, also if members still report it.
func TestDisputeEndsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	c.accepted(bob, carol)
	alice.rotate(c)
	bob.failed(c, c.epoch)
	if !carol.failed(c, c.epoch).Disputed {
		t.Fatal("both others do not dispute the commit")
	}
	bob.post(mlsapi.NSIDSubmitCommit, bob.rotation(c)).fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	if left := w.count(`SELECT extract(epoch FROM ends_at - began_at)::int FROM disputes`); left !=
		int(disputes.Lasts.Seconds()) {
		t.Errorf("it lasts %d s", left)
	}
	w.exec(`UPDATE disputes SET ends_at = now()`)
	if n := pgtest.Sweep(t, disputes.Sweep(w.db))["disputes_ended"]; n != 1 {
		t.Errorf("%d ended", n)
	}
	if n := pgtest.Sweep(t, disputes.Sweep(w.db))["disputes_ended"]; n != 0 {
		t.Errorf("%d ended again", n)
	}
	bob.rotate(c)
	if got, want := w.told(c),
		fmt.Sprintf("disputed %d %s, ended %d %[2]s", c.epoch-1, alice.did(), c.epoch-1); got != want {
		t.Errorf("the members were told %q, want %q", got, want)
	}
}

// An operator ends a dispute, as its time would. What is reported stays, and those who report it
// again, or more people, do not dispute the commit again. Its minutes count, and a later commit has
// the rest.
func TestOperatorEndsADispute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol, dave)
	c.accepted(bob, carol, dave)
	alice.rotate(c)
	epoch := c.epoch
	bob.failed(c, epoch)
	if !carol.failed(c, epoch).Disputed {
		t.Fatal("two counted reports of three do not dispute the commit")
	}
	w.exec(`UPDATE disputes SET began_at = began_at - interval '4 minutes', ends_at = ends_at - interval '4 minutes'`)
	if changed, err := w.endDispute(c, epoch); !changed || err != nil {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if changed, err := w.endDispute(c, epoch); changed || err != nil {
		t.Errorf("a second time: changed %t, %v", changed, err)
	}
	for _, u := range []*user{bob, carol, dave} {
		if out := u.failed(c, epoch); out.Disputed || !out.Recorded {
			t.Errorf("reported again: %+v", out)
		}
	}
	if n := w.count(`SELECT count(*) FROM commit_reports WHERE settled_at IS NULL`); n != 3 {
		t.Errorf("%d reports stand, want 3", n)
	}
	if got, want := w.told(c), fmt.Sprintf("disputed %d %s, ended %d %[2]s", epoch, alice.did(), epoch); got != want {
		t.Errorf("the members were told %q, want %q", got, want)
	}
	bob.rotate(c)
	for _, u := range []*user{alice, carol} {
		u.failed(c, c.epoch)
	}
	if n := w.count(`SELECT round(extract(epoch FROM ends_at - began_at) / 60)::int FROM disputes WHERE state =
			'open'`); n != 6 {
		t.Errorf("the dispute of the next commit lasts %d minutes, want 6", n)
	}
	if _, err := w.endDispute(c, epoch-1); !errors.Is(err, disputes.ErrNotFound) {
		t.Errorf("an epoch without a dispute: %v", err)
	}
	if _, err := w.endDispute(&convo{id: uuid.NewString()}, epoch); !errors.Is(err, messages.ErrConvoNotFound) {
		t.Errorf("no convo: %v", err)
	}
}

// endDispute ends the dispute of an epoch, as an operator does.
func (w *world) endDispute(c *convo, epoch int64) (changed bool, err error) {
	w.t.Helper()
	err = pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) (err error) {
		changed, err = disputes.End(w.t.Context(), tx, uuid.MustParse(c.id), epoch)
		return err
	})
	return changed, err
}

// Two liars hold a convo in dispute for ten minutes, and then not for an hour: not with the commits
// of other epochs, which they dispute beside the first or after it, and not by settling what they
// report.
func TestTwoLiarsCannotHoldAConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	c.accepted(bob, carol)
	first := c.epoch
	for range 6 {
		alice.rotate(c)
	}
	disputed := func(epoch int64) bool {
		before := w.count(`SELECT count(*) FROM disputes`)
		bob.failed(c, epoch)
		carol.failed(c, epoch)
		return w.count(`SELECT count(*) FROM disputes`) > before
	}
	later := func(d string) {
		w.exec(`UPDATE disputes SET began_at = began_at - $1::interval, ends_at = ends_at - $1::interval, ended_at = ended_at
				- $1::interval`, d)
	}
	if !disputed(first + 1) {
		t.Fatal("not disputed")
	}
	later("7 minutes")
	if !disputed(first + 2) {
		t.Error("a commit is not disputed beside another one")
	}
	if n := w.count(`SELECT round(extract(epoch FROM max(ends_at) - min(ends_at)))::int FROM disputes`); n != 0 {
		t.Errorf("the later dispute ends %d s after the first", n)
	}
	bob.entered(c, c.epoch, "x") // which ends both
	if n := w.count(`SELECT count(*) FROM disputes WHERE state = 'open'`); n != 0 {
		t.Errorf("%d disputes are open", n)
	}
	alice.rotate(c)
	if !disputed(first + 3) {
		t.Error("a convo has its three minutes no more")
	}
	if n := w.count(`SELECT round(extract(epoch FROM ends_at - began_at) / 60)::int FROM disputes WHERE state =
			'open'`); n != 3 {
		t.Errorf("the third dispute lasts %d minutes, want 3", n)
	}
	later("3 minutes")
	if n := pgtest.Sweep(t, disputes.Sweep(w.db))["disputes_ended"]; n != 1 {
		t.Errorf("%d ended", n)
	}
	if disputed(first + 4) {
		t.Error("disputed during the pause")
	}
	alice.rotate(c)
	later("1 hour")
	if !disputed(first + 4) {
		t.Error("not disputed after the pause")
	}
}

// The committer of each commit in dispute is refused, not only that of the newest one.
func TestEachOpenDisputeNamesItsCommitter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol, dave)
	c.accepted(bob, carol, dave)
	for _, by := range []*user{alice, dave} {
		by.rotate(c)
	}
	for _, u := range []*user{bob, carol} {
		u.failed(c, c.epoch-1)
		u.failed(c, c.epoch)
	}
	if n := w.count(`SELECT count(*) FROM disputes WHERE state = 'open'`); n != 2 {
		t.Fatalf("%d disputes", n)
	}
	enter := func(u *user) answer {
		return u.post(mlsapi.NSIDProcessExternalCommit, &mlsapi.ProcessExternalCommitInput{
			ConvoID: c.id, IdempotencyKey: newKey(), Commit: u.rotation(c).Commit,
		})
	}
	for _, u := range []*user{alice, dave} {
		enter(u).fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	}
	enter(bob).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit) // it is none
}

// A dispute whose convo is gone is deleted, so that it does not fill the batches of the sweep.
func TestDisputeOfADeletedConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO disputes VALUES (gen_random_uuid(), 2, 'did:plc:gone', 'open', 2, 2, now() - interval '1 hour',
			now() - interval '1 minute')`)
	pgtest.Sweep(t, disputes.Sweep(w.db))
	if n := w.count(`SELECT count(*) FROM disputes`); n != 0 {
		t.Error("the dispute is still there")
	}
}

// Reports of an epoch wait for nothing once one member has reported it.
func TestReportsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	alice.entered(c, 1, "one")
	bob.entered(c, 1, "one")
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it only releases locks
	for _, held := range []string{
		`SELECT pg_advisory_xact_lock(hashtextextended('mlsd.epochs ' || id, 0)) FROM convos`,
		`SELECT FROM convos FOR NO KEY UPDATE`,
		`SELECT FROM epoch_reports FOR UPDATE`,
	} {
		if _, err := tx.Exec(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
	hash, epoch := sha256.Sum256([]byte("one")), int64(1)
	for _, u := range []*user{alice, bob, carol, carol} {
		u.post(mlsapi.NSIDUpdateCursor,
			&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 0, Epoch: &epoch, AuthenticatorHash: hash[:]}).ok()
	}
}

// H13: two accounts can split as many convos of their own as they like, and the log stays short.
func TestForksOfOutsidersInTheLog(t *testing.T) {
	t.Parallel()
	var lines atomic.Int64
	w := newWorld(t, func(w *world) {
		w.logged = func(line string) {
			if strings.Contains(line, "an epoch is forked") {
				lines.Add(1)
			}
		}
	})
	alice, bob := w.user(), w.user()
	const forks = ratelog.Lines + 5
	for range forks {
		c := alice.create(bob)
		alice.entered(c, 1, "one")
		bob.entered(c, 1, "another")
	}
	w.counts(forks, "mlsd_forked_epochs_total")
	if n := lines.Load(); n == 0 || n > ratelog.Lines {
		t.Errorf("%d lines, want at most %d", n, ratelog.Lines)
	}
}

// Two members who report different authenticators of an epoch are in different groups. All members
// are told, once.
func TestFork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	if got := alice.entered(c, 1, "one"); !got.Recorded || *got.Agreeing != 1 || got.Differing != nil || got.Forked {
		t.Errorf("the first report: %+v", got)
	}
	if got := bob.entered(c, 1, "one"); *got.Agreeing != 2 || got.Forked {
		t.Errorf("the second: %+v", got)
	}
	if got := carol.entered(c, 1, "another"); *got.Agreeing != 1 || *got.Differing != 2 || !got.Forked {
		t.Errorf("another one: %+v", got)
	}
	if got := carol.device().entered(c, 1, "a third"); *got.Differing != 2 {
		t.Errorf("another device of the same account: %+v", got)
	}
	if n := w.count(`SELECT count(*) FROM epoch_reports`); n != 3 {
		t.Errorf("%d reports, want one of each account", n)
	}
	if got := w.told(c); got != "forked 1" {
		t.Errorf("the members were told %q", got)
	}
	w.counts(1, "mlsd_forked_epochs_total")
	// A cursor carries the report too.
	hash := sha256.Sum256([]byte("one"))
	epoch := int64(1)
	moved := read[mlsapi.UpdateCursorOutput](t, alice.post(mlsapi.NSIDUpdateCursor,
		&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 0, Epoch: &epoch, AuthenticatorHash: hash[:]}).ok())
	if moved.Forked == nil || !*moved.Forked {
		t.Errorf("updateCursor: %+v", moved)
	}
	ahead := epoch + 1
	alice.post(mlsapi.NSIDUpdateCursor,
		&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 0, Epoch: &ahead, AuthenticatorHash: hash[:]}).ok()
	alice.post(mlsapi.NSIDUpdateCursor,
		&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 0, Epoch: &epoch}).fails(http.StatusBadRequest, "InvalidRequest")
	if n := w.count(`SELECT count(*) FROM epoch_reports`); n != 3 {
		t.Errorf("%d reports, want 3", n)
	}
}

// Only members report, and only epochs that there are. Reports of the newest epochs are kept.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, gone, outsider := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, gone)
	alice.remove(c, gone)
	for range disputes.KeepEpochs + 2 {
		alice.rotate(c)
		bob.entered(c, c.epoch, fmt.Sprint(c.epoch))
		bob.failed(c, c.epoch)
	}
	for _, table := range []string{"epoch_reports", "commit_reports"} {
		if n := w.count(`SELECT count(*) FROM ` + table); n != disputes.KeepEpochs {
			t.Errorf("%d rows of %s, want %d", n, table, disputes.KeepEpochs)
		}
	}
	if bob.entered(c, 1, "old").Recorded || bob.failed(c, 1).Recorded {
		t.Error("an old epoch was recorded")
	}
	if alice.failed(c, c.epoch).Recorded {
		t.Error("the committer's own report was recorded")
	}
	bob.post(mlsapi.NSIDReportEpoch, entry(c, c.epoch+1, "x")).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	bob.post(mlsapi.NSIDReportCommit, failure(c, c.epoch+1)).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	gone.post(mlsapi.NSIDReportEpoch, entry(c, 1, "x")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	gone.post(mlsapi.NSIDReportCommit, failure(c, 1)).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	outsider.post(mlsapi.NSIDReportEpoch, entry(c, 1, "x")).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	outsider.post(mlsapi.NSIDReportCommit, failure(c, 1)).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
}

// A GroupInfo of two members who agree replaces the one of the disputed committer. A single
// member's does not, nor the committer's, nor one that contradicts a group that the server has
// verified.
func TestGroupInfoOfTheMajority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, mallory := w.phone(), w.phone(), w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol, dave, mallory)
	mallory.mls.HideHandshakes(true)
	staged := must(mallory.group.StageUpdate())(w)
	quiet := submit(c, staged)
	quiet.GroupInfo = nil
	mallory.post(mlsapi.NSIDSubmitCommit, quiet).ok()
	c.epoch++
	for _, p := range []*phone{alice, dave, mallory} {
		must(p.group.Process(staged.Commit))(w)
	}
	bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)
	bob.failed(c, c.epoch)
	carol.failed(c, c.epoch)
	offer := func(p *phone) *mlsapi.ReportEpochInput {
		in := entry(c, c.epoch, string(p.group.Authenticator()))
		in.GroupInfo = must(p.group.GroupInfo())(w)
		return in
	}
	stored := func(p *phone) bool {
		out := read[mlsapi.ReportEpochOutput](t, p.post(mlsapi.NSIDReportEpoch, offer(p)).ok())
		return out.GroupInfoStored != nil && *out.GroupInfoStored
	}
	if stored(alice) {
		t.Error("a single member's GroupInfo was stored")
	}
	if stored(mallory) {
		t.Error("the GroupInfo of the disputed committer was stored")
	}
	wrong := offer(dave)
	wrong.GroupInfo = must(bob.group.GroupInfo())(w) // of the epoch before, signed by another
	dave.post(mlsapi.NSIDReportEpoch, wrong).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	if !stored(dave) {
		t.Error("the second member's GroupInfo was not stored")
	}
	if stored(dave) {
		t.Error("an account has replaced the GroupInfo twice")
	}
	bob.comeBack(c)
	c.epoch++
	carol.comeBack(c)
	c.epoch++
	follow(c, alice, dave, mallory, bob)
	for _, p := range []*phone{bob, carol, dave} {
		if !bytes.Equal(p.group.Authenticator(), alice.group.Authenticator()) {
			t.Errorf("%s is in another epoch", p.did())
		}
	}
}

// A liar and its helpers count one for a GroupInfo too, and requests do not count.
func TestHelpersDoNotReplaceTheGroupInfo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, liar, request := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, liar, request)
	c.accepted(bob, liar)
	helpers := []*user{w.user(), w.user(), w.user()}
	liar.add(c, helpers...)
	c.accepted(helpers...)
	alice.entered(c, c.epoch, "true")
	for _, u := range append(helpers, request) {
		u.entered(c, c.epoch, "false")
	}
	offer := entry(c, c.epoch, "false")
	offer.GroupInfo = []byte("is checked only if it would be stored")
	if out := read[mlsapi.ReportEpochOutput](t,
		liar.post(mlsapi.NSIDReportEpoch, offer).ok()); out.GroupInfoStored != nil || !out.Forked {
		t.Errorf("a liar's GroupInfo: %+v", out)
	}
	bob.entered(c, c.epoch, "true")
	offer = entry(c, c.epoch, "true")
	offer.GroupInfo = []byte("is checked")
	alice.post(mlsapi.NSIDReportEpoch, offer).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
}
