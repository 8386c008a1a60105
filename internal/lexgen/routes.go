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
	// Decode reads and checks what the handler takes: the parameters of a query, or the
	// body of a procedure. It returns nil for a method that takes nothing. Every error is a
	// [*lexcodec.Violation].
	Decode func(query url.Values, body []byte) (any, error)
	// Call calls the handler with what Decode returned.
	Call func(h Handler[C], c C, in any) error
}

// Serve decodes a request and calls the handler. An error is one of Decode, or comes
// from the handler. Serve ignores the body of a query, and the query of a procedure.
func (r *Route[C]) Serve(h Handler[C], c C, query url.Values, body []byte) error {
	in, err := r.Decode(query, body)
	if err != nil {
		return err
	}
	return r.Call(h, c, in)
}

// bare is the route of a method that takes nothing.
func bare[C any](m Method, call func(Handler[C], C) error) Route[C] {
	return Route[C]{
		m,
		func(url.Values, []byte) (any, error) { return nil, nil },
		func(h Handler[C], c C, _ any) error { return call(h, c) },
	}
}

// withParams is the route of a method that takes parameters.
func withParams[C, P any](m Method, decode func(url.Values) (*P, error), call func(Handler[C], C, *P) error) Route[C] {
	return Route[C]{
		m,
		func(query url.Values, _ []byte) (any, error) { return decode(query) },
		func(h Handler[C], c C, in any) error { return call(h, c, in.(*P)) },
	}
}

// withInput is the route of a method that takes a body.
func withInput[C, I any](m Method, decode func([]byte) (*I, error), call func(Handler[C], C, *I) error) Route[C] {
	return Route[C]{
		m,
		func(_ url.Values, body []byte) (any, error) { return decode(body) },
		func(h Handler[C], c C, in any) error { return call(h, c, in.(*I)) },
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

// route is the expression that makes the method's route.
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
