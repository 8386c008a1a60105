package scenario

import (
	"context"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// withSettings plays with a server that has other settings, and gives it the usual ones again.
func withSettings(ctx context.Context, w *testbed.World, settings map[string]string,
	play func(context.Context, *testbed.World)) {
	Check(w.Restart(ctx, settings))
	play(ctx, w) // after a failure, Config.play restarts the server
	Check(w.Restart(ctx, nil))
}

// withReceiver is [testbed.World.WithReceiver] for steps.
func withReceiver(ctx context.Context, w *testbed.World, play func(*client.Receiver)) {
	Check(w.WithReceiver(ctx, func(r *client.Receiver) error { return Attempt(func() { play(r) }) }))
}

// withSibling is [testbed.World.WithSibling] for steps.
func withSibling(ctx context.Context, w *testbed.World, play func(*testbed.Proc, *xrpc.Client)) {
	Check(w.WithSibling(ctx, func(p *testbed.Proc, c *xrpc.Client) error { return Attempt(func() { play(p, c) }) }))
}

// unlimited is [testbed.Unlimited] for steps. A load has few people, who invite each other more often
// than the quotas allow.
func unlimited(ctx context.Context, w *testbed.World) map[string]string {
	return Must(testbed.Unlimited(ctx, w.Server.Binary()))
}

// withCluster is [testbed.World.WithCluster] for steps.
func withCluster(ctx context.Context, w *testbed.World, o testbed.ClusterOptions, play func(*testbed.Cluster)) {
	Check(w.WithCluster(ctx, o, func(f *testbed.Cluster) error { return Attempt(func() { play(f) }) }))
}

// withServices is [testbed.World.WithServices] for steps.
func withServices(ctx context.Context, w *testbed.World, n int, settings map[string]string,
	play func([]*testbed.Service)) {
	Check(w.WithServices(ctx, n, settings, func(all []*testbed.Service) error { return Attempt(func() { play(all) }) }))
}

// withPair is [testbed.World.WithPair] for steps.
func withPair(ctx context.Context, w *testbed.World, synchronous bool, play func(*testbed.Cluster, *testbed.Pair)) {
	Check(w.WithPair(ctx, synchronous,
		func(f *testbed.Cluster, p *testbed.Pair) error { return Attempt(func() { play(f, p) }) }))
}
