package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/archive"
	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

// exported reads an export page by page to its end.
func (u *user) exported(limit int) (rows []mlsapi.ExportedRow, pages int) {
	u.w.t.Helper()
	params := []string{"limit", fmt.Sprint(limit)}
	for range 2000 {
		out := read[mlsapi.ExportMyDataOutput](u.w.t, u.get(mlsapi.NSIDExportMyData, params...).ok())
		if len(out.Records) > limit {
			u.w.t.Fatalf("a page of %d rows, asked for %d", len(out.Records), limit)
		}
		rows, pages = append(rows, out.Records...), pages+1
		if out.Cursor == nil {
			return rows, pages
		}
		params = []string{"limit", fmt.Sprint(limit), "cursor", *out.Cursor}
	}
	u.w.t.Fatal("the export does not end")
	return nil, 0
}

// held reads the archive of a person at once, as the operator's export does.
func (u *user) held() (rows []mlsapi.ExportedRow) {
	u.w.t.Helper()
	err := archive.Snapshot(u.w.t.Context(), u.w.db, func(tx pgx.Tx) error {
		_, _, err := archive.Reader{DID: u.did()}.Read(u.w.t.Context(), tx, archive.Position{}, func(row archive.Row) bool {
			rows = append(rows, mlsapi.ExportedRow{Type: row.Type, Data: row.Data})
			return true
		})
		return err
	})
	if err != nil {
		u.w.t.Fatal(err)
	}
	return rows
}

// byType counts rows.
func byType(rows []mlsapi.ExportedRow) map[string]int {
	n := map[string]int{}
	for _, row := range rows {
		n[row.Type]++
	}
	return n
}

// The pages of an export join to what the operator's export has, whatever their size is. Another
// person gets its own rows.
func TestExportMyData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	for range 3 {
		bob.publish()
		carol.publish()
	}
	c := alice.create(bob, carol)
	left := carol.create(bob)
	for i := range 5 {
		alice.send(c, fmt.Sprint("alice ", i))
		bob.send(c, fmt.Sprint("bob ", i))
		bob.send(left, fmt.Sprint("left ", i))
	}
	alice.send(c, "the last entry is not bob's")
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: left.id}).ok()
	carol.send(left, "behind bob's back")
	bob.create(alice)
	bob.get(mlsapi.NSIDGetKeyPackages, "dids", carol.did().String(), "idempotencyKey", strings.Repeat("k", 128)).ok()
	for i := range 7 {
		bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: w.user().did(), IdempotencyKey: newKey()}).ok()
		_, err := w.db.Exec(t.Context(), `
			INSERT INTO caller_counts (hour, kind, caller_did, nsid, n, seconds, weight)
			SELECT now() - $1 * interval '1 hour', 'first', did, 'x', 1, 0.5, 1 FROM unnest($2::text[]) AS of (did)`,
			i, []string{alice.did().String(), bob.did().String()})
		if err != nil {
			t.Fatal(err)
		}
		w.exec(`
			INSERT INTO admin_actions (at, operator, action, subject, reason, outcome)
			SELECT now(), 'olga', 'did.show', '/account did=' || did, 'r', 'done' FROM unnest($1::text[]) AS of (did)`,
			[]string{alice.did().String(), bob.did().String(), bob.did().String() + "x"})
		w.exec(`
			INSERT INTO requests (at, request_id, node, nsid, status, error, message, caller_did, key, replayed, expired,
				seconds)
			SELECT now(), 'r', 'n', 'x', 409, 'EpochMismatch', 'm', did, '', false, false, 1
			FROM unnest($1::text[]) AS of (did)`,
			[]string{alice.did().String(), bob.did().String()})
	}
	bob.post(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: ptr("https://push.example.com/")}).ok()
	w.do(http.MethodPost, mlsapi.NSIDGetSubscriptionTicket, nil, nil,
		bob.authorization(mlsapi.NSIDGetSubscriptionTicket)).ok()
	bob.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{}).ok()

	bob.get(mlsapi.NSIDExportMyData).ok() // the first in an hour leaves a row
	want := bob.held()
	for _, limit := range []int{1, 2, 7, 500} {
		got, pages := bob.exported(limit)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d (-at once +pages):\n%s", limit, diff)
		}
		if least := len(want) / limit; pages < least || pages > least+2 {
			t.Errorf("%d rows came in %d pages of %d", len(want), pages, limit)
		}
	}
	counts := byType(want)
	for name, least := range map[string]int{
		"messages": 10, "members": 3, "convos created": 1, "key_packages": 2, "key_packages claimed": 1, "blocks": 7,
		"caller_counts": 7, "requests": 7, "admin_actions": 7,
		"welcomes": 2, "audit_log": 1, "idempotency_keys": 7, "push_targets": 1, "subscription_tickets": 1,
		"erasure_confirmations": 1,
	} {
		if counts[name] < least || name == "admin_actions" && counts[name] != least {
			t.Errorf("the export has %d rows of %s, want %d at least: %v", counts[name], name, least, counts)
		}
	}
	for _, row := range want {
		if row.Type == "messages" && read[map[string]any](t, []byte(row.Data))["sender_did"] != bob.did().String() {
			t.Errorf("a message of another: %s", row.Data)
		}
	}
	// Another's cursor leads to the reader's own rows only.
	page := read[mlsapi.ExportMyDataOutput](t, bob.get(mlsapi.NSIDExportMyData, "limit", "1").ok())
	outsider := w.user()
	if out := read[mlsapi.ExportMyDataOutput](t,
		outsider.get(mlsapi.NSIDExportMyData, "cursor", *page.Cursor).ok()); len(out.Records) != 1 ||
		out.Records[0].Type != "audit_log" || !strings.Contains(out.Records[0].Data, outsider.did().String()) {
		t.Errorf("an outsider has %+v, want the record of its own export", out.Records)
	}
}

