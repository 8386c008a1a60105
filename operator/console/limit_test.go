package console_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/operator"
)

// ref finds the reference of an account in the form of a method.
func (b *bench) ref(page, method string) string {
	b.t.Helper()
	found := regexp.MustCompile(`name="method" value="` + method +
		`"><input type="hidden" name="param-did" value="([^"]+)">`).FindStringSubmatch(page)
	if found == nil {
		b.t.Fatalf("no form of %s in\n%s", method, page)
	}
	return found[1]
}

// press confirms an order and carries it out.
func (b *bench) press(fields ...string) {
	b.t.Helper()
	for _, path := range []string{"/actions/confirm", "/actions/call"} {
		if a := b.do(path, actor(fields...)); a.status != http.StatusOK || strings.Contains(a.body, carol) {
			b.t.Fatalf("%s of %q: %d %s", path, fields, a.status, a.body)
		}
	}
}

// The page Account limits an account, shows the limit and the quotas that it leaves, and takes it back.
func TestLimitOfAnAccount(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plantConvo(planted, alice, carol, 3)
	b.logIn(writeToken)
	at := b.find("/account", carol)
	page := b.get(at)
	b.lacks(page, "limited the account", "Take the limit back")
	b.press("method", "account.limit", "param-did", b.ref(page, "account.limit"), "param-percent", "10", "param-for", "7d")
	page = b.get(at)
	b.has(page, "olga limited the account to 10 % at ", ", until ", "ticket 7", `<td class="number">5,000</td>`,
		"Take the limit back")
	b.logIn(readToken)
	b.lacks(b.get(at), "Limit the account", "Take the limit back")
	b.logIn(writeToken)
	b.press("method", "account.limit", "param-did", b.ref(page, "account.limit"), "param-percent", "100")
	b.lacks(b.get(at), "limited the account", "Take the limit back")
	b.exec(`UPDATE accounts SET limit_percent = 10, limited_at = now(), limited_by = 'olga', limited_reason = 'floods',
			limit_until = now()`)
	b.lacks(b.get(at), "limited the account", `<td class="number">5,000</td>`)
	want := []string{"account.limit | " + carol + " 10 7d | olga | ticket 7 | done",
		"account.limit | " + carol + " 100 | olga | ticket 7 | done"}
	if diff := cmp.Diff(want, b.recorded()[1:]); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// The page Account serves an account again that a relay has called deleted.
func TestAccountIsReactivated(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plantConvo(planted, alice, carol, 3)
	b.exec(`
		INSERT INTO accounts (did, status, status_source, status_at, erase_after, version)
		VALUES ($1, 'deleted', 'repos wss://relay.example.com', now(), now() + interval '30 days', 1)
		ON CONFLICT (did) DO UPDATE SET status = excluded.status, status_source = excluded.status_source,
			status_at = excluded.status_at, erase_after = excluded.erase_after`, carol)
	b.logIn(readToken)
	at := b.find("/account", carol)
	b.has(b.get(at), "The network says that the account is deleted")
	b.lacks(b.get(at), "Serve the account again")
	b.logIn(writeToken)
	page := b.get(at)
	b.has(page, "Serve the account again")
	b.press("method", "account.reactivate", "param-did", b.ref(page, "account.reactivate"))
	b.lacks(b.get(at), "The network says that the account is deleted", "Serve the account again")
}

// The page Account makes an admin of a member, with a record.
func TestMemberIsMadeAnAdmin(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plantConvo(planted, alice, carol, 3)
	b.logIn(readToken)
	at := b.find("/account", carol)
	b.has(b.get(at), "<td>member</td>")
	b.lacks(b.get(at), "Make it an admin")
	b.logIn(writeToken)
	page := b.get(at)
	b.has(page, "Make it an admin")
	b.press("method", "convo.promote", "param-convo", planted, "param-did", b.ref(page, "convo.promote"))
	b.has(b.get(at), "<td>admin</td>")
	b.lacks(b.get(at), "Make it an admin")
	want := []string{"convo.promote | " + planted + " " + carol + " | olga | ticket 7 | done"}
	if diff := cmp.Diff(want, b.recorded()[1:]); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// The page Convo has a button beside a dispute that is open.
func TestDisputeIsEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t, operator.Tokens{Write: writeToken, Read: readToken})
	b.plantConvo(planted, alice, carol, 3)
	b.exec(`
		INSERT INTO disputes (convo_id, epoch, committer, state, voices, reports, began_at, ends_at) VALUES
			($1, 2, $2, 'open', 3, 2, now() - interval '2 hours', now() - interval '2 hours'),
			($1, 3, $2, 'open', 3, 2, now(), now() + interval '8 minutes')`, planted, alice)
	b.exec(`UPDATE disputes SET state = 'ended', ended_at = now() WHERE epoch = 2`)
	const button = `value="dispute.end"><input type="hidden" name="param-convo" value="` + planted +
		`"><input type="hidden" name="param-epoch" value="`
	at := "/convo?id=" + planted
	b.logIn(readToken)
	b.has(b.get(at), "Epoch 3: in dispute")
	b.lacks(b.get(at), button)
	b.logIn(writeToken)
	page := b.get(at)
	b.has(page, button+`3"`)
	b.lacks(page, button+`2"`)
	b.press("method", "dispute.end", "param-convo", planted, "param-epoch", "3")
	page = b.get(at)
	b.has(page, "Epoch 3: was in dispute")
	b.lacks(page, button)
}
