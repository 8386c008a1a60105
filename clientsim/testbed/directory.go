package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Directory is a PLC directory on loopback. GET /{did} returns the DID document of a registered
// account. The Directory is also the PDS of the accounts that have chosen a delivery service: it
// has the records that name the service. It is safe for concurrent use.
type Directory struct {
	*xrpc.Site
	// Another is the URL of another directory that gets each account too, such as that of mlsd-dev.
	// It must trust every operation. "" means that there is none.
	Another string

	mu    sync.Mutex // guards the fields below
	docs  map[syntax.DID]identity.DIDDocument
	homes map[syntax.DID]syntax.DID
	asked map[syntax.DID]bool // somebody has asked for the document
}

// NewDirectory serves on addr, such as "127.0.0.1:0", until Close.
func NewDirectory(addr string) (_ *Directory, err error) {
	d := &Directory{docs: map[syntax.DID]identity.DIDDocument{}, homes: map[syntax.DID]syntax.DID{},
		asked: map[syntax.DID]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{did}", d.serveDocument)
	mux.HandleFunc("GET /xrpc/com.atproto.repo.getRecord", d.serveRecord)
	if d.Site, err = xrpc.Serve(addr, mux); err != nil {
		return nil, err
	}
	return d, nil
}

// Register publishes the account's DID document, or replaces it.
func (d *Directory) Register(a *xrpc.Account) (err error) {
	defer Catch(&err)
	doc := Must(a.Document(syntax.Handle(a.DID.Identifier() + ".test")))
	d.mu.Lock()
	d.docs[a.DID] = doc
	d.mu.Unlock()
	if d.Another == "" {
		return nil
	}
	return d.tell(doc)
}

// tell sends an operation that makes a document to the other directory
// (https://web.plc.directory/spec/v0.1/did-plc).
func (d *Directory) tell(doc identity.DIDDocument) (err error) {
	defer CatchIn(&err, "directory %s", d.Another)
	key, pds := doc.VerificationMethod[0], doc.Service[0]
	operation := Must(json.Marshal(map[string]any{
		"type": "plc_operation", "prev": nil, "rotationKeys": []string{}, "alsoKnownAs": doc.AlsoKnownAs,
		"verificationMethods": map[string]string{"atproto": "did:key:" + key.PublicKeyMultibase},
		"services": map[string]any{
			"atproto_pds": map[string]string{"type": pds.Type, "endpoint": pds.ServiceEndpoint},
		},
	}))
	ctx, cancel := context.WithTimeout(context.Background(), xrpc.AttemptLimit)
	defer cancel()
	req := Must(http.NewRequestWithContext(ctx, http.MethodPost, d.Another+"/"+doc.DID.String(),
		bytes.NewReader(operation)))
	req.Header.Set("Content-Type", "application/json")
	resp := Must(http.DefaultClient.Do(req))
	Check(xrpc.Drain(resp))
	if resp.StatusCode != http.StatusOK {
		Fail("it answers %s to an account", resp.Status)
	}
	return nil
}

// Asked reports whether somebody has asked this directory for the document of an account.
func (d *Directory) Asked(did syntax.DID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[did]
}

// Choose makes a service the home of a registered account. From then on, the directory is the
// account's PDS.
func (d *Directory) Choose(did, home syntax.DID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.homes[did] = home
}

// serveRecord serves the only record that a repository has.
func (d *Directory) serveRecord(w http.ResponseWriter, r *http.Request) {
	did := syntax.DID(r.FormValue("repo"))
	d.mu.Lock()
	home, ok := d.homes[did]
	d.mu.Unlock()
	profile := xrpc.NSID("profile").String()
	if !ok || r.FormValue("collection") != profile || r.FormValue("rkey") != "self" {
		http.Error(w, `{"error":"RecordNotFound"}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"uri":   "at://" + did.String() + "/" + profile + "/self",
		"value": map[string]string{"$type": profile, "deliveryService": home.String()},
	})
}

func (d *Directory) serveDocument(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	did := syntax.DID(r.PathValue("did"))
	doc, ok := d.docs[did]
	d.asked[did] = ok
	if _, here := d.homes[doc.DID]; here {
		doc.Service = slices.Clone(doc.Service)
		doc.Service[0].ServiceEndpoint = d.URL
	}
	d.mu.Unlock()
	if !ok {
		http.Error(w, `{"message":"DID not registered"}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/did+ld+json")
	// The resolver closed the connection. It will ask again.
	_ = json.NewEncoder(w).Encode(doc)
}
