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

// R3: null for an optional field is as if the field were absent, for the effect and for the hash of
// the request, at every depth of every method.
func TestNullIsAbsence(t *testing.T) {
	t.Parallel()
	pairs := 0
	for _, r := range mlsapi.Routes[none]() {
		for _, p := range examples.Nulls(r.Method.NSID) {
			pairs++
			null, v := decode(t, r, nil, p.Null)
			if v != nil {
				t.Errorf("%s, %s: null is refused: %v", r.Method.NSID, p.Field, v)
				continue
			}
			absent, v := decode(t, r, nil, p.Absent)
			if v != nil {
				t.Fatalf("%s, %s: absence is refused: %v", r.Method.NSID, p.Field, v)
			}
			if diff := cmp.Diff(absent, null); diff != "" {
				t.Errorf("%s, %s (-absent +null):\n%s", r.Method.NSID, p.Field, diff)
			}
			hashed, keyed := absent.(interface{ Fields() []lexcodec.Field })
			if keyed {
				if diff := cmp.Diff(hashed.Fields(), null.(interface{ Fields() []lexcodec.Field }).Fields()); diff != "" {
					t.Errorf("%s, %s: other fields are hashed (-absent +null):\n%s", r.Method.NSID, p.Field, diff)
				}
			}
		}
	}
	if pairs < 60 {
		t.Errorf("only %d optional fields were tried", pairs)
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
