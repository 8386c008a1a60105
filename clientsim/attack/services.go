package attack

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// N1: another delivery service is hostile. On loopback, each address counts as a registered domain.
func hostileServices() []Attack {
	return []Attack{
		{"service-floods", "N1", "a service delivers invitations of made-up inviters to 40 people, 100 per second",
			serviceFloods},
		{"service-hangs", "N1", "16 homes never answer when they are told of invitations", homesHang},
		{"service-slow", "N1", "20 DIDs look up people at 64 hosts that send a byte per second", lookUpHomes(answersSlowly)},
		{"service-huge", "N1", "20 DIDs look up people at 64 hosts that answer without end", lookUpHomes(answersEndlessly)},
	}
}

// service is a delivery service on this machine. It is also a person whose home is the service.
type service struct {
	*xrpc.Account
	site *xrpc.Site
	key  atcrypto.PrivateKeyExportable
}

// service starts a service that ends with the measurement.
func (t *Target) service(methods http.HandlerFunc) *service {
	s := Must(newService(methods))
	t.atEnd(s.site.Close)
	return s
}

// newService starts a service. methods answers everything but look-ups.
func newService(methods http.HandlerFunc) (_ *service, err error) {
	defer Catch(&err)
	s := &service{}
	s.site = Must(serve(honestAddress, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/did.json":
			s.document(w)
		case "/xrpc/com.atproto.repo.getRecord":
			_ = json.NewEncoder(w).Encode(map[string]any{"value": map[string]any{"deliveryService": s.DID}})
		default:
			methods(w, r)
		}
	}))
	if s.Account, err = xrpc.NewAccountOf(didAt(s.site), p256); err == nil {
		s.key, err = atcrypto.ParsePrivateMultibase(s.SigningKey())
	}
	if err != nil {
		return nil, errors.Join(err, s.site.Close())
	}
	return s, nil
}

// document answers with the service's DID document.
func (s *service) document(w http.ResponseWriter) {
	doc, err := s.Document("service.test")
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	signs := doc.VerificationMethod[0]
	signs.ID = s.DID.String() + "#mls_service_1"
	doc.VerificationMethod = append(doc.VerificationMethod, signs)
	address := strings.Replace(s.site.URL, "127.0.0.1", "localhost", 1)
	doc.Service = []identity.DocService{
		{ID: "#atproto_pds", Type: "AtprotoPersonalDataServer", ServiceEndpoint: address},
		{ID: "#atproto_mls", Type: "AtprotoMLSDeliveryService", ServiceEndpoint: address},
	}
	_ = json.NewEncoder(w).Encode(doc)
}

