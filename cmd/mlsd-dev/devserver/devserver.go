// Package devserver is what the command "mlsd-dev" serves besides the XRPC methods: made-up
// accounts and their PLC directory, tokens, devices that do real MLS, faults and a reset. Apps
// under test use it as their own network. It has no data of real people. Anyone who reaches it can
// act as any of its accounts.
//
//	GET    /dev           what this is: see Info
//	POST   /dev/accounts  makes accounts; GET lists them
//	POST   /dev/token     signs a service-auth token for an account
//	POST   /dev/reset     forgets everything
//	POST   /dev/faults    plans a fault; GET lists them, DELETE removes them
//	POST   /dev/devices   makes a device of an account; GET lists them
//	POST   /dev/devices/{id}/{operation}  lets it join, send, read, commit: see Operation
//	GET    /{did}         the DID document of an account, as a PLC directory serves it. A PDS that
//	                      has this directory can make accounts of its own: see directory
//	       /xrpc/com.atproto.repo.putRecord and others, as the PDS of each account: see pds
//
// Each service of a network has its own Server. All of them share people, directory and PDS. Bodies
// and answers are JSON. An error is {"error", "message"}, as in XRPC. All other requests go to the
// service, unless a planned fault prevents it.
package devserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// maxBody is the longest body of a request to /dev, in bytes.
const maxBody = 16 << 20

// Config is what a Server uses. All fields without a default are required.
type Config struct {
	// URL is where this process reaches the Server. Devices call the service there.
	URL string
	// ServiceDID is the audience of tokens.
	ServiceDID syntax.DID
	// Version is the server's build.
	Version string
	// Service serves XRPC.
	Service http.Handler
	// Database returns the URL of the service's database.
	Database func() string
	// OwnHost reports whether the Host of a request names this server.
	OwnHost func(*http.Request) bool
	// Reset replaces the state of all services of the network by an empty state.
	Reset func(context.Context) error
	Log   *slog.Logger
	// First is the first service of this service's network. Nil means that this is the first
	// service.
	First *Server
	// OnAccount is called with each new account and its service. Nil means that nothing is called.
	OnAccount func(Account)
}

// Server serves /dev, the directory and the service. It is safe for concurrent use.
type Server struct {
	cfg    Config
	routes http.Handler
	faults *faults

	*network
	devices *devices
}

// network is what the services share. All fields but accounts, directory and pds are complete
// before the first request.
type network struct {
	resetting sync.Mutex // held during a reset
	accounts  *accounts
	directory *directory
	pds       *pds
	services  []*Server
}

// Info is the answer of GET /dev.
type Info struct {
	Service   string     `json:"service"` // always "mlsd-dev"
	Version   string     `json:"version"`
	DID       syntax.DID `json:"did"` // DID of the service
	Aud       string     `json:"aud"` // for tokens
	URL       string     `json:"url"` // URL by which the client has reached the service
	Directory string     `json:"directory"`
	Database  string     `json:"database"` // URL of the service's database for mlsd inspect, until the next reset
	// Services lists the services of the network, in order. It is empty for a single service.
	Services []Neighbor `json:"services,omitempty"`
}

// Neighbor is a service of the network.
type Neighbor struct {
	DID syntax.DID `json:"did"`
	URL string     `json:"url"`
}

