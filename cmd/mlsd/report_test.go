package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/features/reports"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// reportKey is the key of mlsd-dev, and devPrivateKey its private half.
const reportKey = "mlsd-report-public-XwUmXPp77xzZX_nHLkaVPB9tKATYAxbR3ztr7ToWoSM"

const devPrivateKey = "mlsd-report-private-9D8FEpvYtR3kGVpzOQ_YABcriJOKNJt8RWg6DXR1mu8"

// reports seals a report with the key that the server gives, sends it, and returns its id.
func (u *user) reports(c *convo, text string, said ...reports.Message) string {
	u.w.t.Helper()
	return u.sendsReport(c, reports.Content{Text: text, Messages: said})
}

func (u *user) sendsReport(c *convo, revealed reports.Content) string {
	u.w.t.Helper()
	key := read[mlsapi.GetReportKeyOutput](u.w.t, u.query(mlsapi.NSIDGetReportKey).must().ok())
	public, err := reports.ParsePublicKey(reportKey)
	if err != nil || !bytes.Equal(public.Bytes(), key.PublicKey) || public.ID() != key.KeyID {
		u.w.t.Fatalf("the server's key is %+v, %v", key, err)
	}
	content, err := json.Marshal(revealed)
	if err != nil {
		u.w.t.Fatal(err)
	}
	sealed, err := public.Seal(reports.Binding(uuid.MustParse(c.id), u.did()), content)
	if err != nil {
		u.w.t.Fatal(err)
	}
	in := &mlsapi.ReportConvoInput{ConvoID: c.id, Reason: "harassment", SealedReport: sealed, KeyID: key.KeyID}
	return read[mlsapi.ReportConvoOutput](u.w.t, u.procedure(mlsapi.NSIDReportConvo, in).must().ok()).ReportID
}

// closeReport closes a report for a reason.
func (w *world) closeReport(id, reason string) (closed operator.ReportClosed) {
	w.t.Helper()
	s := launch(w.t, nil, "--admin-url", w.admin, "admin", "--operator", "olga", "--reason", reason, "--json", "report",
		"close", id)
	if err := s.wait(); err != nil {
		w.t.Fatal(err)
	}
	return read[operator.ReportClosed](w.t, []byte(s.stdout.String()))
}

