package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"
)

// health answers that the process runs. The admin listener answers whether the node is ready.
func (s *Server) health(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"version": s.cfg.Version})
}

// didDocument says where the service is (https://atproto.com/specs/did). It also lists the keys
// that sign heads of logs, receipts, and the service's requests to other services. Of another DID it
// is no document, but shows that this host is the service's.
func (s *Server) didDocument(c echo.Context) error {
	type service struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Endpoint string `json:"serviceEndpoint"`
	}
	type method struct {
		ID         string `json:"id"`
		Type       string `json:"type"`
		Controller string `json:"controller"`
		Key        string `json:"publicKeyMultibase"`
	}
	did := s.cfg.ServiceDID.String()
	var methods []method
	for _, k := range s.cfg.Heads.Published() {
		methods = append(methods,
			method{ID: did + "#mlsd_log_" + strconv.Itoa(int(k.ID)), Type: "Multikey", Controller: did, Key: k.Multikey})
	}
	for _, k := range s.cfg.Network.Keys() {
		methods = append(methods, method{ID: did + k.ID, Type: "Multikey", Controller: did, Key: k.Multikey})
		if k.Signs {
			methods = append(methods, method{ID: did + "#atproto", Type: "Multikey", Controller: did, Key: k.Multikey})
		}
	}
	return c.JSON(http.StatusOK, struct {
		Context []string  `json:"@context"`
		ID      string    `json:"id"`
		Methods []method  `json:"verificationMethod,omitempty"`
		Service []service `json:"service"`
	}{
		Context: []string{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"},
		ID:      did,
		Methods: methods,
		Service: []service{{ID: "#atproto_mls", Type: "AtprotoMlsService", Endpoint: s.cfg.PublicURL}},
	})
}

// PublicURL returns the URL of a did:web. The scheme is https, but http for localhost, the only
// host that may have a port. For any other DID the result is "".
func PublicURL(did syntax.DID) string {
	if did.Method() != "web" {
		return ""
	}
	host, err := url.PathUnescape(did.Identifier())
	if err != nil {
		return ""
	}
	if host == "localhost" || strings.HasPrefix(host, "localhost:") {
		return "http://" + host
	}
	return "https://" + host
}
