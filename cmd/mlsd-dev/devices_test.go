package main

import (
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/cmd/mlsd-dev/devserver"
)

// device makes a device of an account.
func (c devClient) device(who devserver.Account, id string) string {
	c.t.Helper()
	return read[devserver.Device](c.t, c.dev("devices", `{"did":"`+who.DID.String()+`","id":"`+id+`"}`)).ID
}

// operate lets a device do something that must succeed.
func operate[T any](c devClient, device, operation, body string) T {
	c.t.Helper()
	return read[T](c.t, c.dev("devices/"+device+"/"+operation, body))
}

// texts are the messages that a device has read, with their senders' names.
func (c devClient) texts(device, convo string, names map[string]string) (all []string) {
	c.t.Helper()
	for _, m := range operate[devserver.ReadMessages](c, device, "read", convo).Messages {
		if !m.Commit {
			all = append(all, names[m.Sender.String()]+": "+m.Text+string(m.Data))
		}
	}
	return all
}

// Devices do real MLS with each other: they create, invite, join, send, read, commit, rejoin, leave
// and remove. A lost answer does not make them send twice.
func (c devClient) testDevices(t *testing.T) {
	c.t = t
	c.dev("reset", "{}")
	alice, bob, carol := c.account(), c.account(), c.account()
	names := map[string]string{alice.DID.String(): "alice", bob.DID.String(): "bob", carol.DID.String(): "carol"}
	a, b := c.device(alice, "a"), c.device(bob, "")
	convo := operate[devserver.Place](c, a, "create", `{"dids":["`+bob.DID.String()+`"]}`)
	in := `{"convoId":"` + convo.ConvoID + `"}`
	with := func(more string) string { return strings.TrimSuffix(in, "}") + "," + more + "}" }
	if got := operate[devserver.Joined](c, b, "join", ""); cmp.Diff(devserver.Joined{Joined: []devserver.Place{convo}},
		got) != "" {
		t.Fatalf("joined %v, want %v", got, convo)
	}
	c.dev("faults", `{"kind":"loseAnswer","lxm":"`+mlsapi.NSIDSendMessage+`","did":"`+alice.DID.String()+`"}`)
	first := operate[devserver.SentMessage](c, a, "send", with(`"text":"hello"`))
	second := operate[devserver.SentMessage](c, a, "send", with(`"text":"hello"`))
	operate[devserver.SentMessage](c, b, "send", with(`"data":"/w=="`))
	if first.Seq == second.Seq || first.MessageID == second.MessageID {
		t.Errorf("two messages are one: %v, %v", first, second)
	}
	want := []string{"alice: hello", "alice: hello", "bob: \xff"}
	for _, device := range []string{a, b} {
		if diff := cmp.Diff(want, c.texts(device, in, names)); diff != "" {
			t.Errorf("%s reads (-want +got):\n%s", device, diff)
		}
	}
	c.testEncrypt(alice, a, b, convo, names)
	c.testRoster(carol, a, b, in, with)
}

// testEncrypt sends what a device has encrypted, by the method itself.
func (c devClient) testEncrypt(alice devserver.Account, a, b string, convo devserver.Place, names map[string]string) {
	c.t.Helper()
	e := operate[json.RawMessage](c, a, "encrypt", `{"convoId":"`+convo.ConvoID+`","text":"by hand"}`)
	made := read[struct {
		Epoch      int64
		Ciphertext json.RawMessage
	}](c.t, e)
	body, err := json.Marshal(map[string]any{
		"convoId": convo.ConvoID, "senderDid": alice.DID, "epoch": made.Epoch, "ciphertext": made.Ciphertext,
		"idempotencyKey": "by-hand",
	})
	if err != nil {
		c.t.Fatal(err)
	}
	sent, err := c.call(http.MethodPost, mlsapi.NSIDSendMessage, alice, string(body))
	if err != nil {
		c.t.Fatal(err)
	}
	sent.ok()
	for _, device := range []string{a, b} {
		if texts := c.texts(device, `{"convoId":"`+convo.ConvoID+`"}`, names); texts[len(texts)-1] != "alice: by hand" {
			c.t.Errorf("%s reads %q", device, texts)
		}
	}
}