// keyFile writes a private key for the command.
func (w *world) keyFile(text string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// readReport is what "admin report open" prints.
type readReport struct {
	ID, Convo uuid.UUID
	Reporter  syntax.DID
	Evidence  string
	Content   reports.Content
}

func (w *world) openReport(id string) readReport {
	w.t.Helper()
	return done[readReport](w, "report", "open", "--key", w.keyFile(devPrivateKey), id)
}

// A report goes from a member to the operator, who opens it with a key that the server never sees,
// and closes it with a reason.
func TestAdminReports(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	said := reports.Message{Seq: 1, Sender: alice.did().String(), Plaintext: "I know \x1b[2J where\u202eyou live"}
	first, second := bob.reports(c, "she threatens me", said), bob.reports(c, "again")
	list := done[operator.ReportList](w, "report", "list")
	if len(list.Reports) != 2 || list.Reports[0].ID.String() != first || list.Reports[1].ID.String() != second ||
		list.Next != "" {
		t.Fatalf("the queue: %+v", list)
	}
	shown := done[reports.Listed](w, "report", "show", first)
	if shown != list.Reports[0] || shown.Reporter != bob.did() || shown.Convo.String() != c.id ||
		shown.Reason != "harassment" || shown.State != reports.Open {
		t.Errorf("shown: %+v", shown)
	}
	key := w.keyFile(devPrivateKey)
	s := w.operate("report", "open", "--key", key, first)
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	text := s.stdout.String()
	if strings.ContainsAny(text, "\x1b\u202e") || !strings.Contains(text, `I know \u001b[2J where\u202eyou live`) {
		t.Errorf("opened:\n%s", text)
	}
	got := read[readReport](t, []byte(text))
	if got.Reporter != bob.did() || got.Convo.String() != c.id || got.Content.Text != "she threatens me" ||
		!slices.Equal(got.Content.Messages, []reports.Message{said}) ||
		!strings.HasPrefix(got.Evidence, "1 messages, and no head of the log") {
		t.Errorf("opened: %+v", got)
	}
	if closed := w.closeReport(first, "ticket 7"); !closed.Changed {
		t.Error("the report was closed before")
	}
	if again := w.closeReport(first, "another"); again.Changed {
		t.Error("the report was closed twice")
	}
	past := done[operator.ReportList](w, "report", "list", "--state", "closed").Reports
	if len(past) != 1 || past[0].ID.String() != first || past[0].Note != "ticket 7" || past[0].ClosedBy != "olga" {
		t.Errorf("closed: %+v", past)
	}
	if open := done[operator.ReportList](w, "report", "list").Reports; len(open) != 1 || open[0].ID.String() != second {
		t.Errorf("open: %+v", open)
	}
	if rest := done[operator.ReportList](w, "report", "list", "--from", second).Reports; len(rest) != 0 {
		t.Errorf("behind the last one: %+v", rest)
	}
	wantActions(t, actions(t, database)[:1], operator.Action{Action: "report.close", Subject: first, Outcome: "done"})
	w.operate("report", "show", uuid.NewString()).fails("ReportNotFound")
	w.operate("report", "close", uuid.NewString()).fails("ReportNotFound")
	w.operate("report", "open", "--key", key, "bob").fails("id must be a UUID")
	w.operate("report", "list", "--state", "new").fails("state must be open or closed")
	w.operate("report", "fetch", first).fails("fetch") // no command of its own
}

// A report opens with its own key only, and only as what its row says.
func TestOpenReport(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	id := bob.reports(c, "she threatens me")
	other, err := reports.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := other.Text()
	if err != nil {
		t.Fatal(err)
	}
	w.operate("report", "open", "--key", w.keyFile(text), id).fails("sealed to the key")
	w.operate("report", "open", "--key", w.keyFile(reportKey), id).fails("want mlsd-report-private-")
	w.operate("report", "open", "--key", "/nowhere/key", id).fails("/nowhere/key")
	w.operate("report", "open", id).fails("key")
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(t.Context(), `UPDATE abuse_reports SET reporter = $1`, alice.did()); err != nil {
		t.Fatal(err)
	}
	w.operate("report", "open", "--key", w.keyFile(devPrivateKey), id).fails("bound to another convo or reporter")
}

// The command writes a key whose public half the server takes, and no file is overwritten.
func TestReportKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "moderation.key")
	s := launch(t, nil, "report-key", "new", path)
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	private, err := readReportKey(path)
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(path + ".pub")
	if want := private.Public().String(); err != nil || string(public) != want+"\n" ||
		!strings.Contains(s.stdout.String(), "MLSD_REPORT_KEY="+want+"\n") {
		t.Errorf("public %q, printed %s, %v", public, s.stdout, err)
	}
	if strings.Contains(s.stdout.String(), "private-") {
		t.Error("the command prints the private half")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	again := launch(t, nil, "report-key", "new", path)
	again.fails("exists")
	if kept, err := readReportKey(path); err != nil || kept.Public().String() != private.Public().String() {
		t.Errorf("the file was changed: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	launch(t, nil, "report-key", "new", path).fails(".pub: file exists")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a private half without its public one was left: %v", err)
	}
	launch(t, nil, "report-key", "new").fails("name a file")
}

// Without a key the server says so, and serves everything else.
func TestNoReportKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", pgtest.URL(t))...)
	w.use(s.admin, s.public)
	bob := w.user()
	bob.query(mlsapi.NSIDGetReportKey).must().fails(http.StatusBadRequest, mlsapi.ErrReportsDisabled)
}

// The page of mlsd-dev has the private half of its key.
func TestDevReportKey(t *testing.T) {
	t.Parallel()
	key, err := reports.ParsePrivateKey(devPrivateKey)
	if err != nil || key.Public().String() != reportKey {
		t.Errorf("the public half is %v, %v", key.Public(), err)
	}
	if !strings.Contains(pages(t)["docs/clients/DEV.md"], devPrivateKey) {
		t.Error("docs/clients/DEV.md does not have the key")
	}
}

