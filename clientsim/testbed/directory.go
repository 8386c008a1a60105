package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// Directory is a PLC directory on loopback. GET /{did} returns the DID document of a registered
// account. It is safe for concurrent use.
type Directory struct {
	server *http.Server
	mux    *http.ServeMux
	listen net.Listener
	done   chan error // Serve's result, once

	mu   sync.Mutex // guards docs
	docs map[syntax.DID]identity.DIDDocument
}

// NewDirectory serves on addr, such as "127.0.0.1:0", until Close.
func NewDirectory(addr string) (*Directory, error) {
	listen, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("PLC directory: %w", err)
	}
	d := &Directory{listen: listen, mux: http.NewServeMux(), done: make(chan error, 1), docs: map[syntax.DID]identity.DIDDocument{}}
	d.mux.HandleFunc("GET /{did}", d.serveDocument)
	d.server = &http.Server{Handler: d.mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { d.done <- d.server.Serve(listen) }()
	return d, nil
}

// URL is the server's MLSD_PLC_URL.
func (d *Directory) URL() string { return "http://" + d.listen.Addr().String() }

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

// Close stops serving and waits for it.
func (d *Directory) Close(ctx context.Context) error {
	err := d.server.Shutdown(ctx)
	if served := <-d.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
