package lexcodec

import (
	"net/url"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Params reads query parameters for the generated code. Like [Decoder], Params keeps the first
// violation. Names are case-sensitive, and unknown names are ignored.
type Params struct {
	Query url.Values
	// Err is the first violation, a [*Violation].
	Err error

	name  string
	index int // index of the element in an array parameter, or -1
}

func (p *Params) check(f fault) bool {
	if p.Err == nil && f.rule != "" {
		path := []segment{{name: p.name}}
		if p.index >= 0 {
			path = append(path, segment{index: p.index})
		}
		p.Err = f.at(pathString(path))
	}
	return p.Err == nil
}

// values returns the values of the parameter.
func (p *Params) values(name string, required bool) []string {
	if p.Err != nil {
		return nil
	}
	p.name, p.index = name, -1
	vs := p.Query[name]
	if required && len(vs) == 0 {
		p.check(fault{RuleRequired, "is required"})
	}
	return vs
}

// One returns a parameter that is not an array, and whether it is present.
func (p *Params) One(name string, required bool) (string, bool) {
	vs := p.values(name, required)
	if len(vs) == 0 || p.Err != nil {
		return "", false
	}
	if len(vs) > 1 {
		p.check(fault{RuleDuplicate, "must not be given twice"})
		return "", false
	}
	return vs[0], true
}

// Text checks a string. The limits count UTF-8 bytes.
func (p *Params) Text(s string, min, max int) string {
	if !utf8.ValidString(s) {
		p.check(fault{RuleSyntax, "must be UTF-8, got other bytes"})
	}
	p.check(checkString(s, min, max))
	return s
}

// Enum checks that s is one of the allowed strings.
func (p *Params) Enum(s string, allowed ...string) string {
	p.check(checkEnum(s, allowed))
	return s
}

// IdempotencyKey checks s as [ValidIdempotencyKey] does.
func (p *Params) IdempotencyKey(s string) string {
	p.check(checkLength(len(s), 1, idempotencyKeyMax, "byte"))
	p.check(checkIdempotencyKey(s))
	return s
}

// DID parses a DID.
func (p *Params) DID(s string) syntax.DID {
	did, f := parseDID(s)
	p.check(f)
	return did
}

// URI checks a URI.
func (p *Params) URI(s string) string {
	uri, f := parseURI(s)
	p.check(f)
	return uri
}

// Datetime parses an RFC 3339 datetime.
func (p *Params) Datetime(s string) Datetime {
	d, f := parseDatetime(s)
	p.check(f)
	return d
}

// Integer parses an integer in plain digits.
func (p *Params) Integer(s string, min, max int64) int64 {
	n, f := parseInteger(s, min, max)
	p.check(f)
	return n
}

// Boolean parses true or false.
func (p *Params) Boolean(s string) bool {
	if s != "true" && s != "false" {
		p.check(notText(RuleType, "must be true or false", len(s)))
	}
	return s == "true"
}

// ParamArray reads a repeated parameter. The result is nil if the parameter is
// absent.
func ParamArray[T any](p *Params, name string, required bool, min, max int, element func(*Params, string) T) []T {
	vs := p.values(name, required)
	if p.Err != nil || len(vs) == 0 {
		return nil
	}
	if !p.check(checkLength(len(vs), min, max, "element")) {
		return nil
	}
	out := make([]T, 0, len(vs))
	for i, s := range vs {
		p.index = i
		out = append(out, element(p, s))
		if p.Err != nil {
			return nil
		}
	}
	return out
}
