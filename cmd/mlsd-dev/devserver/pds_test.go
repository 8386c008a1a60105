package devserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
)

const (
	// signatureKey is the 32 bytes 0, 1, 2 and so on, and rkey the record key that belongs to them.
	// Clients in other languages must find the same.
	signatureKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
	rkey         = "mmg42klgyqzwneiskrelxms3j72bfje4"
)

// deviceOf is the input of a write to the list of devices of an account.
func deviceOf(owner Account, rkey, record string) string {
	return `{"repo":"` + owner.DID.String() + `","collection":"blue.catbird.mls.device","rkey":"` + rkey + `"` +
		record + `}`
}

// named is a record of a device with a name.
func named(name string) string {
	return `,"record":{"$type":"blue.catbird.mls.device","signatureKey":{"$bytes":"` + signatureKey + `"},` +
		`"cipherSuite":"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",` +
		`"name":"` + name + `","createdAt":"2026-11-28T12:00:00Z"}`
}

// write calls a method of the PDS as an account. The answer must have that status.
func (f *fixture) write(as Account, status int, method, body string) string {
	f.t.Helper()
	return f.writeWith(f.token(as.DID.String(), method), status, method, body)
}

func (f *fixture) writeWith(token string, status int, method, body string) string {
	f.t.Helper()
	got, _, answer, err := f.do(http.MethodPost, "/xrpc/"+method, body, "Authorization", "Bearer "+token)
	if err != nil || got != status {
		f.t.Fatalf("%s %s: %d %s %v, want %d", method, body, got, answer, err, status)
	}
	return answer
}

// reading is the path of a read about the record key of an account's device.
func reading(method string, owner Account, rkey string) string {
	whose := "repo"
	if method == getProof {
		whose = "did"
	}
	return "/xrpc/" + method + "?" + whose + "=" + owner.DID.String() + "&collection=blue.catbird.mls.device&rkey=" + rkey
}

// names are the names of an account's devices, as listRecords shows them.
func (f *fixture) names(owner Account, query string) (names []string) {
	f.t.Helper()
	for _, one := range ask[ShownRecords](f, 200, "GET", reading(listRecords, owner, "")+query, "").Records {
		names = append(names, one.Value["name"].(string))
	}
	return names
}

// proven returns the signature key that the account has listed under rkey. It asks the directory
// for the account's key and PDS, and the PDS for a proof. Without the proof it believes nothing.
func (f *fixture) proven(owner Account, rkey string) ([]byte, error) {
	f.t.Helper()
	directory := &identity.BaseDirectory{PLCURL: f.url, SkipHandleVerification: true}
	ident, err := directory.LookupDID(f.t.Context(), owner.DID)
	if err != nil {
		return nil, err
	}
	if ident.PDSEndpoint() != f.url {
		f.t.Errorf("the PDS is %s, want %s", ident.PDSEndpoint(), f.url)
	}
	status, header, car, err := f.do("GET", reading(getProof, owner, rkey), "")
	if err != nil {
		return nil, err
	}
	if status != 200 || header.Get("Content-Type") != "application/vnd.ipld.car" {
		return nil, errors.New(car)
	}
	commit, err := repo.VerifyCommitSignatureFromCar(f.t.Context(), directory, []byte(car))
	if err != nil {
		return nil, err
	}
	if commit.DID != owner.DID.String() {
		f.t.Errorf("the commit is one of %s", commit.DID)
	}
	_, r, err := repo.LoadRepoFromCAR(f.t.Context(), strings.NewReader(car))
	if err != nil {
		return nil, err
	}
	data, id, err := r.GetRecordBytes(f.t.Context(), deviceCollection, syntax.RecordKey(rkey))
	if err != nil {
		return nil, err
	}
	if sum, err := id.Prefix().Sum(data); err != nil || !sum.Equals(*id) {
		f.t.Errorf("the record is not the one of the tree: %v", err)
	}
	value, err := atdata.UnmarshalCBOR(data)
	if err != nil {
		return nil, err
	}
	return value["signatureKey"].(atdata.Bytes), nil
}

