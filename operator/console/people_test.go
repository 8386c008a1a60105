package console_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/operator"
)

const (
	planted = "0192f3a4-0000-7000-8000-000000000001" // alice's convo
	other   = "0192f3a4-0000-7000-8000-000000000002" // of people whom alice does not know

	carol      = "did:plc:carolcarolcarolcarolcaro"
	carolShort = "did:plc:caro…lcaro"
	danShort   = "did:plc:dand…andan"
)

// plantConvo makes a convo with epochs that creator has committed, in which member has lost each
// race and could not join with its Welcome. Every text has markup.
func (b *bench) plantConvo(id, creator, member string, epochs int) {
	b.t.Helper()
	b.exec(`
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, last_message_at, name, created_at)
		VALUES ($1::uuid, decode(replace($1::uuid::text, '-', ''), 'hex'), $2, 1, $3, 2 * $3::bigint, now(), $4, now())`, id,
		creator, epochs, markup+"the name")
	b.exec(`
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		VALUES ($1, $2, 'creator', now(), 0), ($1, $3, 'member', now(), 1)`, id, creator, member)
	b.exec(`
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1::uuid, seq, CASE seq % 2 WHEN 1 THEN 3 ELSE 1 END, $2, (seq + 1) / 2, convert_to('ciphertext' || repeat('x',
			990), 'UTF8'), $1::uuid::text || seq, '', now()
		FROM generate_series(1, 2 * $3::bigint) AS of (seq)`, id, creator, epochs)
	b.exec(`
		INSERT INTO requests (at, request_id, node, nsid, status, error, message, caller_did, key, convo_id, replayed,
			expired, seconds)
		SELECT now(), 'r' || epoch, 'a:1', 'blue.catbird.mls.submitCommit', 409, 'EpochMismatch',
			'epoch ' || (epoch - 1) || ' is stale; currentEpoch=' || epoch, $2::text, 'k ' || $2::text, $1, false, false, 0.01
		FROM generate_series(1, $3::bigint) AS of (epoch)`, id, member, epochs)
	b.exec(`
		INSERT INTO requests (at, request_id, node, nsid, status, error, message, detail, caller_did, key, convo_id, replayed,
			expired, seconds)
		VALUES (now(), 'conflict', 'a:1', 'blue.catbird.mls.sendMessage', 409, 'IdempotencyConflict', $3,
			'{"fields": ["ciphertext"], "firstUsedAt": "2026-01-02T03:04:05Z"}', $2, 'k2', $1, false, false, 0.01)`, id, member,
		markup+creator)
	b.exec(`
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, attempts, fetched_at,
			failures, last_failure, created_at)
		VALUES ($1, gen_random_uuid(), $2, $3, '', 1, 'available', 2, now(), 2, $3 || $2, now())`, id, member, markup)
	b.exec(`
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		VALUES ($1, convert_to($1, 'UTF8'), $2, 1, 'body', now() + interval '1 day', false, 'available', now())`, member,
		markup)
	b.exec(`INSERT INTO quota_counts (day, subject, quota, n) VALUES ((now() AT TIME ZONE 'UTC')::date, $1,
			'messages-per-day', 7)`, member)
	b.exec(`INSERT INTO accounts (did, blocked_at, blocked_by, blocked_reason, version) VALUES ($1, now(), $2, $2 || $1,
			1)`, member, markup)
	b.exec(`
		INSERT INTO caller_counts (hour, kind, caller_did, nsid, n, seconds, weight)
		SELECT date_trunc('hour', now()), kind, $1, 'blue.catbird.mls.sendMessage', 1000, 1, 1
		FROM unnest(ARRAY['first', 'replay', 'IdempotencyConflict']) AS of (kind)`, member)
	b.exec(`
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at, state, outcome, started_at,
			lease_expires_at)
		VALUES ($1, $2, '', $2, '', '{}', 'answer', now(), now() + interval '1 day', 'processing', '', now(), now() + interval
			'1 minute')`, member, markup)
}

// has fails the test unless the page has all of the texts.
func (b *bench) has(page string, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			b.t.Errorf("%q is not in\n%s", text, page)
		}
	}
}

