package mlsapi

import (
	"bytes"
	"errors"
	"hash/maphash"
	"io"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
)

// maxUnknown bounds the fields of one object that its lexicon does not know.
// They are tolerated, so that newer clients can talk to older servers, but their
// names are remembered to refuse duplicates, and that must not cost without bound.
const maxUnknown = 256

// decoder reads one JSON body for the generated code. The first violation sticks
// in err and turns every later call into a no-op, so generated code need not
// check after each field.
//
// jsontext checks grammar, UTF-8 and nesting (at most 10,000 levels). Its own
// check for duplicate names is off: it remembers every name of the body, which a
// hostile body can make expensive. decoder checks the objects that it
// understands; what stands inside an unknown field is skipped unseen.
type decoder struct {
	src  bytes.Buffer
	json *jsontext.Decoder
	err  error
	name []byte    // the unquoted member name, valid until the next read
	path []segment // where the decoder is
	text []byte    // scratch for strings with escapes

	// unknown holds hashes of the names that the open objects have and their
	// lexicons do not, the innermost object's last. Hashes, because remembering the
	// names of a body of small objects would cost more than the body; a false alarm
	// takes a collision of 64 bits under a seed that nobody knows.
	unknown []uint64
	seed    maphash.Seed
}

// decoders keeps jsontext's state and the scratch buffers for the next request.
var decoders = sync.Pool{New: func() any {
	return &decoder{json: jsontext.NewDecoder(eof{}), path: make([]segment, 0, 8), seed: maphash.MakeSeed()}
}}

// maxScratch bounds what an idle decoder holds on to.
const maxScratch = 64 << 10

// eof is the reader of a decoder at rest; it pins no request's body.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// decodeWith runs f over body, which must be one JSON value and nothing more.
func decodeWith(body []byte, f func(*decoder)) error {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.src = *bytes.NewBuffer(body)
	d.json.Reset(&d.src, jsontext.AllowDuplicateNames(true))
	f(d)
	d.end()
	return d.err
}

func (d *decoder) release() {
	d.src = bytes.Buffer{}
	d.json.Reset(eof{})
	d.err, d.name, d.path, d.unknown = nil, nil, d.path[:0], d.unknown[:0]
	if cap(d.text) > maxScratch {
		d.text = nil
	}
	decoders.Put(d)
}

