package mlsapi

import (
	"errors"
	"testing"
)

// What the generator can call and no lexicon needs yet works all the same.
func TestRuntimeBeyondTheLexicons(t *testing.T) {
	t.Parallel()
	ruleOf := func(err error) Rule {
		var v *Violation
		if errors.As(err, &v) {
			return v.Rule
		}
		return ""
	}
	param := func(f func(p *params)) Rule {
		p := params{name: "x", index: -1}
		f(&p)
		return ruleOf(p.err)
	}
	body := func(text string, f func(d *decoder)) Rule { return ruleOf(decodeWith([]byte(text), f)) }
	for name, tc := range map[string]struct{ got, want Rule }{
		"uri":          {param(func(p *params) { p.uri("https://a") }), ""},
		"bad uri":      {param(func(p *params) { p.uri("a") }), RuleFormat},
		"datetime":     {param(func(p *params) { p.datetime("2026-11-20T10:20:30Z") }), ""},
		"bad datetime": {param(func(p *params) { p.datetime("2026") }), RuleFormat},
		"boolean":      {param(func(p *params) { p.boolean("false") }), ""},
		"bad boolean":  {param(func(p *params) { p.boolean("0") }), RuleType},
		"enum":         {body(`"b"`, func(d *decoder) { d.enum("a", "b") }), ""},
		"bad enum":     {body(`"c"`, func(d *decoder) { d.enum("a", "b") }), RuleEnum},
		"array short":  {body(`[1]`, func(d *decoder) { array(d, 2, 3, func(d *decoder) int64 { return d.integer(0, 9) }) }), RuleMinLength},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", name, tc.got, tc.want)
		}
	}
}
