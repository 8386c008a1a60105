package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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
	c := comparison{before: before.trees(), after: after.trees(), done: map[string]bool{}}
	for _, sf := range before {
		i := slices.IndexFunc(after, func(now *schema) bool { return now.ID == sf.ID })
		if i < 0 {
			c.report(sf.ID, "lexicon removed")
			continue
		}
		for name := range sf.trees {
			if after[i].trees[name] == nil {
				c.report(sf.ID+"#"+name, "definition removed")
			}
		}
		c.method(sf.ID, sf.trees["main"], after[i].trees["main"])
		c.betweenClients(sf.ID, sf.trees["main"], after[i].trees["main"])
		for _, issue := range lexlint.BreakingChanges(sf.SchemaFile, after[i].SchemaFile) {
			if issue.LintLevel == "error" {
				c.report(sf.ID, "lexlint: "+issue.LintName+": "+issue.Message)
			}
		}
	}
	slices.Sort(c.changes)
	return slices.Compact(c.changes)
}

// tree is an object of a lexicon's JSON. Its members may be absent.
type tree map[string]any

func (t tree) object(name string) tree {
	member, _ := t[name].(map[string]any)
	return member
}

func (t tree) texts(name string) (all []string) {
	list, _ := t[name].([]any)
	for _, v := range list {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

// trees returns all definitions by full name.
func (s schemas) trees() map[string]tree {
	out := map[string]tree{}
	for _, sf := range s {
		for name, def := range sf.trees {
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
	before, after map[string]tree
	done          map[string]bool // definitions already compared, by role and name
	changes       []string
}

func (c *comparison) report(where, what string) {
	c.changes = append(c.changes, where+": "+what)
}

// method compares two definitions of a method.
func (c *comparison) method(nsid string, a, b tree) {
	if a["type"] != b["type"] {
		c.report(nsid, "kind changed from "+goName(fmt.Sprint(a["type"]))+" to "+goName(fmt.Sprint(b["type"])))
	}
	errors := func(t tree) (names []string) {
		list, _ := t["errors"].([]any)
		for _, e := range list {
			names = append(names, fmt.Sprint(e.(map[string]any)["name"]))
		}
		return names
	}
	c.kept(nsid, "error", errors(a), errors(b))
	c.properties(nsid, nsid, byClient, a.object("parameters"), b.object("parameters"))
	c.body(nsid, "input", byClient, a.object("input"), b.object("input"))
	c.body(nsid, "output", byServer, a.object("output"), b.object("output"))
	c.body(nsid, "message", byServer, a.object("message"), b.object("message"))
}

// betweenClients compares records, and contents of messages. Clients of all versions write and read
// them, so no limit of a field may move.
func (c *comparison) betweenClients(nsid string, a, b tree) {
	written := func(t tree) tree { return map[any]tree{"record": t.object("record"), "object": t}[t["type"]] }
	if written(a) == nil || a["type"] != b["type"] {
		return
	}
	if a["key"] != b["key"] {
		c.report(nsid, fmt.Sprintf("key changed from %v to %v", a["key"], b["key"]))
	}
	for _, r := range []role{byClient, byServer} {
		c.def(nsid, fmt.Sprintf("%s %s (%s)", nsid, a["type"], r), r, written(a), written(b))
	}
}

func (c *comparison) body(nsid, where string, r role, a, b tree) {
	was, is := a.object("schema"), b.object("schema")
	switch {
	case (a == nil) != (b == nil) || (was == nil) != (is == nil):
		c.report(nsid, where+" appeared or disappeared")
	case a["encoding"] != b["encoding"]:
		c.report(nsid, where+" encoding changed")
	case was != nil:
		c.def(nsid, nsid+" "+where, r, was, is)
	}
}

// properties compares the fields of objects, or the parameters of methods.
func (c *comparison) properties(nsid, where string, r role, a, b tree) {
	was, is := a.object("properties"), b.object("properties")
	for name := range was {
		at := where + "." + name
		if is[name] == nil {
			c.report(at, "field removed")
			continue
		}
		had, has := slices.Contains(a.texts("required"), name), slices.Contains(b.texts("required"), name)
		if !had && has && r == byClient {
			c.report(at, "became required")
		}
		if had && !has && r == byServer {
			c.report(at, "became optional")
		}
		c.def(nsid, at, r, was.object(name), is.object(name))
	}
	for _, name := range b.texts("required") {
		if was[name] == nil && r == byClient {
			c.report(where+"."+name, "new and required")
		}
	}
}

// bounds are the limits of values, and the limit that an absent one stands for.
var bounds = map[string]float64{
	"minimum": math.Inf(-1), "minLength": math.Inf(-1), "minGraphemes": math.Inf(-1),
	"maximum": math.Inf(1), "maxLength": math.Inf(1), "maxGraphemes": math.Inf(1),
}

func (c *comparison) def(nsid, at string, r role, a, b tree) {
	if a["type"] != b["type"] {
		c.report(at, "type changed")
		return
	}
	changed := func(what string) {
		c.report(at, fmt.Sprintf("%s changed from %s to %s", what, show(a[what]), show(b[what])))
	}
	for _, what := range []string{"default", "const", "format"} {
		if a[what] != b[what] {
			changed(what)
		}
	}
	for what, none := range bounds {
		narrower := number(b[what], none) - number(a[what], none) // NaN if there is no limit
		if none > 0 {
			narrower = -narrower
		}
		if r == byClient && narrower > 0 || r == byServer && narrower < 0 {
			changed(what)
		}
	}
	c.kept(at, "known value", a.texts("knownValues"), b.texts("knownValues"))
	if a["enum"] == nil && b["enum"] != nil {
		c.report(at, "enum added")
	}
	switch a["type"] {
	case "array":
		c.def(nsid, at+"[]", r, a.object("items"), b.object("items"))
	case "object":
		c.properties(nsid, at, r, a, b)
	case "ref":
		c.ref(nsid, at, r, fmt.Sprint(a["ref"]), fmt.Sprint(b["ref"]))
	case "union":
		c.union(nsid, at, r, a, b)
	}
}

// union compares the members of two unions. An open union may grow, because readers ignore unknown
// members. No member may be removed, because a client may wait for it.
func (c *comparison) union(nsid, at string, r role, a, b tree) {
	if closed := a["closed"] == true; closed != (b["closed"] == true) {
		c.report(at, fmt.Sprintf("closed changed from %t to %t", closed, !closed))
	}
	was, is := a.texts("refs"), b.texts("refs")
	c.kept(at, "member", was, is)
	for _, ref := range is {
		if slices.Contains(was, ref) {
			c.ref(nsid, at, r, ref, ref)
		} else if a["closed"] == true && r == byServer {
			c.report(at, "member "+ref+" added to a closed union")
		}
	}
}

// kept reports what is not in a list any more.
func (c *comparison) kept(at, what string, before, after []string) {
	for _, v := range before {
		if !slices.Contains(after, v) {
			c.report(at, what+" "+v+" removed")
		}
	}
}

// ref compares two references. A new name is a change even if the shape is the same, because
// clients' types have the name.
func (c *comparison) ref(nsid, at string, r role, a, b string) {
	if a, b = fullRef(nsid, a), fullRef(nsid, b); a != b {
		c.report(at, "refers to "+b+" instead of "+a)
		return
	}
	key := string(r) + a
	if was, is := c.before[a], c.after[a]; !c.done[key] && was != nil && is != nil {
		c.done[key] = true
		base, _, _ := strings.Cut(a, "#")
		c.def(base, a+" ("+string(r)+")", r, was, is)
	}
}

func fullRef(nsid, ref string) string {
	if strings.HasPrefix(ref, "#") {
		return nsid + ref
	}
	return ref
}

func number(v any, absent float64) float64 {
	if n, ok := v.(float64); ok {
		return n
	}
	return absent
}

func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprintf("%#v", v)
}
