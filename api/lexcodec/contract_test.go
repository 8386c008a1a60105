package lexcodec_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/lexgen/examples"
)

func TestRoutesAreTheLexicons(t *testing.T) {
	t.Parallel()
	var routes, methods []string
	for _, r := range mlsapi.Routes[none]() {
		routes = append(routes, r.Method.NSID)
	}
	for _, m := range mlsapi.Methods() {
		methods = append(methods, m.NSID)
	}
	if diff := cmp.Diff(examples.NSIDs(), routes); diff != "" {
		t.Errorf("routes (-lexicons +routes):\n%s", diff)
	}
	if diff := cmp.Diff(routes, methods); diff != "" || !slices.IsSorted(methods) {
		t.Errorf("methods (-routes +methods):\n%s", diff)
	}
}

// Every request that the lexicons allow is accepted, and encodes to the same values again.
func TestValidRequests(t *testing.T) {
	t.Parallel()
	for _, r := range mlsapi.Routes[none]() {
		for _, c := range examples.Valid(r.Method.NSID) {
			t.Run(r.Method.NSID+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				got, v := decode(t, r, c.Query, c.Body)
				if v != nil {
					t.Fatalf("refused: %v (%s)", v, v.Rule)
				}
				if c.Body == nil {
					return
				}
				again, v := decode(t, r, nil, mustMarshal(t, got))
				if v != nil {
					t.Fatalf("refused its own encoding: %v", v)
				}
				if diff := cmp.Diff(got, again); diff != "" {
					t.Errorf("round trip (-first +second):\n%s", diff)
				}
			})
		}
	}
}

// A request that breaks a rule of a field is refused soon. The refusal names the field and the
// rule, and repeats no value. This holds for every rule of every method.
func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	for _, r := range mlsapi.Routes[none]() {
		t.Run(r.Method.NSID, func(t *testing.T) {
			t.Parallel()
			for _, c := range examples.Invalid(r.Method.NSID) {
				start := processorTime(t)
				_, v := decode(t, r, c.Query, c.Body)
				if took := processorTime(t) - start; measurable && took > 2*time.Second {
					t.Errorf("%s: took %v", c.Name, took)
				}
				if v == nil {
					t.Errorf("%s: accepted", c.Name)
					continue
				}
				if string(v.Rule) != c.Rule || (c.Rule != "syntax" && v.Field != c.Field) {
					t.Errorf("%s: got %s at %q (%s), want %s at %q", c.Name, v.Rule, v.Field, v.Message, c.Rule, c.Field)
				}
				if !strings.Contains(v.Message, v.Field) {
					t.Errorf("%s: %q does not name %q", c.Name, v.Message, v.Field)
				}
				if len(v.Message) > 200 || strings.Contains(v.Message, "lxgi") {
					t.Errorf("%s: %q repeats the value", c.Name, v.Message)
				}
			}
		})
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := lexcodec.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