// No page tells anything of others: neither its rows nor its cursor name who has nothing to do with
// the caller.
func TestExportSaysNothingOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.user(), w.user(), w.user()
	for range 3 {
		bob.publish()
	}
	c := alice.create(bob)
	alice.send(c, "a secret")
	mallory.publish()
	var seen strings.Builder
	params := []string{"limit", "1"}
	for {
		body := mallory.get(mlsapi.NSIDExportMyData, params...).ok()
		seen.Write(body)
		out := read[mlsapi.ExportMyDataOutput](t, body)
		if out.Cursor == nil {
			break
		}
		raw, err := base64.RawURLEncoding.DecodeString(*out.Cursor)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(raw)
		params = []string{"limit", "1", "cursor", *out.Cursor}
	}
	for _, secret := range []string{alice.did().String(), bob.did().String(), c.id} {
		if strings.Contains(seen.String(), secret) {
			t.Errorf("mallory's export has %s", secret)
		}
	}
	if !strings.Contains(seen.String(), mallory.did().String()) {
		t.Error("mallory's export does not have its own rows")
	}
}

// A page is bounded in bytes, and large messages come one by one.
func TestExportOfLargeMessages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	for range 4 { // two exceed the bytes of a statement, and not those of a page
		alice.send(c, strings.Repeat("x", 2_600_000))
	}
	params, found := []string{"limit", "500"}, 0
	for {
		a := alice.get(mlsapi.NSIDExportMyData, params...)
		if body := a.ok(); len(body) > 8_100_000 {
			t.Fatalf("a page has %d bytes", len(body))
		}
		out := read[mlsapi.ExportMyDataOutput](t, a.body)
		found += byType(out.Records)["messages"]
		if out.Cursor == nil {
			break
		}
		params = []string{"limit", "500", "cursor", *out.Cursor}
	}
	if found != 4 {
		t.Errorf("%d messages, want 4", found)
	}
}

// An export of many rows comes in pages. It does not read more for the entries of others than a
// window at a time.
func TestExportOfManyRows(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 30,000 rows")
	}
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	_, err := w.db.Exec(t.Context(), `
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1, n, 1, CASE n % 10 WHEN 0 THEN $2 ELSE $3 END, 1, 'x', n::text, '', now() FROM generate_series(1, 30000) n`,
		c.id, bob.did().String(), alice.did().String())
	if err != nil {
		t.Fatal(err)
	}
	rows, pages := bob.exported(500)
	if n := byType(rows)["messages"]; n != 3000 || pages < 6 {
		t.Errorf("%d messages in %d pages", n, pages)
	}
	if _, err := w.db.Exec(t.Context(), `DELETE FROM messages`); err != nil { // they are not what the server writes
		t.Fatal(err)
	}
}

// A cursor that the method did not give is refused by name.
func TestExportCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	cursor := func(texts ...string) string {
		raw, err := json.Marshal(texts)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	for _, bad := range []string{
		"", "7", "?", cursor(), cursor("salaries"), cursor("members", "x"), cursor("members", uuid.NewString(), "1"),
		cursor("outbox", "1e3"),
		cursor("key_package_signals", "phone", "4294967296", "low"), cursor("audit_log", "99999-01-01 00:00:00Z", "1"),
		cursor("blocks", "\x00"), cursor("accounts", "1") + "=", strings.Repeat("A", 5000),
	} {
		alice.get(mlsapi.NSIDExportMyData, "cursor", bad).fails(http.StatusBadRequest, mlsapi.ErrInvalidCursor)
	}
	for _, good := range []string{cursor("members"), cursor("blocks", "did:plc:"+strings.Repeat("z", 2000)),
		cursor("audit_log", "0001-01-01 00:00:00Z", "-1")} {
		alice.get(mlsapi.NSIDExportMyData, "cursor", good).ok()
	}
}

