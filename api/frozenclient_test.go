package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
)

// oldClient is a client that was generated from the frozen part of the contract. It sends nothing
// else, and checks answers as strictly as generated code can: it knows the frozen fields, and
// ignores all others. It talks HTTP to a server that listens on TCP.
type oldClient struct{ *phone }

// old is an old client of a new person.
func (w *world) old() *oldClient { return &oldClient{w.phone()} }

// shape is an object: its frozen fields with their types. A "?" ends the name of an optional field.
// A type is the name of a check, another shape, or a slice that holds the type of the elements.
type shape map[string]any

// frozenMethod is a method as an old client knows it.
type frozenMethod struct {
	verb   string
	in     []string // the names of the input's fields, or of the parameters
	out    shape
	errors []string // beside those that every method has
}

var (
	frozenMember = shape{"did": "did", "joinedAt": "datetime", "leafIndex?": "integer", "credential?": "bytes"}
	frozenConvo  = shape{
		"id": "string", "groupId": "string", "creator": "did", "members": []any{frozenMember}, "epoch": "integer",
		"cipherSuite": "string",
		"createdAt":   "datetime", "lastMessageAt?": "datetime",
		"metadata?": shape{"name?": "string", "description?": "string"},
	}
	frozenMessage = shape{
		"id": "string", "convoId": "string", "sender": "did", "ciphertext": "bytes", "epoch": "integer", "seq": "integer",
		"createdAt": "datetime", "embedType?": "string", "embedUri?": "string",
	}
	frozenPackage = shape{"did": "did", "keyPackage": "base64", "cipherSuite": "string"}
	frozenCommit  = shape{"epoch": "integer", "sender": "did", "commitData": "bytes", "createdAt": "datetime"}
	frozenAdvance = shape{"success": "boolean", "newEpoch": "integer"}
)

// frozenMethods are the methods that an old client has, without idempotencyKey and confirmWelcome:
// this one never sends a key, and confirms nothing.
var frozenMethods = map[string]frozenMethod{
	"createConvo": {http.MethodPost,
		[]string{"groupId", "cipherSuite", "initialMembers", "welcomeMessage", "keyPackageHashes", "metadata"},
		frozenConvo, []string{"InvalidCipherSuite", "KeyPackageNotFound", "TooManyMembers"}},
	"addMembers": {http.MethodPost, []string{"convoId", "didList", "commit", "welcomeMessage", "keyPackageHashes"},
		frozenAdvance, []string{"ConvoNotFound", "NotMember", "KeyPackageNotFound", "AlreadyMember", "TooManyMembers"}},
	"leaveConvo": {http.MethodPost, []string{"convoId", "targetDid", "commit"},
		frozenAdvance, []string{"ConvoNotFound", "NotMember", "LastMember"}},
	"sendMessage": {http.MethodPost, []string{"convoId", "ciphertext", "epoch", "senderDid", "embedType", "embedUri"},
		shape{"messageId": "string", "receivedAt": "datetime"},
		[]string{"ConvoNotFound", "NotMember", "InvalidAsset", "EpochMismatch", "MessageTooLarge"}},
	"publishKeyPackage": {http.MethodPost, []string{"keyPackage", "cipherSuite", "expires"},
		shape{}, []string{"InvalidKeyPackage", "InvalidCipherSuite", "ExpirationTooFar", "TooManyKeyPackages"}},
	"getMessages": {http.MethodGet, []string{"convoId", "limit", "sinceMessage"},
		shape{"messages": []any{frozenMessage}, "cursor?": "string"},
		[]string{"ConvoNotFound", "NotMember", "InvalidCursor"}},
	"getConvos": {http.MethodGet, []string{"limit", "cursor"},
		shape{"conversations": []any{frozenConvo}, "cursor?": "string"}, []string{"InvalidCursor"}},
	"getKeyPackages": {http.MethodGet, []string{"dids", "cipherSuite"},
		shape{"keyPackages": []any{frozenPackage}, "missing?": []any{"did"}}, []string{"TooManyDids", "InvalidDid"}},
	"getWelcome": {http.MethodGet, []string{"convoId"},
		shape{"convoId": "string", "welcome": "base64"}, []string{"ConvoNotFound", "NotMember", "WelcomeNotFound"}},
	"getCommits": {http.MethodGet, []string{"convoId", "fromEpoch", "toEpoch"},
		shape{"convoId": "string", "commits": []any{frozenCommit}},
		[]string{"ConvoNotFound", "NotMember", "InvalidEpochRange"}},
	"getEpoch": {http.MethodGet, []string{"convoId"},
		shape{"convoId": "string", "currentEpoch": "integer"}, []string{"ConvoNotFound", "NotMember"}},
}

