package examples

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// malformed are bodies that every method refuses.
func (m *method) malformed() []Case {
	least := m.object(m.fields(), true)
	first := m.firstRequired()
	if first == "" { // the method requires nothing
		first = m.fields()[0].name
		least[first] = m.value(first, m.props[first], true)
	}
	good := string(encode(least))
	member := func(more string) string { return good[:len(good)-1] + "," + more + "}" }
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	out := []Case{
		{Name: "empty", Rule: "syntax", Body: []byte("")},
		{Name: "white space", Rule: "syntax", Body: []byte(" \n")},
		{Name: "truncated", Rule: "syntax", Body: []byte(good[:len(good)-1])},
		{Name: "cut in a string", Rule: "syntax", Body: []byte(good[:len(good)-2])},
		{Name: "second object", Rule: "syntax", Body: []byte(good + good)},
		{Name: "garbage behind", Rule: "syntax", Body: []byte(good + "x")},
		{Name: "null behind", Rule: "syntax", Body: []byte(good + "null")},
		{Name: "NUL behind", Rule: "syntax", Body: []byte(good + "\x00")},
		{Name: "byte order mark", Rule: "syntax", Body: []byte("\ufeff" + good)},
		{Name: "comma at the end", Rule: "syntax", Body: []byte(good[:len(good)-1] + ",}")},
		{Name: "comment", Rule: "syntax", Body: []byte("/**/" + good)},
		{Name: "form", Rule: "syntax", Body: []byte("a=b&c=d")},
		{Name: "not UTF-8 in an unknown field", Rule: "syntax", Body: []byte(member("\"zz\":\"\xff\""))},
		{Name: "not UTF-8 in a name", Rule: "syntax", Body: []byte(member("\"zz\xff\":1"))},
		{Name: "half a surrogate pair", Rule: "syntax", Body: []byte(member(`"zz":"\ud800"`))},
		{Name: "control character in a string", Rule: "syntax", Body: []byte(member("\"zz\":\"\n\""))},
		{Name: "nested too deeply", Rule: "syntax", Body: []byte(member(`"zz":` + nested(20_000)))},
		{Name: "opened and never closed", Rule: "syntax", Body: []byte(member(`"zz":` + strings.Repeat(`{"a":`, 20_000)))},
		{Name: "null", Rule: "null", Body: []byte("null")},
		{Name: "array", Rule: "type", Body: []byte("[" + good + "]")},
		{Name: "string", Rule: "type", Body: encode(good)},
		{Name: "number", Rule: "type", Body: []byte("1")},
		{Name: "name twice", Rule: "duplicate", Field: first,
			Body: []byte(member(fmt.Sprintf("%q:%s", first, encode(m.value(first, m.props[first], true)))))},
		{Name: "name twice, once in escapes", Rule: "duplicate", Field: first,
			Body: []byte(member(fmt.Sprintf("\"\\u%04x%s\":%s", first[0], first[1:],
				encode(m.value(first, m.props[first], true)))))},
		{Name: "unknown name twice", Rule: "duplicate", Body: []byte(member(`"zz":1,"zz":1`))},
		{Name: "too many unknown names", Rule: "too-many", Body: []byte(member(manyNames(10_000)))},
	}
	if len(m.required) > 0 {
		out = append(out, Case{Name: "empty object", Rule: "required", Field: slices.Min(m.required), Body: []byte("{}")},
			Case{Name: "name in capitals", Rule: "required", Field: first,
				Body: []byte(strings.Replace(good, fmt.Sprintf("%q", first), fmt.Sprintf("%q", strings.ToUpper(first)), 1))})
	}
	return out
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"z%d":0,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// badFields breaks every rule of every field, one at a time.
func (m *method) badFields() []Case {
	var out []Case
	root := func() map[string]any { return m.object(m.fields(), false) }
	m.eachField(m.fields(), "", func(v map[string]any) map[string]any { return v },
		func(path string, f field, at func(map[string]any) map[string]any) {
			add := func(name, field, rule string, bad any) {
				v := root()
				at(v)[f.name] = bad
				out = append(out, Case{Name: path + ": " + name, Field: field, Rule: rule, Body: encode(v)})
			}
			if f.required {
				v := root()
				delete(at(v), f.name)
				out = append(out, Case{Name: path + ": missing", Field: path, Rule: "required", Body: encode(v)})
				add("null", path, "null", nil)
			}
			m.badValues(path, f.name, f.def, add)
		})
	return out
}

// nulls returns a pair of requests for each optional field: with null for it, and without it.
func (m *method) nulls() (out []Pair) {
	m.eachField(m.fields(), "", func(v map[string]any) map[string]any { return v },
		func(path string, f field, at func(map[string]any) map[string]any) {
			if f.required {
				return
			}
			null, absent := m.object(m.fields(), false), m.object(m.fields(), false)
			at(null)[f.name] = nil
			delete(at(absent), f.name)
			out = append(out, Pair{Field: path, Null: encode(null), Absent: encode(absent)})
		})
	return out
}

// eachField visits every field at every depth. at finds the object that holds the field inside a
// root value.
func (m *method) eachField(fields []field, prefix string, at func(map[string]any) map[string]any,
	visit func(string, field, func(map[string]any) map[string]any)) {
	for _, f := range fields {
		path := prefix + f.name
		visit(path, f, at)
		switch s := f.def.Inner.(type) {
		case lexicon.SchemaRef:
			m.eachField(m.refFields(s.Ref), path+".", func(v map[string]any) map[string]any {
				return at(v)[f.name].(map[string]any)
			}, visit)
		case lexicon.SchemaArray:
			ref, ok := s.Items.Inner.(lexicon.SchemaRef)
			if !ok {
				continue
			}
			m.eachField(m.refFields(ref.Ref), path+"[1].", func(v map[string]any) map[string]any {
				list := at(v)[f.name].([]any)
				list[1] = m.value(f.name, s.Items, false) // the elements share one map
				return list[1].(map[string]any)
			}, visit)
		}
	}
}

// adder records a bad value of a field, with the path and the rule that the refusal must name.
type adder func(name, field, rule string, bad any)

func (m *method) badValues(path, name string, def lexicon.SchemaDef, add adder) {
	wrongTypes(path, def, add)
	switch s := def.Inner.(type) {
	case lexicon.SchemaInteger:
		badIntegers(path, s, add)
	case lexicon.SchemaString:
		badStrings(path, name, s, add)
	case lexicon.SchemaBytes:
		badBytes(path, s, add)
	case lexicon.SchemaArray:
		m.badArrays(path, name, s, add)
	}
}

func wrongTypes(path string, def lexicon.SchemaDef, add adder) {
	own := ""
	switch def.Inner.(type) {
	case lexicon.SchemaBoolean:
		own = "boolean"
	case lexicon.SchemaInteger:
		own = "number"
	case lexicon.SchemaString:
		own = "string"
	case lexicon.SchemaArray:
		own = "array"
	case lexicon.SchemaBytes, lexicon.SchemaRef:
		own = "object"
	}
	for _, v := range []struct {
		typ string
		val any
	}{{"boolean", true}, {"boolean", false}, {"number", 7}, {"string", "AAAA"}, {"array", []any{}},
		{"object", map[string]any{}}} {
		if v.typ != own {
			add(fmt.Sprintf("%s %v", v.typ, v.val), path, "type", v.val)
		}
	}
}

func badIntegers(path string, s lexicon.SchemaInteger, add adder) {
	for _, text := range []string{"1.0", "1e3", "1.5", "-0", "1E0", "0.1e1"} {
		add(text, path, "type", json.RawMessage(text))
	}
	for _, text := range []string{"9007199254740992", "18446744073709551616", strings.Repeat("9", 400),
		strings.Repeat("9", 100_000)} {
		add(fmt.Sprintf("large, %d digits, %.4s", len(text), text), path, "max", json.RawMessage(text))
	}
	for _, text := range []string{"-9007199254740992", "-18446744073709551616", "-" + strings.Repeat("9", 400)} {
		add(fmt.Sprintf("small, %d digits, %.4s", len(text)-1, text), path, "min", json.RawMessage(text))
	}
	if s.Minimum != nil {
		add("below the minimum", path, "min", *s.Minimum-1)
	}
	if s.Maximum != nil {
		add("above the maximum", path, "max", *s.Maximum+1)
	}
}

func badStrings(path, name string, s lexicon.SchemaString, add adder) {
	switch {
	case s.Format != nil:
		for _, v := range badFormats()[*s.Format] {
			add(fmt.Sprintf("not a %s: %q", *s.Format, v), path, "format", v)
		}
	case name == "idempotencyKey":
		add("tab", path, "format", "a\tb")
		add("not ASCII", path, "format", "clé")
		add("DEL", path, "format", "a\x7f")
	case len(s.Enum) > 0:
		add("not in the list", path, "enum", "applications")
		add("empty", path, "enum", "")
	case base64Name(name):
		for _, v := range []string{"AAF=", "A", "AA=", "A===", "AAAA====", "+A_A", "AA AA", "AA\nAA", "AAAA\r\n", "ä", "AB",
			"=", "AA=A", "AAAA="} {
			add(fmt.Sprintf("not base64: %q", v), path, "format", v)
		}
	default:
		add("U+0000", path, "format", longEnough("a\x00b", s))
	}
	if s.MaxLength != nil {
		n := *s.MaxLength
		add("one too long", path, "max-length", strings.Repeat("A", n+1))
		add("far too long", path, "max-length", strings.Repeat("A", 40*n+7))
		add("too long in UTF-8", path, "max-length", strings.Repeat("é", n/2+1))
		add("too long in escapes", path, "max-length", json.RawMessage(`"`+strings.Repeat(`\u0041`, n+1)+`"`))
	}
	if s.MinLength != nil && *s.MinLength > 0 {
		add("too short", path, "min-length", strings.Repeat("A", *s.MinLength-1))
	}
}

func base64Name(name string) bool {
	return slices.Contains([]string{"welcomeMessage", "commit", "keyPackage", "welcome"}, name)
}

func badFormats() map[string][]string {
	return map[string][]string{
		"did": {"", "did", "did:", "did:plc:", "DID:plc:abc", "did:PLC:abc", "alice.example.com", " " + exampleDID,
			exampleDID + "\n", exampleDID + "#k", "did:web:a/b"},
		"datetime": {"", "2026-11-20", "2026-11-20T10:20:30", "2026-11-20 10:20:30Z", "2026-13-20T10:20:30Z",
			"2026-11-20T24:20:30Z",
			"2026-11-20T10:20:30,5Z", "2026-11-20T10:20:30Z ", "1763634030", "9999-12-31T23:59:59-23:59",
			"0000-01-01T00:00:00+23:59", "20261120T102030Z"},
		"uri": {"", "example", "://x", "https:", "https://a b", "1https://x"},
	}
}

func badBytes(path string, s lexicon.SchemaBytes, add adder) {
	for name, text := range map[string]string{
		"URL-safe alphabet": "AAE_", "URL-safe dash": "AA-A", "white space": "AA AA", "line break": "AA\nAA",
		"line break behind": "AAAA\r\n",
		"stray bits":        "AB", "stray bits, padded": "AAF=", "one character": "A", "padding too short": "AA=",
		"padding too long":     "AAE==",
		"padding without need": "AAAA====", "padding alone": "=", "padding inside": "AA==AAAA", "not ASCII": "é",
	} {
		add(name, path, "format", map[string]any{"$bytes": text})
	}
	add("no member", path, "format", map[string]any{})
	add("another member", path, "format", map[string]any{"$link": "AAAA"})
	add("member in capitals", path, "format", map[string]any{"$BYTES": "AAAA"})
	add("a second member", path, "format", json.RawMessage(`{"$bytes":"AAAA","x":1}`))
	add("a first member", path, "format", json.RawMessage(`{"x":1,"$bytes":"AAAA"}`))
	add("member twice", path, "format", json.RawMessage(`{"$bytes":"AAAA","$bytes":"AAAA"}`))
	for _, v := range []any{nil, 1, true, []any{}, map[string]any{}} {
		add(fmt.Sprintf("holds %v", v), path, "format", map[string]any{"$bytes": v})
	}
	if s.MaxLength != nil {
		n := *s.MaxLength + 1
		text := strings.Repeat("A", n/3*4+[]int{0, 2, 3}[n%3])
		add("one too long", path, "max-length", map[string]any{"$bytes": text})
	}
}

func (m *method) badArrays(path, name string, s lexicon.SchemaArray, add adder) {
	good := m.value(name, s.Items, false)
	if s.MaxLength != nil {
		add("one too many", path, "max-length", slices.Repeat([]any{good}, *s.MaxLength+1))
		add("far too many", path, "max-length", slices.Repeat([]any{good}, 20_000))
	}
	if s.MinLength != nil && *s.MinLength > 0 {
		add("too few", path, "min-length", slices.Repeat([]any{good}, *s.MinLength-1))
	}
	m.badValues(path+"[1]", name, s.Items, func(what, field, rule string, bad any) {
		add("element "+what, field, rule, []any{good, bad})
	})
}