// testRoster changes who is in the group.
func (c devClient) testRoster(carol devserver.Account, a, b, in string, with func(string) string) {
	c.t.Helper()
	did := carol.DID.String()
	before := operate[devserver.Place](c, b, "commit", in).Epoch
	a0 := c.dev("devices/"+a+"/read", in)
	if got := read[devserver.ReadMessages](c.t, a0).Epoch; got != before {
		c.t.Errorf("alice is in epoch %d, and bob in %d", got, before)
	}
	c.device(carol, "c1")
	operate[devserver.Place](c, a, "invite", with(`"dids":["`+did+`"]`))
	operate[devserver.Joined](c, "c1", "join", in)
	c.device(carol, "c2")
	operate[devserver.Place](c, "c2", "rejoin", in)
	operate[devserver.SentMessage](c, "c2", "send", with(`"text":"from the second device"`))
	members := operate[devserver.ReadMessages](c, a, "read", in).Members
	if n := len(slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m != did })); n != 2 ||
		len(members) != 4 {
		c.t.Errorf("members %v", members)
	}
	operate[devserver.Place](c, "c1", "leave", in)
	operate[devserver.Place](c, b, "remove", in)
	if got := operate[devserver.ReadMessages](c, a, "read", in); slices.Contains(got.Members, did) ||
		len(got.Members) != 2 {
		c.t.Errorf("members %v", got.Members)
	}
	last := operate[devserver.ReadMessages](c, a, "read", in).Messages
	if got := operate[devserver.ReadMessages](c, a, "read", with(`"after":2`)).Messages; len(got) != len(last)-2 ||
		got[0].Seq != 3 {
		c.t.Errorf("%d messages after the second of %d", len(got), len(last))
	}
}

// What a device cannot do is refused, with the service's own words where those are the reason.
func (c devClient) testRefusals(t *testing.T) {
	c.t = t
	c.dev("reset", "{}")
	who := c.account().DID.String()
	c.device(read[devserver.Accounts](t, c.get("/dev/accounts").ok()).Accounts[0], "a")
	convo := operate[devserver.Place](c, "a", "create", "").ConvoID
	for _, r := range []struct {
		path, body, name, text string
		status                 int
	}{
		{"devices", `{"did":"` + who + `","id":"a"}`, "DeviceExists", `"a"`, 409},
		{"devices", `{"did":"` + who + `","id":"a/b"}`, "InvalidRequest", "id", 400},
		{"devices", `{"did":"` + who + `","cipherSuite":"ROT13"}`, "InvalidRequest", "MLS_128_DHKEMP256", 400},
		{"devices", `{"did":"did:plc:ewvi7nxzyoun6zhxrhs64oiz"}`, "AccountNotFound", "accounts", 404},
		{"devices/b/read", `{"convoId":"` + convo + `"}`, "DeviceNotFound", `"b"`, 404},
		{"devices/a/sing", `{}`, "NotFound", "rejoin", 404},
		{"devices/a/read", `{}`, "InvalidRequest", "convoId", 400},
		{"devices/a/send", `{"convoId":"` + convo + `"}`, "InvalidRequest", "text or data", 400},
		{"devices/a/send", `{"convoId":"` + convo + `","text":"a","data":"Yg=="}`, "InvalidRequest", "text or data", 400},
		{"devices/a/commit", `{"convoId":"` + convo + `","text":"a"}`, "InvalidRequest", "text does not belong", 400},
		{"devices/a/publish", `{"count":-1}`, "InvalidRequest", "negative", 400},
		{"devices/a/read", `{"convoId":"elsewhere"}`, "DeviceFailed", "elsewhere", 409},
		{"devices/a/join", `{"convoId":"0192f3a4-0000-7000-8000-000000000000"}`, "ConvoNotFound", "getWelcome", 404},
		{"devices/a/invite", `{"convoId":"` + convo + `","dids":["did:plc:ewvi7nxzyoun6zhxrhs64oiz"]}`, "DeviceFailed",
			"KeyPackages", 409},
	} {
		a, err := c.do(http.MethodPost, "/dev/"+r.path, "", r.body)
		if err != nil {
			t.Fatal(err)
		}
		e := read[struct{ Error, Message string }](t, a.body)
		if a.status != r.status || e.Error != r.name || !strings.Contains(e.Message, r.text) {
			t.Errorf("%s %s: %d %+v, want %d %s with %q", r.path, r.body, a.status, e, r.status, r.name, r.text)
		}
	}
	// A device that cannot publish is not made.
	c.dev("faults", `{"kind":"status","status":403}`)
	if a, err := c.do(http.MethodPost, "/dev/devices", "", `{"did":"`+who+`","id":"c"}`); err != nil || a.status != 403 {
		t.Errorf("%d %s %v", a.status, a.body, err)
	}
	made := read[devserver.Devices](t, c.get("/dev/devices").ok()).Devices
	if len(made) != 1 {
		t.Errorf("%d devices", len(made))
	}
	// The account's repository lists a device that is made, and no other.
	listed := read[devserver.ShownRecords](t,
		c.get("/xrpc/com.atproto.repo.listRecords?collection=blue.catbird.mls.device&repo="+who).ok()).Records
	if len(listed) != 1 || listed[0].Value["cipherSuite"] != made[0].CipherSuite {
		t.Fatalf("it lists %v, and there are %+v", listed, made)
	}
	key, err := hex.DecodeString(made[0].DeviceID[:40])
	rkey := strings.ToLower(base32.StdEncoding.EncodeToString(key))
	if err != nil || !strings.HasSuffix(listed[0].URI, "/"+rkey) {
		t.Errorf("it lists %s, and the device has the id %s: %v", listed[0].URI, made[0].DeviceID, err)
	}
	c.device(read[devserver.Accounts](t, c.get("/dev/accounts").ok()).Accounts[0], "c")
}
