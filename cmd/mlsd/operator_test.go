package main

import (
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/archive"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/operator"
	"mlsd/people/accounts"
)

// operate runs mlsd admin against the world's server.
func (w *world) operate(args ...string) *server {
	w.t.Helper()
	all := append([]string{"--admin-url", w.admin, "admin", "--operator", "olga", "--reason", "ticket 7", "--json"},
		args...)
	return launch(w.t, nil, all...)
}

// done runs mlsd admin and returns its result.
func done[T any](w *world, args ...string) T {
	w.t.Helper()
	s := w.operate(args...)
	if err := s.wait(); err != nil {
		w.t.Fatalf("admin %v: %v", args, err)
	}
	return read[T](w.t, []byte(s.stdout.String()))
}

// operated is a world with a server on a database of its own.
func operated(t *testing.T) (w *world, database string) {
	t.Helper()
	w, database = newWorld(t), pgtest.URL(t)
	w.serve(database)
	return w, database
}

// serve boots a server with a report key on a database.
func (w *world) serve(database string) {
	w.t.Helper()
	w.booted = boot(w.t, nil, w.flags("--database-url", database, "--report-key", reportKey)...)
	w.use(w.booted.admin, w.booted.public)
}

// actions are what inspect says that olga has done, the oldest first, without times.
func actions(t *testing.T, database string, subject ...string) []operator.Action {
	t.Helper()
	found := lookJSON[operator.ActionList](t, database, append([]string{"actions", "--dids"}, subject...)...).Actions
	slices.Reverse(found)
	for i := range found {
		if found[i].At.IsZero() || (found[i].EndedAt == nil) != (found[i].Outcome == "started") {
			t.Errorf("times of %+v", found[i])
		}
	}
	return found
}

