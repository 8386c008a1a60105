package console_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/operator"
)

// actor are the fields that say who acts, and why.
func actor(more ...string) url.Values {
	form := url.Values{"operator": {"olga"}, "reason": {"ticket 7"}}
	for i := 0; i < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return form
}

// Every page may use nothing but files of the listener, and has no inline script or style.
func TestPolicyOfEveryPage(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken})
	unwanted := regexp.MustCompile(`<script>|<style| style=| on[a-z]+=|https?://|javascript:`)
	file := regexp.MustCompile(`/assets/[a-z0-9.]+`)
	check := func(path string) {
		a := b.do(path, nil)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; " +
				"connect-src 'self'; " +
				"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if found := unwanted.FindString(strings.ReplaceAll(a.body, "http://www.w3.org/2000/svg", "")); found != "" {
			t.Errorf("%s has %q", path, found)
		}
		files := file.FindAllString(a.body, -1)
		if len(files) != 3 {
			t.Errorf("%s uses %v", path, files)
		}
		for _, f := range files {
			if a := b.do(f, nil); a.status != http.StatusOK || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s: %d %v", f, a.status, a.header)
			}
		}
	}
	check("/login")
	b.logIn(writeToken)
	b.plant()
	for _, path := range paths {
		check(path)
	}
}

// Without a session there is no page but that which asks for the token.
func TestPagesNeedTheToken(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	for _, path := range append(paths, "/live") {
		if a := b.do(path, nil); a.status != http.StatusSeeOther ||
			a.header.Get("Location") != "/login?next="+url.QueryEscape(path) {
			t.Errorf("%s: %d %s", path, a.status, a.header.Get("Location"))
		}
	}
	for _, path := range []string{"/", "/checks/begin", "/actions/confirm", "/actions/call"} {
		if a := b.do(path, actor("method", "account.block", "param-did", alice)); a.status != http.StatusSeeOther ||
			a.header.Get("Location") != "/login" {
			t.Errorf("%s: %d %s", path, a.status, a.header.Get("Location"))
		}
	}
	if a := b.do("/login", url.Values{"token": {"wrong"},
		"next": {"//evil.example"}}); a.status != http.StatusUnauthorized ||
		!strings.Contains(a.body, "This is not the admin listener") || !strings.Contains(a.body, `name="next" value="/"`) {
		t.Errorf("a wrong token: %d %s", a.status, a.body)
	}
	b.logIn(readToken)
	if a := b.do("/login?next=/checks", nil); a.status != http.StatusSeeOther || a.header.Get("Location") != "/checks" {
		t.Errorf("somebody who has logged in: %d", a.status)
	}
	if a := b.do("/logout", url.Values{}); !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("to log out: %v", a.header)
	}
	if got := b.recorded(); got != nil {
		t.Errorf("recorded: %v", got)
	}
}

// No page shows a DID in full, also not in a link, a form or the text of an operator or receiver.
// And no text becomes markup.
func TestNoPageTellsDIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.plant()
	for _, path := range paths {
		body := b.get(path)
		if strings.Contains(body, alice) || strings.Contains(body, markup) {
			t.Errorf("%s tells too much: %s", path, body)
		}
		if (path == "/queues" || path == "/actions") &&
			(!strings.Contains(body, aliceShort) || !strings.Contains(body, "&lt;script&gt;")) {
			t.Errorf("%s tells too little: %s", path, body)
		}
		if path == "/queues" && (!strings.Contains(body, "domain:example.net") || !strings.Contains(body, "MLSD_SERVICES")) {
			t.Errorf("%s does not say how to stop a service: %s", path, body)
		}
	}
	a := b.do("/actions/call", url.Values{"method": {"account.show"}, "param-did": {alice}})
	if strings.Contains(a.body, alice) || !strings.Contains(a.body, aliceShort) {
		t.Errorf("a result: %d %s", a.status, a.body)
	}
}