// end refuses anything but white space after the value.
func (d *decoder) end() {
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
func (d *decoder) fail(rule Rule, text string) {
	if d.err == nil {
		d.err = violated(pathString(d.path), rule, "%s", text)
	}
}

// check records a fault, if it is one, and reports whether all is well.
func (d *decoder) check(f fault) bool {
	if f.rule != "" {
		d.fail(f.rule, f.text)
	}
	return d.err == nil
}

// syntax records that the body is not JSON. jsontext's message may quote the
// body, so only its place is kept.
func (d *decoder) syntax(err error) {
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

// expect reports whether the next value is of the kind; null has its own rule.
func (d *decoder) expect(kind jsontext.Kind, what string) bool {
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
		d.fail(RuleNull, "must not be null")
	default:
		d.fail(RuleType, "must be "+what)
	}
	return false
}

// raw reads one scalar and returns its text.
func (d *decoder) raw() []byte {
	v, err := d.json.ReadValue()
	if err != nil {
		d.syntax(err)
	}
	return v
}

// object is the state of one JSON object that is being read.
type object struct {
	seen    uint64 // bit i: the field to which the generator gave number i was read
	unknown int    // where this object's names start in decoder.unknown
}

// open reads the start of an object.
func (d *decoder) open(o *object) bool {
	o.unknown = len(d.unknown)
	if !d.expect(jsontext.KindBeginObject, "an object") {
		return false
	}
	d.token()
	d.path = append(d.path, segment{})
	return d.err == nil
}

// next reads a member's name into d.name and reports whether there was one; at
// the end of the object it leaves it.
func (d *decoder) next(o *object) bool {
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
		d.path = d.path[:top] // a bad name is nobody's field
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

// unquote returns the content of a JSON string that jsontext has checked. It
// copies only where there are escapes.
func (d *decoder) unquote(raw []byte) []byte {
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

// field notes that the known field is next, and refuses it the second time.
func (d *decoder) field(o *object, bit int, name string) {
	d.path[len(d.path)-1] = segment{name: name}
	if o.seen&(1<<bit) != 0 {
		d.fail(RuleDuplicate, "must not be given twice")
	}
	o.seen |= 1 << bit
}

// skip passes over a field that the lexicon does not know.
func (d *decoder) skip(o *object) {
	d.path = d.path[:len(d.path)-1] // its name is the client's, and not to be repeated
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

// require refuses an object of which a required field was not read.
func (d *decoder) require(o *object, bit int, name string) {
	if d.err == nil && o.seen&(1<<bit) == 0 {
		d.path = append(d.path, segment{name: name})
		d.fail(RuleRequired, "is required")
	}
}

// stringText reads a string of at most max bytes without decoding a longer one. Each
// decoded byte takes one to six bytes of JSON.
func (d *decoder) stringText(max int) []byte {
	if !d.expect(jsontext.KindString, "a string") {
		return nil
	}
	raw := d.raw()
	if d.err != nil {
		return nil
	}
	if (len(raw)-2)/6 > max {
		d.check(maximum(max, "bytes"))
		return nil
	}
	return d.unquote(raw)
}

func (d *decoder) string(min, max int) string {
	text := d.stringText(max)
	if d.err != nil {
		return ""
	}
	if !d.check(checkLength(len(text), min, max, "bytes")) {
		return ""
	}
	s := string(text)
	d.check(checkString(s, min, max))
	return s
}

func (d *decoder) enum(allowed ...string) string {
	s := d.string(0, noLimit)
	if d.err == nil {
		d.check(checkEnum(s, allowed))
	}
	return s
}

func (d *decoder) idempotencyKey() string {
	s := d.string(1, idempotencyKeyMax)
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

func (d *decoder) did() syntax.DID {
	s := d.string(0, maxDID)
	if d.err != nil {
		return ""
	}
	did, f := parseDID(s)
	d.check(f)
	return did
}

func (d *decoder) uri() string {
	s := d.string(0, maxURI)
	if d.err != nil {
		return ""
	}
	uri, f := parseURI(s)
	d.check(f)
	return uri
}

func (d *decoder) datetime() Datetime {
	s := d.string(0, maxDatetime)
	if d.err != nil {
		return Datetime{}
	}
	t, f := parseDatetime(s)
	d.check(f)
	return t
}

// base64 reads a base64 string; the limits count the characters as sent.
func (d *decoder) base64(min, max int) Base64 {
	text := d.stringText(max)
	if d.err != nil || !d.check(checkLength(len(text), min, max, "characters")) {
		return nil
	}
	out, err := ParseBase64(text)
	if err != nil {
		d.fail(RuleFormat, err.Error())
	}
	return out
}

// bytes reads {"$bytes": text}; the limits count the decoded bytes.
func (d *decoder) bytes(min, max int) Bytes {
	if !d.expect(jsontext.KindBeginObject, `an object with $bytes`) {
		return nil
	}
	text, ok := d.bytesText(max)
	if !ok || d.err != nil {
		d.fail(RuleFormat, errBytes.Error())
		return nil
	}
	if len(text) > maxBase64Len(max) {
		d.check(maximum(max, "bytes"))
		return nil
	}
	out, err := ParseBytes(text)
	if err != nil {
		d.fail(RuleFormat, err.Error())
		return nil
	}
	d.check(checkLength(len(out), min, max, "bytes"))
	return out
}

// bytesText reads the object and reports whether it has the one member $bytes,
// which is a string.
func (d *decoder) bytesText(max int) ([]byte, bool) {
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
		d.check(maximum(max, "bytes"))
		return nil, false
	}
	text := d.unquote(raw)
	// raw, and so text, would not survive the next read if the source were a
	// stream; it is a buffer that holds the whole body.
	if d.err != nil || d.json.PeekKind() != jsontext.KindEndObject {
		d.invalidToken()
		return nil, false
	}
	d.token()
	return text, d.err == nil
}

// maxBase64Len is the length of padded base64 for n bytes.
func maxBase64Len(n int) int {
	if n > noLimit/2 {
		return noLimit
	}
	return (n + 2) / 3 * 4
}

func (d *decoder) token() {
	if _, err := d.json.ReadToken(); err != nil {
		d.syntax(err)
	}
}

// invalidToken records a syntax error if that is why the next token was not the
// expected one.
func (d *decoder) invalidToken() {
	if d.err == nil && d.json.PeekKind() == jsontext.KindInvalid {
		d.token()
	}
}

func (d *decoder) integer(min, max int64) int64 {
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

func (d *decoder) boolean() bool {
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

// array reads an array and refuses it at the first element beyond max, so that a
// long array costs no more than a permitted one.
func array[T any](d *decoder, min, max int, element func(*decoder) T) []T {
	if !d.expect(jsontext.KindBeginArray, "an array") {
		return nil
	}
	d.token()
	out := []T{}
	for d.err == nil {
		if d.json.PeekKind() == jsontext.KindEndArray {
			d.token()
			d.check(checkLength(len(out), min, max, "elements"))
			break
		}
		if len(out) == max {
			d.invalidToken()
			d.check(maximum(max, "elements"))
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

// message reads an object by its generated decode method.
func message[T any, P interface {
	*T
	decode(*decoder)
}](d *decoder) T {
	var v T
	P(&v).decode(d)
	return v
}

// decodeBody reads a whole body by its generated decode method.
func decodeBody[T any, P interface {
	*T
	decode(*decoder)
}](body []byte) (*T, error) {
	v := new(T)
	if err := decodeWith(body, P(v).decode); err != nil {
		return nil, err
	}
	return v, nil
}