func wantActions(t *testing.T, got []operator.Action, want ...operator.Action) {
	t.Helper()
	for i := range want {
		want[i].Operator, want[i].Reason = "olga", "ticket 7"
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
		cmpopts.IgnoreFields(operator.Action{}, "At", "EndedAt")); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// deviceID is the id of the user's device.
func (u *user) deviceID() string {
	u.w.t.Helper()
	body, _ := u.KeyPackage(u.w.t)
	kp, err := mls.ParseKeyPackage(body)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return kp.DeviceID()
}

func TestAdminAccountShow(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	bob.publication().must().ok()
	got := done[operator.Account](w, "account", "show", bob.did().String())
	want := operator.Account{Account: accounts.Account{DID: bob.did(), Status: "active"}, Counts: archive.Counts{
		Devices: 1, KeyPackages: 2, Available: 1, Convos: 1, PendingWelcomes: 1, Records: 2,
	}}
	if diff := cmp.Diff(want, got,
		cmpopts.IgnoreFields(archive.Counts{}, "KeyPackageBytes", "RecordBytes", "LastPublished", "LastWrite",
			"OldestMembership")); diff != "" {
		t.Errorf("bob (-want +got):\n%s", diff)
	}
	if got.KeyPackageBytes == 0 || got.RecordBytes == 0 || got.LastPublished == nil || got.LastWrite == nil ||
		got.OldestMembership == nil {
		t.Errorf("bob: %+v", got)
	}
	// G14: a message has no record, and is a write.
	first := done[operator.Account](w, "account", "show", alice.did().String()).LastWrite
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello")).must().ok()
	if last := done[operator.Account](w, "account", "show", alice.did().String()).LastWrite; !last.After(*first) {
		t.Errorf("alice's last write: %v, before her message %v", last, first)
	}
	nothing := operator.Account{Account: accounts.Account{DID: "did:web:nobody.example", Status: "active"}}
	if got := done[operator.Account](w, "account", "show", "did:web:nobody.example"); got != nothing {
		t.Errorf("nobody: %+v", got)
	}
	text := launch(t, nil, "--admin-url", w.admin, "admin", "account", "show", bob.did().String())
	if err := text.wait(); err != nil || !strings.Contains(text.stdout.String(), "keyPackagesAvailable  1\n") {
		t.Errorf("as text: %s, %v", text.stdout, err)
	}
	w.operate("account", "show", "bob").fails("account.show", "InvalidRequest", "did")
	w.operate("account", "show").fails("did is missing")
	wantActions(t, actions(t, database)) // reads leave no row
}

// Finding S10: reading an export leaves a record on every path: the command, the admin API and the
// console one with who and why; the account's own method one in an hour, which the account can read
// too.
func TestReadingAnExportIsRecorded(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	bob := w.user()
	bob.publication().must().ok()
	did := bob.did().String()
	exported := func(kind, page, body string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.admin+page, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(text), `"key_packages"`); has != (resp.StatusCode == http.StatusOK) {
			t.Errorf("%s answers %d and has rows: %v", page, resp.StatusCode, has)
		}
		return resp.StatusCode
	}
	const method, form = "/admin/account/export", "application/x-www-form-urlencoded"
	if got := ask(t, http.MethodGet, w.admin+method+"?did="+did); got == http.StatusOK {
		t.Error("an export without who and why")
	}
	if got := exported("application/json", method, `{"did":"`+did+`"}`); got != http.StatusBadRequest {
		t.Errorf("an export without who and why: %d", got)
	}
	if got := exported("application/json", method,
		`{"did":"`+did+`","operator":"olga","reason":"ticket 7"}`); got != http.StatusOK {
		t.Errorf("the admin API: %d", got)
	}
	if got := exported(form, "/actions/call", url.Values{"method": {"account.export"}, "param-did": {did},
		"operator": {"olga"}, "reason": {"ticket 7"}}.Encode()); got != http.StatusOK {
		t.Errorf("the console: %d", got)
	}
	if s := w.operate("account", "export", did); s.wait() != nil || !strings.Contains(s.stdout.String(), "key_packages") {
		t.Errorf("the command: %s", s.stderr)
	}
	row := operator.Action{Action: "account.export", Subject: did, Outcome: "done"}
	wantActions(t, actions(t, database), row, row, row)

	for range 3 {
		bob.query(mlsapi.NSIDExportMyData).must().ok()
	}
	trail := lookJSON[operator.Trail](t, database, "audit", "--dids", did).Transitions
	if len(trail) != 1 || trail[0].Actor != did || trail[0].To != "exported" ||
		trail[0].Reason != mlsapi.NSIDExportMyData {
		t.Errorf("the audit log: %+v", trail)
	}
	if own := string(bob.query(mlsapi.NSIDExportMyData).must().ok()); !strings.Contains(own, `exported`) {
		t.Error("bob cannot see that somebody has read its data")
	}
}

func TestAdminAccountBlock(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	did := bob.did().String()
	if got := done[operator.Blocked](w, "account", "block", did); !got.Changed || !got.Blocked {
		t.Errorf("blocked: %+v", got)
	}
	if got := done[operator.Blocked](w, "account", "block", did); got.Changed {
		t.Errorf("blocked again: %+v", got)
	}
	look := bob.query(mlsapi.NSIDGetConvo, "convoId", c.id)
	await.Until(t, "bob is refused", func() bool { return look.must().status == http.StatusForbidden })
	alice.query(mlsapi.NSIDGetConvo, "convoId", c.id).must().ok()
	if shown := done[operator.Account](w, "account", "show", did); shown.Block == nil || shown.Block.By != "olga" ||
		shown.Block.Reason != "ticket 7" {
		t.Errorf("shown: %+v", shown)
	}
	if got := done[operator.Blocked](w, "account", "unblock", did); !got.Changed || got.Blocked {
		t.Errorf("unblocked: %+v", got)
	}
	await.Until(t, "bob is served", func() bool { return look.must().status == http.StatusOK })
	wantActions(t, actions(t, database, did),
		operator.Action{Action: "account.block", Subject: did, Outcome: "done"},
		operator.Action{Action: "account.block", Subject: did, Outcome: "done"},
		operator.Action{Action: "account.unblock", Subject: did, Outcome: "done"})
	w.wantSound()
}

