// Package examples makes requests from the lexicons for table tests: valid requests, and requests
// that each break one rule of one field. The valid requests keep only the rules of the lexicons:
// their MLS objects are not real.
//
// The package reads the lexicons with its own code, not the generator's, so that it does not repeat
// the generator's mistakes.
package examples

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/bluesky-social/indigo/atproto/lexicon"

	"mlsd/lexicons"
)

// A Case is one request. Body is nil for methods without input, Query for
// methods without parameters.
type Case struct {
	Name  string
	Body  []byte
	Query url.Values
	// Field and Rule are what the refusal must name. Rule is a lexcodec.Rule. Both are empty in a
	// valid case. If Rule is "syntax", Field is ignored.
	Field, Rule string
}

// Valid returns requests that the decoders must accept: one with every field, and one with only the
// required fields. It panics on an NSID without a lexicon.
func Valid(nsid string) []Case {
	m := find(nsid)
	full, least := m.object(m.fields(), false), m.object(m.fields(), true)
	out := []Case{m.request("every field", full), m.request("required fields only", least)}
	if m.body {
		full["lexiconsYetUnwritten"] = map[string]any{"deep": []any{1.5e3, nil, true, map[string]any{}}}
		out = append(out, m.request("an unknown field", full))
		text := " \t\r\n" + string(out[1].Body) + "\n"
		out = append(out, Case{Name: "white space around", Body: []byte(text)})
	} else {
		out = append(out, m.request("an unknown parameter", full))
		out[2].Query.Set("lexiconsYetUnwritten", "1")
	}
	return out
}

// Invalid returns requests that the decoders must refuse. It returns none for a method that takes
// nothing. It panics on an NSID without a lexicon.
func Invalid(nsid string) []Case {
	m := find(nsid)
	if m.body {
		return append(m.malformed(), m.badFields()...)
	}
	return m.badParams()
}

// Pair is two bodies that mean the same.
type Pair struct {
	Field        string
	Null, Absent []byte
}

// Nulls returns a pair for each optional field of a method's body, at any depth: null and an absent
// field are the same request. It panics on an NSID without a lexicon.
func Nulls(nsid string) []Pair {
	if m := find(nsid); m.body {
		return m.nulls()
	}
	return nil
}

// NSIDs returns the methods that have a lexicon.
func NSIDs() []string {
	names := []string{}
	for nsid, sf := range files() {
		switch sf.Defs["main"].Inner.(type) {
		case lexicon.SchemaQuery, lexicon.SchemaProcedure, lexicon.SchemaSubscription:
			names = append(names, nsid)
		}
	}
	slices.Sort(names)
	return names
}

// method is the request side of a lexicon.
type method struct {
	nsid     string
	all      map[string]*lexicon.SchemaFile
	props    map[string]lexicon.SchemaDef
	required []string
	body     bool
}

// files returns the lexicons by their NSID. They are parsed once.
var files = sync.OnceValue(func() map[string]*lexicon.SchemaFile {
	out := map[string]*lexicon.SchemaFile{}
	names, err := fs.Glob(lexicons.Files, lexicons.Pattern)
	must(err)
	for _, name := range names {
		data, err := lexicons.Files.ReadFile(name)
		must(err)
		sf := new(lexicon.SchemaFile)
		must(json.Unmarshal(data, sf))
		must(sf.FinishParse())
		out[sf.ID] = sf
	}
	return out
})

// must panics on an error: the lexicons are part of the program and have their own tests.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func find(nsid string) *method {
	m := &method{nsid: nsid, all: files()}
	sf := m.all[nsid]
	if sf == nil {
		panic("no lexicon " + nsid)
	}
	switch s := sf.Defs["main"].Inner.(type) {
	case lexicon.SchemaQuery:
		if s.Parameters != nil {
			m.props, m.required = s.Parameters.Properties, s.Parameters.Required
		}
	case lexicon.SchemaSubscription:
		if s.Parameters != nil {
			m.props, m.required = s.Parameters.Properties, s.Parameters.Required
		}
	case lexicon.SchemaProcedure:
		if s.Parameters != nil {
			m.props, m.required = s.Parameters.Properties, s.Parameters.Required
		}
		if s.Input != nil && s.Input.Schema != nil { // otherwise the body is bytes
			obj := s.Input.Schema.Inner.(lexicon.SchemaObject)
			m.props, m.required, m.body = obj.Properties, obj.Required, true
		}
	}
	return m
}

