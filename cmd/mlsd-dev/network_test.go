package main

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/cmd/mlsd-dev/devserver"
)

// Three services find each other's people, and have nothing else in common.
func TestNetwork(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	printed, _ := boot(t, "--services", "3")
	found := regexp.MustCompile(`(?m)^(mlsd-dev|service 2|service 3) on (http://127\.0\.0\.1:\d+)$`).
		FindAllStringSubmatch(<-printed, -1)
	if len(found) != 3 {
		t.Fatalf("it prints %q", found)
	}
	var services []devClient
	for _, f := range found {
		services = append(services, devClient{t, f[2]})
	}
	info := get[devserver.Info](services[1], "/dev")
	if len(info.Services) != 3 || info.Services[1].DID != info.DID || info.Services[1].URL != services[1].url {
		t.Fatalf("info %+v", info)
	}
	people := read[devserver.Accounts](t, services[1].dev("accounts", `{"count":4}`)).Accounts
	for i, p := range people {
		home := info.Services[i%3]
		if want := p.Handle.String() + " (" + p.DID.String() + ") lives at " + home.DID.String() + "\n"; <-printed != want {
			t.Errorf("it does not print %q", want)
		}
		for _, asked := range services {
			got := asked.deliveryService(people[0], p)
			endpoint := strings.Replace(home.URL, "127.0.0.1", "localhost", 1) // as did:web:localhost has it
			want := mlsapi.GetDeliveryServiceOutput{DID: p.DID, DeliveryService: &home.DID, Endpoint: &endpoint}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s of %s (-want +got):\n%s", p.Handle, asked.url, diff)
			}
		}
	}
	alice := people[0]
	created, err := services[0].call(http.MethodPost, mlsapi.NSIDCreateConvo, alice, creationBody("k"))
	if err != nil {
		t.Fatal(err)
	}
	created.ok()
	if n := len(services[0].convos(alice)); n != 1 || len(services[1].convos(alice)) != 0 {
		t.Errorf("%d convos at her service, and %d at another", n, len(services[1].convos(alice)))
	}
	bob := people[1]
	services[1].device(bob, "bob")
	nsid := mlsapi.NSIDGetKeyPackages
	token := read[devserver.Token](t, services[1].dev("token", `{"did":"`+alice.DID.String()+`","lxm":"`+nsid+`"}`))
	a, err := services[1].do(http.MethodGet, "/xrpc/"+nsid+"?receipts=true&dids="+bob.DID.String(), token.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	claimed := read[mlsapi.GetKeyPackagesOutput](t, a.ok()).KeyPackages
	if len(claimed) != 1 || claimed[0].Receipt == nil {
		t.Fatalf("claimed %+v", claimed)
	}
	with := strings.Replace(creationBody("with a receipt"), `{"groupId":"0102"`,
		`{"receipts":["`+*claimed[0].Receipt+`"],"groupId":"0103"`, 1)
	if a, err = services[0].call(http.MethodPost, mlsapi.NSIDCreateConvo, alice, with); err != nil {
		t.Fatal(err)
	}
	a.ok()
	if a, err = services[1].do(http.MethodPost, "/dev/faults", "", `{"kind":"pdsAway"}`); err != nil || a.status != 400 ||
		!strings.Contains(string(a.body), services[0].url) {
		t.Errorf("a fault of the PDS, planned at the second service: %+v %v", a, err)
	}
	services[2].dev("reset", "{}")
	if got := get[devserver.Accounts](services[0], "/dev/accounts").Accounts; len(got) != 0 {
		t.Errorf("after a reset elsewhere there are %v", got)
	}
}

// deliveryService asks this service for the one of a person.
func (c devClient) deliveryService(caller, of devserver.Account) mlsapi.GetDeliveryServiceOutput {
	c.t.Helper()
	const nsid = mlsapi.NSIDGetDeliveryService
	token := read[devserver.Token](c.t, c.dev("token", `{"did":"`+caller.DID.String()+`","lxm":"`+nsid+`"}`))
	a, err := c.do(http.MethodGet, "/xrpc/"+nsid+"?did="+of.DID.String(), token.Token, "")
	if err != nil {
		c.t.Fatal(err)
	}
	return read[mlsapi.GetDeliveryServiceOutput](c.t, a.ok())
}

func get[T any](c devClient, path string) T {
	c.t.Helper()
	a, err := c.do(http.MethodGet, path, "", "")
	if err != nil {
		c.t.Fatal(err)
	}
	return read[T](c.t, a.ok())
}

// --services takes a number in mlsd-dev, and otherwise stays the setting that every mlsd has.
func TestTakeServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, rest []string
		services   int
	}{
		{[]string{"mlsd-dev"}, []string{"mlsd-dev"}, 1},
		{[]string{"mlsd-dev", "--services", "3", "--expose"}, []string{"mlsd-dev", "--expose"}, 3},
		{[]string{"mlsd-dev", "--services=2"}, []string{"mlsd-dev"}, 2},
		{[]string{"mlsd-dev", "--services", "none"}, []string{"mlsd-dev", "--services", "none"}, 1},
		{[]string{"mlsd-dev", "--services=all"}, []string{"mlsd-dev", "--services=all"}, 1},
		{[]string{"mlsd-dev", "--services"}, []string{"mlsd-dev", "--services"}, 1},
	} {
		if services, rest := takeServices(c.args); services != c.services || !slices.Equal(rest, c.rest) {
			t.Errorf("%q: %d, %q", c.args, services, rest)
		}
	}
	for _, args := range [][]string{{"--services", "0"}, {"--services", "9"},
		{"--services", "2", "--service-did", "did:web:localhost%3A8080"}} {
		err := run(t.Context(), append([]string{"mlsd-dev"}, args...), nil, &output{}, &output{})
		if err == nil || !strings.Contains(err.Error(), "--service") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
