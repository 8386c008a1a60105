package devserver

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/cmd/mlsd-dev/repository"
)

const (
	// maxAccounts is how many accounts one request makes at most.
	maxAccounts = 1000
	// maxRecords is how many records an account has at most.
	maxRecords = 200
	// tokenLife is how long a token is valid, unless the request says otherwise. It is the default
	// of a PDS.
	tokenLife = 60 * time.Second
)

// person is an account with its handle.
type person struct {
	*xrpc.Account
	handle     syntax.Handle
	document   identity.DIDDocument
	repository *repository.State
}

// home returns the service that the account has chosen, or "".
func (p person) home() syntax.DID {
	path := profileCollection + "/" + profileKey
	if !p.repository.Has(path) {
		return ""
	}
	service, _ := Must(p.repository.Record(path)).Value["deliveryService"].(string)
	return syntax.DID(service)
}

// accounts are the people of the server. It is safe for concurrent use.
type accounts struct {
	mu     sync.Mutex // guards the fields below
	made   int        // accounts made since the last reset
	people map[syntax.DID]person
	order  []syntax.DID // in the order in which they were made
}

func newAccounts() *accounts { return &accounts{people: map[syntax.DID]person{}} }

func (a *accounts) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made, a.order = 0, nil
	clear(a.people)
}

// find returns an account that was made.
func (a *accounts) find(did syntax.DID) (person, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.people[did]
	if !ok {
		return person{}, &refusal{http.StatusNotFound, "AccountNotFound",
			fmt.Sprintf("no account %q: POST /dev/accounts makes one", did)}
	}
	return p, nil
}

func (a *accounts) list() (all []person) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, did := range a.order {
		all = append(all, a.people[did])
	}
	return all
}

// write changes the repository of an account, and returns its next state.
func (a *accounts) write(
	did syntax.DID, change func(*repository.State) (*repository.State, error),
) (_ *repository.State, err error) {
	defer Catch(&err)
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.people[did]
	if !ok {
		return nil, noRepository(did)
	}
	p.repository = Must(change(p.repository))
	if n := p.repository.Len(); n > maxRecords {
		return nil, badRequest("an account has %d records at most", maxRecords)
	}
	a.people[did] = p
	return p.repository, nil
}

// add makes an account. Accounts choose the services in turn. If handle is empty, the account gets
// a handle.
func (a *accounts) add(handle syntax.Handle, services []*Server) (_ person, err error) {
	defer Catch(&err)
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := func(h syntax.Handle) bool {
		return slices.ContainsFunc(a.order, func(did syntax.DID) bool { return a.people[did].handle == h })
	}
	if handle != "" && taken(handle) {
		return person{}, &refusal{http.StatusConflict, "HandleTaken",
			fmt.Sprintf("an account has the handle %s already", handle)}
	}
	a.made++
	for n := a.made; handle == "" || taken(handle); n++ {
		handle = syntax.Handle(fmt.Sprintf("user%d.test", n))
	}
	account := Must(xrpc.NewAccount(a.made))
	p := person{Account: account, handle: handle, document: Must(account.Document(handle))}
	empty := Must(repository.New(p.DID, Must(atcrypto.ParsePrivateMultibase(p.SigningKey()))))
	p.repository = Must(empty.Put(profileCollection+"/"+profileKey, map[string]any{
		"$type": profileCollection, "createdAt": syntax.DatetimeNow().String(),
		"deliveryService": services[(a.made-1)%len(services)].cfg.ServiceDID.String(),
	}))
	a.people[p.DID] = p
	a.order = append(a.order, p.DID)
	return p, nil
}

// Account is an account as POST /dev/accounts answers it.
type Account struct {
	DID        syntax.DID    `json:"did"`
	Handle     syntax.Handle `json:"handle"`
	SigningKey string        `json:"signingKey"` // the private key, as a multikey
	// DeliveryService is the service that the account has chosen. It has the account's KeyPackages.
	DeliveryService syntax.DID `json:"deliveryService,omitempty"`
}

// Accounts is the answer of POST and GET /dev/accounts.
type Accounts struct {
	Accounts []Account `json:"accounts"`
}

func show(people ...person) Accounts {
	shown := Accounts{Accounts: []Account{}}
	for _, p := range people {
		shown.Accounts = append(shown.Accounts, Account{p.DID, p.handle, p.SigningKey(), p.home()})
	}
	return shown
}