// A page is shown in full once, to somebody who says who asks and why.
func TestDIDsInFullAreRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plant()
	b.logIn(readToken)
	for _, form := range []url.Values{{}, {"operator": {"olga"}}, {"operator": {" "}, "reason": {"x"}}} {
		if a := b.do("/queues", form); a.status != http.StatusBadRequest || strings.Contains(a.body, alice) {
			t.Errorf("with %v: %d", form, a.status)
		}
	}
	a := b.do("/queues?after=x", actor())
	if a.status != http.StatusOK || !strings.Contains(a.body, alice) || strings.Contains(a.body, markup) {
		t.Errorf("with a reason: %d %s", a.status, a.body)
	}
	if strings.Contains(b.get("/queues"), alice) {
		t.Error("the next view is in full too")
	}
	if got, want := b.recorded()[1:],
		[]string{"did.show | /queues after=x | olga | ticket 7 | done"}; !slices.Equal(got, want) {
		t.Errorf("recorded: %q", got)
	}
}

// A change asks before it happens, repeats what it is about, and leaves its row.
func TestActions(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.logIn(writeToken)
	page := b.get("/actions")
	for _, m := range operator.Methods() {
		if strings.Contains(page, `value="`+m.Name()+`"`) == m.Command {
			t.Errorf("there is no form for %s, or one too many", m.Name())
		}
	}
	block := actor("method", "account.block", "param-did", alice)
	a := b.do("/actions/confirm", block)
	if a.status != http.StatusOK || !strings.Contains(a.body, "refuse every request of an account") ||
		!strings.Contains(a.body, aliceShort) {
		t.Errorf("before: %d %s", a.status, a.body)
	}
	if got := b.recorded(); got != nil {
		t.Fatalf("before anybody has confirmed: %v", got)
	}
	if a := b.do("/actions/call",
		url.Values{"method": {"account.block"}, "param-did": {alice}}); a.status != http.StatusBadRequest {
		t.Errorf("without a reason: %d", a.status)
	}
	if a := b.do("/actions/call", block); a.status != http.StatusOK || !strings.Contains(a.body, "Done:") {
		t.Errorf("after: %d %s", a.status, a.body)
	}
	if got, want := b.recorded(),
		[]string{"account.block | " + alice + " | olga | ticket 7 | done"}; !slices.Equal(got, want) {
		t.Errorf("recorded: %q", got)
	}
	b.logIn(readToken)
	if a := b.do("/actions/call", block); a.status != http.StatusForbidden {
		t.Errorf("with the read token: %d", a.status)
	}
	if strings.Contains(b.get("/actions"), "account.unblock") {
		t.Error("the read token is offered what it may not do")
	}
}

// A button beside a push job names the account by a reference, which the form of the action takes.
func TestPushButtons(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.plant()
	form := regexp.MustCompile(`name="method" value="([a-z.]+)"><input type="hidden" name="param-did" ` +
		`value="([^"]+)"><input type="hidden" name="param-id" value="([^"]+)">`)
	for _, found := range form.FindAllStringSubmatch(b.get("/queues"), -1) {
		order := actor("method", found[1], "param-did", found[2], "param-id", found[3])
		for _, path := range []string{"/actions/confirm", "/actions/call"} {
			if a := b.do(path, order); a.status != http.StatusOK || !strings.Contains(a.body, aliceShort) ||
				strings.Contains(a.body, alice) {
				t.Errorf("%s of %s: %d %s", path, found[1], a.status, a.body)
			}
		}
	}
	var done []string
	for _, row := range b.recorded()[1:] {
		action, rest, _ := strings.Cut(row, " | ")
		if !strings.HasPrefix(rest, alice) || !strings.HasSuffix(rest, "done") {
			t.Error(row)
		}
		done = append(done, action)
	}
	if want := []string{"push.retry", "push.drop", "push.retry"}; !slices.Equal(done, want) {
		t.Errorf("done: %v", done)
	}
}

