package mlsapi

import "net/url"

// Kind is what a method is on the wire.
type Kind int

// The kinds of methods.
const (
	Query        Kind = iota + 1 // GET
	Procedure                    // POST
	Subscription                 // WebSocket
)

// Method is one method of the contract.
type Method struct {
	NSID string
	Kind Kind
	// Errors are the named errors that the lexicon declares, in its order.
	Errors []string
	// HasInput says whether a body is expected. It is JSON.
	HasInput bool
	// Streams says that the answer is a stream of events, which the handler writes
	// itself.
	Streams bool
}

// Route is a method and the way to serve it.
type Route[C any] struct {
	Method Method
	// Serve decodes what the method takes and calls its handler. An error is a
	// [*Violation] from decoding, or what the handler returned. A query's body and
	// the parameters of a method that has none are not looked at.
	Serve func(h Handler[C], c C, query url.Values, body []byte) error
}
