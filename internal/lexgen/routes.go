package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// errors writes a constant for each distinct error name. Its comment is the first description, in
// the order of the NSIDs.
func (g *source) errors(methods []*method) {
	docs := errorDocs(methods)
	g.p("// Error names that the lexicons declare.")
	g.p("const (")
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		g.comment("Err" + name + ": " + docs[name])
		g.p("Err%s = %q", name, name)
	}
	g.p(")")
}

// errorDocs returns the descriptions of the distinct error names.
func errorDocs(methods []*method) map[string]string {
	docs := map[string]string{}
	for _, m := range methods {
		for _, e := range m.errors {
			if docs[e.Name] == "" {
				docs[e.Name] = text(e.Description)
			}
		}
	}
	return docs
}

// nsids writes a constant for the name of each method.
func (g *source) nsids(methods []*method) {
	g.p("// The methods.")
	g.p("const (")
	for _, m := range methods {
		g.p("%s = %q", m.base, m.nsid)
	}
	g.p(")")
}

// routes writes the table of methods, the interface that implements them, and
// the dispatch between the two.
func (g *source) routes(methods []*method) {
	g.p("%s\n", fixed("methods")) // the types of the table
	g.p("// Methods returns the methods of the lexicons by NSID.")
	g.p("func Methods() []Method {")
	g.p("return []Method{")
	for _, m := range methods {
		g.p("%s,", m.literal())
	}
	g.p("}")
	g.p("}")

	g.p("\n// Handler implements the methods. C is the server's own type of a call: the")
	g.p("// request, the caller, and the answer.")
	g.p("type Handler[C any] interface {")
	for _, m := range methods {
		g.comment(m.base + ": " + m.doc)
		g.p("%s(%s) error", m.base, m.signature())
	}
	g.p("}")

	g.p("\n// Routes binds each method to its handler, in the order of [Methods].")
	g.p("func Routes[C any]() []Route[C] {")
	g.p("m := Methods()")
	g.p("return []Route[C]{")
	for i, m := range methods {
		g.p("%s,", m.route(i))
	}
	g.p("}")
	g.p("}")
}

func (m *method) literal() string {
	names := make([]string, len(m.errors))
	for i, e := range m.errors {
		names[i] = "Err" + e.Name
	}
	return fmt.Sprintf("{NSID: NSID%s, Kind: %s, HasInput: %t, BytesIn: %t, BytesOut: %t, Streams: %t, Errors: "+
		"[]string{%s}}",
		m.base, m.kind, jsonBody(m.input) != nil, isBytes(m.input), isBytes(m.output), m.streams(), strings.Join(names, ", "))
}

func (m *method) signature() string {
	switch {
	case m.params != nil:
		return "c C, p *" + m.base + "Params"
	case jsonBody(m.input) != nil:
		return "c C, in *" + m.base + "Input"
	}
	return "c C"
}

// route returns the expression that makes the method's route.
func (m *method) route(i int) string {
	call := "Handler[C]." + m.base
	switch {
	case m.params != nil:
		return fmt.Sprintf("withParams(m[%d], Decode%sParams, %s)", i, m.base, call)
	case jsonBody(m.input) != nil:
		return fmt.Sprintf("withInput(m[%d], Decode%sInput, %s)", i, m.base, call)
	}
	return fmt.Sprintf("bare(m[%d], %s)", i, call)
}