// frozenEvents are the events that an old client knows. It skips all others.
var frozenEvents = map[string]shape{
	"messageEvent": {"cursor": "string", "message": frozenMessage},
	"infoEvent":    {"cursor": "string", "info": "string"},
}

// reply is an answer, as an old client has decoded it.
type reply struct {
	t      testing.TB
	method string
	status int
	body   []byte
	out    fields // of a 200
}

// fields is a JSON object.
type fields = map[string]any

// call calls a method. in has the frozen fields or parameters.
func (o *oldClient) call(method string, in fields) reply {
	t := o.w.t
	t.Helper()
	m, known := frozenMethods[method]
	if !known {
		t.Fatalf("an old client has no method %s", method)
	}
	for field := range in {
		if !slices.Contains(m.in, field) {
			t.Fatalf("an old client does not send %s.%s", method, field)
		}
	}
	var body io.Reader
	params := url.Values{}
	if m.verb == http.MethodPost {
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(text)
	} else {
		for name, value := range in {
			if values, array := value.([]string); array {
				params[name] = values
				continue
			}
			params.Set(name, fmt.Sprint(value))
		}
	}
	nsid := "blue.catbird.mls." + method
	r, err := http.NewRequestWithContext(t.Context(), m.verb, "http://"+o.w.listen()+"/xrpc/"+nsid+"?"+params.Encode(),
		body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", o.authorization(nsid))
	if m.verb == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := reply{t: t, method: method, status: resp.StatusCode}
	if out.body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	if out.status == http.StatusOK {
		out.out = decodeFrozen(t, method, out.body, m.out)
	}
	return out
}

// ok is the decoded answer. The test fails unless the status is 200.
func (r reply) ok() fields {
	r.t.Helper()
	if r.status != http.StatusOK {
		r.t.Fatalf("%s: status %d: %s", r.method, r.status, r.body)
	}
	return r.out
}

// fails fails the test unless the answer is this error, and returns its message. frozen says
// whether the client has a name for the error. An old client treats any other by its status.
func (r reply) fails(status int, name string, frozen bool) string {
	r.t.Helper()
	e := decodeFrozen(r.t, r.method, r.body, shape{"error": "string", "message": "string"})
	if r.status != status || e["error"] != name {
		r.t.Fatalf("%s: status %d: %s; want %d %s", r.method, r.status, r.body, status, name)
	}
	if slices.Contains(frozenMethods[r.method].errors, name) != frozen {
		r.t.Fatalf("%s: that an old client knows %s should be %t", r.method, name, frozen)
	}
	return e["message"].(string)
}

// decodeFrozen decodes an object and checks its frozen fields.
func decodeFrozen(t testing.TB, what string, text []byte, s shape) fields {
	t.Helper()
	var v fields
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: decode %s: %v", what, text, err)
	}
	if err := checkFrozen(v, s); err != nil {
		t.Fatalf("%s: an old client cannot read %s: %v", what, text, err)
	}
	return v
}

