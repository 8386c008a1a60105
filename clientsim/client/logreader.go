package client

import (
	"context"
	"errors"
	"sync"

	"mlsd/clientsim/xrpc"
	"mlsd/internal/transparency/verifier"
)

// LogReader checks the log of a convo for a member, without MLS. It is safe for concurrent use.
type LogReader struct {
	convo string
	mu    sync.Mutex // guards what follows
	p     *Phone     // its account and server only
	v     *verifier.Verifier
}

// NewLogReader returns a reader that has read nothing.
func NewLogReader(account *xrpc.Account, convo string) *LogReader {
	return &LogReader{convo: convo, p: &Phone{Name: "log reader", Account: account}}
}

// Read reads what is new, from one of the servers, and asks it for a head. It returns how many entries
// were checked so far. The error is a *verifier.Lie or a *verifier.WentBack: everything else is tried
// again with the next Read.
func (r *LogReader) Read(ctx context.Context, server *xrpc.Client) (checked int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p.Net = server
	if r.v == nil {
		r.v = r.p.newVerifier(r.convo)
	}
	err = r.p.readAgain(ctx, r.v, &Thread{ConvoID: r.convo})
	if errors.As(err, new(*verifier.Lie)) || errors.As(err, new(*verifier.WentBack)) {
		return r.v.Size(), err
	}
	return r.v.Size(), nil
}