// An export costs its caller five units, and more for the time that it reads.
func TestExportIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 0.001, Burst: 6} })
	alice := w.user()
	alice.get(mlsapi.NSIDGetBlocks).ok()
	alice.get(mlsapi.NSIDExportMyData).ok() // 5 units at least
	alice.get(mlsapi.NSIDExportMyData).fails(http.StatusTooManyRequests, "RateLimitExceeded")
}

// confirmation is a token with which the user can erase its account.
func (u *user) confirmation() string {
	u.w.t.Helper()
	out := read[mlsapi.EraseMyAccountOutput](u.w.t, u.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{}).ok())
	if out.Erasing || out.ConfirmationToken == nil || out.ExpiresAt == nil || out.Held == nil {
		u.w.t.Fatalf("the first step answers %+v", out)
	}
	return *out.ConfirmationToken
}

// confirm sends the second step.
func (u *user) confirmErasure(token string, key *string) answer {
	u.w.t.Helper()
	return u.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{ConfirmationToken: &token, IdempotencyKey: key})
}

// An account erases itself in two steps, over any nodes. A repetition gets the first answer when
// the node refuses the account, when its records are gone, and when the erasure has ended.
func TestEraseMyAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	other := w.boot() // whose gate is w.gate
	alice, bob := w.user(), w.user()
	alice.create(bob)
	first := bob.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{IdempotencyKey: newKey()})
	held := read[mlsapi.EraseMyAccountOutput](t, first.ok()).Held
	if diff := cmp.Diff(&mlsapi.HeldCounts{Convos: 1, KeyPackages: 1, Devices: 1, PendingWelcomes: 1}, held); diff != "" {
		t.Errorf("what would go (-want +got):\n%s", diff)
	}
	bob.get(mlsapi.NSIDGetConvos).ok() // nothing has begun
	if n := w.count(`SELECT count(*) FROM erasures`); n != 0 {
		t.Fatalf("%d erasures after the first step", n)
	}
	token, key := *read[mlsapi.EraseMyAccountOutput](t, first.body).ConfirmationToken, newKey()
	begun := bob.on(other).confirmErasure(token, key)
	out := read[mlsapi.EraseMyAccountOutput](t, begun.ok())
	if !out.Erasing || out.ErasureID == nil || out.BegunAt == nil || out.ConfirmationToken != nil {
		t.Errorf("the second step answers %s", begun.body)
	}
	if n := w.count(`SELECT count(*) FROM erasures WHERE did = $1 AND requested_by = 'account' AND id = $2`, bob.did(),
		*out.ErasureID); n != 1 {
		t.Errorf("%d erasures", n)
	}
	bob.confirmErasure(token, key).replays(begun)
	w.readAccounts() // the other node refuses the account now
	bob = bob.on(other)
	refused := []func() answer{
		func() answer { return bob.get(mlsapi.NSIDGetConvos) },
		func() answer { return bob.get(mlsapi.NSIDExportMyData) },
		func() answer { return bob.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{}) },
		func() answer { return bob.confirmErasure("AAAA", newKey()) },
	}
	for i, call := range refused {
		if message := call().fails(http.StatusForbidden, "AccountInactive"); !strings.Contains(message, "being erased") {
			t.Errorf("refusal %d is %q", i, message)
		}
	}
	bob.confirmErasure(token, key).replays(begun)
	w.exec(`DELETE FROM idempotency_keys`)
	bob.confirmErasure(token, key).replays(begun)
	bob.confirmErasure(token, nil).replays(begun) // the token is the record, whatever the key is
	bob.confirmErasure(token, newKey()).replays(begun)
	if n := w.count(`SELECT count(*) FROM idempotency_keys`); n != 0 {
		t.Errorf("repetitions of an account that is being erased have left %d records", n)
	}
	w.exec(`UPDATE erasures SET state = 'finished', did = 'did:erased:x', salt = NULL, finished_at = now()`)
	w.exec(`DELETE FROM accounts`)
	if err := w.gate.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	bob.confirmErasure(token, key).replays(begun)
	if n := w.count(`SELECT count(*) FROM erasures`); n != 1 {
		t.Errorf("%d erasures at the end", n)
	}
	if n := w.count(`SELECT count(*) FROM erasure_confirmations t WHERE strpos(t::text, $1) > 0`, bob.did()); n != 0 {
		t.Error("the used token names the person")
	}
}