// NewAccounts is the body of POST /dev/accounts.
type NewAccounts struct {
	// Handle is the handle of one account. A name without a dot gets the suffix ".test".
	Handle string `json:"handle"`
	// Count is how many accounts to make. Default: 1. Each account gets a handle.
	Count *int `json:"count"`
}

func (s *Server) makeAccounts(r *http.Request) any {
	in := read[NewAccounts](r)
	count := 1
	if in.Count != nil {
		count = *in.Count
	}
	if count < 1 || count > maxAccounts || in.Handle != "" && count != 1 {
		Check(badRequest("count must be from 1 to %d, and 1 with a handle", maxAccounts))
	}
	handle := parseHandle(in.Handle)
	var made []person
	for range count {
		p := Must(s.accounts.add(handle, s.services))
		if s.cfg.OnAccount != nil {
			s.cfg.OnAccount(show(p).Accounts[0])
		}
		made = append(made, p)
	}
	return show(made...)
}

func parseHandle(text string) syntax.Handle {
	if text == "" {
		return ""
	}
	if !strings.Contains(text, ".") {
		text += ".test"
	}
	handle, err := syntax.ParseHandle(text)
	if err != nil {
		Check(badRequest("handle: %v", err))
	}
	return handle.Normalize()
}

func (s *Server) listAccounts(*http.Request) any { return show(s.accounts.list()...) }

// NewToken is the body of POST /dev/token.
type NewToken struct {
	DID syntax.DID  `json:"did"`
	Lxm syntax.NSID `json:"lxm"`
	Aud string      `json:"aud"` // default: the service's DID
	Exp int64       `json:"exp"` // in seconds since 1970; default: in a minute
}

// Token is the answer of POST /dev/token.
type Token struct {
	Token string `json:"token"`
	Aud   string `json:"aud"`
	Exp   int64  `json:"exp"`
}

// token signs any token, even one that the service refuses: with an old exp, or another aud.
func (s *Server) token(r *http.Request) any {
	in := read[NewToken](r)
	if in.Lxm == "" {
		Check(badRequest("lxm is missing"))
	}
	p := Must(s.accounts.find(in.DID))
	if in.Aud == "" {
		in.Aud = s.cfg.ServiceDID.String()
	}
	life := tokenLife
	if in.Exp != 0 {
		// The signer adds life to the present time, and drops the fraction of a second.
		life = time.Until(time.Unix(in.Exp, 0)) + time.Second/2
	}
	token := Must(p.TokenFor(in.Aud, in.Lxm, life))
	return Token{Token: token, Aud: in.Aud, Exp: Must(claimsOf(token)).Exp}
}

// claims are the claims of a token that this package reads.
type claims struct {
	Iss syntax.DID `json:"iss"`
	Exp int64      `json:"exp"`
}

// claimsOf reads the claims of a token. It does not verify the token.
func claimsOf(token string) (c claims, err error) {
	defer Catch(&err)
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("not a JWT")
	}
	payload := Must(base64.RawURLEncoding.DecodeString(parts[1]))
	return c, json.Unmarshal(payload, &c)
}

// verified returns the account that has signed the token of a request. The token may be for any
// method: a real PDS takes no service-auth tokens, but those of its own sign-in.
func (a *accounts) verified(r *http.Request) (_ person, err error) {
	defer Catch(&err)
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	c, err := claimsOf(token)
	if err != nil {
		return person{}, &refusal{http.StatusUnauthorized, "AuthMissing", "a token of POST /dev/token is missing"}
	}
	unsigned := &refusal{http.StatusUnauthorized, "InvalidToken", "no account of this server has signed the token"}
	p, err := a.find(c.Iss)
	if err != nil {
		return person{}, unsigned
	}
	key := Must(Must(atcrypto.ParsePrivateMultibase(p.SigningKey())).PublicKey())
	end := strings.LastIndexByte(token, '.')
	signature, err := base64.RawURLEncoding.DecodeString(token[end+1:])
	if err != nil || key.HashAndVerify([]byte(token[:end]), signature) != nil {
		return person{}, unsigned
	}
	if c.Exp <= time.Now().Unix() {
		return person{}, &refusal{http.StatusUnauthorized, "ExpiredToken", "the token has expired"}
	}
	return p, nil
}
