package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// field is one property of an object or a params definition.
type field struct {
	json, goName, doc string
	typ               goType
	required          bool
	byDefault         string   // Go literal of a parameter's default, or empty
	values            []string // known or permitted values
}

// pointer reports whether a nil pointer means that the field is absent.
func (f field) pointer() bool { return !f.required && f.byDefault == "" && !f.typ.nilable }

func (f field) goType() string {
	if f.pointer() {
		return "*" + f.typ.name
	}
	return f.typ.name
}

// always reports whether the field is always written.
func (f field) always() bool { return f.required || f.byDefault != "" }

// fieldsOf lists the properties by name, which is also the canonical order.
func fieldsOf(props map[string]lexicon.SchemaDef, required []string) ([]field, error) {
	var out []field
	for _, name := range slices.Sorted(maps.Keys(props)) {
		typ, err := typeOf(name, props[name])
		if err != nil {
			return nil, err
		}
		f := field{json: name, goName: goName(name), doc: description(props[name]), typ: typ,
			required: slices.Contains(required, name)}
		switch s := props[name].Inner.(type) {
		case lexicon.SchemaBoolean:
			f.byDefault = literal(s.Default)
		case lexicon.SchemaInteger:
			f.byDefault = literal(s.Default)
		case lexicon.SchemaString:
			f.values, f.byDefault = slices.Concat(s.Enum, s.KnownValues), literal(s.Default)
		}
		out = append(out, f)
	}
	return out, nil
}

// description returns what a lexicon says about a property.
func description(def lexicon.SchemaDef) string {
	said, _ := reflect.ValueOf(def.Inner).FieldByName("Description").Interface().(*string)
	return text(said)
}

