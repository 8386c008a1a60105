package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/bluesky-social/indigo/lex/lexlint"
)

// breaking lists the changes from before to after that break a client built against before. Besides
// the errors of lexlint, it finds changes that lexlint permits: removed or renamed lexicons,
// definitions, fields, errors and known values, changed defaults, and limits that moved in the
// wrong direction.
//
// The wrong direction depends on who writes the value. A limit on what clients
// send must not become narrower: the server would refuse an old client. A limit on
// what the server sends must not become wider: an old client may refuse the value.
// A limit of a definition that both sides use must not move.
func breaking(before, after schemas) []string {
	c := comparison{before: before.defs(), after: after.defs(), done: map[string]bool{}}
	next := map[string]*schema{}
	for _, sf := range after {
		next[sf.ID] = sf
	}
	for _, sf := range before {
		now, ok := next[sf.ID]
		if !ok {
			c.report(sf.ID, "lexicon removed")
			continue
		}
		c.file(sf, now)
		for _, issue := range lexlint.BreakingChanges(sf.SchemaFile, now.SchemaFile) {
			if issue.LintLevel == "error" {
				c.report(sf.ID, "lexlint: "+issue.LintName+": "+issue.Message)
			}
		}
	}
	slices.Sort(c.changes)
	return slices.Compact(c.changes)
}

// defs returns all definitions by full name.
func (s schemas) defs() map[string]lexicon.SchemaDef {
	out := map[string]lexicon.SchemaDef{}
	for _, sf := range s {
		for name, def := range sf.Defs {
			out[sf.ID+"#"+name] = def
		}
	}
	return out
}

// role is who writes a value.
type role string

const (
	byClient role = "sent by clients"
	byServer role = "sent by the server"
)

type comparison struct {
	before, after map[string]lexicon.SchemaDef
	done          map[string]bool // definitions already compared, by role and name
	changes       []string
}

func (c *comparison) report(where, what string) {
	c.changes = append(c.changes, where+": "+what)
}

func (c *comparison) file(before, after *schema) {
	for name := range before.Defs {
		if _, ok := after.Defs[name]; !ok {
			c.report(before.ID+"#"+name, "definition removed")
		}
	}
	was, is := methodOf(before), methodOf(after)
	if was == nil || is == nil {
		if was != nil || is != nil {
			c.report(before.ID, "kind changed")
		}
		return
	}
	if was.kind != is.kind {
		c.report(was.nsid, "kind changed from "+was.kind+" to "+is.kind)
	}
	for _, e := range was.errors {
		if !slices.ContainsFunc(is.errors, func(n lexicon.SchemaError) bool { return n.Name == e.Name }) {
			c.report(was.nsid, "error "+e.Name+" removed")
		}
	}
	c.params(was, is)
	c.body(was.nsid, "input", byClient, was.input, is.input)
	c.body(was.nsid, "output", byServer, was.output, is.output)
	if was.messages != nil && is.messages != nil {
		c.union(was.nsid, was.nsid+" message", byServer, *was.messages, *is.messages)
	}
}

func (c *comparison) params(was, is *method) {
	empty := lexicon.SchemaParams{}
	a, b := &empty, &empty
	if was.params != nil {
		a = was.params
	}
	if is.params != nil {
		b = is.params
	}
	c.properties(was.nsid, was.nsid, byClient, a.Properties, b.Properties, a.Required, b.Required)
}

func (c *comparison) body(nsid, where string, r role, a, b *lexicon.SchemaBody) {
	switch {
	case a == nil && b == nil:
	case a == nil || b == nil:
		c.report(nsid, where+" appeared or disappeared")
	case a.Encoding != b.Encoding:
		c.report(nsid, where+" encoding changed")
	case a.Schema != nil && b.Schema != nil:
		c.def(nsid, nsid+" "+where, r, *a.Schema, *b.Schema)
	case a.Schema != nil || b.Schema != nil:
		c.report(nsid, where+" schema appeared or disappeared")
	}
}

func (c *comparison) properties(nsid, where string, r role, a, b map[string]lexicon.SchemaDef, aReq, bReq []string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		at := where + "." + name
		now, ok := b[name]
		if !ok {
			c.report(at, "field removed")
			continue
		}
		was, is := slices.Contains(aReq, name), slices.Contains(bReq, name)
		if !was && is && r == byClient {
			c.report(at, "became required")
		}
		if was && !is && r == byServer {
			c.report(at, "became optional")
		}
		c.def(nsid, at, r, a[name], now)
	}
	for _, name := range bReq {
		if _, ok := a[name]; !ok && r == byClient {
			c.report(where+"."+name, "new and required")
		}
	}
}