// Against a flood an operator deletes a report, or all open ones of an account. The others stay.
func TestDeleteReports(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	wrong, honest := bob.reports(c, "sent by mistake"), bob.reports(c, "she threatens me")
	alice.reports(c, "flood")
	closed := alice.reports(c, "not part of the flood")
	alice.reports(c, "flood")
	w.closeReport(closed, "ticket 7")
	deleted := func(want int64, verb, what string) {
		t.Helper()
		s := launch(t, nil, "--admin-url", w.admin, "admin", "--operator", "olga", "--reason", "ticket 7", "--json", "report",
			verb, what)
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
		if got := read[operator.ReportsDeleted](t, []byte(s.stdout.String())); got.Deleted != want {
			t.Errorf("%s %s: %d deleted, want %d", verb, what, got.Deleted, want)
		}
	}
	deleted(1, "delete", wrong)
	deleted(0, "delete", wrong)
	deleted(2, "clear", alice.did().String())
	deleted(0, "clear", alice.did().String())
	open, past := done[operator.ReportList](w, "report", "list").Reports,
		done[operator.ReportList](w, "report", "list", "--state", "closed").Reports
	if len(open) != 1 || open[0].ID.String() != honest || len(past) != 1 || past[0].ID.String() != closed {
		t.Errorf("left: open %+v, closed %+v", open, past)
	}
	if got := actions(t, database); !slices.ContainsFunc(got, func(a operator.Action) bool {
		return a.Action == "report.clear" && a.Subject == alice.did().String() && a.Operator == "olga"
	}) {
		t.Errorf("the record has %+v", got)
	}
}

// The operator sees which entries of a report are in the log, of the senders that it names, and under
// a head that the service has signed.
func TestReportWithProofs(t *testing.T) {
	t.Parallel()
	w, _ := operated(t)
	alice, bob := w.user(), w.user()
	c, other := alice.create(bob), alice.create(bob)
	sent := read[mlsapi.SendMessageOutput](t,
		alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "I know where you live")).must().ok())
	bob.procedure(mlsapi.NSIDSendMessage, bob.message(c, "please stop")).must().ok()
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(other, "hello")).must().ok()
	log := read[mlsapi.GetLogHeadOutput](t,
		bob.query(mlsapi.NSIDGetLogHead, "convoId", c.id, "senders", alice.did().String()).must().ok())
	foreign := read[mlsapi.GetLogHeadOutput](t, bob.query(mlsapi.NSIDGetLogHead, "convoId", other.id).must().ok())
	entry := read[mlsapi.GetMessagesOutput](t, bob.query(mlsapi.NSIDGetMessages, "convoId", c.id).must().ok()).Messages[0]
	head, err := verifier.OpenProven(log.Head, log.Keys)
	if err != nil || entry.Seq != *sent.Seq {
		t.Fatal(entry.Seq, err)
	}
	size := strconv.FormatInt(head.Size, 10)
	inclusion := read[mlsapi.GetLogProofOutput](t,
		bob.query(mlsapi.NSIDGetLogProof, "convoId", c.id, "seq", strconv.FormatInt(entry.Seq, 10), "size", size).must().ok())
	body := verifier.BodyHash(entry.Ciphertext)
	proof := verifier.Proof{Kind: verifier.Application, Epoch: entry.Epoch, CreatedAt: entry.CreatedAt.Time,
		BodyHash: body[:], Salt: log.Senders[0].Salt}
	for _, hash := range inclusion.Hashes {
		proof.Hashes = append(proof.Hashes, hash)
	}
	text, err := json.Marshal(proof)
	if err != nil {
		t.Fatal(err)
	}
	said := reports.Message{Seq: entry.Seq, Sender: alice.did().String(), Plaintext: "I know where you live",
		Proof: string(text)}
	blamed := said
	blamed.Sender = bob.did().String()
	bare := reports.Message{Seq: entry.Seq + 1, Sender: bob.did().String()}
	for _, tc := range []struct{ name, head, want string }{
		{"its own head", log.Head,
			"entries " + strconv.FormatInt(entry.Seq, 10) + "; not shown: " + strconv.FormatInt(entry.Seq, 10) +
				" (the log under the head has no such entry of this sender)"},
		{"the head of another convo", foreign.Head, "it is of another convo"},
		{"a head that the reporter has changed", strings.Replace(log.Head, "\n"+size+"\n", "\n99\n", 1), "proves nothing"},
	} {
		id := bob.sendsReport(c,
			reports.Content{Text: tc.name, Head: tc.head, Messages: []reports.Message{said, blamed, bare}})
		if got := w.openReport(id).Evidence; !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
}