// G14: what a wrong relay has stated is healed by a command, not by statements against the database.
func TestAdminAccountReactivate(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	did := bob.did()
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const relay = "repos wss://relay.example.com"
	stated, err := accounts.NewStore(time.Hour, convos.HandOver).SetStatus(t.Context(), db, relay,
		[]accounts.Change{{DID: did, Status: accounts.Deleted, At: time.Now(), Seq: 1}})
	if err != nil || len(stated) != 1 {
		t.Fatalf("stated: %v, %v", stated, err)
	}
	look := bob.query(mlsapi.NSIDGetConvo, "convoId", c.id)
	await.Until(t, "bob is refused", func() bool { return look.must().status == http.StatusForbidden })
	if shown := done[operator.Account](w, "account", "show", did.String()); shown.EraseAfter == nil {
		t.Errorf("shown: %+v", shown)
	}
	want := operator.Reactivated{DID: did, Was: accounts.Deleted, Changed: true}
	if got := done[operator.Reactivated](w, "account", "reactivate", did.String()); got != want {
		t.Errorf("reactivated: %+v", got)
	}
	await.Until(t, "bob is served", func() bool { return look.must().status == http.StatusOK })
	if shown := done[operator.Account](w, "account", "show", did.String()); shown.EraseAfter != nil ||
		shown.Status != accounts.Active {
		t.Errorf("shown afterwards: %+v", shown)
	}
	want = operator.Reactivated{DID: did, Was: accounts.Active}
	if got := done[operator.Reactivated](w, "account", "reactivate", did.String()); got != want {
		t.Errorf("reactivated again: %+v", got)
	}
	done[operator.Erasing](w, "account", "erase", did.String())
	w.operate("account", "reactivate", did.String()).fails("account.reactivate", "ErasureRunning")
	wantActions(t, actions(t, database, did.String()),
		operator.Action{Action: "account.reactivate", Subject: did.String(), Outcome: "done"},
		operator.Action{Action: "account.reactivate", Subject: did.String(), Outcome: "done"},
		operator.Action{Action: "account.erase", Subject: did.String(), Outcome: "done"},
		operator.Action{Action: "account.reactivate", Subject: did.String(), Outcome: "refused: ErasureRunning"})
}

