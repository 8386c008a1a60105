// Package demo serves two demo users to a person with curl, who is the client.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"

	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Tour lets a person with curl walk through the API. alice and bob are two demo users, each with a
// device that does real MLS. Each endpoint does what an app does between two calls of the API:
//
//	GET  /tour/did          the person's DID
//	GET  /tour/token        a service-auth token for one call; method=createConvo
//	GET  /tour/keypackage   a fresh KeyPackage, base64url
//	POST /tour/group        makes a group and answers its groupId
//	GET  /tour/add          the input of addMembers; convo=, did=, keypackage=
//	POST /tour/accepted     merges the commit; the body is what addMembers answered
//	POST /tour/join         joins; the body is what getWelcome answered
//	GET  /tour/message      encrypts text= and answers {"$bytes": …}
//	POST /tour/read         decrypts; the body is what getMessages answered
//
// Each takes as=alice or as=bob. The server does not need the tour. Anyone who reaches it can act
// as these two users.
type Tour struct {
	audience string

	mu     sync.Mutex // guards people and everything that they have
	people map[string]*demoUser
}

// maxBody is the largest body that the tour reads. A page of messages is the largest.
const maxBody = 16 << 20

// NewTour makes the two people and registers their accounts.
func NewTour(dir *testbed.Directory, audience string) (*Tour, error) {
	t := &Tour{audience: audience, people: map[string]*demoUser{}}
	for i, name := range []string{"alice", "bob"} {
		account, err := xrpc.NewAccount(i)
		if err != nil {
			return nil, err
		}
		if err := dir.Register(account); err != nil {
			return nil, err
		}
		device, err := mlsclient.NewDevice(account.DID.String(), mlsclient.SuiteX25519)
		if err != nil {
			return nil, err
		}
		t.people[name] = &demoUser{name: name, account: account, device: device, texts: map[string]string{}}
	}
	return t, nil
}

// Handler serves the endpoints above.
func (t *Tour) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(*demoUser, *http.Request, []byte) (string, error){
		"GET /tour/did":        func(p *demoUser, _ *http.Request, _ []byte) (string, error) { return p.account.DID.String(), nil },
		"GET /tour/token":      t.token,
		"GET /tour/keypackage": (*demoUser).keyPackage,
		"POST /tour/group":     (*demoUser).newGroup,
		"GET /tour/add":        (*demoUser).add,
		"POST /tour/accepted":  (*demoUser).accepted,
		"POST /tour/join":      (*demoUser).join,
		"GET /tour/message":    (*demoUser).message,
		"POST /tour/read":      t.read,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { t.serve(w, r, do) })
	}
	return mux
}

// serve answers with lines of text. It runs one request at a time, because an app's MLS state is
// not safe for concurrent use.
func (t *Tour) serve(w http.ResponseWriter, r *http.Request, do func(*demoUser, *http.Request, []byte) (string, error)) {
	text, err := func() (string, error) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			return "", err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		p, ok := t.people[r.FormValue("as")]
		if !ok {
			return "", fmt.Errorf("as=%q is none of %q", r.FormValue("as"), slices.Sorted(maps.Keys(t.people)))
		}
		return do(p, r, body)
	}()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		text = "tour: " + err.Error()
	}
	// The person closed the connection.
	_, _ = io.WriteString(w, text+"\n")
}

// ServeTour serves the directory and the tour on addr, a loopback address, until ctx ends. It
// prints the address to out.
func ServeTour(ctx context.Context, addr, audience string, out io.Writer) (err error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return fmt.Errorf("tour: %w", err)
	}
	if !at.IP.IsLoopback() {
		return fmt.Errorf("tour: %s is not on loopback, and anyone who reaches it can act as alice and bob", addr)
	}
	dir, err := testbed.NewDirectory(at.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close(context.WithoutCancel(ctx))) }()
	tour, err := NewTour(dir, audience)
	if err != nil {
		return err
	}
	dir.Handle("/tour/", tour.Handler())
	if _, err := fmt.Fprintf(out, "clientsim tour on %s\n", dir.URL()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
