package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// base64Fields are the string fields that hold base64. A lexicon can say that only in a
// description.
var base64Fields = map[string]bool{"welcomeMessage": true, "commit": true, "keyPackage": true, "welcome": true}

// idempotencyKeyField has a rule that a lexicon cannot express.
const idempotencyKeyField = "idempotencyKey"

func errUnsupported(what, where string) error {
	return fmt.Errorf("%s (%s) is not supported: teach the generator with the first lexicon that needs it", what, where)
}

// goType says how a lexicon type appears in Go code.
type goType struct {
	name    string // the Go type
	nilable bool   // nil can mean absent, without a pointer
	// decode is the expression that reads a value from the decoder d. param is the expression that
	// reads a value from the text s with the params p.
	decode, param string
	// appendf is the format of an expression that appends the value %[2]s to %[1]s.
	appendf string
	// appendCBOR is like appendf, for CBOR. It is empty if no frame has such a field yet.
	appendCBOR string
	// element is set for arrays.
	element  *goType
	min, max string
}

// typeOf returns the type of a field. The field's name decides whether the field is base64 or an
// idempotency key.
func typeOf(name string, def lexicon.SchemaDef) (goType, error) {
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		return goType{name: "bool", decode: "d.Boolean()", param: "p.Boolean(s)",
				appendf: "lexcodec.AppendBoolean(%[1]s, %[2]s)", appendCBOR: "lexcodec.AppendCBORBoolean(%[1]s, %[2]s)"},
			constant(s.Const != nil, name)
	case lexicon.SchemaInteger:
		args := cmp.Or(literal(s.Minimum), "-lexcodec.MaxInteger") + ", " + cmp.Or(literal(s.Maximum), "lexcodec.MaxInteger")
		return goType{name: "int64", decode: "d.Integer(" + args + ")", param: "p.Integer(s, " + args + ")",
				appendf: "lexcodec.AppendInteger(%[1]s, %[2]s)", appendCBOR: "lexcodec.AppendCBORInteger(%[1]s, %[2]s)"},
			constant(s.Const != nil || s.Enum != nil, name)
	case lexicon.SchemaString:
		return stringType(name, s)
	case lexicon.SchemaBytes:
		return goType{name: "lexcodec.Bytes", nilable: true, decode: "d.Bytes(" + limits(s.MinLength, s.MaxLength) + ")",
			appendf: "%[2]s.AppendJSON(%[1]s)", appendCBOR: "%[2]s.AppendCBOR(%[1]s)"}, nil
	case lexicon.SchemaRef:
		ref, err := refName(s.Ref)
		return goType{name: ref, decode: "lexcodec.Nested(d, (*" + ref + ").decode)", appendf: "%[2]s.AppendJSON(%[1]s)",
			appendCBOR: "%[2]s.AppendCBOR(%[1]s)"}, err
	case lexicon.SchemaArray:
		return arrayType(name, s)
	}
	return goType{}, errUnsupported(fmt.Sprintf("%T", def.Inner), name)
}

func constant(has bool, name string) error {
	if has {
		return errUnsupported("a constant or a closed list of numbers", name)
	}
	return nil
}

const appendText = "lexcodec.AppendCBORText(%[1]s, %[2]s)"

func stringType(name string, s lexicon.SchemaString) (goType, error) {
	if s.Const != nil || s.MinGraphemes != nil || s.MaxGraphemes != nil {
		return goType{}, errUnsupported("const or graphemes", name)
	}
	format := text(s.Format)
	text := goType{name: "string", appendf: "lexcodec.AppendString(%[1]s, %[2]s)", appendCBOR: appendText}
	call := func(t goType, method, args string) goType {
		t.decode, t.param = "d."+method+"("+args+")", "p."+method+"("+strings.TrimSuffix("s, "+args, ", ")+")"
		return t
	}
	switch {
	case format == "did":
		return call(goType{name: "syntax.DID", appendf: "lexcodec.AppendText(%[1]s, %[2]s)", appendCBOR: appendText}, "DID",
			""), nil
	case format == "datetime":
		return call(goType{name: "lexcodec.Datetime", appendf: "%[2]s.AppendJSON(%[1]s)",
			appendCBOR: "%[2]s.AppendCBOR(%[1]s)"}, "Datetime", ""), nil
	case format == "uri":
		return call(text, "URI", ""), nil
	case format != "":
		return goType{}, errUnsupported("format "+format, name)
	case name == idempotencyKeyField:
		return call(text, "IdempotencyKey", ""), nil
	case base64Fields[name]:
		t := call(goType{name: "lexcodec.Base64", nilable: true, appendf: "%[2]s.AppendJSON(%[1]s)"}, "Base64",
			limits(s.MinLength, s.MaxLength))
		t.param = "" // query parameters cannot be bytes
		return t, nil
	case s.Enum != nil:
		return call(text, "Enum", quoteAll(s.Enum)), nil
	}
	return call(text, "Text", limits(s.MinLength, s.MaxLength)), nil
}

func arrayType(name string, s lexicon.SchemaArray) (goType, error) {
	el, err := typeOf(name, s.Items)
	if err != nil {
		return el, err
	}
	if el.element != nil {
		return el, errUnsupported("an array of arrays", name)
	}
	min, max, _ := strings.Cut(limits(s.MinLength, s.MaxLength), ", ")
	appendCBOR := ""
	if el.appendCBOR != "" {
		appendCBOR = fmt.Sprintf("lexcodec.AppendCBORArray(%%[1]s, %%[2]s, func(dst []byte, v *%s) []byte { return %s })",
			el.name, fmt.Sprintf(el.appendCBOR, "dst", el.pointee("v")))
	}
	return goType{
		appendCBOR: appendCBOR,
		name:       "[]" + el.name, nilable: true, element: &el, min: min, max: max,
		decode: fmt.Sprintf("lexcodec.Array(d, %s, %s, func(d *lexcodec.Decoder) %s { return %s })", min, max, el.name,
			el.decode),
		appendf: fmt.Sprintf("lexcodec.AppendArray(%%[1]s, %%[2]s, func(dst []byte, v *%s) []byte { return %s })", el.name,
			fmt.Sprintf(el.appendf, "dst", el.pointee("v"))),
	}, nil
}

// pointee returns the expression for the value of the pointer, in the form that appendf needs:
// methods are called through the pointer.
func (t goType) pointee(pointer string) string {
	if strings.HasPrefix(t.appendf, "%[2]s.") {
		return pointer
	}
	return "*" + pointer
}

func limits(min, max *int) string {
	return cmp.Or(literal(min), "0") + ", " + cmp.Or(literal(max), "lexcodec.NoLimit")
}

func quoteAll(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return strings.Join(quoted, ", ")
}