// What an account lists, others read and verify. Accounts have keys on either curve.
func TestProvenDevices(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := make([]byte, 32)
	for i := range want {
		want[i] = byte(i)
	}
	if got := keyOfDevice(want); got != rkey {
		t.Errorf("the record key is %s", got)
	}
	for _, owner := range []Account{f.account(), f.account()} {
		if _, err := f.proven(owner, rkey); !errors.Is(err, repo.ErrNotFound) {
			t.Errorf("before it is listed: %v", err)
		}
		var put Written
		answer := f.write(owner, 200, putRecord, deviceOf(owner, rkey, named("Phone")))
		if err := json.Unmarshal([]byte(answer), &put); err != nil {
			t.Fatal(err)
		}
		record := ask[ShownRecord](f, 200, "GET", reading(getRecord, owner, rkey)+"&cid="+put.CID, "")
		if uri := "at://" + owner.DID.String() + "/blue.catbird.mls.device/" + rkey; record.URI != uri || put.URI != uri ||
			record.CID != put.CID || put.ValidationStatus != "valid" || put.Commit.Rev == "" {
			t.Errorf("written %+v, and read %+v", put, record)
		}
		if got, err := f.proven(owner, rkey); err != nil || !bytes.Equal(got, want) {
			t.Errorf("proven: %x %v", got, err)
		}
		padded := strings.Replace(deviceOf(owner, rkey, named("Phone")), signatureKey, signatureKey+"=", 1)
		if again := f.write(owner, 200, putRecord, padded); !strings.Contains(again, put.CID) {
			t.Errorf("with padding it is another record: %s, was %s", again, put.CID)
		}
		f.refuses(400, "RecordNotFound", "GET", reading(getRecord, owner, rkey)+"&cid="+put.Commit.CID, "")
		f.write(owner, 200, deleteRecord, deviceOf(owner, rkey, ""))
		if _, err := f.proven(owner, rkey); !errors.Is(err, repo.ErrNotFound) {
			t.Errorf("after it is deleted: %v", err)
		}
		f.refuses(400, "RecordNotFound", "GET", reading(getRecord, owner, rkey), "")
		if again := f.write(owner, 200, deleteRecord, deviceOf(owner, rkey, "")); again != "{}\n" {
			t.Errorf("a second deletion has made a commit: %s", again)
		}
	}
}

func TestListRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice := f.account()
	for _, name := range []string{"a", "b", "c"} {
		f.write(alice, 200, createRecord, deviceOf(alice, name, named(name)))
	}
	f.write(alice, 400, createRecord, deviceOf(alice, "a", named("another a"))) // only putRecord replaces
	f.write(alice, 200, putRecord, deviceOf(alice, "b", named("B")))
	f.write(alice, 200, createRecord, strings.Replace(deviceOf(alice, "", named("without a key")), `"rkey":"",`, "", 1))
	for query, want := range map[string][]string{
		"":                        {"c", "B", "a", "without a key"},
		"&reverse=true":           {"without a key", "a", "B", "c"},
		"&limit=2":                {"c", "B"},
		"&limit=2&cursor=b":       {"a", "without a key"},
		"&reverse=true&cursor=a":  {"B", "c"},
		"&reverse=true&cursor=bb": {"c"},
	} {
		if diff := cmp.Diff(want, f.names(alice, query)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	for query, cursor := range map[string]string{"&limit=2": "b", "&limit=4": "", "&limit=3&reverse=true": "b"} {
		if page := ask[ShownRecords](f, 200, "GET", reading(listRecords, alice, "")+query, ""); page.Cursor != cursor {
			t.Errorf("%s: cursor %q, want %q", query, page.Cursor, cursor)
		}
	}
	f.refuses(400, "limit", "GET", reading(listRecords, alice, "")+"&limit=101", "")
}

// Only the account writes to its repository: its own key has signed the token, a moment ago.
func TestOnlyTheOwnerWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice, bob := f.account(), f.account()
	f.write(alice, 200, putRecord, deviceOf(alice, rkey, named("Phone")))
	hers, his := f.token(alice.DID.String(), putRecord), f.token(bob.DID.String(), putRecord)
	forged := hers[:strings.LastIndexByte(hers, '.')] + his[strings.LastIndexByte(his, '.'):]
	late := ask[Token](f, 200, "POST", "/dev/token",
		`{"did":"`+alice.DID.String()+`","lxm":"`+putRecord+`","exp":1000000000}`).Token
	for name, token := range map[string]string{"no token": "", "bob": his, "forged": forged, "late": late} {
		for _, method := range []string{createRecord, putRecord, deleteRecord} {
			record := named("of a stranger")
			if method == deleteRecord {
				record = ""
			}
			if answer := f.writeWith(token, 401, method, deviceOf(alice, rkey, record)); !strings.Contains(answer, "Token") &&
				!strings.Contains(answer, "AuthMissing") {
				t.Errorf("%s: %s", name, answer)
			}
		}
	}
	if diff := cmp.Diff([]string{"Phone"}, f.names(alice, "")); diff != "" {
		t.Errorf("she has (-want +got):\n%s", diff)
	}
	f.writeWith(hers, 200, putRecord, deviceOf(alice, rkey, named("Telephone")))
}