// An operator limits an account on all nodes, looks at the limit, and takes it back.
func TestAdminAccountLimit(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	another := boot(t, nil, w.flags("--database-url", database)...)
	alice := w.user()
	did := alice.did().String()
	nodes := []string{w.public, another.public}
	wantSize := func(size string) {
		t.Helper()
		for _, public := range nodes {
			w.use(w.admin, public)
			await.Until(t, "a bucket has "+size+" units on "+public, func() bool {
				return alice.query(mlsapi.NSIDGetConvos).must().header.Get("RateLimit-Limit") == size
			})
		}
	}
	wantSize("400")
	begun := time.Now()
	got := done[operator.Limited](w, "account", "limit", did, "10", "--for", "7d")
	if got.Percent != 10 || got.Until == nil || got.Until.Sub(begun).Round(time.Hour) != 7*24*time.Hour {
		t.Errorf("limited: %+v", got)
	}
	wantSize("40")
	shown := done[operator.Account](w, "account", "show", did).Limit
	want := &accounts.Limit{Percent: 10, Until: got.Until, By: "olga", Reason: "ticket 7"}
	if diff := cmp.Diff(want, shown, cmpopts.IgnoreFields(accounts.Limit{}, "At")); diff != "" ||
		shown.At.Before(begun.Add(-time.Minute)) {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if got := done[operator.Limited](w, "account", "limit", did, "1000"); got.Percent != 1000 || got.Until != nil {
		t.Errorf("limited without an end: %+v", got)
	}
	wantSize("4000")
	for range 2 {
		if got := done[operator.Limited](w, "account", "limit", did, "100"); got.Percent != 100 || got.Until != nil {
			t.Errorf("taken back: %+v", got)
		}
	}
	wantSize("400")
	if l := done[operator.Account](w, "account", "show", did).Limit; l != nil {
		t.Errorf("still shown: %+v", l)
	}
	for _, refused := range [][]string{
		{did, "0", "from 1 to 1000"}, {did, "1001", "from 1 to 1000"}, {did, "ten", "from 1 to 1000"},
		{did, "10%", "from 1 to 1000"},
		{did, "10", "--for", "soon", "want a duration"}, {did, "10", "--for", "-1h", "a second at least"},
		{did, "100", "--for", "1h", "no limit"}, {"alice", "10", "did"},
	} {
		args, want := refused[:len(refused)-1], refused[len(refused)-1]
		w.operate(append([]string{"account", "limit"}, args...)...).fails("InvalidRequest", want)
	}
	recorded := actions(t, database, did)
	wantActions(t, recorded[:4],
		operator.Action{Action: "account.limit", Subject: did + " 10 7d", Outcome: "done"},
		operator.Action{Action: "account.limit", Subject: did + " 1000", Outcome: "done"},
		operator.Action{Action: "account.limit", Subject: did + " 100", Outcome: "done"},
		operator.Action{Action: "account.limit", Subject: did + " 100", Outcome: "done"})
	w.wantSound()
}

func TestAdminKeyPackagesWithdraw(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	for range 2 {
		bob.publication().must().ok()
	}
	device := bob.deviceID()
	if got := done[operator.Withdrawn](w, "keypackages", "withdraw", bob.did().String(), "--device",
		"another"); got.KeyPackages != 0 {
		t.Errorf("another device: %+v", got)
	}
	if got := done[operator.Withdrawn](w, "keypackages", "withdraw", bob.did().String(), "--device",
		device); got.KeyPackages != 2 {
		t.Errorf("the device: %+v", got)
	}
	bob.publication().must().ok()
	if got := done[operator.Withdrawn](w, "keypackages", "withdraw", bob.did().String()); got.KeyPackages != 1 {
		t.Errorf("all: %+v", got)
	}
	if left := alice.claim(bob); len(left) != 0 {
		t.Errorf("alice gets %v", left)
	}
	counted := lookJSON[operator.TransitionCounts](t, database, "audit").Transitions
	if want := (operator.TransitionCount{Entity: "key_package", From: "available", To: "expired",
		Reason: "admin keypackages.withdraw", Count: 3}); !slices.Contains(counted, want) {
		t.Errorf("the audit log lacks %+v: %+v", want, counted)
	}
	did := bob.did().String()
	wantActions(t, actions(t, database, did),
		operator.Action{Action: "keypackages.withdraw", Subject: did + " another", Outcome: "done"},
		operator.Action{Action: "keypackages.withdraw", Subject: did + " " + device, Outcome: "done"},
		operator.Action{Action: "keypackages.withdraw", Subject: did, Outcome: "done"})
	w.wantSound()
}

// A lost device gets nothing that was on its way to it. The person's other devices keep theirs.
func TestAdminDeviceRevoke(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob) // with a Welcome for bob
	bob.publication().must().ok()
	device := bob.deviceID()
	push := &mlsapi.RegisterPushTargetInput{DeviceID: device, Kind: "webhook", URL: new(string)}
	*push.URL = "https://push.example.com/"
	bob.procedure(mlsapi.NSIDRegisterPushTarget, push).must().ok()

	got := done[operator.Revoked](w, "device", "revoke", bob.did().String(), device)
	want := operator.Revoked{DID: bob.did(), DeviceID: device, KeyPackages: 1, Welcomes: 1, PushTarget: true}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(operator.Revoked{}, "Note")); diff != "" ||
		!strings.Contains(got.Note, "a member has to remove it") {
		t.Errorf("revoked (-want +got):\n%s\n%s", diff, got.Note)
	}
	if left := alice.claim(bob); len(left) != 0 {
		t.Errorf("alice gets %v", left)
	}
	bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
	again := done[operator.Revoked](w, "device", "revoke", bob.did().String(), device)
	if again.KeyPackages != 0 || again.Welcomes != 0 || again.PushTarget {
		t.Errorf("a second time: %+v", again)
	}
	wantActions(t, actions(t, database),
		operator.Action{Action: "device.revoke", Subject: bob.did().String() + " " + device, Outcome: "done"},
		operator.Action{Action: "device.revoke", Subject: bob.did().String() + " " + device, Outcome: "done"})
	w.wantSound()
}

