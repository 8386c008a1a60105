package attack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
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
			serviceFloods(40, 101)},
		{"service-person", "N1", "a service delivers invitations of made-up inviters to one person, 100 per second",
			serviceFloods(1, 20)},
		{"service-forged", "N1", "a service delivers invitations whose inviters have claimed nothing, 100 per second",
			serviceForges},
		{"service-receipts", "N1", "a service repeats 8 receipts, and signs receipts of people of this one",
			serviceRepeatsReceipts},
		{"service-hangs", "N1", "16 homes never answer when they are told of invitations", homesHang},
		{"service-slow", "N1", "20 DIDs look up people at 64 hosts that send a byte per second", lookUps(answersSlowly)},
		{"service-huge", "N1", "20 DIDs look up people at 64 hosts that answer without end", lookUps(answersEndlessly)},
		{"service-record", "N1", "20 DIDs look up people at 64 hosts whose records have no end", lookUpRecords},
	}
}

// service is a delivery service on this machine. It is also a person whose home is the service.
type service struct {
	*xrpc.Account
	site *xrpc.Site
	key  atcrypto.PrivateKeyExportable
}

// service starts a service that ends with the measurement.
func (t *Target) service(methods, record http.HandlerFunc) (*service, error) {
	s, err := newService(methods, record)
	if err == nil {
		t.atEnd(s.site.Close)
	}
	return s, err
}

// newService starts a service. methods answers everything but look-ups. record answers for the
// person's record; if it is nil, the service answers correctly.
func newService(methods, record http.HandlerFunc) (_ *service, err error) {
	defer Catch(&err)
	s := &service{}
	site := Must(serve(honestAddress, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/.well-known/did.json":
			s.document(w)
		case r.URL.Path != "/xrpc/com.atproto.repo.getRecord":
			methods(w, r)
		case record != nil:
			record(w, r)
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"value": map[string]any{"deliveryService": s.DID}})
		}
	}))
	s.site = site
	if s.Account, err = xrpc.NewAccountOf(didAt(site), p256); err == nil {
		s.key, err = atcrypto.ParsePrivateMultibase(s.SigningKey())
	}
	if err != nil {
		return nil, errors.Join(err, site.Close())
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
	doc.Service = []identity.DocService{
		{ID: "#atproto_pds", Type: "AtprotoPersonalDataServer", ServiceEndpoint: s.address()},
		{ID: "#atproto_mls", Type: "AtprotoMLSDeliveryService", ServiceEndpoint: s.address()},
	}
	_ = json.NewEncoder(w).Encode(doc)
}

// address returns the service's origin.
func (s *service) address() string {
	u, err := url.Parse(s.site.URL)
	if err != nil {
		return ""
	}
	return "http://localhost:" + u.Port()
}

