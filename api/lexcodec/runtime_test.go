package lexcodec

import (
	"errors"
	"testing"
)

// The generator can call these, but no lexicon needs them yet.
func TestRuntimeBeyondTheLexicons(t *testing.T) {
	t.Parallel()
	ruleOf := func(err error) Rule {
		var v *Violation
		if errors.As(err, &v) {
			return v.Rule
		}
		return ""
	}
	param := func(f func(p *Params)) Rule {
		p := Params{name: "x", index: -1}
		f(&p)
		return ruleOf(p.Err)
	}
	body := func(text string, f func(d *Decoder)) Rule { return ruleOf(decodeWith([]byte(text), f)) }
	for name, tc := range map[string]struct{ got, want Rule }{
		"uri":          {param(func(p *Params) { p.URI("https://a") }), ""},
		"bad uri":      {param(func(p *Params) { p.URI("a") }), RuleFormat},
		"datetime":     {param(func(p *Params) { p.Datetime("2026-11-20T10:20:30Z") }), ""},
		"bad datetime": {param(func(p *Params) { p.Datetime("2026") }), RuleFormat},
		"boolean":      {param(func(p *Params) { p.Boolean("false") }), ""},
		"bad boolean":  {param(func(p *Params) { p.Boolean("0") }), RuleType},
		"enum":         {body(`"b"`, func(d *Decoder) { d.Enum("a", "b") }), ""},
		"bad enum":     {body(`"c"`, func(d *Decoder) { d.Enum("a", "b") }), RuleEnum},
		"array short": {body(`[1]`, func(d *Decoder) { Array(d, 2, 3, func(d *Decoder) int64 { return d.Integer(0, 9) }) }),
			RuleMinLength},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", name, tc.got, tc.want)
		}
	}
}
