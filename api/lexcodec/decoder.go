package lexcodec

import (
	"bytes"
	"errors"
	"hash/maphash"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
)

// maxUnknown bounds the unknown fields of one object: fields that its lexicon does not know. They
// are ignored, so that newer clients can talk to older servers. The decoder remembers their names
// to refuse duplicates, and the bound limits the cost.
const maxUnknown = 256

// Decoder reads one JSON body for the generated code. The first violation stays in err and turns
// every later call into a no-op, so generated code need not check after each field.
//
// jsontext checks grammar, UTF-8 and nesting (at most 10,000 levels). Its check for duplicate names
// is off, because it remembers every name of the body, and a hostile body can make that expensive.
// Decoder checks the names of the objects that it knows, and skips the content of unknown fields.
type Decoder struct {
	src  bytes.Buffer
	json *jsontext.Decoder
	err  error
	name []byte    // the unquoted member name, valid until the next read
	path []segment // the decoder's position
	text []byte    // scratch buffer for strings with escapes

	// unknown holds hashes of the unknown names in the open objects. The hashes of the innermost
	// object are last. The names themselves could take more memory than the body. A false duplicate
	// needs a 64-bit collision under a secret seed.
	unknown []uint64
	seed    maphash.Seed
}

// decoders keeps jsontext's state and the scratch buffers for the next request.
var decoders = sync.Pool{New: func() any {
	return &Decoder{json: jsontext.NewDecoder(eof{}), path: make([]segment, 0, 8), seed: maphash.MakeSeed()}
}}

// maxScratch bounds the buffer that an idle decoder keeps, in bytes.
const maxScratch = 64 << 10

// eof is the reader of an idle decoder. It keeps the body of the last request from staying in
// memory.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// decodeWith runs f over body, which must be one JSON value and nothing more.
func decodeWith(body []byte, f func(*Decoder)) error {
	d := decoders.Get().(*Decoder)
	defer d.release()
	d.src = *bytes.NewBuffer(body)
	d.json.Reset(&d.src, jsontext.AllowDuplicateNames(true))
	f(d)
	d.end()
	return d.err
}

func (d *Decoder) release() {
	d.src = bytes.Buffer{}
	d.json.Reset(eof{})
	d.err, d.name, d.path, d.unknown = nil, nil, d.path[:0], d.unknown[:0]
	if cap(d.text) > maxScratch {
		d.text = nil
	}
	decoders.Put(d)
}

// end refuses anything but white space after the value.
func (d *Decoder) end() {
	if d.err != nil {
		return
	}
	switch _, err := d.json.ReadToken(); {
	case err == nil:
		d.fail(RuleSyntax, "must be followed by nothing")
	case !errors.Is(err, io.EOF):
		d.syntax(err)
	}
}

// fail records the first violation at the current path.
func (d *Decoder) fail(rule Rule, text string) {
	if d.err == nil {
		d.err = violated(pathString(d.path), rule, "%s", text)
	}
}

// check records f if f is a fault, and reports whether no rule is broken.
func (d *Decoder) check(f fault) bool {
	if f.rule != "" {
		d.fail(f.rule, f.text)
	}
	return d.err == nil
}

// syntax records that the body is not JSON. jsontext's message may quote the body, so syntax keeps
// only the position.
func (d *Decoder) syntax(err error) {
	if d.err != nil {
		return
	}
	if errors.Is(err, io.EOF) {
		d.err = violated("", RuleSyntax, "must be JSON and is empty")
		return
	}
	at := d.json.InputOffset()
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		at = se.ByteOffset
	}
	field := pathString(d.path)
	where := ""
	if field != "" {
		where = " in " + field
	}
	d.err = &Violation{Field: field, Rule: RuleSyntax,
		Message: violated("", RuleSyntax, "is not valid JSON at byte %d", at).Message + where}
}

// expect reports whether the next value has the given kind. null breaks a rule of its own.
func (d *Decoder) expect(kind jsontext.Kind, what string) bool {
	if d.err != nil {
		return false
	}
	switch got := d.json.PeekKind(); got {
	case kind:
		return true
	case jsontext.KindInvalid:
		_, err := d.json.ReadToken()
		d.syntax(err)
	case jsontext.KindNull:
		d.fail(RuleNull, "must be "+what+", got null")
	default:
		d.fail(RuleType, "must be "+what+", got "+kindName(got))
	}
	return false
}

// kindName returns the name of a kind of value for messages.
func kindName(kind jsontext.Kind) string {
	switch kind {
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "an array"
	}
	return "a boolean"
}

// raw reads one scalar and returns its text.
func (d *Decoder) raw() []byte {
	v, err := d.json.ReadValue()
	if err != nil {
		d.syntax(err)
	}
	return v
}

// Object is the state of reading one JSON object.
type Object struct {
	seen    uint64 // bit i is set once the field with the generator's number i was read
	unknown int    // where this object's names start in Decoder.unknown
}

// Open reads the start of an object.
func (d *Decoder) Open(o *Object) bool {
	o.unknown = len(d.unknown)
	if !d.expect(jsontext.KindBeginObject, "an object") {
		return false
	}
	d.token()
	d.path = append(d.path, segment{})
	return d.err == nil
}