// A file of an account is recorded.
func TestDownload(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	export := url.Values{"method": {"account.export"}, "param-did": {alice}}
	if a := b.do("/actions/call", export); a.status != http.StatusBadRequest || a.header.Get("Content-Disposition") != "" {
		t.Errorf("without a reason: %d %v", a.status, a.header)
	}
	a := b.do("/actions/call", actor("method", "account.export", "param-did", alice))
	if a.status != http.StatusOK || a.header.Get("Content-Type") != operator.ArchiveType ||
		!strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("with a reason: %d %v", a.status, a.header)
	}
	if got, want := b.recorded(),
		[]string{"account.export | " + alice + " | olga | ticket 7 | done"}; !slices.Equal(got, want) {
		t.Errorf("recorded: %q", got)
	}
}

// Long lists come in parts.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	for i := range 60 {
		b.exec(`INSERT INTO admin_actions (at, operator, action, subject, reason, outcome) VALUES (now(), 'olga', 'a', 's',
				$1, 'done')`, fmt.Sprintf("reason-%d.", i))
	}
	first := b.get("/actions")
	next := regexp.MustCompile(`href="(\?before=[^"#]+)`).FindStringSubmatch(first)
	if next == nil || !strings.Contains(first, "reason-59.") || strings.Contains(first, "reason-9.") {
		t.Fatalf("the first part, next %v", next)
	}
	if second := b.get("/actions" + next[1]); !strings.Contains(second, "reason-9.") ||
		strings.Contains(second, "reason-10.") || strings.Contains(second, "?before=") {
		t.Error("the second part")
	}
}

// A check that is begun on the page shows its result there.
func TestCheckOnThePage(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.run()
	for n, what := range []string{"all", "sample"} {
		if a := b.do("/checks/begin", url.Values{"what": {what}}); a.status != http.StatusSeeOther {
			t.Fatalf("%d %s", a.status, a.body)
		}
		b.live(func(string) bool { return len(b.checks.Results()) == n+1 })
	}
	page := b.get("/checks")
	if strings.Count(page, "All promises are kept.") != 2 || !strings.Contains(page, "<td>everything</td>") ||
		!strings.Contains(page, "<td>a sample of 1000 convos</td>") {
		t.Error("the results are not shown")
	}
	if a := b.do("/checks?convo=x", nil); a.status != http.StatusBadRequest ||
		!strings.Contains(a.body, "This is not the id of a convo") {
		t.Errorf("a convo that is none: %d", a.status)
	}
	if !strings.Contains(b.get("/checks?convo=1f0c9a5e-0000-4000-8000-000000000000"), "All promises are kept.") {
		t.Error("a convo")
	}
}

// live reads the stream of live numbers until seen returns true.
func (b *bench) live(seen func(event string) bool) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.server.URL+"/live", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if seen(lines.Text()) {
			return
		}
	}
	b.t.Fatal("the stream has ended")
}

// Numbers are made while somebody watches, once for all who do.
func TestLiveNumbers(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{})
	b.run()
	b.sends.Add(5)
	events := 0
	b.live(func(line string) bool {
		if strings.HasPrefix(line, "data: {") && strings.Contains(line, `"sends.0"`) &&
			strings.Contains(line, `"check":"no check runs"`) {
			events++
		}
		return events == 2
	})
	if n := b.read.Load(); n > 8 {
		t.Errorf("for two events the metrics were read %d times", n)
	}
}

// The page Now is there without a database, and says that it does not answer.
func TestNowWithoutADatabase(t *testing.T) {
	t.Parallel()
	const fault = "The database does not answer."
	b := newBench(t, operator.Tokens{})
	if page := b.get("/"); strings.Contains(page, fault) || !strings.Contains(page, "Welcomes to fetch") {
		t.Errorf("with a database: %s", page)
	}
	b = newBench(t, operator.Tokens{})
	b.up.Set(0)
	if page := b.get("/"); !strings.Contains(page, fault) || strings.Contains(page, "Welcomes to fetch") {
		t.Errorf("without: %s", page)
	}
	b.run()
	b.live(func(line string) bool {
		return strings.Contains(line, `"fault":"`+fault) && strings.Contains(line, `"mlsd_welcomesavailable":"–"`)
	})
}
