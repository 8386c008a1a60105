package xrpc

import "context"

// CallInfo is what the transports need to know about a request besides its HTTP form.
type CallInfo struct {
	Call     Call
	Who      *Account // nil: the account that made its token
	Audience string
}

type callInfoKey struct{}

// WithCallInfo puts it into a request's context, for CallInfoFrom.
func WithCallInfo(ctx context.Context, t CallInfo) context.Context {
	return context.WithValue(ctx, callInfoKey{}, t)
}

// CallInfoFrom returns what was put into a request's context.
func CallInfoFrom(ctx context.Context) (CallInfo, bool) {
	t, ok := ctx.Value(callInfoKey{}).(CallInfo)
	return t, ok
}
