package lexcodec_test

import (
	"encoding/json"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want, out string }{
		{`{"$bytes":""}`, "", `{"$bytes":""}`},
		{`{"$bytes":"AA"}`, "\x00", `{"$bytes":"AA"}`},
		{`{"$bytes":"AA=="}`, "\x00", `{"$bytes":"AA"}`},
		{`{"$bytes":"+/8="}`, "\xfb\xff", `{"$bytes":"+/8"}`},
		{`{"$bytes":"+\/8"}`, "\xfb\xff", `{"$bytes":"+/8"}`}, // Swift escapes the slash
		{`{ "\u0024bytes" : "\u0041A" }`, "\x00", `{"$bytes":"AA"}`},
		{`{"$bytes":"AAEC"}`, "\x00\x01\x02", `{"$bytes":"AAEC"}`},
	} {
		var b lexcodec.Bytes
		if err := json.Unmarshal([]byte(tc.in), &b); err != nil {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		if string(b) != tc.want || b == nil {
			t.Errorf("%s: got %q", tc.in, b)
		}
		if got := string(mustMarshal(t, b)); got != tc.out {
			t.Errorf("%s: written as %s", tc.in, got)
		}
	}
	for _, in := range []string{`"AA"`, `null`, `{}`, `{"$bytes":"A"}`, `{"$bytes":"AB"}`, `{"$bytes":"-_8"}`,
		`{"$bytes":"AA","x":1}`, `{"$bytes":"AA\n"}`, `{"$bytes":"AA="}`, `{"$bytes":"AA"`} {
		if err := new(lexcodec.Bytes).UnmarshalJSON([]byte(in)); err == nil {
			t.Errorf("%s: accepted", in)
		}
	}
}

func TestBase64(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "AA": "\x00", "AA==": "\x00", "+/8": "\xfb\xff", "-_8": "\xfb\xff", "-_8=": "\xfb\xff",
		"AAEC": "\x00\x01\x02",
	} {
		got, err := lexcodec.ParseBase64([]byte(in))
		if err != nil || string(got) != want || got == nil {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"A", "AB", "+_8", "-/8", "AA=", "A A", "AA\n", "AA==\r\n", "====", "AAEC="} {
		if _, err := lexcodec.ParseBase64([]byte(in)); err == nil {
			t.Errorf("%q: accepted", in)
		}
	}
	if got := string(mustMarshal(t, lexcodec.Base64("\xfb\xff"))); got != `"-_8"` {
		t.Errorf("written as %s", got)
	}
}

func TestDatetime(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2026-11-20T10:20:30Z":                "2026-11-20T10:20:30.000Z",
		"2026-11-20T10:20:30.1Z":              "2026-11-20T10:20:30.100Z",
		"2026-11-20T10:20:30.123999999Z":      "2026-11-20T10:20:30.123Z",
		"2026-11-20T12:20:30.123+02:00":       "2026-11-20T10:20:30.123Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00.000Z",
		"9999-12-31T23:59:59.999Z":            "9999-12-31T23:59:59.999Z",
		"2026-11-20T10:20:30.1234567891234Z":  "2026-11-20T10:20:30.123Z",
		"1969-12-31T23:59:59.999999999-00:00": "1969-12-31T23:59:59.999Z",
	} {
		d, err := lexcodec.ParseDatetime(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := string(mustMarshal(t, d)); got != `"`+want+`"` || d.String() != want {
			t.Errorf("%s: written as %s", in, got)
		}
		again, err := lexcodec.ParseDatetime(want)
		if err != nil || !again.Equal(d.Time) {
			t.Errorf("%s: read again as %v, %v", want, again, err)
		}
	}
}

// The generated encoders and encoding by the struct tags give the same JSON.
func TestEncodersMatchTags(t *testing.T) {
	t.Parallel()
	name, seq, unread := "a<b>&\u2028é\"", int64(7), int64(0)
	at, err := lexcodec.ParseDatetime("2026-11-20T10:20:30.4Z")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{
		&mlsapi.ConvoView{},
		&mlsapi.ConvoView{ID: name, Creator: "did:web:a",
			Members: []mlsapi.MemberView{{DID: "did:web:a", JoinedAt: at},
				{LeafIndex: &seq, Credential: lexcodec.Bytes{}}},
			LastMessageAt: &at, Metadata: &mlsapi.ConvoMetadata{Name: &name}, LastSeq: &seq, Unread: &unread},
		&mlsapi.GetMessagesOutput{Messages: []mlsapi.MessageView{{Ciphertext: lexcodec.Bytes("x"), Epoch: -1}}},
		&mlsapi.GetMessagesOutput{},
		&mlsapi.PublishKeyPackageOutput{},
		&mlsapi.GetWelcomeOutput{Welcome: lexcodec.Base64("\xff\xfe")},
		&mlsapi.GetKeyPackagesOutput{KeyPackages: []mlsapi.KeyPackageRef{{}}},
	} {
		tags, err := jsonv2.Marshal(v, jsonv2.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(tags), string(mustMarshal(t, v))); diff != "" {
			t.Errorf("%T (-tags +generated):\n%s", v, diff)
		}
	}
	if got := string(mustMarshal(t, &mlsapi.GetMessagesOutput{Messages: []mlsapi.MessageView{{}}})); !strings.Contains(got,
		`"ciphertext":{"$bytes":""}`) {
		t.Errorf("required bytes left out: %s", got)
	}
	if got := string(mustMarshal(t, &mlsapi.GetConvosOutput{})); got != `{"conversations":[]}` {
		t.Errorf("nil slice written as %s", got)
	}
	if got := string(mustMarshal(t, &mlsapi.GetEpochOutput{ConvoID: "a\xff<"})); got != `{"convoId":"a`+"\ufffd"+
		`<","currentEpoch":0}` {
		t.Errorf("bad UTF-8 written as %s", got)
	}
}

// Requests that differ only in the spelling of base64 and JSON are the same request.
func TestFieldsAreCanonical(t *testing.T) {
	t.Parallel()
	const (
		one = `{"convoId":"c","ciphertext":{"$bytes":"+/8="},"epoch":1,"senderDid":"did:web:a","idempotencyKey":"k1"}`
		two = ` {"idempotencyKey":"k2", ` +
			`"senderDid":"did:web:\u0061","epoch":1,"ciphertext":{"$bytes":"+\/8"},"other":[],"convoId":"c"}`
	)
	a, err := mlsapi.DecodeSendMessageInput([]byte(one))
	if err != nil {
		t.Fatal(err)
	}
	b, err := mlsapi.DecodeSendMessageInput([]byte(two))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Fields(), b.Fields()); diff != "" {
		t.Errorf("one request, two hashes:\n%s", diff)
	}
	var got []string
	for _, f := range a.Fields() {
		got = append(got, f.Name+"="+string(f.JSON))
	}
	want := []string{`ciphertext={"$bytes":"+/8"}`, `convoId="c"`, `epoch=1`, `senderDid="did:web:a"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestValidIdempotencyKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"": false, "k": true, "~": true, "a b": true, " k": false, "k ": false, " ": false,
		"01890a5d-ac96-774b-bcce-b302099a8057": true, strings.Repeat("k", 128): true,
		strings.Repeat("k", 129): false, "a\tb": false, "a\x7f": false, "é": false, "a\x00": false,
	} {
		if got := lexcodec.ValidIdempotencyKey(key); got != want {
			t.Errorf("%q: got %v", key, got)
		}
	}
}