// literal returns the Go literal of a value, or "" for nil.
func literal[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%#v", *v)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// structType writes the type.
func (g *source) structType(name, doc string, fields []field, tags bool) {
	g.comment(doc)
	g.p("type %s struct {", name)
	for _, f := range fields {
		g.comment(f.doc)
		if !tags {
			g.p("%s %s", f.goName, f.goType())
			continue
		}
		tag := f.json
		if !f.required {
			tag += ",omitzero"
		}
		g.p("%s %s `json:%q`", f.goName, f.goType(), tag)
	}
	g.p("}")
}

// plainValue matches values that make readable Go names.
var plainValue = regexp.MustCompile(`^[a-z][a-z_]*$`)

// values writes the names of a field's known values.
func (g *source) values(typeName string, f field) {
	if len(f.values) == 0 || slices.ContainsFunc(f.values, func(v string) bool { return !plainValue.MatchString(v) }) {
		return
	}
	g.p("\n// Known values of %s.%s.", typeName, f.goName)
	g.p("const (")
	for _, v := range f.values {
		g.p("%s%s%s = %q", typeName, f.goName, goName(v), v)
	}
	g.p(")")
}

// codecs says which encoders and decoders an object gets: only those that the server calls. Clients
// read and write JSON with reflection.
type codecs struct {
	decode    bool   // for objects in inputs
	json      bool   // for objects in answers and events, or in fields of inputs
	cbor      bool   // for objects in frames
	anonymous bool   // its known values have names elsewhere
	typed     string // the $type in its JSON, for a member of a union; "" if it has none
}

// object writes a struct with its encoders and its decoder.
func (g *source) object(name, doc string, s lexicon.SchemaObject, c codecs) error {
	if len(s.Nullable) > 0 {
		return errUnsupported("nullable", name)
	}
	fields, err := fieldsOf(s.Properties, s.Required)
	if err != nil {
		return err
	}
	if len(fields) > 64 {
		return errUnsupported("an object of more than 64 fields", name)
	}
	for _, f := range fields {
		if f.byDefault != "" {
			return errUnsupported("a default in a body", name+"."+f.json)
		}
	}
	g.structType(name, doc, fields, true)
	if !c.anonymous {
		for _, f := range fields {
			g.values(name, f)
		}
	}
	if c.decode {
		g.decodeMethod(name, fields)
	}
	if c.json {
		g.appendMethod(name, c.typed, fields)
	}
	if c.cbor {
		return g.binaryMethod(name, fields)
	}
	return nil
}

func (g *source) decodeMethod(name string, fields []field) {
	g.p("\nfunc (v *%s) decode(d *lexcodec.Decoder) {", name)
	g.p("var o lexcodec.Object")
	g.p("if !d.Open(&o) { return }")
	g.p("for d.Next(&o) {")
	if len(fields) == 0 {
		g.p("d.Skip(&o)")
	} else {
		g.p("switch string(d.Name()) {")
		for i, f := range fields {
			g.p("case %q:", f.json)
			decoded := f.typ.decode
			if f.pointer() {
				decoded = "lexcodec.Pointer(" + decoded + ")"
			}
			if f.required {
				g.p("d.Field(&o, %d, %q)", i, f.json)
				g.p("v.%s = %s", f.goName, decoded)
			} else {
				g.p("if d.Optional(&o, %d, %q) { v.%s = %s }", i, f.json, f.goName, decoded)
			}
		}
		g.p("default: d.Skip(&o)")
		g.p("}")
	}
	g.p("}")
	for i, f := range fields {
		if f.required {
			g.p("d.Require(&o, %d, %q)", i, f.json)
		}
	}
	g.p("}")
}

func (g *source) appendMethod(name, typed string, fields []field) {
	g.p("\n// AppendJSON implements [lexcodec.Appender].")
	g.p("func (v *%s) AppendJSON(dst []byte) []byte {", name)
	if typed == "" {
		g.p("dst = append(dst, '{')")
	} else {
		g.p("dst = append(dst, %q...)", `{"$type":"`+typed+`",`)
	}
	for _, f := range fields {
		g.ifPresent(f, func() {
			g.p("dst = append(dst, %s...)", strconv.Quote(strconv.Quote(f.json)+":"))
			g.p("dst = append(%s, ',')", f.appendTo("dst"))
		})
	}
	g.p("return lexcodec.EndObject(dst)")
	g.p("}")
}

// binaryMethod writes the encoder for frames. DAG-CBOR sorts keys by their length first
// (https://ipld.io/specs/codecs/dag-cbor/spec/).
func (g *source) binaryMethod(name string, fields []field) error {
	fields = slices.SortedStableFunc(slices.Values(fields),
		func(a, b field) int { return cmp.Compare(len(a.json), len(b.json)) })
	required := 0
	for _, f := range fields {
		if f.typ.appendCBOR == "" {
			return errUnsupported("CBOR of "+f.typ.name, name+"."+f.json)
		}
		if f.always() {
			required++
		}
	}
	g.p("\n// AppendCBOR appends the value's DAG-CBOR to dst: nothing optional that is")
	g.p("// absent, and no $type.")
	g.p("func (v *%s) AppendCBOR(dst []byte) []byte {", name)
	if required == len(fields) {
		g.p("dst = lexcodec.AppendCBORMap(dst, %d)", required)
	} else {
		g.p("n := %d", required)
		for _, f := range fields {
			if !f.always() {
				g.ifPresent(f, func() { g.p("n++") })
			}
		}
		g.p("dst = lexcodec.AppendCBORMap(dst, n)")
	}
	for _, f := range fields {
		g.ifPresent(f, func() {
			g.p("dst = lexcodec.AppendCBORText(dst, %q)", f.json)
			g.p("dst = %s", f.append(f.typ.appendCBOR, "dst"))
		})
	}
	g.p("return dst")
	g.p("}")
	return nil
}

// ifPresent wraps the output of write in a test for presence, if the field may be absent.
func (g *source) ifPresent(f field, write func()) {
	if f.always() {
		write()
		return
	}
	g.p("if v.%s != nil {", f.goName)
	write()
	g.p("}")
}

// appendTo returns the expression that appends the field's JSON to dst.
func (f field) appendTo(dst string) string { return f.append(f.typ.appendf, dst) }

// append returns the expression that appends the field's value to dst in the given format.
func (f field) append(format, dst string) string {
	expr := "v." + f.goName
	if f.pointer() {
		expr = f.typ.pointee(expr)
	}
	return fmt.Sprintf(format, dst, expr)
}

// fieldsMethod writes the method Fields, for inputs that may have an idempotency
// key.
func (g *source) fieldsMethod(name string, fields []field) {
	g.p("\n// Fields returns the fields that are present, apart from the idempotency key, by")
	g.p("// name and in canonical JSON. Two requests with equal fields are the same request.")
	g.p("func (v *%s) Fields() []lexcodec.Field {", name)
	count := 0
	for _, f := range fields {
		if f.json != idempotencyKeyField {
			count++
		}
	}
	g.p("l := lexcodec.FieldList{Fields: make([]lexcodec.Field, 0, %d)}", count)
	for _, f := range fields {
		if f.json == idempotencyKeyField {
			continue
		}
		g.ifPresent(f, func() {
			g.p("l.Add(%q, %s)", f.json, f.appendTo("l.Buffer"))
		})
	}
	g.p("return l.Fields")
	g.p("}")
}

// params writes a params struct with its decoder.
func (g *source) params(name, doc string, s lexicon.SchemaParams) error {
	fields, err := fieldsOf(s.Properties, s.Required)
	if err != nil {
		return err
	}
	g.structType(name, doc, fields, false)
	for _, f := range fields {
		g.values(name, f)
	}
	g.p("\n// Decode%s reads and checks query parameters.\n// Every error is a [*lexcodec.Violation].", name)
	g.p("func Decode%s(query url.Values) (*%s, error) {", name, name)
	g.p("p := lexcodec.Params{Query: query}")
	g.p("v := new(%s)", name)
	for _, f := range fields {
		if err := g.param(f); err != nil {
			return err
		}
	}
	g.p("if p.Err != nil { return nil, p.Err }")
	g.p("return v, nil")
	g.p("}")
	if _, ok := s.Properties[idempotencyKeyField]; ok {
		g.fieldsMethod(name, fields)
	}
	return nil
}

func (g *source) param(f field) error {
	if el := f.typ.element; el != nil {
		if el.param == "" {
			return errUnsupported("array parameter of "+el.name, f.json)
		}
		g.p("v.%s = lexcodec.ParamArray(&p, %q, %t, %s, %s, func(p *lexcodec.Params, s string) %s { return %s })",
			f.goName, f.json, f.required, f.typ.min, f.typ.max, el.name, el.param)
		return nil
	}
	if f.typ.param == "" {
		return errUnsupported("parameter of "+f.typ.name, f.json)
	}
	value := f.typ.param
	if f.pointer() {
		value = "lexcodec.Pointer(" + value + ")"
	}
	if f.byDefault != "" {
		g.p("v.%s = %s", f.goName, f.byDefault)
	}
	g.p("if s, ok := p.One(%q, %t); ok { v.%s = %s }", f.json, f.required, f.goName, value)
	return nil
}

// comment writes a doc comment, wrapped.
func (g *source) comment(doc string) {
	for _, line := range wrap(doc, 78) {
		g.p("//%s", line)
	}
}

// wrap returns the words of a text in lines of at most longest bytes. Each line begins with a
// space.
func wrap(doc string, longest int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(doc) {
		if len(line)+1+len(word) > longest && line != "" {
			lines, line = append(lines, line), ""
		}
		line += " " + word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