// field is one property at some depth.
type field struct {
	name     string
	def      lexicon.SchemaDef
	required bool
}

func fieldsOf(props map[string]lexicon.SchemaDef, required []string) []field {
	var out []field
	for _, name := range slices.Sorted(maps.Keys(props)) {
		out = append(out, field{name, props[name], slices.Contains(required, name)})
	}
	return out
}

func (m *method) fields() []field { return fieldsOf(m.props, m.required) }

// refFields returns the fields of the object that ref names.
func (m *method) refFields(ref string) []field {
	nsid, def, _ := strings.Cut(ref, "#")
	if nsid == "" {
		nsid = m.nsid
	}
	obj := m.all[nsid].Defs[def].Inner.(lexicon.SchemaObject)
	return fieldsOf(obj.Properties, obj.Required)
}

// object returns a valid value with every field, or with only the required fields.
func (m *method) object(fields []field, least bool) map[string]any {
	out := map[string]any{}
	for _, f := range fields {
		if f.required || !least {
			out[f.name] = m.value(f.name, f.def, least)
		}
	}
	return out
}

// named returns values for strings whose meaning the lexicon only describes.
func named(name string) string {
	switch name {
	case "sha256":
		return strings.Repeat("0f", 32)
	case "groupId", "hash", "keyPackageRef", "deviceId":
		return "00ff10"
	case "welcomeMessage", "commit", "keyPackage", "welcome":
		return "AAEC_w"
	case "position":
		return "0.0:1"
	case "cursor":
		return "7"
	case "idempotencyKey", "convoId", "sinceMessage":
		return "01890a5d-ac96-774b-bcce-b302099a8057"
	}
	return "text"
}

const exampleDID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

func (m *method) value(name string, def lexicon.SchemaDef, least bool) any {
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		return true
	case lexicon.SchemaInteger:
		if s.Minimum != nil {
			return *s.Minimum
		}
		return 1
	case lexicon.SchemaString:
		return stringValue(name, s)
	case lexicon.SchemaBytes:
		return map[string]any{"$bytes": "AAEC/w"}
	case lexicon.SchemaArray:
		out := []any{m.value(name, s.Items, least)}
		for !least && len(out) < 3 && (s.MaxLength == nil || len(out) < *s.MaxLength) {
			out = append(out, out[0])
		}
		return out
	case lexicon.SchemaRef:
		return m.object(m.refFields(s.Ref), least)
	}
	panic(fmt.Sprintf("%s: no example of a %T", name, def.Inner))
}

func stringValue(name string, s lexicon.SchemaString) string {
	switch {
	case s.Format != nil && *s.Format == "did":
		return exampleDID
	case s.Format != nil && *s.Format == "datetime":
		return "2026-11-20T10:20:30.400Z"
	case s.Format != nil && *s.Format == "uri":
		return "https://example.com/a"
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.KnownValues) > 0:
		return s.KnownValues[0]
	}
	return longEnough(named(name), s)
}

// longEnough returns text. If it has fewer bytes than s requires, zeros are appended.
func longEnough(text string, s lexicon.SchemaString) string {
	if s.MinLength == nil {
		return text
	}
	return text + strings.Repeat("0", max(*s.MinLength-len(text), 0))
}

// request returns the case for a value.
func (m *method) request(name string, value map[string]any) Case {
	if m.body {
		return Case{Name: name, Body: encode(value)}
	}
	return Case{Name: name, Query: query(value)}
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}

func query(value map[string]any) url.Values {
	q := url.Values{}
	for name, v := range value {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, v := range list {
			q.Add(name, fmt.Sprint(v))
		}
	}
	return q
}
