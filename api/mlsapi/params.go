package mlsapi

import (
	"net/url"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// params reads query parameters for the generated code. Like decoder it keeps
// the first violation. Names are case-sensitive and unknown ones are ignored.
type params struct {
	query url.Values
	err   error
	name  string
	index int // element of an array parameter, or -1
}

func (p *params) check(f fault) bool {
	if p.err == nil && f.rule != "" {
		path := []segment{{name: p.name}}
		if p.index >= 0 {
			path = append(path, segment{index: p.index})
		}
		p.err = f.at(pathString(path))
	}
	return p.err == nil
}

// values returns what was given under the name.
func (p *params) values(name string, required bool) []string {
	if p.err != nil {
		return nil
	}
	p.name, p.index = name, -1
	vs := p.query[name]
	if required && len(vs) == 0 {
		p.check(fault{RuleRequired, "is required"})
	}
	return vs
}

// one returns a parameter that is not an array, and whether it was given.
func (p *params) one(name string, required bool) (string, bool) {
	vs := p.values(name, required)
	if len(vs) == 0 || p.err != nil {
		return "", false
	}
	if len(vs) > 1 {
		p.check(fault{RuleDuplicate, "must not be given twice"})
		return "", false
	}
	return vs[0], true
}

func (p *params) string(s string, min, max int) string {
	if !utf8.ValidString(s) {
		p.check(fault{RuleSyntax, "must be UTF-8"})
	}
	p.check(checkString(s, min, max))
	return s
}

func (p *params) enum(s string, allowed ...string) string {
	p.check(checkEnum(s, allowed))
	return s
}

func (p *params) idempotencyKey(s string) string {
	p.check(checkLength(len(s), 1, idempotencyKeyMax, "bytes"))
	p.check(checkIdempotencyKey(s))
	return s
}

func (p *params) did(s string) syntax.DID {
	did, f := parseDID(s)
	p.check(f)
	return did
}

func (p *params) uri(s string) string {
	uri, f := parseURI(s)
	p.check(f)
	return uri
}

func (p *params) datetime(s string) Datetime {
	d, f := parseDatetime(s)
	p.check(f)
	return d
}

func (p *params) integer(s string, min, max int64) int64 {
	n, f := parseInteger(s, min, max)
	p.check(f)
	return n
}

func (p *params) boolean(s string) bool {
	if s != "true" && s != "false" {
		p.check(fault{RuleType, "must be true or false"})
	}
	return s == "true"
}

// paramArray reads a repeated parameter; absent and optional, it is nil.
func paramArray[T any](p *params, name string, required bool, min, max int, element func(*params, string) T) []T {
	vs := p.values(name, required)
	if p.err != nil || len(vs) == 0 {
		return nil
	}
	if !p.check(checkLength(len(vs), min, max, "elements")) {
		return nil
	}
	out := make([]T, 0, len(vs))
	for i, s := range vs {
		p.index = i
		out = append(out, element(p, s))
		if p.err != nil {
			return nil
		}
	}
	return out
}
