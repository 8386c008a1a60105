package api

import (
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/nsid"
	"mlsd/lexicons"
)

// hashVector is a request with its hash, in testdata/request-hashes.json.
type hashVector struct {
	Method, Name string
	Body         json.RawMessage // of a procedure
	Query        string          // of a query
	// Also and AlsoQuery are other spellings of the same request.
	Also      []json.RawMessage
	AlsoQuery []string
	// Canonical is what is hashed, and Hash its SHA-256 in hexadecimal.
	Canonical, Hash string
}

// input is a decoded request whose content can be hashed.
type input interface{ Fields() []lexcodec.Field }

// keyless is the method that has records and takes no key: its records are the attachment's.
const keyless = nsid.CompleteAttachment

// S10: the hash of a request is the same in every version of the server. A record may outlive
// versions, and a message's lasts as long as the message. With another hash the retry of a stored
// write would be a conflict. So a vector is never changed. A new optional field gets a vector of
// its own, and leaves those of requests without it as they are.
func TestRequestHashes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/request-hashes.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []hashVector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{} // the fields that vectors have, by method
	for _, v := range vectors {
		t.Run(v.Method+" "+v.Name, func(t *testing.T) {
			for _, query := range append([]string{v.Query}, v.AlsoQuery...) {
				for _, body := range append([]json.RawMessage{v.Body}, v.Also...) {
					in := v.decode(t, query, body)
					if got := canonical(in); got != v.Canonical {
						t.Errorf("%s%s\n is hashed as %s\n    instead of %s", query, body, got, v.Canonical)
					}
					hash := content(in.Fields()).Hash()
					if got := hex.EncodeToString(hash[:]); got != v.Hash {
						t.Errorf("%s%s\n has the hash %s; the hashes of stored requests are %s", query, body, got, v.Hash)
					}
					for _, f := range in.Fields() {
						seen[v.Method] = append(seen[v.Method], f.Name)
					}
				}
			}
		})
	}
	for _, m := range mlsapi.Methods() {
		_, name, _ := strings.Cut(m.NSID, "blue.catbird.mls.")
		for _, field := range fieldsOfKeyed(t, m.NSID) {
			if !slices.Contains(seen[name], field) {
				t.Errorf("%s takes a key, and no vector in testdata/request-hashes.json has its field %s", name, field)
			}
		}
	}
}

// decode decodes the request as the server does.
func (v hashVector) decode(t *testing.T, query string, body []byte) input {
	t.Helper()
	routes := mlsapi.Routes[*call]()
	i := slices.IndexFunc(routes,
		func(r mlsapi.Route[*call]) bool { return r.Method.NSID == "blue.catbird.mls."+v.Method })
	if i < 0 {
		t.Fatalf("there is no method %s", v.Method)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	in, err := routes[i].Decode(values, body)
	if err != nil {
		t.Fatalf("decode %s%s: %v", query, body, err)
	}
	return in.(input)
}

// canonical is the text that is hashed: the fields as one JSON object.
func canonical(in input) string {
	var fields []string
	for _, f := range in.Fields() {
		fields = append(fields, `"`+f.Name+`":`+string(f.JSON))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

// fieldsOfKeyed returns the names of the input's fields, without the key, if the method takes one.
func fieldsOfKeyed(t *testing.T, nsid string) (names []string) {
	t.Helper()
	text, err := lexicons.Files.ReadFile(lexicons.Path(nsid))
	if err != nil {
		t.Fatal(err)
	}
	type object struct{ Properties map[string]any }
	var lexicon struct {
		Defs struct {
			Main struct {
				Input      struct{ Schema object }
				Parameters object
			}
		}
	}
	if err := json.Unmarshal(text, &lexicon); err != nil {
		t.Fatal(err)
	}
	main := lexicon.Defs.Main
	for _, properties := range []map[string]any{main.Input.Schema.Properties, main.Parameters.Properties} {
		if _, keyed := properties["idempotencyKey"]; !keyed {
			continue
		}
		for name := range properties {
			if name != "idempotencyKey" {
				names = append(names, name)
			}
		}
	}
	if methods[nsid].recordLife != 0 && len(names) == 0 && nsid != keyless {
		t.Errorf("%s has records, but its lexicon has no idempotencyKey", nsid)
	}
	return names
}
