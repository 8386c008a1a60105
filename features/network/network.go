package network

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/features/outgoing"
	"mlsd/internal/serviceauth"
)

// ErrLookup says that a service or a person could not be looked up now.
var ErrLookup = errors.New("a look-up failed")

// Services finds services, and the service of a person. [serviceauth.Services] looks them up in the
// network; its methods document the errors.
type Services interface {
	Service(ctx context.Context, did syntax.DID, age time.Duration) (serviceauth.Service, error)
	Home(ctx context.Context, did syntax.DID, age time.Duration) (syntax.DID, error)
}

// Config configures a Service. All fields without a default are required.
type Config struct {
	DID      syntax.DID // DID of this service
	Services Services
	Keys     *Keys // nil if Trust is in nobody
	Trust    Trust
	// AllowLoopback lets the service also call services on this machine.
	AllowLoopback bool
	// Now is the clock. nil means time.Now.
	Now func() time.Time
}

// Service is this service in its dealings with others. Methods are safe for concurrent use.
type Service struct {
	cfg    Config
	client *http.Client
}

// New returns a service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Service{c, outgoing.NewClient(c.AllowLoopback, perHome, nil)}
}

// Trust says which other services this service deals with. The zero value is: with none.
type Trust struct {
	all      bool
	services []string // DIDs, and domains in lower case
}

// ParseTrust reads "all", or DIDs and domains with spaces or commas between them. A domain stands
// for the services with a did:web whose host is the domain or lies in it.
func ParseTrust(text string) (t Trust, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	if slices.Equal(words, []string{"all"}) {
		return Trust{all: true}, nil
	}
	for _, word := range words {
		if !strings.HasPrefix(word, "did:") {
			word = strings.ToLower(word)
			_, err = syntax.ParseHandle(word)
		} else {
			_, err = syntax.ParseDID(word)
		}
		if err != nil {
			return Trust{}, fmt.Errorf("%q is neither a DID nor a domain; want them, or all, or nothing for no service", word)
		}
		t.services = append(t.services, word)
	}
	return t, nil
}

// Trusting returns the Trust in these services alone.
func Trusting(services ...syntax.DID) (t Trust) {
	for _, did := range services {
		t.services = append(t.services, did.String())
	}
	return t
}

// Nobody reports whether this service deals with no other service.
func (t Trust) Nobody() bool { return !t.all && len(t.services) == 0 }

// Allows reports whether this service deals with another service.
func (t Trust) Allows(service syntax.DID) bool {
	host, isWeb := strings.CutPrefix(strings.ToLower(service.String()), "did:web:")
	return t.all || slices.ContainsFunc(t.services, func(chosen string) bool {
		return chosen == service.String() || isWeb && (host == chosen || strings.HasSuffix(host, "."+chosen))
	})
}

// String returns the text that ParseTrust reads.
func (t Trust) String() string {
	if t.all {
		return "all"
	}
	return strings.Join(t.services, " ")
}

// Deals returns a *DistrustError if the operator has not chosen another service.
func (s *Service) Deals(other syntax.DID) error {
	switch {
	case other == s.cfg.DID || s.cfg.Trust.Allows(other):
		return nil
	case s.cfg.Trust.Nobody():
		return &DistrustError{other, "is another service, and " + s.cfg.DID.String() +
			" deals with no other service: its operator has chosen none (MLSD_SERVICES)"}
	}
	return &DistrustError{other, "is a service that the operator of " + s.cfg.DID.String() +
		" has not chosen (MLSD_SERVICES)"}
}

// Alone reports whether this service deals with no other service. Then it looks nobody up.
func (s *Service) Alone() bool { return s.cfg.Trust.Nobody() }

// Home finds the delivery service that a person has chosen. The service's DID is "" if there is no
// such person, or if the person has no such record. Its Endpoint is "" if its DID document names
// none. A service that the operator has not chosen is not looked up. Errors: *DistrustError,
// ErrLookup.
func (s *Service) Home(ctx context.Context, did syntax.DID) (serviceauth.Service, error) {
	home, err := s.home(ctx, did, serviceauth.Remembered)
	if err != nil || home == "" {
		return serviceauth.Service{}, err
	}
	if err := s.Deals(home); err != nil {
		return serviceauth.Service{}, err
	}
	service, err := s.cfg.Services.Service(ctx, home, serviceauth.Remembered)
	switch {
	case errors.Is(err, serviceauth.ErrNoService):
		return serviceauth.Service{DID: home}, nil
	case err != nil:
		return serviceauth.Service{}, fmt.Errorf("%w: %s: %w", ErrLookup, home, err)
	}
	return service, nil
}

// home returns the DID of the service that a person has chosen, or "", by an answer that is not older
// than age.
func (s *Service) home(ctx context.Context, did syntax.DID, age time.Duration) (syntax.DID, error) {
	home, err := s.cfg.Services.Home(ctx, did, age)
	if err != nil {
		return "", fmt.Errorf("%w: the service of %s: %w", ErrLookup, did, err)
	}
	return home, nil
}
