package devserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/cmd/mlsd-dev/repository"
	"mlsd/lexicons"
)

const (
	profileCollection = "blue.catbird.mls.profile"
	profileKey        = "self"
	deviceCollection  = "blue.catbird.mls.device"
)

// Methods of the PDS.
const (
	getRecord    = "com.atproto.repo.getRecord"
	listRecords  = "com.atproto.repo.listRecords"
	createRecord = "com.atproto.repo.createRecord"
	putRecord    = "com.atproto.repo.putRecord"
	deleteRecord = "com.atproto.repo.deleteRecord"
	getProof     = "com.atproto.sync.getRecord"
)

// pds is the PDS of the made-up accounts: the part that serves their repositories. Everybody reads.
// A write needs a token of the account, from POST /dev/token. Pages of any origin may use it, as
// with a real PDS.
type pds struct {
	accounts *accounts
	faults   *faults
	catalog  *lexicon.BaseCatalog // of our own lexicons: records of others are not validated
	clock    *syntax.TIDClock     // for keys of new records
	log      *slog.Logger
	routes   *http.ServeMux
}

func newPDS(accounts *accounts, faults *faults, log *slog.Logger) *pds {
	p := &pds{accounts: accounts, faults: faults, catalog: lexicon.NewBaseCatalog(), clock: syntax.NewTIDClock(0),
		log: log, routes: http.NewServeMux()}
	Check(p.catalog.LoadEmbedFS(lexicons.Files))
	for route, do := range map[string]func(*http.Request) any{
		"GET " + getRecord:     p.getRecord,
		"GET " + listRecords:   p.listRecords,
		"GET " + getProof:      p.getProof,
		"POST " + createRecord: p.createRecord,
		"POST " + putRecord:    p.putRecord,
		"POST " + deleteRecord: p.deleteRecord,
	} {
		verb, method, _ := strings.Cut(route, " ")
		p.routes.HandleFunc(verb+" /xrpc/"+method, func(w http.ResponseWriter, r *http.Request) { answer(w, r, log, do) })
		p.routes.HandleFunc("OPTIONS /xrpc/"+method, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Access-Control-Allow-Methods", verb)
			w.Header().Set("Access-Control-Allow-Headers", "authorization, content-type")
			w.WriteHeader(http.StatusNoContent)
		})
	}
	return p
}

// has reports whether a request is one for the PDS.
func (p *pds) has(r *http.Request) bool {
	_, pattern := p.routes.Handler(r)
	return pattern != ""
}

// ServeHTTP implements http.Handler.
func (p *pds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	if r.Method == http.MethodOptions {
		p.routes.ServeHTTP(w, r)
		return
	}
	p.faults.serve(w, r, p.routes)
}

// noRepository is the answer to a question about an unknown account.
func noRepository(did syntax.DID) error {
	return &refusal{http.StatusBadRequest, "RepoNotFound",
		fmt.Sprintf("no repository of %q: POST /dev/accounts makes an account", did)}
}

func collectionOf(text string) string {
	if _, err := syntax.ParseNSID(text); err != nil {
		Check(badRequest("collection: %v", err))
	}
	return text
}

// path returns the path of a record.
func path(collection, rkey string) string {
	if _, err := syntax.ParseRecordKey(rkey); err != nil {
		Check(badRequest("rkey: %v", err))
	}
	return collectionOf(collection) + "/" + rkey
}

// stateOf returns the repository of an account, as a planned fault lets the request see it.
func (p *pds) stateOf(r *http.Request, did syntax.DID) *repository.State {
	owner, err := p.accounts.find(did)
	if err != nil {
		Check(noRepository(did))
	}
	return Must(lie(r, owner.repository))
}

// ShownRecord is a record in the answers of com.atproto.repo.getRecord and listRecords.
type ShownRecord struct {
	URI   string         `json:"uri"`
	CID   string         `json:"cid"`
	Value map[string]any `json:"value"`
}

func shownRecord(did syntax.DID, record repository.Record) ShownRecord {
	return ShownRecord{uriOf(did, record.Path), record.CID.String(), record.Value}
}

func uriOf(did syntax.DID, path string) string { return "at://" + did.String() + "/" + path }

func (p *pds) getRecord(r *http.Request) any {
	q := r.URL.Query()
	did := syntax.DID(q.Get("repo"))
	state, at := p.stateOf(r, did), path(q.Get("collection"), q.Get("rkey"))
	notFound := &refusal{http.StatusBadRequest, "RecordNotFound", "no record " + uriOf(did, at)}
	if !state.Has(at) {
		Check(notFound)
	}
	record := Must(state.Record(at))
	if cid := q.Get("cid"); cid != "" && cid != record.CID.String() {
		Check(notFound)
	}
	return shownRecord(did, record)
}

// ShownRecords is the answer of com.atproto.repo.listRecords.
type ShownRecords struct {
	Cursor  string        `json:"cursor,omitempty"`
	Records []ShownRecord `json:"records"`
}