// A token is good for the account that asked for it, once, for ten minutes, until it asks for
// another.
func TestConfirmationTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	token := bob.confirmation()
	refused := func(u *user, token string) {
		t.Helper()
		message := u.confirmErasure(token, newKey()).fails(http.StatusBadRequest, mlsapi.ErrInvalidConfirmation)
		if !strings.Contains(message, "without confirmationToken") {
			t.Errorf("the message is %q", message)
		}
	}
	refused(alice, token)
	alice.confirmation()
	refused(alice, token)
	refused(bob, "AAAA")
	refused(bob, token+" ")
	refused(bob, strings.ToLower(token))
	newer := bob.confirmation()
	refused(bob, token)
	pgtest.Age(t, w.db, "erasure_confirmations", 10*time.Minute-10*time.Second, "expires_at")
	if n := w.count(`SELECT count(*) FROM erasures`); n != 0 {
		t.Fatalf("%d erasures", n)
	}
	pgtest.Age(t, w.db, "erasure_confirmations", 11*time.Second, "expires_at")
	refused(bob, newer)
	newest := bob.confirmation()
	pgtest.Age(t, w.db, "erasure_confirmations", 10*time.Minute-10*time.Second, "expires_at")
	begun := bob.confirmErasure(newest, newKey())
	begun.ok()
	bob.confirmErasure(newest, newKey()).replays(begun) // used again: no second effect
	refused(alice, newest)                              // a used one is still bob's
	if n := w.count(`SELECT count(*) FROM erasures WHERE did = $1`, bob.did()); n != 1 {
		t.Errorf("%d erasures", n)
	}
}

// A key belongs to one step: with the key of the first, the second is another request.
func TestEraseStepsHaveKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob, key := w.user(), newKey()
	first := bob.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{IdempotencyKey: key})
	token := *read[mlsapi.EraseMyAccountOutput](t, first.ok()).ConfirmationToken
	bob.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{IdempotencyKey: key}).replays(first)
	message := bob.confirmErasure(token, key).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	if !strings.Contains(message, "confirmationToken") || strings.Contains(message, token) {
		t.Errorf("the message is %q", message)
	}
	bob.confirmErasure(token, newKey()).ok()
}

// Ways of an account to be refused: what its host says of it does not take the right to its data
// from it, the operator's block does.
func TestMyDataOfRefusedAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	for i, status := range []accounts.Status{accounts.Deactivated, accounts.Suspended, accounts.TakenDown,
		accounts.Deleted} {
		bob := w.user()
		bob.publish()
		w.states(bob, status, int64(i+1))
		bob.get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, "AccountInactive")
		if rows, _ := bob.exported(100); byType(rows)["key_packages"] != 1 {
			t.Errorf("%s: the export has %v", status, byType(rows))
		}
		bob.confirmErasure(bob.confirmation(), newKey()).ok()
	}
	mallory := w.user()
	token := mallory.confirmation()
	w.block(mallory)
	mallory.get(mlsapi.NSIDExportMyData).fails(http.StatusForbidden, "Blocked")
	mallory.post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{}).fails(http.StatusForbidden, "Blocked")
	mallory.confirmErasure(token, newKey()).fails(http.StatusForbidden, "Blocked")
}

// A used-up quota does not keep an account from erasing itself: without a key the steps use none.
func TestEraseWithoutQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.limits = quota.Limits{"records-per-day": 1} })
	bob := w.user()
	bob.post(mlsapi.NSIDSetInvitationPolicy,
		&mlsapi.SetInvitationPolicyInput{Policy: "nobody", IdempotencyKey: newKey()}).ok()
	bob.post(mlsapi.NSIDEraseMyAccount,
		&mlsapi.EraseMyAccountInput{IdempotencyKey: newKey()}).fails(http.StatusTooManyRequests, "QuotaExceeded")
	bob.confirmErasure(bob.confirmation(), nil).ok()
}

// Of requests with one token at the same time, on two nodes, one begins the erasure, and all get
// its answer.
func TestConfirmedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob, nodes := w.user(), []*api.Server{w.server, w.boot()}
	token := bob.confirmation()
	answers := make([]answer, 8)
	done := make(chan int)
	for i := range answers {
		go func() {
			answers[i] = bob.on(nodes[i%2]).confirmErasure(token, nil)
			done <- i
		}()
	}
	for range answers {
		<-done
	}
	for _, a := range answers[1:] {
		if !bytes.Equal(a.ok(), answers[0].ok()) {
			t.Errorf("%s and %s", a.body, answers[0].body)
		}
	}
	if n := w.count(`SELECT count(*) FROM erasures`); n != 1 {
		t.Errorf("%d erasures", n)
	}
}
