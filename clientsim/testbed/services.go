package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Service is one of several delivery services. Its server has a database of its own.
type Service struct {
	*World // its server, and what clients do there
	DID    syntax.DID
	// Link is the network between the other services and this one.
	Link   *FaultyTransport
	front  *xrpc.Site
	server *Proc
}

// WithServices runs play on n services whose servers have these settings. The services have
// chosen each other by DID. People of this world can choose one of the services as their home.
// The world's own server takes no part. Afterwards, everything that the services' clients did is
// checked.
func (w *World) WithServices(ctx context.Context, n int, settings map[string]string,
	play func([]*Service)) {
	var all []*Service
	err := Attempt(func() {
		for i := range n {
			all = append(all, Must(w.newService(i)))
		}
		names := make([]string, n) // the services have chosen each other
		for i, s := range all {
			names[i] = s.DID.String()
		}
		for i, s := range all {
			Check(s.start(ctx, w, i, settings, strings.Join(names, " ")))
		}
		play(all)
	})
	for i, s := range all {
		if err != nil {
			w.Note("service %d: %s", i+1, s.server.log)
			continue
		}
		s.Check(ctx)
		w.Report(s.Found()...)
		w.Stats.Sent.Add(s.Stats.Sent.Load())
		w.Stats.Delivered.Add(s.Stats.Delivered.Load())
		w.Stats.Retried.Add(s.Stats.Retried.Load())
		w.Stats.Replays.Add(s.Stats.Replays.Load())
	}
	for _, s := range all {
		if s.World != nil {
			s.CloseIdle()
		}
		err = errors.Join(err, s.server.Stop(), s.front.Close())
	}
	Check(err)
}

// newService returns a service with an address and a DID. Its server does not run yet.
func (w *World) newService(i int) (_ *Service, err error) {
	defer Catch(&err)
	s := &Service{Link: NewFaultyTransport(Unrepeated{FastTransport()})}
	s.server = w.Server.another(fmt.Sprintf("-service-%d", i+1))
	s.front = Must(xrpc.Serve("127.0.0.1:0", s.answer(s.server)))
	at, err := url.Parse(s.front.URL)
	if err != nil {
		return nil, errors.Join(err, s.front.Close())
	}
	s.DID = syntax.DID("did:web:localhost%3A" + at.Port())
	return s, nil
}

// start starts the server of the service, which deals with the services of that list.
func (s *Service) start(ctx context.Context, w *World, i int, settings map[string]string, services string) error {
	maps.Copy(s.server.env, settings)
	s.server.env["MLSD_SERVICE_DID"], s.server.env["MLSD_SERVICES"] = s.DID.String(), services
	if err := s.server.Start(ctx, nil); err != nil {
		return err
	}
	s.World = NewWorld(Target{
		Base: s.server.URL(), Audience: s.DID.String(), Transport: Unrepeated{FastTransport()}, Server: s.server, Dir: w.dir,
	}, w.Options, uint64(i), w.Progress)
	s.Suite = w.Suite
	return nil
}

// answer returns the handler that other services reach at the address in the service's DID
// document.
func (s *Service) answer(server *Proc) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: s.Link,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", strings.TrimPrefix(server.URL(), "http://")
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0), // faults of the link are no errors
	}
	return http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		call := xrpc.Call{Method: syntax.NSID(path.Base(r.URL.Path))}
		if r.Method != http.MethodGet {
			call.Body = body
		}
		proxy.ServeHTTP(a, r.WithContext(xrpc.WithCallInfo(r.Context(), xrpc.CallInfo{Call: call})))
	})
}

// Settle makes the service the home of a phone, and returns the phone there.
func (s *Service) Settle(name string) (*client.Phone, error) {
	p, err := s.Phone(name)
	if err == nil {
		s.dir.Choose(p.Account.DID, s.DID)
	}
	return p, err
}

// Resident makes an account whose home is the service.
func (s *Service) Resident() (*xrpc.Account, error) {
	a, err := s.P256Account()
	if err == nil {
		s.dir.Choose(a.DID, s.DID)
	}
	return a, err
}

// Visit returns a phone of another service at this service. The final checks look at the phone's
// convos here.
func (s *Service) Visit(p *client.Phone) *client.Phone {
	there := p.At(s.Net, s.Model)
	s.phones = append(s.phones, there)
	return there
}

// Invitation is a row of the service that has the convo, or of a home.
type Invitation struct {
	DID     syntax.DID // the invited person
	Ref     string
	Other   syntax.DID // the home, or the service that has the convo
	ConvoID string
	State   string
}

// Sent reads the invitations that the service has sent to the homes of people. The state is "done",
// or has the last error.
func (s *Service) Sent(ctx context.Context) ([]Invitation, error) {
	return invitations(ctx, s.Server, `
		SELECT did, encode(ref, 'hex'), service, convo_id::text,
			CASE state WHEN 'done' THEN state ELSE state || ': ' || coalesce(last_error, '') END
		FROM sent_invitations`)
}

// Received reads the invitations that the service has received for its people. The state says
// whether the row is hidden, and what became of the KeyPackage.
func (s *Service) Received(ctx context.Context) ([]Invitation, error) {
	return invitations(ctx, s.Server, `
		SELECT r.did, encode(r.ref, 'hex'), service, convo_id::text,
			CASE WHEN hidden THEN 'hidden, ' ELSE 'shown, ' END || coalesce(k.state, 'unknown')
		FROM received_invitations r LEFT JOIN key_packages k ON (k.did, k.ref) = (r.did, r.ref)`)
}

func invitations(ctx context.Context, p *Proc, sql string) (all []Invitation, err error) {
	err = p.inDatabase(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql)
		if err == nil {
			all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Invitation])
		}
		return err
	})
	return all, err
}