// Next reads the name of the next member, and reports whether there is a next member. At the end of
// the object, Next leaves the object.
func (d *Decoder) Next(o *Object) bool {
	if d.err != nil {
		return false
	}
	top := len(d.path) - 1
	switch d.json.PeekKind() {
	case jsontext.KindEndObject:
		d.path, d.unknown = d.path[:top], d.unknown[:o.unknown]
		d.token()
		return false
	case jsontext.KindString:
		d.path = d.path[:top] // a bad name belongs to no field
		raw := d.raw()
		if d.err == nil {
			d.name = d.unquote(raw)
			d.path = append(d.path, segment{})
		}
		return d.err == nil
	default:
		d.path = d.path[:top]
		d.token()
		return false
	}
}

// Name returns the name that [Decoder.Next] has read. The name is valid until the next read.
func (d *Decoder) Name() []byte { return d.name }

// unquote returns the content of a JSON string that jsontext has checked. It copies the string only
// if the string has escapes.
func (d *Decoder) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	text, err := jsontext.AppendUnquote(d.text[:0], raw)
	if err != nil {
		d.syntax(err)
	}
	d.text = text
	return text
}

// Field says that the value of a known field comes next. It refuses a field that the object has
// already had.
func (d *Decoder) Field(o *Object, bit int, name string) {
	d.path[len(d.path)-1] = segment{name: name}
	if o.seen&(1<<bit) != 0 {
		d.fail(RuleDuplicate, "must not be given twice")
	}
	o.seen |= 1 << bit
}

// Optional is Field for an optional field. It reports whether a value comes next. A null is read
// here, and is as if the field were absent: serializers of several languages send it.
func (d *Decoder) Optional(o *Object, bit int, name string) bool {
	d.Field(o, bit, name)
	if d.err == nil && d.json.PeekKind() == jsontext.KindNull {
		d.token()
		return false
	}
	return d.err == nil
}

// Skip ignores a field that the lexicon does not know.
func (d *Decoder) Skip(o *Object) {
	d.path = d.path[:len(d.path)-1] // messages do not repeat the client's names
	defer func() { d.path = append(d.path, segment{}) }()
	hash, names := maphash.Bytes(d.seed, d.name), d.unknown[o.unknown:]
	if slices.Contains(names, hash) {
		d.fail(RuleDuplicate, "must not hold an unknown field twice")
		return
	}
	if len(names) == maxUnknown {
		d.fail(RuleTooMany, "holds too many unknown fields")
		return
	}
	d.unknown = append(d.unknown, hash)
	if err := d.json.SkipValue(); err != nil {
		d.syntax(err)
	}
}

// Require refuses the object if a required field is missing.
func (d *Decoder) Require(o *Object, bit int, name string) {
	if d.err == nil && o.seen&(1<<bit) == 0 {
		d.path = append(d.path, segment{name: name})
		d.fail(RuleRequired, "is required")
	}
}

// stringText reads a string. If the raw string is so long that its content must be longer than max
// bytes, stringText does not decode it. Each decoded byte takes one to six bytes of JSON.
func (d *Decoder) stringText(max int) []byte {
	if !d.expect(jsontext.KindString, "a string") {
		return nil
	}
	raw := d.raw()
	if d.err != nil {
		return nil
	}
	if (len(raw)-2)/6 > max {
		d.check(maximum(max, "byte", more))
		return nil
	}
	return d.unquote(raw)
}

// Text reads a string. The limits count UTF-8 bytes.
func (d *Decoder) Text(min, max int) string {
	text := d.stringText(max)
	if d.err != nil {
		return ""
	}
	if !d.check(checkLength(len(text), min, max, "byte")) {
		return ""
	}
	s := string(text)
	d.check(checkString(s, min, max))
	return s
}

// Enum reads one of the allowed strings.
func (d *Decoder) Enum(allowed ...string) string {
	s := d.Text(0, NoLimit)
	if d.err == nil {
		d.check(checkEnum(s, allowed))
	}
	return s
}

// IdempotencyKey reads a string that [ValidIdempotencyKey] accepts.
func (d *Decoder) IdempotencyKey() string {
	s := d.Text(1, idempotencyKeyMax)
	if d.err == nil {
		d.check(checkIdempotencyKey(s))
	}
	return s
}

// The longest texts that the formats allow, by the AT Protocol's specifications.
const (
	maxDID      = 2048
	maxURI      = 8192
	maxDatetime = 64
)

// DID reads a DID.
func (d *Decoder) DID() syntax.DID {
	s := d.Text(0, maxDID)
	if d.err != nil {
		return ""
	}
	did, f := parseDID(s)
	d.check(f)
	return did
}

// URI reads a URI.
func (d *Decoder) URI() string {
	s := d.Text(0, maxURI)
	if d.err != nil {
		return ""
	}
	uri, f := parseURI(s)
	d.check(f)
	return uri
}

// Datetime reads an RFC 3339 datetime.
func (d *Decoder) Datetime() Datetime {
	s := d.Text(0, maxDatetime)
	if d.err != nil {
		return Datetime{}
	}
	t, f := parseDatetime(s)
	d.check(f)
	return t
}