// An operator ends a dispute once. The members learn of it.
func TestAdminDisputeEnd(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	events := alice.stream()
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(t.Context(), `
		INSERT INTO disputes VALUES ($1, 1, $2, 'open', 2, 2, now(), now() + interval '9 minutes')`, c.id,
		bob.did()); err != nil {
		t.Fatal(err)
	}
	unknown := uuid.NewString()
	w.operate("dispute", "end", c.id, "2").fails("DisputeNotFound", "never in dispute")
	w.operate("dispute", "end", c.id, "one").fails("InvalidRequest", "epoch must be a whole number")
	w.operate("dispute", "end", unknown, "1").fails("ConvoNotFound")
	got := done[operator.DisputeEnded](w, "dispute", "end", c.id, "1")
	if !got.Changed || got.Convo.String() != c.id || got.Epoch != 1 || !strings.Contains(got.Note, "not disputed again") {
		t.Errorf("ended: %+v", got)
	}
	awaitLine(t, events, `"change":"ended"`)
	if again := done[operator.DisputeEnded](w, "dispute", "end", c.id, "1"); again.Changed {
		t.Errorf("ended again: %+v", again)
	}
	if found := lookJSON[operator.DisputeList](t, database, "disputes", c.id).Disputes; len(found) != 1 ||
		found[0].State != "ended" {
		t.Errorf("inspected: %+v", found)
	}
	counted := lookJSON[operator.TransitionCounts](t, database, "audit").Transitions
	if want := (operator.TransitionCount{Entity: "dispute", From: "open", To: "ended", Reason: "admin dispute.end",
		Count: 1}); !slices.Contains(counted, want) {
		t.Errorf("the audit log lacks %+v: %+v", want, counted)
	}
	wantActions(t, actions(t, database),
		operator.Action{Action: "dispute.end", Subject: c.id + " 2", Outcome: "refused: DisputeNotFound"},
		operator.Action{Action: "dispute.end", Subject: c.id + " one", Outcome: "refused: InvalidRequest"},
		operator.Action{Action: "dispute.end", Subject: unknown + " 1", Outcome: "refused: ConvoNotFound"},
		operator.Action{Action: "dispute.end", Subject: c.id + " 1", Outcome: "done"},
		operator.Action{Action: "dispute.end", Subject: c.id + " 1", Outcome: "done"})
	w.wantSound()
}

// An operator makes an admin of a member, with a record, and the new admin can act.
func TestAdminConvoPromote(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	promote := &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: bob.did()}
	bob.procedure(mlsapi.NSIDPromoteAdmin, promote).must().fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	for range 2 {
		if got := done[operator.Promoted](w, "convo", "promote", c.id, bob.did().String()); got.DID != bob.did() {
			t.Errorf("promoted %+v", got)
		}
	}
	bob.procedure(mlsapi.NSIDDemoteAdmin, &mlsapi.DemoteAdminInput{ConvoID: c.id, DID: alice.did()}).must().ok()
	shown := done[operator.Convo](w, "convo", "show", c.id)
	roles := map[string]string{}
	for _, m := range shown.Members {
		roles[m.DID.String()] = m.Role
	}
	if roles[alice.did().String()] != "member" || roles[bob.did().String()] != "admin" {
		t.Errorf("roles: %v", roles)
	}
	bob.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).must().ok()
	w.operate("convo", "promote", c.id, bob.did().String()).fails("MemberNotFound")
	subject := c.id + " " + bob.did().String()
	wantActions(t, actions(t, database),
		operator.Action{Action: "convo.promote", Subject: subject, Outcome: "done"},
		operator.Action{Action: "convo.promote", Subject: subject, Outcome: "done"},
		operator.Action{Action: "convo.promote", Subject: subject, Outcome: "refused: MemberNotFound"})
	w.wantSound()
}

