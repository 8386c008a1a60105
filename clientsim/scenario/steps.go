package scenario

import (
	"context"
	"fmt"

	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// A scenario is a list of steps. A step that fails ends it, as a failed test ends with Fatal: must and
// check panic with a failure, and attempt returns its error. A goroutine calls attempt itself.

// failure is the error of a step.
type failure struct{ err error }

// attempt runs steps and returns the error of the one that failed.
func attempt(steps func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.err
		default:
			panic(r)
		}
	}()
	steps()
	return nil
}

// check ends the steps if err is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// fail ends the steps with an error of this text.
func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// must returns v, or ends the steps if err is not nil.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// must2 is must for two values.
func must2[T, U any](v T, u U, err error) (T, U) {
	check(err)
	return v, u
}

// withSettings plays with a server that has other settings, and gives it the usual ones again.
func withSettings(ctx context.Context, w *testbed.World, settings map[string]string,
	play func(context.Context, *testbed.World)) {
	check(w.Restart(ctx, settings))
	play(ctx, w) // after a failure, Config.play restarts the server
	check(w.Restart(ctx, nil))
}

// withReceiver is [testbed.World.WithReceiver] for steps.
func withReceiver(ctx context.Context, w *testbed.World, play func(*client.Receiver)) {
	check(w.WithReceiver(ctx, func(r *client.Receiver) error { return attempt(func() { play(r) }) }))
}

// withSibling is [testbed.World.WithSibling] for steps.
func withSibling(ctx context.Context, w *testbed.World, play func(*testbed.Proc, *xrpc.Client)) {
	check(w.WithSibling(ctx, func(p *testbed.Proc, c *xrpc.Client) error { return attempt(func() { play(p, c) }) }))
}

// unlimited is [testbed.Unlimited] for steps. A load has few people, who invite each other more often
// than the quotas allow.
func unlimited(ctx context.Context, w *testbed.World) map[string]string {
	return must(testbed.Unlimited(ctx, w.Server.Binary()))
}

// withCluster is [testbed.World.WithCluster] for steps.
func withCluster(ctx context.Context, w *testbed.World, o testbed.ClusterOptions, play func(*testbed.Cluster)) {
	check(w.WithCluster(ctx, o, func(f *testbed.Cluster) error { return attempt(func() { play(f) }) }))
}

// withServices is [testbed.World.WithServices] for steps.
func withServices(ctx context.Context, w *testbed.World, o testbed.ServicesOptions, play func([]*testbed.Service)) {
	check(w.WithServices(ctx, o, func(all []*testbed.Service) error { return attempt(func() { play(all) }) }))
}

// withPair is [testbed.World.WithPair] for steps.
func withPair(ctx context.Context, w *testbed.World, synchronous bool, play func(*testbed.Cluster, *testbed.Pair)) {
	check(w.WithPair(ctx, synchronous,
		func(f *testbed.Cluster, p *testbed.Pair) error { return attempt(func() { play(f, p) }) }))
}
