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

// The page Reports lists what is open, the oldest first, and what is closed, in parts.
func TestReports(t *testing.T) {
	t.Parallel()
	b := planting(t)
	b.has(b.get("/reports"), "No report is open.", "No report was closed.")
	b.plantReports(220)
	next := map[string]string{"after": "/reports", "before": "/reports"}
	for name := range next {
		seen := 0
		for at := "/reports"; at != ""; {
			page := b.get(at)
			open, closed, _ := strings.Cut(page, "Closed, the newest first")
			part := open
			if name == "before" {
				part = closed
			}
			seen += strings.Count(part, `href="/reports?id=`)
			b.lacks(page, alice, markup, "SECRETS")
			at = ""
			if link := regexp.MustCompile(`href="(\?` + name + `=[^"]+)"`).FindStringSubmatch(part); link != nil {
				at = "/reports" + html.UnescapeString(link[1])
			}
		}
		if seen != 110 {
			t.Errorf("%d reports by %s", seen, name)
		}
	}
}

// The page of a report says how to open it, and has buttons for whom an operator can act on. Who
// may only read has none.
func TestOneReport(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plant()
	b.logIn(writeToken)
	at := "/reports?id=" + reported
	page := b.get(at)
	b.has(page, aliceShort, "mlsd admin report open --key FILE "+reported, "/convo?id="+planted, "did:plc:bobb…obbob",
		`value="account.block"`, `value="convo.close"`, `value="report.close"`)
	b.lacks(page, alice, markup, "SECRETS")
	b.logIn(readToken)
	b.lacks(b.get(at), `value="account.block"`, `value="convo.close"`, `value="report.close"`)
	for path, status := range map[string]int{"/reports?id=x": http.StatusBadRequest,
		"/reports?id=" + planted: http.StatusNotFound} {
		if a := b.do(path, nil); a.status != status {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	b.logIn(writeToken)
	fields := regexp.MustCompile(`name="method" value="report.close"><input type="hidden" name="param-id" ` +
		`value="([^"]+)"`).FindStringSubmatch(page)
	if fields == nil || fields[1] != reported {
		t.Fatalf("the button closes %q", fields)
	}
	done := b.do("/actions/call", actor("method", "report.close", "param-id", reported))
	b.has(done.body, "changed")
	b.has(b.get(at), "ticket 7", "closed")
	b.lacks(b.get(at), `value="report.close"`)
	if got := b.recorded(); !slices.Contains(got, "report.close | "+reported+" | olga | ticket 7 | done") {
		t.Errorf("recorded: %q", got)
	}
	b.exec(`DELETE FROM convos`)
	b.has(b.get(at), "The convo was deleted.")
}

// The sealed bytes are for the command alone: the console has no form for them, and takes none.
func TestSealedBytesAreNotShown(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.plant()
	b.lacks(b.get("/actions"), "report.fetch")
	if a := b.do("/actions/call",
		url.Values{"method": {"report.fetch"}, "param-id": {reported}}); a.status != http.StatusBadRequest {
		t.Errorf("%d %s", a.status, a.body)
	}
}