func TestAdminConvoClose(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello")).must().ok()
	closed := done[operator.Closed](w, "convo", "close", c.id)
	if again := done[operator.Closed](w, "convo", "close", c.id); !again.ClosedAt.Equal(closed.ClosedAt) {
		t.Errorf("closed at %s, and then at %s", closed.ClosedAt, again.ClosedAt)
	}
	bob.procedure(mlsapi.NSIDSendMessage, bob.message(c, "too late")).must().fails(http.StatusConflict,
		mlsapi.ErrConvoClosed)
	if n := len(bob.log(c)); n != 1 {
		t.Errorf("%d entries can be read", n)
	}
	shown := done[operator.Convo](w, "convo", "show", c.id)
	if shown.ClosedAt == nil || shown.Entries != 1 || shown.EntryBytes == 0 || len(shown.Members) != 2 ||
		shown.LastSeq != 1 || shown.WelcomeBytes == 0 {
		t.Errorf("shown: %+v", shown)
	}
	if s := w.operate("convo", "show", c.id); s.wait() != nil || strings.Contains(s.stdout.String(), "hello") ||
		strings.Contains(s.stdout.String(), hex.EncodeToString(c.group)) {
		t.Errorf("shown: %s", s.stdout)
	}
	unknown := uuid.NewString()
	w.operate("convo", "close", unknown).fails("ConvoNotFound")
	w.operate("convo", "show", unknown).fails("ConvoNotFound")
	launch(t, nil, "--admin-url", w.admin, "admin", "--operator", "olga", "convo", "close", c.id).fails("--reason")
	wantActions(t, actions(t, database),
		operator.Action{Action: "convo.close", Subject: c.id, Outcome: "done"},
		operator.Action{Action: "convo.close", Subject: c.id, Outcome: "done"},
		operator.Action{Action: "convo.close", Subject: unknown, Outcome: "refused: ConvoNotFound"})
	w.wantSound()
}

// probes are what a person sends to a convo: the answers must not tell whether it existed.
func (u *user) probes(c *convo) (all []request) {
	for _, nsid := range []string{
		mlsapi.NSIDGetConvo, mlsapi.NSIDGetMessages, mlsapi.NSIDGetEpoch, mlsapi.NSIDGetWelcome, mlsapi.NSIDGetGroupInfo,
	} {
		all = append(all, u.query(nsid, "convoId", c.id))
	}
	commit := &mlsapi.SubmitCommitInput{ConvoID: c.id, IdempotencyKey: newKey(), Commit: []byte("x")}
	return append(all, u.query(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "0"),
		u.procedure(mlsapi.NSIDSendMessage, u.message(c, "probe")),
		u.procedure(mlsapi.NSIDSubmitCommit, commit),
		u.procedure(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id}),
		u.procedure(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true}),
		u.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: newKey()}))
}

// wantNever fails the test unless everybody gets the same answers about a convo as about one that
// never existed.
func (w *world) wantNever(c *convo, people ...*user) {
	w.t.Helper()
	never := &convo{id: uuid.Must(uuid.NewV7()).String(), group: c.group, epoch: c.epoch}
	for i, u := range people {
		about, of := u.probes(c), u.probes(never)
		for j := range about {
			got, want := about[j].must(), of[j].must()
			if got.status != want.status || string(got.body) != string(want.body) || got.status != http.StatusNotFound {
				w.t.Errorf("person %d, %s: %d %s, and of a convo that never existed %d %s", i, about[j].nsid, got.status, got.body,
					want.status, want.body)
			}
		}
	}
}

