package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/lexgen/examples"
)

// A16: two requests of a method that differ in anything but their key never have the same hash, and two
// spellings of one request have the same. The requests are the lexicons' examples, changed in one to
// three places: a value moves to the next field or element, an element moves to the next array, a part
// of JSON moves into a text, a field goes or is empty, an order changes.
func TestDifferentRequestsHaveDifferentHashes(t *testing.T) {
	t.Parallel()
	for _, route := range mlsapi.Routes[*call]() {
		nsid := route.Method.NSID
		if len(fieldsOfKeyed(t, nsid)) == 0 {
			continue
		}
		t.Run(nsid, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			seen := map[[32]byte]input{}
			tried, valid := 0, 0
			add := func(query url.Values, body []byte) {
				tried++
				decoded, err := route.Decode(query, body)
				if err != nil {
					return // the change broke a rule
				}
				valid++
				in := decoded.(input)
				hash := content(in.Fields()).Hash()
				first, met := seen[hash]
				if met && !reflect.DeepEqual(unkeyed(first), unkeyed(in)) {
					t.Fatalf("one hash for\n%s and\n%s", canonical(first), canonical(in))
				}
				seen[hash] = in
			}
			for _, c := range examples.Valid(nsid) {
				add(c.Query, c.Body)
				for range 400 {
					if c.Body == nil {
						add(changedQuery(c.Query, random), nil)
						continue
					}
					var value map[string]any
					if err := json.Unmarshal(c.Body, &value); err != nil {
						t.Fatal(err)
					}
					for range 1 + random.IntN(3) {
						change(value, random)
					}
					body, err := json.Marshal(value)
					if err != nil {
						t.Fatal(err)
					}
					add(nil, body)
				}
			}
			if len(seen) < 10 {
				t.Errorf("of %d requests %d were valid, with %d contents: too few to say anything", tried, valid, len(seen))
			}
			t.Logf("%d requests, %d valid, %d hashes", tried, valid, len(seen))
		})
	}
}

// unkeyed is the input without its key.
func unkeyed(in input) any {
	copied := reflect.New(reflect.TypeOf(in).Elem()).Elem()
	copied.Set(reflect.ValueOf(in).Elem())
	copied.FieldByName("IdempotencyKey").SetZero()
	return copied.Interface()
}

// texts are what can be taken for the JSON around it.
var texts = []string{
	"", "a", "b", "ab", `"`, `\`, `","b":"`, `{"$bytes":"AA"}`, `null`, `0`, `[`, `]`, `,`, "\u2028", "é", "e\u0301",
	"AAEC", "AAEC_w", "00ff10", "00ff11", "did:plc:ewvi7nxzyoun6zhxrhs64oiz", "did:web:example.com",
	"https://example.com/b",
	"2026-11-20T10:20:30.401Z", "2026-11-20T10:20:30.400999Z", "01890a5d-ac96-774b-bcce-b302099a8058",
}

// change changes one place of a value.
func change(value map[string]any, random *rand.Rand) {
	names := slices.Sorted(maps.Keys(value)) // a map has no order; the seed shall decide
	if len(names) == 0 {
		return
	}
	name, other := names[random.IntN(len(names))], names[random.IntN(len(names))]
	switch random.IntN(5) {
	case 0:
		delete(value, name)
	case 1:
		value[name], value[other] = value[other], value[name]
	case 2:
		value[name] = value[other]
	default:
		value[name] = changed(value[name], random)
	}
}

func changed(v any, random *rand.Rand) any {
	switch v := v.(type) {
	case map[string]any:
		change(v, random)
		return v
	case []any:
		if len(v) == 0 {
			return v
		}
		i := random.IntN(len(v))
		switch random.IntN(4) {
		case 0:
			return v[:i]
		case 1:
			return append(v[:len(v):len(v)], v[i])
		case 2:
			return append(v[i:len(v):len(v)], v[:i]...)
		}
		v[i] = changed(v[i], random)
		return v
	case string:
		text := texts[random.IntN(len(texts))]
		if random.IntN(3) == 0 {
			return v + text
		}
		return text
	case float64:
		return v + float64(random.IntN(3))
	case bool:
		return !v
	}
	return v
}

// changedQuery is a query with another value, one more, or one less.
func changedQuery(q url.Values, random *rand.Rand) url.Values {
	value := map[string]any{}
	for name, values := range q {
		list := make([]any, len(values))
		for i, v := range values {
			list[i] = v
		}
		value[name] = list
	}
	change(value, random)
	out := url.Values{}
	for name, v := range value {
		if list, ok := v.([]any); ok {
			for _, v := range list {
				out.Add(name, fmt.Sprint(v))
			}
		}
	}
	return out
}
