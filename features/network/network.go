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
	"mlsd/features/transparency"
	"mlsd/internal/serviceauth"
)

// ErrLookup says that a service or a person could not be looked up now.
var ErrLookup = errors.New("a look-up failed")

// Services finds services, and the service of a person. [serviceauth.Services] looks them up in the
// network; its methods document the errors.
type Services interface {
	Service(ctx context.Context, did syntax.DID) (serviceauth.Service, error)
	Refresh(ctx context.Context, did syntax.DID) (serviceauth.Service, error)
	Home(ctx context.Context, did syntax.DID) (syntax.DID, error)
}

// Config configures a Service. All fields without a default are required.
type Config struct {
	DID      syntax.DID // DID of this service
	Services Services
	Seeds    func() []transparency.Seed // seeds of the service's keys that sign and are published
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

// Trust says which other services this service deals with: all services, only the services of a
// list, or all services except those of a list.
type Trust struct {
	only     bool
	services []syntax.DID
}

// ParseTrust reads "all", "none", "only DID …" or "except DID …", with spaces or commas between
// DIDs.
func ParseTrust(text string) (t Trust, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	switch {
	case slices.Equal(words, []string{"all"}):
		return Trust{}, nil
	case slices.Equal(words, []string{"none"}):
		return Trust{only: true}, nil
	case len(words) < 2 || words[0] != "only" && words[0] != "except":
		return t, fmt.Errorf(`got %q; want all, none, "only DID …" or "except DID …"`, text)
	}
	t.only = words[0] == "only"
	for _, word := range words[1:] {
		did, err := syntax.ParseDID(word)
		if err != nil {
			return t, fmt.Errorf("%q is not a DID", word)
		}
		t.services = append(t.services, did)
	}
	return t, nil
}

// Allows reports whether this service deals with another service.
func (t Trust) Allows(service syntax.DID) bool { return slices.Contains(t.services, service) == t.only }

// String returns the text that ParseTrust reads.
func (t Trust) String() string {
	words := []string{"except"}
	switch {
	case len(t.services) == 0 && t.only:
		return "none"
	case len(t.services) == 0:
		return "all"
	case t.only:
		words[0] = "only"
	}
	for _, did := range t.services {
		words = append(words, did.String())
	}
	return strings.Join(words, " ")
}

// Home finds the delivery service that a person has chosen. The service's DID is "" if there is no
// such person, or if the person has no such record. Its Endpoint is "" if its DID document names
// none. Error: ErrLookup.
func (s *Service) Home(ctx context.Context, did syntax.DID) (serviceauth.Service, error) {
	home, err := s.home(ctx, did)
	if err != nil || home == "" {
		return serviceauth.Service{}, err
	}
	service, err := s.cfg.Services.Service(ctx, home)
	switch {
	case errors.Is(err, serviceauth.ErrNoService):
		return serviceauth.Service{DID: home}, nil
	case err != nil:
		return serviceauth.Service{}, fmt.Errorf("%w: %s: %w", ErrLookup, home, err)
	}
	return service, nil
}

// home returns the DID of the service that a person has chosen, or "".
func (s *Service) home(ctx context.Context, did syntax.DID) (syntax.DID, error) {
	home, err := s.cfg.Services.Home(ctx, did)
	if err != nil {
		return "", fmt.Errorf("%w: the service of %s: %w", ErrLookup, did, err)
	}
	return home, nil
}