// After a deletion nobody learns that there was a convo. Its members were told that they were
// removed, and its group cannot be created again.
func TestAdminConvoDelete(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob, carol, outsider := w.user(), w.user(), w.user(), w.user()
	creation, group := alice.creation(bob, carol)
	view := read[mlsapi.ConvoView](t, creation.must().ok())
	c := &convo{id: view.ID, group: group, epoch: view.Epoch}
	sent := alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello"))
	sent.must().ok()
	carol.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: newKey()}).must().ok()
	kept := alice.create(bob)

	got := done[operator.Deleted](w, "convo", "delete", c.id)
	if got.Members != 2 || got.Entries != 1 {
		t.Errorf("deleted: %+v", got)
	}
	if again := done[operator.Deleted](w, "convo", "delete", c.id); again.Members != 0 || again.Entries != 0 {
		t.Errorf("deleted again: %+v", again)
	}
	w.wantNever(c, alice, bob, carol, outsider)
	sent.must().fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	creation.must().fails(http.StatusConflict, mlsapi.ErrGroupAlreadyExists)
	w.operate("convo", "show", c.id).fails("ConvoNotFound")
	unknown := uuid.NewString()
	w.operate("convo", "delete", unknown).fails("ConvoNotFound")
	if members := bob.members(kept); !strings.Contains(members, alice.did().String()) {
		t.Errorf("the other convo has the members %s", members)
	}
	wantActions(t, actions(t, database),
		operator.Action{Action: "convo.delete", Subject: c.id, Outcome: "done"},
		operator.Action{Action: "convo.delete", Subject: c.id, Outcome: "done"},
		operator.Action{Action: "convo.delete", Subject: unknown, Outcome: "refused: ConvoNotFound"})
	w.wantSound()
	wantNothingLeft(t, database, c.id, alice, bob)
}

