package testbed

import (
	"encoding/json"
	"net/http"
	"sync"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// Directory is a PLC directory on loopback. GET /{did} returns the DID document of a registered
// account. It is safe for concurrent use.
type Directory struct {
	*xrpc.Site

	mu   sync.Mutex // guards docs
	docs map[syntax.DID]identity.DIDDocument
}

// NewDirectory serves on addr, such as "127.0.0.1:0", until Close.
func NewDirectory(addr string) (_ *Directory, err error) {
	d := &Directory{docs: map[syntax.DID]identity.DIDDocument{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{did}", d.serveDocument)
	if d.Site, err = xrpc.Serve(addr, mux); err != nil {
		return nil, err
	}
	return d, nil
}

// Register publishes the account's DID document, or replaces it.
func (d *Directory) Register(a *xrpc.Account) error {
	doc, err := a.Document(syntax.Handle(a.DID.Identifier() + ".test"))
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.docs[a.DID] = doc
	return nil
}

func (d *Directory) serveDocument(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	doc, ok := d.docs[syntax.DID(r.PathValue("did"))]
	d.mu.Unlock()
	if !ok {
		http.Error(w, `{"message":"DID not registered"}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/did+ld+json")
	// The resolver closed the connection. It will ask again.
	_ = json.NewEncoder(w).Encode(doc)
}
