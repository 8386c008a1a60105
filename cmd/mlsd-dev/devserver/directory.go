package devserver

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
)

// directory is the part of a PLC directory that a PDS uses
// (https://web.plc.directory/spec/v0.1/did-plc). It trusts every operation: it checks no signature,
// and does not check that the DID matches the first operation. Pages of any origin may read it, as
// with plc.directory: an app in a browser reads it to sign in with OAuth.
//
//	POST /{did}           takes an operation
//	GET  /{did}           the DID document
//	GET  /{did}/data      what the document is made of
//	GET  /{did}/log/last  the last operation, as it was taken
type directory struct {
	routes http.Handler
	madeUp func(syntax.DID) (person, error) // accounts that no PDS has

	mu   sync.Mutex // guards last
	last map[syntax.DID]plcOperation
}

// NewDirectory returns a PLC directory that has only the accounts of PDSes. It trusts every
// operation.
func NewDirectory(log *slog.Logger) http.Handler { return newDirectory(newAccounts(), log) }

func newDirectory(accounts *accounts, log *slog.Logger) *directory {
	d := &directory{madeUp: accounts.find, last: map[syntax.DID]plcOperation{}}
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(*http.Request) any{
		"POST /{did}":         d.take,
		"GET /{did}":          d.document,
		"GET /{did}/data":     d.of(func(op plcOperation) any { return op.plcData }),
		"GET /{did}/log/last": d.of(func(op plcOperation) any { return op.raw }),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r, log, do) })
	}
	d.routes = mux
	return d
}

// ServeHTTP implements http.Handler.
func (d *directory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	d.routes.ServeHTTP(w, r)
}

func (d *directory) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.last)
}

// plcOperation is a PLC operation.
type plcOperation struct {
	raw json.RawMessage
	plcData
}

// plcData is what a PLC operation says about an account.
type plcData struct {
	DID                 syntax.DID            `json:"did"`
	VerificationMethods map[string]string     `json:"verificationMethods"` // did:keys
	RotationKeys        []string              `json:"rotationKeys"`
	AlsoKnownAs         []string              `json:"alsoKnownAs"`
	Services            map[string]plcService `json:"services"`
}

type plcService struct {
	Type     string `json:"type"`
	Endpoint string `json:"endpoint"`
}

func (d *directory) take(r *http.Request) any {
	did, err := syntax.ParseDID(r.PathValue("did"))
	if err != nil {
		Check(badRequest("%v", err))
	}
	if _, err := d.madeUp(did); err == nil {
		Check(badRequest("%s is an account of POST /dev/accounts, which has no operations", did))
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		Check(badRequest("the body: %v", err))
	}
	op := plcOperation{raw: raw}
	if err := json.Unmarshal(raw, &op.plcData); err != nil {
		Check(badRequest("the operation: %v", err))
	}
	op.DID = did
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last[did] = op
	return struct{}{}
}

// of returns a handler that answers with a part of an account's last operation.
func (d *directory) of(part func(plcOperation) any) func(*http.Request) any {
	return func(r *http.Request) any { return part(d.lastOf(syntax.DID(r.PathValue("did")))) }
}

func (d *directory) lastOf(did syntax.DID) plcOperation {
	d.mu.Lock()
	defer d.mu.Unlock()
	op, ok := d.last[did]
	if !ok {
		Check(&refusal{http.StatusNotFound, "AccountNotFound",
			fmt.Sprintf("no account %q: POST /dev/accounts makes one, and a PDS sends the operations of its own", did)})
	}
	return op
}

func (d *directory) document(r *http.Request) any {
	did := syntax.DID(r.PathValue("did"))
	if p, err := d.madeUp(did); err == nil {
		doc := p.document
		doc.Service = slices.Clone(doc.Service)
		doc.Service[0].ServiceEndpoint = "http://" + r.Host // the client reaches this server there
		return doc
	}
	return d.lastOf(did).document()
}

// document returns the DID document that follows from an operation.
func (op plcOperation) document() identity.DIDDocument {
	doc := identity.DIDDocument{DID: op.DID, AlsoKnownAs: op.AlsoKnownAs}
	for name, key := range op.VerificationMethods {
		doc.VerificationMethod = append(doc.VerificationMethod, identity.DocVerificationMethod{
			ID: op.DID.String() + "#" + name, Type: "Multikey", Controller: op.DID.String(),
			PublicKeyMultibase: strings.TrimPrefix(key, "did:key:"),
		})
	}
	for name, s := range op.Services {
		doc.Service = append(doc.Service, identity.DocService{ID: "#" + name, Type: s.Type, ServiceEndpoint: s.Endpoint})
	}
	slices.SortFunc(doc.VerificationMethod,
		func(a, b identity.DocVerificationMethod) int { return strings.Compare(a.ID, b.ID) })
	return doc
}
