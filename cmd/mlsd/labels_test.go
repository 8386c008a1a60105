package main

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
	"mlsd/idem"
	"mlsd/people/quota"
)

// labelValues are the values that each label can have.
func labelValues() map[string][]string {
	words := strings.Fields
	methods, failures := []string{"other", idem.NSIDPush, idem.NSIDInvitation}, []string{"", "NotFound"}
	for _, m := range mlsapi.Methods() {
		methods, failures = append(methods, m.NSID), append(failures, m.Errors...)
	}
	for _, e := range errorlist.All {
		failures = append(failures, e.Name)
	}
	return map[string][]string{
		"nsid": methods, "error": failures, "quota": quota.Names(),
		"status": words("101 200 204 400 401 403 404 405 409 413 415 426 429 500 501 502 503"),
		"outcome": slices.Concat(failures, words(`first replay conflict in_progress expired takeover heartbeat_lost ok success
				failure unchanged unknown
			done dead retry superseded connected found invalid busy failed exported dropped`)),
		"state": words("processing released completed available in_flight consumed superseded expired last_resort " +
			"claimed orphaned none used behind unreachable refused"),
		"source": words("standby primary plc web"),
		"kind": words("websocket sse body answer drain account identity other info invalid oversized low last_resort " +
			"orphaned apns webhook unknown_outcome error contended unavailable"),
		"reason": append(words("client too_slow no_pong protocol replaced restart refused session error busy rate convo "+
			"offline long behind failed forbidden timeout tls connection other name challenge status"), ""),
		"rows": words(`messages roles admins welcomes_consumed welcomes_released welcomes_expired welcome_bodies
			key_packages_expired key_packages_orphaned key_packages_deleted key_package_signals idempotency_keys audit_log
			accounts_erased accounts_limited abuse_reports abuse_reports_cleared disputes_ended used_tokens identity_keys
			sessions
			subscription_tickets nodes
			push_jobs quota_counts invitations requests sent_invitations
			sent_invitations_given_up received_invitations invitation_budgets erasure_confirmations attachments_unfinished
			attachments_expired`),
		"worker": append(words("welcomes key_packages records used_tokens tickets sweeper"), "schema watch", "write watch",
			"identity key sync",
			"session reader", "session key rotation", "log key reader", "convo sweeper", "eraser of accounts",
			"push backlog", "push worker", "invitation sender", "request recorder",
			"quota counter", "presence writer", "index of the stream",
			"account gate", "attachment sweeper", "message sweeper",
			"reader of the list of admitted accounts"),
		"entity": words("welcome key_package reservation push_job sent_invitation record dispute attachment account"),
		"limit":  words("address caller node time"),
		"result": words("delivered gone refused retry passed failed"), "pool": words("requests reserved maintenance"),
	}
}

// strange are texts that no label may have.
func strange() []string {
	return []string{"did:plc:strange", "blue.catbird.mls.strange", "strange/../%2e%2e", "strange\x00",
		strings.Repeat("strange", 1000), `strange"}\n`, "../strange"}
}

// The number of series is bounded: whatever unauthenticated callers send, each label has one of a
// few values that the program names.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	w, s, _ := serverOfEverything(t)
	sent := sendStrange(t, w)
	series, allowed := scrape(t, s), labelValues()
	label := regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	for name := range series {
		if !strings.HasPrefix(name, "mlsd_") || strings.HasPrefix(name, "mlsd_build_info") {
			continue
		}
		for _, l := range label.FindAllStringSubmatch(name, -1) {
			values := allowed[l[1]]
			if strings.HasPrefix(name, "mlsd_account_statuses_total") {
				values = []string{"active", "deactivated", "suspended", "takendown", "deleted"}
			}
			if l[1] != "le" && !slices.Contains(values, l[2]) {
				t.Errorf("%s: %q is not a value of %s", name, l[2], l[1])
			}
		}
	}
	t.Logf("%d series after %d strange requests", len(series), sent)
}

// sendStrange sends what no client sends, to every method and elsewhere, and returns how many
// requests that were.
func sendStrange(t *testing.T, w *world) (sent int) {
	t.Helper()
	alice := w.user()
	var paths []string
	for _, text := range strange() {
		paths = append(paths, "/xrpc/"+text, "/"+text)
	}
	for _, m := range mlsapi.Methods() {
		paths = append(paths, "/xrpc/"+m.NSID, "/xrpc/"+m.NSID+"/strange")
	}
	for _, path := range paths {
		for _, verb := range []string{http.MethodGet, http.MethodPost, "STRANGE"} {
			r, err := http.NewRequestWithContext(t.Context(), verb, w.public,
				strings.NewReader(`{"strange": "did:plc:strange"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Path, r.URL.RawQuery = path, "convoId=strange&strange=did:plc:strange"
			for _, name := range []string{"X-Request-Id", "Idempotency-Key", "Atproto-Proxy", "X-Forwarded-For"} {
				r.Header.Set(name, "did:plc:strange")
			}
			r.Header.Set("Content-Type", "application/json")
			if name := strings.TrimPrefix(path, "/xrpc/"); slices.ContainsFunc(mlsapi.Methods(),
				func(m mlsapi.Method) bool { return m.NSID == name }) {
				r.Header.Set("Authorization", alice.Authorization(t, serviceDID, name, time.Now()))
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatalf("%s %s: %v", verb, path, err)
			}
			_ = resp.Body.Close() // it can be a stream; only the metrics count
			sent++
		}
	}
	return sent
}
