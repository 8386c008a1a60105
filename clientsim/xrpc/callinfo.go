package xrpc

import "context"

// CallInfo is what the transports need to know about a request besides its HTTP form.
type CallInfo struct {
	Call     Call
	Who      *Account
	Audience string
}

type callInfoKey struct{}

func withCallInfo(ctx context.Context, t CallInfo) context.Context {
	return context.WithValue(ctx, callInfoKey{}, t)
}

// CallInfoFrom returns what Once has put into a request's context.
func CallInfoFrom(ctx context.Context) (CallInfo, bool) {
	t, ok := ctx.Value(callInfoKey{}).(CallInfo)
	return t, ok
}