// receipt returns a receipt of a claim that never happened.
func (s *service) receipt(owner, claimant syntax.DID, ref []byte) (_ string, err error) {
	defer Catch(&err)
	now := time.Now().Unix()
	claims := Must(json.Marshal(map[string]any{
		"iss": s.DID, "sub": owner, "iat": now, "exp": now + 1800, "deviceId": "phone", "claimant": claimant,
		"keyPackageRef": hex.EncodeToString(ref), "cipherSuite": int(mlsclient.SuiteX25519),
	}))
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"mls-claim+jwt","kid":"#mls_service_1"}`)) + "." + encode(claims)
	signature, err := s.key.HashAndSign([]byte(signed))
	return signed + "." + encode(signature), err
}

// invites returns the call that creates a convo with a person of a service, with a receipt.
func invites(person syntax.DID, ref []byte, receipt string) xrpc.Call {
	return xrpc.Procedure(mlsapi.NSIDCreateConvo, "", "", &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(mlsclient.RandomBytes(16)), CipherSuite: mlsclient.SuiteX25519.Name(),
		InitialMembers: []syntax.DID{person}, Receipts: []string{receipt},
		WelcomeMessage: mlsclient.FakeWelcome(mlsclient.SuiteX25519, ref),
	})
}

// notHere answers a call of a method.
func notHere(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }

// delivery returns the call that delivers the invitation of a person for whom a KeyPackage was
// handed out.
func delivery(kp mlsapi.KeyPackageRef, inviter syntax.DID) xrpc.Call {
	return xrpc.Procedure(mlsapi.NSIDDeliverInvitation, "", "", &mlsapi.DeliverInvitationInput{
		Kind: "invited", ConvoID: uuid.NewString(), Inviter: inviter, Recipient: kp.DID, DeviceID: *kp.DeviceID,
		KeyPackageRef: *kp.KeyPackageRef, CipherSuite: mlsclient.SuiteX25519.Name(), Epoch: 1,
	})
}

// handedOut returns KeyPackages of new people, one of each person: either of last resort, or
// one-time.
func (t *Target) handedOut(ctx context.Context, people int, lastResort bool) (all []mlsapi.KeyPackageRef) {
	h := t.honest
	for range people {
		person := Must(h.env.Account(p256))
		oneTime := 1
		if lastResort {
			oneTime = 0
		}
		Must(testbed.Publish(ctx, h.client, person, oneTime, lastResort))
		answer := Must(h.client.Once(ctx, h.people[0], claimOf(person.DID)))
		out := Must(xrpc.Decode[mlsapi.GetKeyPackagesOutput](answer.Body))
		if len(out.KeyPackages) != 1 {
			Fail("%d KeyPackages of one person", len(out.KeyPackages))
		}
		all = append(all, out.KeyPackages[0])
	}
	return all
}

// deliveries delivers invitations as fast as the server accepts them, up to most.
func (t *Target) deliveries(kps []mlsapi.KeyPackageRef, most float64) *Prepared {
	evil := Must(t.service(notHere, nil))
	return t.bounded("invitations that were taken", most, func(i int) (*xrpc.Account, xrpc.Call) {
		return evil.Account, delivery(kps[i%len(kps)], unknownDID())
	})
}

// bounded makes 100 calls per second. At most most of them may succeed.
func (t *Target) bounded(claim string, most float64, next func(i int) (*xrpc.Account, xrpc.Call)) *Prepared {
	c, got := t.client(0), atomic.Int64{}
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, 100, 8, func(ctx context.Context, i int) {
				who, call := next(i)
				if _, err := t.once(ctx, c, who, call); err == nil {
					got.Add(1)
				}
			})
		},
		Judge: func(context.Context, Effects) []Claim { return []Claim{{claim, float64(got.Load()), most}} },
	}
}

func serviceFloods(people int, most float64) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		kps := t.handedOut(ctx, people, true)
		return t.deliveries(kps, most)
	}
}

func serviceForges(ctx context.Context, t *Target) *Prepared {
	kps := t.handedOut(ctx, 20, false)
	return t.deliveries(kps, 0)
}

// serviceRepeatsReceipts uses a few receipts again and again. It also uses receipts of a person who
// has not chosen the service.
func serviceRepeatsReceipts(_ context.Context, t *Target) *Prepared {
	const receipts = 8
	evil := Must(t.service(notHere, nil))
	accounts := t.accounts(receipts)
	calls := make([]func() xrpc.Call, 2*receipts)
	for i, who := range accounts {
		for j, owner := range []syntax.DID{evil.DID, t.Victims[i%len(t.Victims)]} {
			ref := mlsclient.RandomBytes(32)
			receipt := Must(evil.receipt(owner, who.DID, ref))
			calls[2*i+j] = func() xrpc.Call { return invites(owner, ref, receipt) }
		}
	}
	c := t.client(0)
	var own, others atomic.Int64
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, 50, 8, func(ctx context.Context, i int) {
				n := i % len(calls)
				if _, err := t.once(ctx, c, accounts[n/2], calls[n]()); err != nil {
					return
				}
				if n%2 == 0 {
					own.Add(1)
				} else {
					others.Add(1)
				}
			})
		},
		Judge: func(context.Context, Effects) []Claim {
			return []Claim{
				{"convos by 8 receipts", float64(own.Load()), receipts},
				{"convos by receipts of people of another home", float64(others.Load()), 0},
			}
		},
	}
}

// homesHang fills the queue of invitations with homes that never answer. A home that answers must
// still get its invitations.
func homesHang(ctx context.Context, t *Target) *Prepared {
	const homes = 16
	evil := make([]*service, homes)
	for i := range evil {
		evil[i] = Must(t.service(never, nil))
	}
	accounts := t.accounts(homes)
	honest := t.newHonestHome()
	Must(honest.invite(ctx, 0))
	t.Bystanders = append(t.Bystanders, Operation{"invitation to another home", 0.5, honest.invite})
	c := t.client(0)
	return &Prepared{Run: func(ctx context.Context) {
		pace(ctx, 20, 8, func(ctx context.Context, i int) {
			who, home, ref := accounts[i%homes], evil[i%homes], mlsclient.RandomBytes(32)
			if receipt, err := home.receipt(home.DID, who.DID, ref); err == nil {
				_, _ = t.once(ctx, c, who, invites(home.DID, ref, receipt)) // the call is counted
			}
		})
	}}
}

// honestHome is another service that accepts invitations.
type honestHome struct {
	*service
	h       *honest
	invited arrivals // by the refs of the KeyPackages
}

func (t *Target) newHonestHome() *honestHome {
	home := &honestHome{h: t.honest}
	home.service = Must(t.service(func(w http.ResponseWriter, r *http.Request) {
		var in mlsapi.DeliverInvitationInput
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		home.invited.arrive(in.KeyPackageRef)
	}, nil))
	return home
}

// invite invites the person of the home, and waits until the home has the invitation.
func (home *honestHome) invite(ctx context.Context, _ int) (_ time.Duration, err error) {
	defer Catch(&err)
	who := Must(home.h.env.Account(int(home.h.nth.Add(1))))
	ref := mlsclient.RandomBytes(32)
	receipt := Must(home.receipt(home.DID, who.DID, ref))
	wait := home.invited.await(hex.EncodeToString(ref))
	Must(home.h.client.Once(ctx, who, invites(home.DID, ref, receipt)))
	return wait()
}

// maxLookUps is how often the server may call the attacker's hosts for one request: for the DID
// document, the record, and the service's document.
const maxLookUps = 3

// lookUps asks for the services of people whose hosts answer so. Honest users look people up too.
func lookUps(answer http.HandlerFunc) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		return t.lookUps(func(counted func(http.HandlerFunc) http.HandlerFunc) (_ syntax.DID, err error) {
			defer Catch(&err)
			site := Must(serve(honestAddress, counted(answer)))
			t.atEnd(site.Close)
			return didAt(site), nil
		})
	}
}

func lookUpRecords(_ context.Context, t *Target) *Prepared {
	return t.lookUps(func(counted func(http.HandlerFunc) http.HandlerFunc) (_ syntax.DID, err error) {
		defer Catch(&err)
		s := Must(t.service(notHere, counted(answersEndlessly)))
		return s.DID, nil
	})
}

// lookUps asks for the services of 64 people, each at a separate host that the function host
// starts.
func (t *Target) lookUps(host func(counted func(http.HandlerFunc) http.HandlerFunc) (syntax.DID, error)) *Prepared {
	const hosts, dids = 64, 20
	var asked, lookedUp atomic.Int64
	counted := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			lookedUp.Add(1)
			h(w, r)
		}
	}
	people := make([]syntax.DID, hosts)
	for i := range people {
		people[i] = Must(host(counted))
	}
	accounts := t.accounts(dids)
	tokens := t.tokens(accounts, mlsapi.NSIDGetDeliveryService)
	t.Bystanders = append(t.Bystanders, Operation{"look-up of a home", 1, t.findHome})
	web := t.web(0)
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, 200, 64, func(ctx context.Context, i int) {
				asked.Add(1)
				t.send(ctx, web, http.MethodGet,
					path(mlsapi.NSIDGetDeliveryService)+"?did="+url.QueryEscape(people[i%hosts].String()), tokens[i%dids], nil)
			})
		},
		Judge: func(context.Context, Effects) []Claim {
			share := float64(lookedUp.Load()) / math.Max(1, float64(asked.Load()))
			return []Claim{{"calls of the attacker's hosts for each request", math.Round(100*share) / 100, maxLookUps}}
		},
	}
}

// findHome looks up the home of a person who was never looked up before.
func (t *Target) findHome(ctx context.Context, i int) (_ time.Duration, err error) {
	defer Catch(&err)
	s := Must(newService(notHere, nil))
	defer func() { _ = s.site.Close() }() // its port may stay in use
	who := t.honest.people[i%len(t.honest.people)]
	answer := Must(t.honest.client.Once(ctx, who, xrpc.Call{Method: mlsapi.NSIDGetDeliveryService,
		Query: url.Values{"did": {s.DID.String()}}}))
	out, err := xrpc.Decode[mlsapi.GetDeliveryServiceOutput](answer.Body)
	if err == nil && (out.DeliveryService == nil || *out.DeliveryService != s.DID) {
		err = fmt.Errorf("another home: %s", answer.Body)
	}
	return 0, err
}

// answersEndlessly sends an answer that does not end.
func answersEndlessly(w http.ResponseWriter, _ *http.Request) {
	chunk := make([]byte, 64<<10)
	_, _ = rand.Read(chunk)
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}
