package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth/authtest"
)

// plc is a PLC directory on loopback.
type plc struct {
	*httptest.Server
	mu        sync.Mutex // guards the maps
	documents map[syntax.DID]identity.DIDDocument
	asked     map[syntax.DID]chan struct{} // closed by the first look-up
}

func newPLC(t *testing.T) *plc {
	t.Helper()
	p := &plc{documents: map[syntax.DID]identity.DIDDocument{}, asked: map[syntax.DID]chan struct{}{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// publish adds id to the directory. The channel is closed at the first look-up of it.
func (p *plc) publish(t *testing.T, id *authtest.Identity) <-chan struct{} {
	t.Helper()
	key := id.PublicKey(t).Multibase()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.documents[id.DID] = identity.DIDDocument{DID: id.DID, VerificationMethod: []identity.DocVerificationMethod{{
		ID: id.DID.String() + "#atproto", Type: "Multikey", Controller: id.DID.String(), PublicKeyMultibase: key,
	}}}
	p.asked[id.DID] = make(chan struct{})
	return p.asked[id.DID]
}

// ServeHTTP answers /did:plc:….
func (p *plc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	did := syntax.DID(strings.TrimPrefix(r.URL.Path, "/"))
	p.mu.Lock()
	defer p.mu.Unlock()
	doc, ok := p.documents[did]
	if !ok {
		http.NotFound(w, r)
		return
	}
	select {
	case <-p.asked[did]:
	default:
		close(p.asked[did])
	}
	w.Header().Set("Content-Type", "application/did+ld+json")
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