// invited returns the call by which who invites the service's person, with a receipt of a claim that
// never happened.
func (s *service) invited(who syntax.DID, ref []byte) (_ xrpc.Call, err error) {
	defer Catch(&err)
	now := time.Now().Unix()
	claims := Must(json.Marshal(map[string]any{
		"iss": s.DID, "sub": s.DID, "iat": now, "exp": now + 1800, "deviceId": "phone", "claimant": who,
		"keyPackageRef": hex.EncodeToString(ref), "cipherSuite": int(mlsclient.SuiteX25519),
	}))
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"mls-claim+jwt","kid":"#mls_service_1"}`)) + "." + encode(claims)
	signature := Must(s.key.HashAndSign([]byte(signed)))
	return xrpc.Procedure(mlsapi.NSIDCreateConvo, "", "", &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(mlsclient.RandomBytes(16)), CipherSuite: mlsclient.SuiteX25519.Name(),
		InitialMembers: []syntax.DID{s.DID}, Receipts: []string{signed + "." + encode(signature)},
		WelcomeMessage: mlsclient.FakeWelcome(mlsclient.SuiteX25519, ref),
	}), nil
}

// serviceFloods delivers invitations with last-resort KeyPackages as fast as the server accepts
// them. The server takes 100 of one service in a day.
func serviceFloods(ctx context.Context, t *Target) *Prepared {
	const people, most = 40, 101
	h, evil, c := t.honest, t.service(never), t.client(0)
	var kps []mlsapi.KeyPackageRef
	for range people {
		person := Must(h.env.Account(p256))
		Must(testbed.Publish(ctx, h.client, person, 0, true))
		kps = append(kps, h.claim(ctx, h.people[0], person.DID))
	}
	var taken atomic.Int64
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, 100, 8, func(ctx context.Context, i int) {
				kp := kps[i%people]
				_, err := t.once(ctx, c, evil.Account, xrpc.Procedure(mlsapi.NSIDDeliverInvitation, "", "",
					&mlsapi.DeliverInvitationInput{
						Kind: "invited", ConvoID: uuid.NewString(), Inviter: unknownDID(), Recipient: kp.DID, DeviceID: *kp.DeviceID,
						KeyPackageRef: *kp.KeyPackageRef, CipherSuite: mlsclient.SuiteX25519.Name(), Epoch: 1,
					}))
				if err == nil {
					taken.Add(1)
				}
			})
		},
		Judge: func() []Claim { return []Claim{{"invitations that were taken", float64(taken.Load()), most}} },
	}
}

// homesHang fills the queue of invitations with homes that never answer. A home that answers must
// still get its invitations.
func homesHang(ctx context.Context, t *Target) *Prepared {
	const homes = 16
	accounts, evil := t.accounts(homes), make([]*service, homes)
	for i := range evil {
		evil[i] = t.service(never)
	}
	h, invitations := t.honest, arrivals{} // by the refs of the KeyPackages
	home := t.service(func(w http.ResponseWriter, r *http.Request) {
		var in mlsapi.DeliverInvitationInput
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		invitations.arrive(in.KeyPackageRef)
	})
	invite := func(ctx context.Context, _ int) (_ time.Duration, err error) {
		defer Catch(&err)
		who, ref := Must(h.env.Account(int(h.nth.Add(1)))), mlsclient.RandomBytes(32)
		wait := invitations.await(hex.EncodeToString(ref))
		Must(h.client.Once(ctx, who, Must(home.invited(who.DID, ref))))
		return wait()
	}
	Must(invite(ctx, 0))
	t.Bystanders = append(t.Bystanders, Operation{"invitation to another home", 0.5, invite})
	c := t.client(0)
	return &Prepared{Run: func(ctx context.Context) {
		pace(ctx, 20, 8, func(ctx context.Context, i int) {
			who := accounts[i%homes]
			if call, err := evil[i%homes].invited(who.DID, mlsclient.RandomBytes(32)); err == nil {
				_, _ = t.once(ctx, c, who, call) // the call is counted
			}
		})
	}}
}

// findHome looks up the home of a person who was never looked up before.
func (h *honest) findHome(ctx context.Context, i int) (_ time.Duration, err error) {
	defer Catch(&err)
	s := Must(newService(never))
	defer func() { _ = s.site.Close() }() // its port may stay in use
	answer := Must(h.client.Once(ctx, h.people[i%len(h.people)], xrpc.HomeCall(s.DID)))
	out, err := xrpc.Decode[mlsapi.GetDeliveryServiceOutput](answer.Body)
	if err == nil && (out.DeliveryService == nil || *out.DeliveryService != s.DID) {
		err = fmt.Errorf("another home: %s", answer.Body)
	}
	return 0, err
}

// webNewcomer makes the first request of a new account with a did:web.
func (h *honest) webNewcomer(ctx context.Context, _ int) (_ time.Duration, err error) {
	defer Catch(&err)
	s := Must(newService(never))
	defer func() { _ = s.site.Close() }() // its port may stay in use
	_, err = h.client.Once(ctx, s.Account, xrpc.ConvosCall("", 20))
	return 0, err
}
