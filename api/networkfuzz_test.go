package api_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/keypackages"
	"mlsd/mls"
)

// fuzzing is a fuzz target as the world of its inputs sees it: what a server logs meanwhile is kept,
// because only the test of an input may be told.
type fuzzing struct {
	testing.TB
	failure atomic.Pointer[string]
}

func (*fuzzing) Helper()             {}
func (*fuzzing) Log(...any)          {}
func (*fuzzing) Logf(string, ...any) {}
func (f *fuzzing) Errorf(format string, args ...any) {
	f.failure.Store(new(fmt.Sprintf(format, args...)))
}

// FuzzOtherServices: whatever another service, its users or their clients send, it is stored or refused
// by name. No text of theirs is a defect of this server.
func FuzzOtherServices(f *testing.F) {
	outer := &fuzzing{TB: f}
	_, worlds, alice, bob := neighbours(outer, peer)
	here, there := worlds[0], worlds[1]
	device, last := bob.deviceID(), bob.publish(mlstest.LastResort)
	evil := there.peer()
	long := "did:web:" // a text that no index compresses
	for i := range 40 {
		long += fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i)}))
	}
	did, other := alice.did().String(), bob.did().String()
	for i, texts := range [][3]string{
		{did, "2027-01-01T00:00:00Z", "0192f3a4-0000-7000-8000-000000000000"},
		{device, "0123456789abcdef", did},
		{peer.String(), "0192f3a4-0000-7000-8000-000000000000", "once"},
		{other, "", ""},
		{`{"kind":"invited","inviter":"` + did + `","recipient":"` + other + `","epoch":1}`, "", ""},
		{`{"iss":"did:web:mls.example.net","sub":"` + other + `","exp":4000000000}`, "", ""},
	} {
		f.Add(uint8(i), texts[0], texts[1], texts[2])
		f.Add(uint8(i), "a\x00b", "\xff", strings.Repeat("é", 200))
		f.Add(uint8(i), long[:2048], "", "")
		f.Add(uint8(i), long[8:264], long[8:72], "")
	}
	f.Fuzz(func(t *testing.T, which uint8, a, b, c string) {
		w := there.within(t)
		member := alice.at(here.within(t))
		w.exec(`WITH b AS (DELETE FROM invitation_budgets) DELETE FROM received_invitations`)
		post := func(u *user, nsid string, body []byte) answer {
			return w.answer(u.w.server, w.request(http.MethodPost, nsid, nil, body, u.authorization(nsid)))
		}
		invites := func(ref mls.KeyPackageRef, receipts ...string) answer {
			in := member.creation(newGroup(t))
			in.InitialMembers, in.WelcomeMessage, in.Receipts = []syntax.DID{bob.did()}, mlstest.Welcome(t, ref), receipts
			return post(member, mlsapi.NSIDCreateConvo, encode(in))
		}
		var got answer
		switch which % 6 {
		case 0:
			in := sentFields{"kind": "invited", "inviter": a, "recipient": bob.did(), "deviceId": device, "epoch": 1,
				"keyPackageRef": last.String(), "cipherSuite": mlstest.Suite.String(), "convoId": uuid.NewString()}
			if b != "" {
				in["expiresAt"] = b
			}
			if c != "" {
				in["convoId"] = c
			}
			got = post(evil.at(w), mlsapi.NSIDDeliverInvitation, in.json(t))
		case 1:
			if b == "" || len(b) > 64 {
				t.Skip("no reference of a KeyPackage")
			}
			claimed := keypackages.Claimed{DID: bob.did(), DeviceID: a, Ref: mls.KeyPackageRef(b), CipherSuite: mlstest.Suite}
			receipts, err := there.network.Receipts([]keypackages.Claimed{claimed}, alice.did(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			got = invites(mls.KeyPackageRef(b), receipts...)
		case 2:
			got = post(bob.at(w), mlsapi.NSIDAcceptInvitation,
				sentFields{"service": a, "convoId": b, "idempotencyKey": c}.json(t))
		case 3:
			got = post(evil.at(w), mlsapi.NSIDDeliverErasure, sentFields{"did": a}.json(t))
		case 4:
			got = post(evil.at(w), mlsapi.NSIDDeliverInvitation, []byte(a))
		default:
			got = invites([]byte(uuid.NewString()), signedBy(t, there, a))
		}
		if failure := outer.failure.Swap(nil); failure != nil || got.status/100 == 5 {
			t.Fatalf("%d: %d %s; %v", which%6, got.status, got.body, failure)
		}
	})
}

// sentFields are the fields of a request. A text that is no UTF-8 is sent with what replaces its bytes.
type sentFields map[string]any

func (f sentFields) json(t testing.TB) []byte {
	t.Helper()
	body, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// signedBy returns a receipt with any claims, which a world's service has signed.
func signedBy(t testing.TB, w *world, claims string) string {
	t.Helper()
	text, err := os.ReadFile(w.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := atcrypto.ParsePrivateMultibase(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	encoded := base64.RawURLEncoding.EncodeToString
	signed := encoded(fmt.Appendf(nil, `{"alg":"ES256","typ":"mls-claim+jwt","kid":%q}`, w.network.Keys()[0].ID)) + "." +
		encoded([]byte(claims))
	signature, err := key.HashAndSign([]byte(signed))
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + encoded(signature)
}
