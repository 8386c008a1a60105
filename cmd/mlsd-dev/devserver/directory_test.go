package devserver

import (
	"testing"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/google/go-cmp/cmp"
)

// A PDS registers its accounts with the directory, and reads back what it has said.
func TestDirectory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const did = "did:plc:abcdefghijklmnopqrstuvwx"
	const op = `{"type":"plc_operation","prev":null,"sig":"x","rotationKeys":["did:key:zQ3r"],` +
		`"verificationMethods":{"atproto":"did:key:zQ3s"},` +
		`"alsoKnownAs":["at://carol.test"],"services":{"atproto_pds":{"type":"AtprotoPersonalDataServer",` +
		`"endpoint":"http://localhost:3000"}}}`
	f.refuses(404, "POST /dev/accounts makes one", "GET", "/"+did, "")
	ask[struct{}](f, 200, "POST", "/"+did, op)
	doc := ask[identity.DIDDocument](f, 200, "GET", "/"+did, "")
	if diff := cmp.Diff(identity.DIDDocument{
		DID: did, AlsoKnownAs: []string{"at://carol.test"},
		VerificationMethod: []identity.DocVerificationMethod{{ID: did + "#atproto", Type: "Multikey", Controller: did,
			PublicKeyMultibase: "zQ3s"}},
		Service: []identity.DocService{{ID: "#atproto_pds", Type: "AtprotoPersonalDataServer",
			ServiceEndpoint: "http://localhost:3000"}},
	}, doc); diff != "" {
		t.Error(diff)
	}
	_, header, _, err := f.do("GET", "/"+did, "", "Origin", "https://app.example.com")
	if got := header.Get("Access-Control-Allow-Origin"); got != "*" || err != nil {
		t.Errorf("a page of another origin may read it: %q %v", got, err)
	}
	if data := ask[plcData](f, 200, "GET", "/"+did+"/data", ""); data.DID != did ||
		data.RotationKeys[0] != "did:key:zQ3r" {
		t.Errorf("data: %+v", data)
	}
	if status, _, last, err := f.do("GET", "/"+did+"/log/last", ""); err != nil || status != 200 || last != op+"\n" {
		t.Errorf("last operation: %d %s %v", status, last, err)
	}
	f.refuses(400, "InvalidRequest", "POST", "/did:plc:", op)
	f.refuses(400, "the operation", "POST", "/"+did, "[]")
	f.refuses(400, "has no operations", "POST", "/"+f.account().DID.String(), op)
	ask[struct{}](f, 200, "POST", "/dev/reset", "")
	f.refuses(404, "AccountNotFound", "GET", "/"+did+"/log/last", "")
}