// Records of our own lexicons must be valid. Those of other lexicons are taken as they are.
func TestRecordsAreValidated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice := f.account()
	of := func(collection, rkey, more string) string {
		return `{"repo":"` + alice.DID.String() + `","collection":"` + collection + `","rkey":"` + rkey + `"` + more + `}`
	}
	for input, text := range map[string]string{
		deviceOf(alice, rkey, strings.Replace(named("x"), "createdAt", "madeAt", 1)):                "createdAt",
		deviceOf(alice, rkey, strings.Replace(named("x"), `{"$bytes":"`+signatureKey+`"}`, "1", 1)): "record",
		deviceOf(alice, rkey, named(strings.Repeat("x", 65))):                                       "record",
		deviceOf(alice, "a/b", named("x")):                                                          "rkey",
		deviceOf(alice, rkey, ""):                                                                   "record",
		of("app.bsky.feed.post", "x", named("x")):                                                   "$type",
		of("no NSID", "x", named("x")):                                                              "collection",
		of("com.example.note", "x", `,"validate":true,"record":{"$type":"com.example.note"}`):       "com.example.note",
		of("blue.catbird.mls.getConvos", "x", `,"record":{"$type":"blue.catbird.mls.getConvos"}`):   "record",
		of(profileCollection, "other", `,"record":{"$type":"blue.catbird.mls.profile",`+
			`"deliveryService":"did:web:a.example","createdAt":"2026-11-28T12:00:00Z"}`): "self",
	} {
		if answer := f.write(alice, 400, putRecord, input); !strings.Contains(answer, text) {
			t.Errorf("%s: %s, want %q", input, answer, text)
		}
	}
	f.write(alice, 200, putRecord, of("com.example.note", "x", `,"record":{"$type":"com.example.note","text":"hello"}`))
	f.write(alice, 200, putRecord,
		of(deviceCollection, "x", `,"validate":false,"record":{"$type":"blue.catbird.mls.device"}`))
	nobody := Account{DID: "did:plc:abcdefghijklmnopqrstuvwx"}
	for _, method := range []string{getRecord, listRecords, getProof} {
		f.refuses(400, "RepoNotFound", "GET", reading(method, nobody, "x"), "")
	}
	for i := 3; i < maxRecords; i++ { // there are the profile, the note and the device
		f.write(alice, 200, createRecord, of("com.example.note", "", `,"record":{"$type":"com.example.note"}`))
	}
	if answer := f.write(alice, 400, createRecord, of("com.example.note", "",
		`,"record":{"$type":"com.example.note"}`)); !strings.Contains(answer, "at most") {
		t.Error(answer)
	}
	if _, err := f.proven(alice, rkey); !errors.Is(err, repo.ErrNotFound) {
		t.Errorf("a proof in a full repository: %v", err)
	}
}

// A page of any origin uses the PDS, as it would use a real one.
func TestPDSInABrowser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice := f.account()
	const page = "https://app.example.com"
	status, header, _, err := f.do("OPTIONS", "/xrpc/"+putRecord, "", "Origin", page,
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
	if err != nil || status != 204 || header.Get("Access-Control-Allow-Origin") != "*" ||
		header.Get("Access-Control-Allow-Methods") != "POST" ||
		header.Get("Access-Control-Allow-Headers") != "authorization, content-type" {
		t.Errorf("the browser asks before it writes: %d %v %v", status, header, err)
	}
	status, header, answer, err := f.do("POST", "/xrpc/"+putRecord, deviceOf(alice, rkey, named("Phone")), "Origin", page,
		"Authorization", "Bearer "+f.token(alice.DID.String(), putRecord))
	if err != nil || status != 200 || header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("a write: %d %s %v %v", status, answer, header, err)
	}
	for _, method := range []string{getRecord, listRecords, getProof} {
		status, header, _, err := f.do("GET", reading(method, alice, rkey), "", "Origin", page)
		if err != nil || status != 200 || header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %d %v %v", method, status, header, err)
		}
	}
}