// wantNothingLeft searches every table for a convo. Only events, the tombstone and the operator's
// record may name it. Its last members have their event.
func wantNothingLeft(t *testing.T, database, convo string, members ...*user) {
	t.Helper()
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows := map[string]int{}
	for _, table := range []string{"convos", "members", "messages", "welcomes", "welcome_bodies", "public_groups",
		"log_floors", "log_tiles", "log_senders", "idempotency_keys", "push_convos"} {
		var n int
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM `+table+` t WHERE t::text LIKE '%' || $1 || '%'`,
			convo).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			rows[table] = n
		}
	}
	if len(rows) > 0 {
		t.Errorf("rows are left: %v", rows)
	}
	for _, u := range members {
		var n int
		err := db.QueryRow(t.Context(), `
			SELECT count(*) FROM (SELECT kind, convo_id, did, detail FROM events UNION ALL SELECT kind, convo_id, did, detail
				FROM outbox) e
			WHERE kind = 4 AND convo_id = $1 AND did = $2 AND detail->>'change' = 'removed'`, convo, u.did()).Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("%d events say that a member was removed, %v", n, err)
		}
	}
}

// Two deletions at once delete once.
func TestAdminConvoDeleteTwiceAtOnce(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	for range 3 {
		alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, *newKey())).must().ok()
	}
	both := []*server{w.operate("convo", "delete", c.id), w.operate("convo", "delete", c.id)}
	var sum operator.Deleted
	for _, s := range both {
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
		got := read[operator.Deleted](t, []byte(s.stdout.String()))
		sum.Members += got.Members
		sum.Entries += got.Entries
	}
	if sum.Members != 2 || sum.Entries != 3 {
		t.Errorf("together they deleted %+v", sum)
	}
	w.wantSound()
	wantNothingLeft(t, database, c.id, alice, bob)
}

// A deletion whose server was killed after its first transaction is finished by the next server. In
// between the convo does not exist for anyone.
func TestAdminConvoDeleteKilledHalfWay(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), pgtest.DataDir(t)
	server := w.spawn(t, dir)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello")).must().ok()
	arm(t, w, failpoint.AfterCommit, convos.NSIDDelete)
	if err := w.operate("convo", "delete", c.id).wait(); err == nil {
		t.Fatal("the server answered")
	}
	server.wait()
	server = w.spawn(t, dir)
	w.wantSound()
	w.wantNever(c, bob)
	// The worker of the new server is at it too. Both end with nothing left.
	done[operator.Deleted](w, "convo", "delete", c.id)
	w.wantNever(c, alice, bob)
	database, err := localpg.Running(dir, localpg.Database)
	if err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, database, c.id, alice, bob)
	got := actions(t, database)
	wantActions(t, got,
		operator.Action{Action: "convo.delete", Subject: c.id, Outcome: "started"},
		operator.Action{Action: "convo.delete", Subject: c.id, Outcome: "done"})
	server.kill()
}

// An operator lets a relay be read from another place, without statements against the database.
func TestAdminRelaySeek(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	const url = "wss://relay.example.com"
	w.operate("relay", "seek", url, "7").fails("relay.seek", "RelayNotFollowed")
	w.operate("relay", "seek", "ftp://relay.example.com", "7").fails("relay.seek", "InvalidRequest", "wss")
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	source := "repos " + url + "/xrpc/com.atproto.sync.subscribeRepos"
	if _, err := db.Exec(t.Context(), `INSERT INTO relay_cursors VALUES ($1, 9, now())`, source); err != nil {
		t.Fatal(err)
	}
	want := operator.Sought{Relay: source, Was: 9, Cursor: 7}
	if got := done[operator.Sought](w, "relay", "seek", url, "7"); got != want {
		t.Errorf("sought: %+v, want %+v", got, want)
	}
	wantActions(t, actions(t, database),
		operator.Action{Action: "relay.seek", Subject: url + " 7", Outcome: "refused: RelayNotFollowed"},
		operator.Action{Action: "relay.seek", Subject: "ftp://relay.example.com 7", Outcome: "refused: InvalidRequest"},
		operator.Action{Action: "relay.seek", Subject: url + " 7", Outcome: "done"})
}

// An operator tries a dead push job again, and drops one that waits.
func TestAdminPush(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const did = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
	var dead, waiting uuid.UUID
	err = db.QueryRow(t.Context(), `
		WITH jobs AS (
			INSERT INTO push_jobs (did, id, device_id, state, reason, next_attempt_at, created_at, ended_at) VALUES
			($1, gen_random_uuid(), 'phone', 'dead', 'message', now(), now(), now()),
			($1, gen_random_uuid(), 'tablet', 'pending', 'message', now() + interval '1 h', now(), NULL) RETURNING id, state
		)
		SELECT (SELECT id FROM jobs WHERE state = 'dead'), (SELECT id FROM jobs WHERE state = 'pending')`, did).Scan(&dead,
		&waiting)
	if err != nil {
		t.Fatal(err)
	}
	state := func(id uuid.UUID) (state string) {
		if err := db.QueryRow(t.Context(), `SELECT state FROM push_jobs WHERE id = $1`, id).Scan(&state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	retried := done[operator.PushRetried](w, "push", "retry", did, dead.String())
	if retried.Due == dead {
		t.Errorf("%+v", retried)
	}
	done[operator.PushDropped](w, "push", "drop", did, waiting.String())
	// Neither device is registered, so a worker ends both jobs without a call.
	await.Until(t, "a worker ends the jobs",
		func() bool { return state(retried.Due) == "done" && state(waiting) == "done" })
	w.operate("push", "drop", did, waiting.String()).fails("PushJobEnded")
	w.operate("push", "retry", did, uuid.NewString()).fails("PushJobNotFound")
}