// New returns a Server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, faults: &faults{}, devices: newDevices(cfg.URL, cfg.ServiceDID)}
	if cfg.First != nil {
		s.network = cfg.First.network
	} else {
		s.network = &network{accounts: newAccounts()}
		s.directory = newDirectory(s.accounts, cfg.Log)
		s.pds = newPDS(s.accounts, s.faults, cfg.Log)
	}
	s.services = append(s.services, s)
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(*http.Request) any{
		"GET /dev":           s.info,
		"POST /dev/accounts": s.makeAccounts,
		"GET /dev/accounts":  s.listAccounts,
		"POST /dev/token":    s.token,
		"POST /dev/reset":    s.reset,
		"POST /dev/faults":   s.planFault,
		"GET /dev/faults":    s.listFaults,
		"DELETE /dev/faults": s.clearFaults,
		"POST /dev/devices":  s.makeDevice,
		"GET /dev/devices":   s.listDevices,

		"POST /dev/devices/{id}/{operation}": s.operate,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r, cfg.Log, do) })
	}
	mux.HandleFunc("/dev/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, cfg.Log, func(*http.Request) any {
			Check(&refusal{http.StatusNotFound, "NotFound", "no such page; GET /dev says what there is"})
			return nil
		})
	})
	own, directory := s.protect(mux), s.protect(s.directory)
	s.routes = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/did:") {
			directory.ServeHTTP(w, r)
			return
		}
		if s.pds.has(r) {
			s.pds.ServeHTTP(w, r)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			s.faults.serve(w, r, cfg.Service)
			return
		}
		own.ServeHTTP(w, r)
	})
	return s
}

// protect refuses requests from pages of other sites, which must not reset the server, or get keys
// and tokens. CrossOriginProtection refuses writes from other origins. OwnHost refuses every
// request of a page whose name now resolves to this server, because the browser takes this server
// for the page's own.
func (s *Server) protect(h http.Handler) http.Handler {
	h = http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.OwnHost(r) {
			h.ServeHTTP(w, r)
			return
		}
		writeJSON(w, s.cfg.Log, http.StatusForbidden, errorBody{"UnknownHost",
			"the Host of the request is not one of this server's: use its address, or name it in --public-url"})
	})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.routes.ServeHTTP(w, r) }

// refusal is an error that is sent to the client.
type refusal struct {
	status        int
	name, message string
}

func (r *refusal) Error() string { return r.name + ": " + r.message }

func badRequest(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, "InvalidRequest", fmt.Sprintf(format, args...)}
}

// answer writes the result of do, or the error that do panics with.
func answer(w http.ResponseWriter, r *http.Request, log *slog.Logger, do func(*http.Request) any) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	var result any
	err := Attempt(func() { result = do(r) })
	status := http.StatusOK
	if err != nil {
		refused := &refusal{http.StatusInternalServerError, "InternalServerError", err.Error()}
		errors.As(err, &refused)
		status, result = refused.status, errorBody{refused.name, refused.message}
	}
	if file, ok := result.(carFile); ok && err == nil {
		w.Header().Set("Content-Type", "application/vnd.ipld.car")
		if _, err := w.Write(file); err != nil {
			log.Debug("the answer could not be written", "error", err)
		}
		return
	}
	writeJSON(w, log, status, result)
}

// errorBody is the answer to a request that failed.
type errorBody struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

func writeJSON(w http.ResponseWriter, log *slog.Logger, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false) // so that a shell can read URLs
	if err := out.Encode(v); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}

// read decodes the body. An empty body is {}.
func read[T any](r *http.Request) (in T) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
		Check(badRequest("the body: %v", err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		Check(badRequest("the body: something follows the JSON object"))
	}
	return in
}

func (s *Server) info(r *http.Request) any {
	url := "http://" + r.Host
	info := Info{
		Service: "mlsd-dev", Version: s.cfg.Version, DID: s.cfg.ServiceDID, Aud: s.cfg.ServiceDID.String(), URL: url,
		Directory: url, Database: s.cfg.Database(),
	}
	if len(s.services) > 1 {
		for _, one := range s.services {
			info.Services = append(info.Services, Neighbor{one.cfg.ServiceDID, one.cfg.URL})
		}
	}
	return info
}

// reset forgets everything: the services' state, accounts, devices and faults.
func (s *Server) reset(r *http.Request) any {
	read[struct{}](r)
	s.resetting.Lock()
	defer s.resetting.Unlock()
	Check(errs.Wrap(s.cfg.Reset(r.Context()), "reset"))
	s.accounts.forget()
	s.directory.forget()
	for _, one := range s.services {
		one.devices.forget()
		one.faults.forget()
	}
	return struct{}{}
}
