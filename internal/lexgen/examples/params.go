package examples

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// badParams breaks every rule of every parameter, one at a time.
func (m *method) badParams() []Case {
	var out []Case
	for _, f := range m.fields() {
		with := func(name, field, rule string, values ...string) {
			q := query(m.object(m.fields(), false))
			q[f.name] = values
			out = append(out, Case{Name: f.name + ": " + name, Field: field, Rule: rule, Query: q})
		}
		if f.required {
			q := query(m.object(m.fields(), false))
			delete(q, f.name)
			out = append(out, Case{Name: f.name + ": missing", Field: f.name, Rule: "required", Query: q},
				Case{Name: f.name + ": missing with all others", Rule: "required", Field: m.firstRequired(), Query: url.Values{}})
		}
		s, ok := f.def.Inner.(lexicon.SchemaArray)
		if !ok {
			good := fmt.Sprint(m.value(f.name, f.def, false))
			with("twice", f.name, "duplicate", good, good)
			badParam(f.name, f.name, f.def, func(name, field, rule, bad string) { with(name, field, rule, bad) })
			continue
		}
		good := fmt.Sprint(m.value(f.name, s.Items, false))
		if s.MaxLength != nil {
			with("one too many", f.name, "max-length", strings.Split(strings.Repeat(good+" ", *s.MaxLength)+good, " ")...)
		}
		badParam(f.name+"[1]", f.name, s.Items,
			func(name, field, rule, bad string) { with("element "+name, field, rule, good, bad) })
	}
	return out
}

func (m *method) firstRequired() string {
	for _, f := range m.fields() {
		if f.required {
			return f.name
		}
	}
	return ""
}

func badParam(path, name string, def lexicon.SchemaDef, add func(name, field, rule, bad string)) {
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		for _, v := range []string{"", "1", "TRUE", "yes"} {
			add(fmt.Sprintf("%q", v), path, "type", v)
		}
	case lexicon.SchemaInteger:
		for _, v := range []string{"", "x", "1.0", "1e3", "+1", "-0", "01", " 1", "1 ", "0x1", "１", "null"} {
			add(fmt.Sprintf("%q", v), path, "type", v)
		}
		add("large", path, "max", "9007199254740992")
		add("huge", path, "max", strings.Repeat("9", 400))
		add("small", path, "min", "-9007199254740992")
		if s.Minimum != nil {
			add("below the minimum", path, "min", fmt.Sprint(*s.Minimum-1))
		}
		if s.Maximum != nil {
			add("above the maximum", path, "max", fmt.Sprint(*s.Maximum+1))
		}
	case lexicon.SchemaString:
		badStrings(path, name, s, func(what, field, rule string, bad any) {
			if text, ok := bad.(string); ok { // other values are JSON spellings
				add(what, field, rule, text)
			}
		})
		if s.Format == nil && len(s.Enum) == 0 && name != "idempotencyKey" {
			add("not UTF-8", path, "syntax", "a\xff")
		}
	}
}