// Base64 reads a base64 string. The limits count the characters as sent.
func (d *Decoder) Base64(min, max int) Base64 {
	text := d.stringText(max)
	if d.err != nil || !d.check(checkLength(len(text), min, max, "character")) {
		return nil
	}
	out, err := ParseBase64(text)
	if err != nil {
		d.check(notText(RuleFormat, err.Error(), len(text)))
	}
	return out
}

// Bytes reads {"$bytes": text}. The limits count the decoded bytes.
func (d *Decoder) Bytes(min, max int) Bytes {
	if !d.expect(jsontext.KindBeginObject, `an object with $bytes`) {
		return nil
	}
	text, ok := d.bytesText(max)
	if !ok || d.err != nil {
		d.fail(RuleFormat, errBytes.Error()+", got another object")
		return nil
	}
	if len(text) > maxBase64Len(max) {
		n := rawStandard.DecodedLen(len(bytes.TrimRight(text, "=")))
		d.check(maximum(max, "byte", strconv.Itoa(n)))
		return nil
	}
	out, err := ParseBytes(text)
	if err != nil {
		d.check(notText(RuleFormat, err.Error(), len(text)))
		return nil
	}
	d.check(checkLength(len(out), min, max, "byte"))
	return out
}

// bytesText reads the object. It reports whether the object has exactly one member, $bytes, whose
// value is a string.
func (d *Decoder) bytesText(max int) ([]byte, bool) {
	d.token()
	if d.err != nil || d.json.PeekKind() != jsontext.KindString {
		d.invalidToken()
		return nil, false
	}
	if raw := d.raw(); d.err != nil || string(d.unquote(raw)) != "$bytes" || d.json.PeekKind() != jsontext.KindString {
		d.invalidToken()
		return nil, false
	}
	raw := d.raw()
	if d.err != nil {
		return nil, false
	}
	if (len(raw)-2)/6 > maxBase64Len(max) {
		d.check(maximum(max, "byte", more))
		return nil, false
	}
	text := d.unquote(raw)
	// text stays valid during the next reads, because the decoder reads from a buffer that holds
	// the whole body, not from a stream.
	if d.err != nil || d.json.PeekKind() != jsontext.KindEndObject {
		d.invalidToken()
		return nil, false
	}
	d.token()
	return text, d.err == nil
}

// maxBase64Len is the length of padded base64 for n bytes.
func maxBase64Len(n int) int {
	if n > NoLimit/2 {
		return NoLimit
	}
	return (n + 2) / 3 * 4
}

func (d *Decoder) token() {
	if _, err := d.json.ReadToken(); err != nil {
		d.syntax(err)
	}
}

// invalidToken records a syntax error if the next token is not valid JSON.
func (d *Decoder) invalidToken() {
	if d.err == nil && d.json.PeekKind() == jsontext.KindInvalid {
		d.token()
	}
}

// Integer reads an integer in plain digits.
func (d *Decoder) Integer(min, max int64) int64 {
	if !d.expect(jsontext.KindNumber, "an integer") {
		return 0
	}
	raw := d.raw()
	if d.err != nil {
		return 0
	}
	const longest = 64 // no need to copy a number of a million digits
	if len(raw) > longest && isInteger(string(raw[:longest])) {
		raw = raw[:longest]
	}
	n, f := parseInteger(string(raw), min, max)
	d.check(f)
	return n
}

// Boolean reads true or false.
func (d *Decoder) Boolean() bool {
	if d.err != nil {
		return false
	}
	if d.json.PeekKind() == jsontext.KindTrue {
		d.token()
		return d.err == nil
	}
	if d.expect(jsontext.KindFalse, "a boolean") {
		d.token()
	}
	return false
}

// Array reads an array. It stops at the first element beyond max, so a long array
// costs no more than a permitted one.
func Array[T any](d *Decoder, min, max int, element func(*Decoder) T) []T {
	if !d.expect(jsontext.KindBeginArray, "an array") {
		return nil
	}
	d.token()
	out := []T{}
	for d.err == nil {
		if d.json.PeekKind() == jsontext.KindEndArray {
			d.token()
			d.check(checkLength(len(out), min, max, "element"))
			break
		}
		if len(out) == max {
			d.invalidToken()
			d.check(maximum(max, "element", more))
			break
		}
		d.path = append(d.path, segment{index: len(out)})
		out = append(out, element(d))
		if d.err == nil {
			d.path = d.path[:len(d.path)-1]
		}
	}
	return out
}

// Nested reads an object inside another one by its generated decode method.
func Nested[T any](d *Decoder, decode func(*T, *Decoder)) T {
	var v T
	decode(&v, d)
	return v
}

// DecodeBody reads a whole body by its generated decode method. Every error is a
// [*Violation].
func DecodeBody[T any](body []byte, decode func(*T, *Decoder)) (*T, error) {
	v := new(T)
	if err := decodeWith(body, func(d *Decoder) { decode(v, d) }); err != nil {
		return nil, err
	}
	return v, nil
}
