package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// G8: a database belongs to one service. A node of another service is refused, and told whose the
// database is. A mistake in the DID can be mended until somebody knows it.
func TestDatabaseOfAnotherService(t *testing.T) {
	t.Parallel()
	w, database := newWorld(t), pgtest.URL(t)
	configured := []string{"MLSD_DATABASE_URL=" + database}
	refused := func(flags ...string) {
		t.Helper()
		for _, command := range []string{"serve", "check-config --database"} {
			launch(t, configured, append(flags, strings.Fields(command)...)...).fails("MLSD_SERVICE_DID", serviceDID,
				"docs/OPERATING.md")
		}
	}
	other := []string{"--service-did", "did:web:other.example.com"}
	boot(t, configured, other...).stop()

	s := boot(t, configured, w.flags()...) // the first one was a mistake
	w.use(s.admin, s.public)
	refused(other...) // it runs
	alice, bob := w.user(), w.user()
	alice.create(bob)
	second := boot(t, configured, w.flags()...)
	second.stop()
	s.stop()
	refused(other...)
	refused() // the default one
	boot(t, configured, w.flags()...).stop()
}

// G8: the page says how a service moves to another domain: it keeps its DID, and clients find it at
// its new URL.
func TestAnotherDomain(t *testing.T) {
	t.Parallel()
	page := pages(t)["docs/OPERATING.md"]
	_, section, _ := strings.Cut(page, "\n## Another domain\n")
	section, _, _ = strings.Cut(section, "\n## ")
	settings := regexp.MustCompile(`MLSD_\w+=\S+`).FindAllString(section, -1)
	if len(settings) < 2 || !strings.Contains(section, "MLSD_PUBLIC_URL=https://chat.example.org") {
		t.Fatalf("the page has the settings %q", settings)
	}
	w, database := newWorld(t), pgtest.URL(t)
	s := boot(t, []string{"MLSD_DATABASE_URL=" + database}, w.flags()...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	s.stop()

	s = boot(t, append(settings, "MLSD_DATABASE_URL="+database), "--plc-url", w.plc.URL)
	w.use(s.admin, s.public)
	status, document := fetch(t, s.public+"/.well-known/did.json")
	if status != http.StatusOK || !strings.Contains(document, `"id":"`+serviceDID+`"`) ||
		!strings.Contains(document, `"serviceEndpoint":"https://chat.example.org"`) {
		t.Errorf("%d %s", status, document)
	}
	// Tokens are for the same DID as before.
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "after the move")).must().ok()
	if log := bob.log(c); len(log) != 1 {
		t.Errorf("%d messages", len(log))
	}
	ticket := read[mlsapi.GetSubscriptionTicketOutput](t,
		request{u: alice, verb: http.MethodPost, nsid: mlsapi.NSIDGetSubscriptionTicket}.must().ok())
	if !strings.HasPrefix(ticket.URL, "wss://chat.example.org/") {
		t.Errorf("streams are at %s", ticket.URL)
	}
}
