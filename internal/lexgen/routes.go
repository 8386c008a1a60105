package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// errors writes a constant for each distinct error name. The first description
// in the order of the NSIDs documents it.
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

// errorDocs are the descriptions of the distinct error names.
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

// methodTypes declares the types of the table of methods.
const methodTypes = `// Kind says how a method is called over HTTP.
type Kind int

// The kinds of methods.
const (
	Query        Kind = iota + 1 // GET
	Procedure                    // POST
	Subscription                 // WebSocket
)

// Method is one method of the lexicons.
type Method struct {
	NSID string
	Kind Kind
	// Errors are the named errors that the lexicon declares, in its order.
	Errors []string
	// HasInput says that the method has a body. It is JSON.
	HasInput bool
	// BytesIn says that the body is bytes. The handler reads it.
	BytesIn bool
	// BytesOut says that the answer is bytes. The handler says where they come from.
	BytesOut bool
	// Streams says that the answer is a stream of events. The handler writes it.
	Streams bool
}

// Route is a method and the way to serve it.
type Route[C any] struct {
	Method Method
	// Serve decodes the parameters and the body and calls the handler. An error is
	// a [*lexcodec.Violation] from decoding, or comes from the handler. Serve
	// ignores the body of a query, and the query of a method without parameters.
	Serve func(h Handler[C], c C, query url.Values, body []byte) error
}

// bare serves a method that takes nothing.
func bare[C any](call func(Handler[C], C) error) func(Handler[C], C, url.Values, []byte) error {
	return func(h Handler[C], c C, _ url.Values, _ []byte) error { return call(h, c) }
}

// withParams serves a method that takes parameters.
func withParams[C, P any](decode func(url.Values) (*P, error), call func(Handler[C], C, *P) error) func(Handler[C], C, url.Values, []byte) error {
	return func(h Handler[C], c C, query url.Values, _ []byte) error {
		p, err := decode(query)
		if err != nil {
			return err
		}
		return call(h, c, p)
	}
}

// withInput serves a method that takes a body.
func withInput[C, I any](decode func([]byte) (*I, error), call func(Handler[C], C, *I) error) func(Handler[C], C, url.Values, []byte) error {
	return func(h Handler[C], c C, _ url.Values, body []byte) error {
		in, err := decode(body)
		if err != nil {
			return err
		}
		return call(h, c, in)
	}
}
`

// routes writes the table of methods, the interface that implements them, and
// the dispatch between the two.
func (g *source) routes(methods []*method) {
	g.p("%s", methodTypes)
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
		g.p("{m[%d], %s},", i, m.serve())
	}
	g.p("}")
	g.p("}")
}

func (m *method) literal() string {
	names := make([]string, len(m.errors))
	for i, e := range m.errors {
		names[i] = "Err" + e.Name
	}
	return fmt.Sprintf("{NSID: NSID%s, Kind: %s, HasInput: %t, BytesIn: %t, BytesOut: %t, Streams: %t, Errors: []string{%s}}",
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

// serve is the expression that decodes what the method takes, and calls it.
func (m *method) serve() string {
	call := "Handler[C]." + m.base
	switch {
	case m.params != nil:
		return "withParams(Decode" + m.base + "Params, " + call + ")"
	case jsonBody(m.input) != nil:
		return "withInput(Decode" + m.base + "Input, " + call + ")"
	}
	return "bare(" + call + ")"
}