// listRecords answers the greatest keys first, as a PDS does, unless reverse is true.
func (p *pds) listRecords(r *http.Request) any {
	q := r.URL.Query()
	did, collection, limit := syntax.DID(q.Get("repo")), collectionOf(q.Get("collection")), 50
	if text := q.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > 100 {
			Check(badRequest("limit must be from 1 to 100"))
		}
	}
	all := Must(p.stateOf(r, did).Records(collection))
	ascending := q.Get("reverse") == "true"
	if !ascending {
		slices.Reverse(all)
	}
	if cursor := q.Get("cursor"); cursor != "" {
		last := collection + "/" + cursor
		all = slices.DeleteFunc(all, func(record repository.Record) bool {
			return record.Path == last || (record.Path < last) == ascending
		})
	}
	shown := ShownRecords{Records: []ShownRecord{}}
	if len(all) > limit {
		all = all[:limit]
		shown.Cursor = strings.TrimPrefix(all[limit-1].Path, collection+"/")
	}
	for _, record := range all {
		shown.Records = append(shown.Records, shownRecord(did, record))
	}
	return shown
}

// carFile is the answer of a method whose answer is a CAR file.
type carFile []byte

// getProof answers what the account has signed about a record (com.atproto.sync.getRecord).
func (p *pds) getProof(r *http.Request) any {
	q := r.URL.Query()
	state := p.stateOf(r, syntax.DID(q.Get("did")))
	return carFile(Must(state.Proof(path(q.Get("collection"), q.Get("rkey")))))
}

// NewRecord is the body of com.atproto.repo.createRecord and putRecord.
type NewRecord struct {
	Repo       syntax.DID `json:"repo"`
	Collection string     `json:"collection"`
	RKey       string     `json:"rkey"`
	// Validate is whether the record must be one of a known lexicon. Nil: if the lexicon is known.
	Validate *bool           `json:"validate"`
	Record   json.RawMessage `json:"record"`
}

// Written is the answer of com.atproto.repo.createRecord and putRecord.
type Written struct {
	URI              string `json:"uri"`
	CID              string `json:"cid"`
	Commit           Commit `json:"commit"`
	ValidationStatus string `json:"validationStatus"`
}

// Commit names the commit of a write.
type Commit struct {
	CID string `json:"cid"`
	Rev string `json:"rev"`
}

func commitOf(state *repository.State) Commit { return Commit{state.CommitCID().String(), state.Rev()} }

func (p *pds) createRecord(r *http.Request) any {
	in := read[NewRecord](r)
	if in.RKey == "" {
		in.RKey = p.clock.Next().String()
	}
	return p.write(r, in, false)
}

func (p *pds) putRecord(r *http.Request) any { return p.write(r, read[NewRecord](r), true) }

// padding matches bytes with padding, which JSON of the AT Protocol may have, and package atdata
// refuses.
var padding = regexp.MustCompile(`("\$bytes"\s*:\s*"[A-Za-z0-9+/]*)=+"`)

// write stores a record. Only createRecord does not replace one.
func (p *pds) write(r *http.Request, in NewRecord, replace bool) Written {
	p.authorize(r, in.Repo)
	at := path(in.Collection, in.RKey)
	value, err := atdata.UnmarshalJSON(padding.ReplaceAll(in.Record, []byte(`$1"`)))
	if err != nil {
		Check(badRequest("record: %v", err))
	}
	status := p.validate(in, value)
	state := Must(p.accounts.write(in.Repo, func(now *repository.State) (*repository.State, error) {
		if !replace && now.Has(at) {
			return nil, badRequest("there is a record %s", uriOf(in.Repo, at))
		}
		return now.Put(at, value)
	}))
	return Written{uriOf(in.Repo, at), Must(state.Record(at)).CID.String(), commitOf(state), status}
}

// validate checks a record by its lexicon, and returns the status of the validation.
func (p *pds) validate(in NewRecord, value map[string]any) string {
	if value["$type"] != in.Collection {
		Check(badRequest("record: its $type must be %s", in.Collection))
	}
	known, err := p.catalog.Resolve(in.Collection)
	switch {
	case in.Validate != nil && !*in.Validate, err != nil && in.Validate == nil:
		return "unknown"
	case err != nil:
		Check(badRequest("record: no lexicon %s is known here", in.Collection))
	}
	if err := lexicon.ValidateRecord(p.catalog, value, in.Collection, 0); err != nil {
		Check(badRequest("record: %v", err))
	}
	if key, fixed := strings.CutPrefix(known.Def.(lexicon.SchemaRecord).Key, "literal:"); fixed && key != in.RKey {
		Check(badRequest("rkey: %s has the key %s only", in.Collection, key))
	}
	return "valid"
}

// authorize refuses a write unless the request has a token of the account.
func (p *pds) authorize(r *http.Request, did syntax.DID) {
	if caller := Must(p.accounts.verified(r)); caller.DID != did {
		Check(&refusal{http.StatusUnauthorized, "AuthMissing", fmt.Sprintf("the caller is %s, not %s", caller.DID, did)})
	}
}

// OldRecord is the body of com.atproto.repo.deleteRecord.
type OldRecord struct {
	Repo       syntax.DID `json:"repo"`
	Collection string     `json:"collection"`
	RKey       string     `json:"rkey"`
}

// Deleted is the answer of com.atproto.repo.deleteRecord. It has no commit if there was no record.
type Deleted struct {
	Commit *Commit `json:"commit,omitempty"`
}

func (p *pds) deleteRecord(r *http.Request) any {
	in := read[OldRecord](r)
	p.authorize(r, in.Repo)
	at, had := path(in.Collection, in.RKey), false
	state := Must(p.accounts.write(in.Repo, func(now *repository.State) (*repository.State, error) {
		if had = now.Has(at); !had {
			return now, nil
		}
		return now.Delete(at)
	}))
	if !had {
		return Deleted{}
	}
	return Deleted{pointer(commitOf(state))}
}