// lacks fails the test if the page has one of the texts.
func (b *bench) lacks(page string, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		if strings.Contains(page, text) {
			b.t.Errorf("%q is in\n%s", text, page)
		}
	}
}

// planting is a bench with alice's convo, in which carol has lost, and one of dan and erin.
func planting(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, operator.Tokens{})
	b.plantConvo(planted, alice, carol, 3)
	b.plantConvo(other, "did:plc:dandandandandandandandan", "did:plc:erinerinerinerinerinerin", 2)
	return b
}

// find opens a page for an account by its DID, and returns its address.
func (b *bench) find(page, did string) string {
	b.t.Helper()
	a := b.do("/find", actor("page", page, "did", did))
	at := a.header.Get("Location")
	if a.status != http.StatusSeeOther || !strings.HasPrefix(at, page+"?did=") || strings.Contains(at, "plc") {
		b.t.Fatalf("%s of %s: %d %s", page, did, a.status, at)
	}
	return at
}

// The page Welcomes counts the steps, says why joins failed, and lists each step in parts.
func TestWelcomes(t *testing.T) {
	t.Parallel()
	b := planting(t)
	b.exec(`
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, confirmed_at, created_at)
		SELECT $1, gen_random_uuid(), $2, 'phone-' || n, '', n, 'consumed', now(), now() - n * interval '1 minute' FROM
			generate_series(1, 60) AS of (n)`, planted, carol)
	page := b.get("/welcomes")
	b.has(page, `<desc id="funnel-spoken">2 available. 0 in flight. 60 consumed. </desc>`,
		"Devices have reported 4 failed joins", "&lt;script&gt;")
	b.lacks(page, "phone-", carol)
	first := b.get("/welcomes?state=consumed")
	b.has(first, "phone-1<", carolShort, "/convo?id="+planted)
	b.lacks(first, "phone-51<", carol)
	next := regexp.MustCompile(`href="(\?state=consumed&amp;before=[^"]+)`).FindStringSubmatch(first)
	if next == nil {
		t.Fatal("there is no second part")
	}
	second := b.get("/welcomes" + html.UnescapeString(next[1]))
	b.has(second, "phone-51<", "phone-60<")
	b.lacks(second, "phone-50<", "before=")
	b.has(b.get("/welcomes?state=failed"), carolShort, "did:plc:erin…nerin")
	if a := b.do("/welcomes?state=lost", nil); a.status != http.StatusBadRequest {
		t.Errorf("a state that is none: %d", a.status)
	}
}

// The page Idempotency counts, and answers why a request got its answer.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	b := planting(t)
	b.has(b.get("/idempotency"), "33.3 %", "<code>ciphertext</code>", carolShort, " s left", "&lt;script&gt;")
	byID := b.get("/idempotency?request=conflict")
	b.has(byID, "The caller had used this key for another request of sendMessage, at 2026-01-02 03:04:05.000 UTC,",
		"Different in this one: ciphertext.")
	b.has(b.get("/idempotency?key=k2"), "409 IdempotencyConflict", carolShort, "did:plc:erin…nerin")
	b.has(b.get("/idempotency?request=nothing"), "There is no such request.")
	b.has(b.get("/idempotency?convo="+other), danShort)
	b.lacks(b.get("/idempotency?convo="+other), carolShort, aliceShort)

	mine := b.get(b.find("/idempotency", carol))
	b.has(mine, carolShort, "a commit of "+aliceShort+" had ended epoch 2")
	b.lacks(mine, carol, alice, "did:plc:erin", danShort)
	if got, want := b.recorded(),
		[]string{"did.show | /idempotency did=" + carol + " | olga | ticket 7 | done"}; !slices.Equal(got, want) {
		t.Errorf("recorded: %q", got)
	}
}

