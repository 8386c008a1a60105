package clientsim

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
)

// Tour lets a person who has nothing but curl walk through the API: alice and
// bob are two made-up accounts, each with a device that does real MLS, and each
// of its endpoints does what an app would do between two calls of the API:
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
// each with as=alice or as=bob. The server needs none of it, and nothing of it
// is for anything but a tour: whoever reaches it can act as these two.
type Tour struct {
	audience string

	mu     sync.Mutex // guards people and all that they have
	people map[string]*tourist
}

// maxTourBody bounds what may be fed back; a page of messages is the largest.
const maxTourBody = 16 << 20

// NewTour makes the two people and registers their accounts.
func NewTour(dir *Directory, audience string) (*Tour, error) {
	t := &Tour{audience: audience, people: map[string]*tourist{}}
	for i, name := range []string{"alice", "bob"} {
		account, err := NewAccount(i)
		if err != nil {
			return nil, err
		}
		if err := dir.Register(account); err != nil {
			return nil, err
		}
		device, err := NewDevice(account.DID.String(), SuiteX25519)
		if err != nil {
			return nil, err
		}
		t.people[name] = &tourist{name: name, account: account, device: device, texts: map[string]string{}}
	}
	return t, nil
}

// Handler serves the endpoints above.
func (t *Tour) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(*tourist, *http.Request, []byte) (string, error){
		"GET /tour/did":        func(p *tourist, _ *http.Request, _ []byte) (string, error) { return p.account.DID.String(), nil },
		"GET /tour/token":      t.token,
		"GET /tour/keypackage": (*tourist).keyPackage,
		"POST /tour/group":     (*tourist).newGroup,
		"GET /tour/add":        (*tourist).add,
		"POST /tour/accepted":  (*tourist).accepted,
		"POST /tour/join":      (*tourist).join,
		"GET /tour/message":    (*tourist).message,
		"POST /tour/read":      t.read,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { t.serve(w, r, do) })
	}
	return mux
}

// serve answers with one line of text, or with several; one request at a time,
// as an app's MLS state wants it.
func (t *Tour) serve(w http.ResponseWriter, r *http.Request, do func(*tourist, *http.Request, []byte) (string, error)) {
	text, err := func() (string, error) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTourBody))
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
	// An error here is the person hanging up.
	_, _ = io.WriteString(w, text+"\n")
}

// ServeTour serves the directory and the tour on addr, a loopback address,
// until ctx ends. It says on out where.
func ServeTour(ctx context.Context, addr, audience string, out io.Writer) (err error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return fmt.Errorf("tour: %w", err)
	}
	if !at.IP.IsLoopback() {
		return fmt.Errorf("tour: %s is not on loopback, and whoever reaches it can act as alice and bob", addr)
	}
	dir, err := NewDirectory(at.String())
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