// checkFrozen returns an error if v is not of the type.
func checkFrozen(v, want any) error {
	switch want := want.(type) {
	case shape:
		object, ok := v.(fields)
		if !ok {
			return fmt.Errorf("%v is no object", v)
		}
		for name, kind := range want {
			name, optional := strings.CutSuffix(name, "?")
			value, present := object[name]
			if !present && optional {
				continue
			}
			if !present {
				return fmt.Errorf("%s is missing", name)
			}
			if err := checkFrozen(value, kind); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case []any:
		elements, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%v is no array", v)
		}
		for i, e := range elements {
			if err := checkFrozen(e, want[0]); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return nil
	}
	return checkScalar(v, want.(string))
}

// checkScalar returns an error if v is not of the kind.
func checkScalar(v any, kind string) error {
	text, isText := v.(string)
	number, isNumber := v.(float64)
	_, isBool := v.(bool)
	var err error
	ok := true
	switch kind {
	case "string":
		ok = isText
	case "boolean":
		ok = isBool
	case "integer":
		ok = isNumber && number == math.Trunc(number) && number >= 0 && number < 1<<53
	case "did":
		_, err = syntax.ParseDID(text)
	case "datetime": // RFC 3339, UTC, milliseconds
		_, err = time.Parse("2006-01-02T15:04:05.000Z", text)
	case "base64":
		_, err = base64.RawURLEncoding.DecodeString(text)
		ok = isText
	case "bytes":
		o, isObject := v.(fields)
		text, isText = o["$bytes"].(string)
		_, err = base64.RawStdEncoding.DecodeString(text)
		ok = isObject && isText && len(o) == 1
	default:
		return fmt.Errorf("the test has no kind %s", kind)
	}
	if err != nil || !ok {
		return fmt.Errorf("%v is no %s: %w", v, kind, err)
	}
	return nil
}

// Encodings of a Swift client: padded.

func oldBytes(raw []byte) fields { return fields{"$bytes": base64.StdEncoding.EncodeToString(raw)} }

func oldText(raw []byte) string { return base64.StdEncoding.EncodeToString(raw) }

// raw decodes a field of bytes, or of base64 text.
func raw(t testing.TB, field any) []byte {
	t.Helper()
	encoding, text := base64.RawURLEncoding, field
	if o, isBytes := field.(fields); isBytes {
		encoding, text = base64.RawStdEncoding, o["$bytes"]
	}
	out, err := encoding.DecodeString(text.(string))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// publishes publishes a KeyPackage.
func (o *oldClient) publishes() {
	o.w.t.Helper()
	in := fields{"keyPackage": oldText(must(o.mls.KeyPackage())(o.w).Message), "cipherSuite": mlsclient.SuiteX25519.Name()}
	o.call("publishKeyPackage", in).ok()
	o.call("publishKeyPackage", in).ok() // a retry
}

// packages claims KeyPackages of the others.
func (o *oldClient) packages(others ...*oldClient) (all [][]byte) {
	o.w.t.Helper()
	for _, k := range o.call("getKeyPackages", fields{"dids": dids(others...)}).ok()["keyPackages"].([]any) {
		all = append(all, raw(o.w.t, k.(fields)["keyPackage"]))
	}
	return all
}

func dids(clients ...*oldClient) (all []string) {
	for _, c := range clients {
		all = append(all, c.did().String())
	}
	return all
}

// joins fetches the Welcome and joins. It confirms nothing.
func (o *oldClient) joins(convo string) {
	o.w.t.Helper()
	o.group = must(o.mls.Join(raw(o.w.t, o.call("getWelcome", fields{"convoId": convo}).ok()["welcome"])))(o.w)
}

// applies applies the client's own commit, which the server has accepted.
func (o *oldClient) applies() {
	o.w.t.Helper()
	if err := o.group.Confirm(); err != nil {
		o.w.t.Fatal(err)
	}
}

// catchesUp applies the commits that the client has not seen.
func (o *oldClient) catchesUp(convo string) {
	o.w.t.Helper()
	out := o.call("getCommits", fields{"convoId": convo, "fromEpoch": o.group.Epoch() + 1}).ok()
	for _, c := range out["commits"].([]any) {
		must(o.group.Process(raw(o.w.t, c.(fields)["commitData"])))(o.w)
		if epoch := c.(fields)["epoch"].(float64); uint64(epoch) != o.group.Epoch() {
			o.w.t.Fatalf("the commit of epoch %v leads to %d", epoch, o.group.Epoch())
		}
	}
}

// draft is the input that sends text.
func (o *oldClient) draft(convo, text string) fields {
	o.w.t.Helper()
	ciphertext := must(o.group.Encrypt([]byte(text)))(o.w)
	return fields{"convoId": convo, "ciphertext": oldBytes(ciphertext), "epoch": o.group.Epoch(), "senderDid": o.did()}
}

// reads decrypts the messages behind a cursor, which may be "", in pages of two.
func (o *oldClient) reads(convo, since string) (texts []string, last string) {
	o.w.t.Helper()
	for {
		in := fields{"convoId": convo, "limit": 2}
		if since != "" {
			in["sinceMessage"] = since
		}
		page := o.call("getMessages", in).ok()
		for _, m := range page["messages"].([]any) {
			texts, last = append(texts, o.decrypts(m)), m.(fields)["id"].(string)
		}
		cursor, more := page["cursor"].(string)
		if !more {
			return texts, last
		}
		since = cursor
	}
}

// decrypts returns the text of a message.
func (o *oldClient) decrypts(message any) string {
	o.w.t.Helper()
	return string(must(o.group.Process(raw(o.w.t, message.(fields)["ciphertext"])))(o.w).Plaintext)
}