// Who looks at an account by its DID says why. Else nobody learns anything, and nothing is recorded.
func TestFind(t *testing.T) {
	t.Parallel()
	b := planting(t)
	for name, form := range map[string]url.Values{
		"no reason": {"page": {"/account"}, "did": {carol}},
		"no DID":    actor("page", "/account", "did", "carol"),
		"no page":   actor("page", "//evil.example", "did", carol),
		"no person": actor("page", "/queues", "did", carol),
	} {
		if a := b.do("/find", form); a.status != http.StatusBadRequest && a.status != http.StatusNotFound ||
			strings.Contains(a.body, carol) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if got := b.recorded(); got != nil {
		t.Errorf("recorded: %q", got)
	}
}

// The page Account has what belongs to the account, and nothing of others.
func TestAccount(t *testing.T) {
	t.Parallel()
	b := planting(t)
	at := b.find("/account", carol)
	page := b.get(at)
	b.has(page, carolShort, "messages-per-day", "409 EpochMismatch", "409 IdempotencyConflict", "blocked the account",
		planted, "&lt;script&gt;")
	b.lacks(page, carol, alice, "did:plc:erin", "did:plc:dan", other, markup, "ciphertextx", "the name")
	b.has(b.get(b.find("/account", "did:plc:nobodynobodynobodynobody")), "The server has nothing of this account.")
	if a := b.do("/account?did=x", nil); a.status != http.StatusBadRequest {
		t.Errorf("what is no DID: %d", a.status)
	}
	full := b.do(at, actor())
	b.has(full.body, carol)
	if got := b.recorded(); got[len(got)-1] != "did.show | /account did="+carol+" | olga | ticket 7 | done" {
		t.Errorf("recorded: %q", got)
	}
}

// What an account was refused comes in parts.
func TestRefusalsArePaged(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.plantConvo(planted, alice, carol, 12)
	at, seen := b.find("/account", carol), map[string]bool{}
	for at != "" {
		page := b.get(at)
		for _, found := range regexp.MustCompile(`<code>(r\d+|conflict)</code>`).FindAllStringSubmatch(page, -1) {
			if seen[found[1]] {
				t.Errorf("%s is there twice", found[1])
			}
			seen[found[1]] = true
		}
		next := regexp.MustCompile(`href="(\?before=[^"]+)">Earlier refusals`).FindStringSubmatch(page)
		if at = ""; next != nil {
			at = "/account" + html.UnescapeString(next[1])
		}
	}
	if len(seen) != 13 {
		t.Errorf("%d refusals: %v", len(seen), seen)
	}
}

// The page Convo shows who advanced the epochs, who lost, who came and left, and how large things
// are. It shows nothing of what people say or call the convo.
func TestConvo(t *testing.T) {
	t.Parallel()
	b := planting(t)
	b.exec(`UPDATE members SET left_at = now(), left_seq = 5, left_epoch = 3 WHERE convo_id = $1 AND did = $2`, planted,
		carol)
	page := b.get("/convo?id=" + planted)
	b.has(page, "<h3>Epoch 3</h3>", "commit 1,000 B", "1 entry follows", aliceShort, "The beginning", "1 available",
		"(2 failed joins)")
	for _, line := range []string{"came: ", "left: ", "lost the race: "} {
		if !regexp.MustCompile(line + `<a href="/account\?did=[^"]+"><code>` + carolShort).MatchString(page) {
			t.Errorf("%s is not in\n%s", line, page)
		}
	}
	b.lacks(page, alice, carol, "did:plc:erin", "did:plc:dan", "ciphertext", "the name", markup)
	for id, want := range map[string]int{"x": http.StatusBadRequest,
		"0192f3a4-0000-7000-8000-000000000009": http.StatusNotFound} {
		if a := b.do("/convo?id="+id, nil); a.status != want {
			t.Errorf("%s: %d", id, a.status)
		}
	}
}

// A long log comes in parts, each epoch once.
func TestEpochsArePaged(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.plantConvo(planted, alice, carol, 45)
	at, parts, seen := "/convo?id="+planted, 0, map[string]bool{}
	for at != "" {
		page := b.get(at)
		parts++
		for _, found := range regexp.MustCompile(`<h3>Epoch (\d+)</h3>`).FindAllStringSubmatch(page, -1) {
			if seen[found[1]] {
				t.Errorf("epoch %s is there twice", found[1])
			}
			seen[found[1]] = true
		}
		next := regexp.MustCompile(`href="(\?id=[^"]+)">Earlier epochs`).FindStringSubmatch(page)
		if at = ""; next != nil {
			at = "/convo" + html.UnescapeString(next[1])
		}
	}
	if len(seen) != 45 || parts != 3 {
		t.Errorf("%d epochs in %d parts", len(seen), parts)
	}
}