// A fault strikes what it is about. It does not strike another account, another record, or the
// service.
func TestFaultsOfThePDS(t *testing.T) {
	t.Parallel()
	reads := []string{getRecord, listRecords, getProof}
	const (
		good     = "good"      // the answer has the device
		missing  = "missing"   // it says that there is no device
		otherKey = "other key" // it has another key for the device
		unproven = "unproven"  // the account's key has not signed it
		away     = "away"      // there is no answer
	)
	for fault, want := range map[string][3]string{ // by reads
		`{"kind":"recordMissing"`:                                {missing, missing, missing},
		`{"kind":"recordOtherKey"`:                               {otherKey, otherKey, otherKey},
		`{"kind":"badProof"`:                                     {good, good, unproven},
		`{"kind":"pdsAway"`:                                      {away, away, away},
		`{"kind":"pdsAway","status":503`:                         {"503", "503", "503"},
		`{"kind":"pdsSlow","ms":200`:                             {good, good, good},
		`{"kind":"recordMissing","lxm":"` + getProof + `"`:       {good, good, missing},
		`{"kind":"loseAnswer","lxm":"` + listRecords + `"`:       {good, away, good},
		`{"kind":"cut"`:                                          {good, good, good},
		`{"kind":"status","status":429,"lxm":"` + getProof + `"`: {good, good, "429"}, // as for the service
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			alice, bob := f.account(), f.account()
			for _, owner := range []Account{alice, bob} {
				f.write(owner, 200, putRecord, deviceOf(owner, rkey, named("Phone")))
			}
			f.plan(fault + `,"times":0,"did":"` + alice.DID.String() + `"}`)
			for i, method := range reads {
				begun := time.Now()
				if got := f.seen(alice, method); got != want[i] {
					t.Errorf("%s: %s, want %s", method, got, want[i])
				}
				if took := time.Since(begun); strings.Contains(fault, "pdsSlow") && took < 190*time.Millisecond {
					t.Errorf("%s took %v", method, took)
				}
				if got := f.seen(bob, method); got != good {
					t.Errorf("%s of another account: %s", method, got)
				}
			}
			if !strings.Contains(fault, "pds") {
				profile := strings.Replace(reading(getRecord, alice, "self"), deviceCollection, profileCollection, 1)
				ask[ShownRecord](f, 200, "GET", profile, "")
			}
			struck := 0
			for _, w := range want {
				if w != good || strings.Contains(fault, "pdsSlow") {
					struck++
				}
			}
			if planned := ask[Faults](f, 200, "GET", "/dev/faults", "").Faults; (planned[0].Struck > 0) != (struck > 0) ||
				planned[0].Struck < struck {
				t.Errorf("%d requests were struck, want %d, besides those that net/http has repeated", planned[0].Struck, struck)
			}
			f.answered(true, 1, getConvos, f.token(bob.DID.String(), getConvos))
			ask[struct{}](f, 200, "DELETE", "/dev/faults", "")
			for _, method := range reads {
				if got := f.seen(alice, method); got != good {
					t.Errorf("afterwards %s: %s", method, got)
				}
			}
		})
	}
}

// seen says in the words of TestFaultsOfThePDS what a reader sees of an account's device.
func (f *fixture) seen(owner Account, method string) string {
	f.t.Helper()
	if method == getProof {
		key, err := f.proven(owner, rkey)
		var refused errorBody
		switch {
		case errors.Is(err, repo.ErrNotFound):
			return "missing"
		case errors.Is(err, atcrypto.ErrInvalidSignature):
			return "unproven"
		case errors.Is(err, io.EOF):
			return "away"
		case err != nil && json.Unmarshal([]byte(err.Error()), &refused) == nil:
			return map[string]string{"ServiceUnavailable": "503", "RateLimitExceeded": "429"}[refused.Error]
		case err != nil:
			return err.Error()
		}
		return verdict(key)
	}
	status, _, answer, err := f.do("GET", reading(method, owner, rkey), "")
	var one ShownRecord
	var list ShownRecords
	switch {
	case err != nil:
		return "away"
	case status == 400 && strings.Contains(answer, "RecordNotFound"):
		return "missing"
	case status != 200:
		return strconv.Itoa(status)
	case json.Unmarshal([]byte(answer), &one) != nil, json.Unmarshal([]byte(answer), &list) != nil:
		return answer
	case method == listRecords && len(list.Records) == 0:
		return "missing"
	case method == listRecords:
		one = list.Records[0]
	}
	value, err := json.Marshal(one.Value)
	if err != nil {
		f.t.Fatal(err)
	}
	record, err := atdata.UnmarshalJSON(value)
	if err != nil {
		f.t.Fatal(err)
	}
	return verdict(record["signatureKey"].(atdata.Bytes))
}

// verdict says whether a key is that of the device.
func verdict(key []byte) string {
	if keyOfDevice(key) == rkey {
		return "good"
	}
	return "other key"
}