func (c *comparison) def(nsid, at string, r role, a, b lexicon.SchemaDef) {
	if fmt.Sprintf("%T", a.Inner) != fmt.Sprintf("%T", b.Inner) {
		c.report(at, "type changed")
		return
	}
	switch a := a.Inner.(type) {
	case lexicon.SchemaBoolean:
		b := b.Inner.(lexicon.SchemaBoolean)
		c.same(at, "default", a.Default, b.Default)
		c.same(at, "const", a.Const, b.Const)
	case lexicon.SchemaInteger:
		b := b.Inner.(lexicon.SchemaInteger)
		c.same(at, "default", a.Default, b.Default)
		c.same(at, "const", a.Const, b.Const)
		c.lower(at, "minimum", r, a.Minimum, b.Minimum)
		c.upper(at, "maximum", r, a.Maximum, b.Maximum)
	case lexicon.SchemaString:
		c.text(at, r, a, b.Inner.(lexicon.SchemaString))
	case lexicon.SchemaBytes:
		b := b.Inner.(lexicon.SchemaBytes)
		c.lower(at, "minLength", r, a.MinLength, b.MinLength)
		c.upper(at, "maxLength", r, a.MaxLength, b.MaxLength)
	case lexicon.SchemaArray:
		b := b.Inner.(lexicon.SchemaArray)
		c.lower(at, "minLength", r, a.MinLength, b.MinLength)
		c.upper(at, "maxLength", r, a.MaxLength, b.MaxLength)
		c.def(nsid, at+"[]", r, a.Items, b.Items)
	case lexicon.SchemaObject:
		b := b.Inner.(lexicon.SchemaObject)
		c.properties(nsid, at, r, a.Properties, b.Properties, a.Required, b.Required)
	case lexicon.SchemaRef:
		c.ref(nsid, at, r, a.Ref, b.Inner.(lexicon.SchemaRef).Ref)
	case lexicon.SchemaUnion:
		c.union(nsid, at, r, a, b.Inner.(lexicon.SchemaUnion))
	}
}

// union compares the members of two unions. An open union may grow, because readers ignore unknown
// members. No member may be removed, because a client may wait for it.
func (c *comparison) union(nsid, at string, r role, a, b lexicon.SchemaUnion) {
	wasClosed, isClosed := a.Closed != nil && *a.Closed, b.Closed != nil && *b.Closed
	c.same(at, "closed", &wasClosed, &isClosed)
	for _, ref := range a.Refs {
		if slices.Contains(b.Refs, ref) {
			c.ref(nsid, at, r, ref, ref)
		} else {
			c.report(at, "member "+ref+" removed")
		}
	}
	for _, ref := range b.Refs {
		if wasClosed && r == byServer && !slices.Contains(a.Refs, ref) {
			c.report(at, "member "+ref+" added to a closed union")
		}
	}
}

func (c *comparison) text(at string, r role, a, b lexicon.SchemaString) {
	c.same(at, "default", a.Default, b.Default)
	c.same(at, "const", a.Const, b.Const)
	c.same(at, "format", a.Format, b.Format)
	c.lower(at, "minLength", r, a.MinLength, b.MinLength)
	c.upper(at, "maxLength", r, a.MaxLength, b.MaxLength)
	c.lower(at, "minGraphemes", r, a.MinGraphemes, b.MinGraphemes)
	c.upper(at, "maxGraphemes", r, a.MaxGraphemes, b.MaxGraphemes)
	for _, v := range a.KnownValues {
		if !slices.Contains(b.KnownValues, v) {
			c.report(at, "known value "+v+" removed")
		}
	}
	if len(a.Enum) == 0 && len(b.Enum) > 0 {
		c.report(at, "enum added")
	}
}

// ref compares two references. A new name is a change even if the shape is the same, because
// clients' types have the name.
func (c *comparison) ref(nsid, at string, r role, a, b string) {
	if a, b = fullRef(nsid, a), fullRef(nsid, b); a != b {
		c.report(at, "refers to "+b+" instead of "+a)
		return
	}
	if key := string(r) + a; !c.done[key] {
		c.done[key] = true
		was, okA := c.before[a]
		is, okB := c.after[a]
		if okA && okB {
			base, _, _ := strings.Cut(a, "#")
			c.def(base, a+" ("+string(r)+")", r, was, is)
		}
	}
}

func fullRef(nsid, ref string) string {
	if strings.HasPrefix(ref, "#") {
		return nsid + ref
	}
	return ref
}

// same reports a value that has appeared, disappeared or changed.
func (c *comparison) same(at, what string, a, b any) {
	if show(a) != show(b) {
		c.report(at, fmt.Sprintf("%s changed from %s to %s", what, show(a), show(b)))
	}
}

// lower compares lower bounds, upper compares upper bounds. nil means that there is no bound.
func (c *comparison) lower(at, what string, r role, a, b *int) {
	raised := b != nil && (a == nil || *b > *a)
	dropped := a != nil && (b == nil || *b < *a)
	c.bound(at, what, r, raised, dropped, a, b)
}

func (c *comparison) upper(at, what string, r role, a, b *int) {
	dropped := b != nil && (a == nil || *b < *a)
	raised := a != nil && (b == nil || *b > *a)
	c.bound(at, what, r, dropped, raised, a, b)
}

func (c *comparison) bound(at, what string, r role, narrower, wider bool, a, b *int) {
	if (r == byClient && narrower) || (r == byServer && wider) {
		c.report(at, fmt.Sprintf("%s changed from %s to %s", what, show(a), show(b)))
	}
}

func show(v any) string {
	switch v := v.(type) {
	case *int:
		if v != nil {
			return fmt.Sprint(*v)
		}
	case *bool:
		if v != nil {
			return fmt.Sprint(*v)
		}
	case *string:
		if v != nil {
			return fmt.Sprintf("%q", *v)
		}
	}
	return "none"
}
