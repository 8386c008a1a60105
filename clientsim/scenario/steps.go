package scenario

import (
	"context"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// withSettings plays with a server that has other settings, and gives it the usual ones again.
func withSettings(ctx context.Context, w *testbed.World, settings map[string]string,
	play func(context.Context, *testbed.World)) {
	Check(w.Restart(ctx, settings))
	play(ctx, w) // after a failure, Config.play restarts the server
	Check(w.Restart(ctx, nil))
}

// unlimited is [testbed.Unlimited] for steps. A load has few people, who invite each other more often
// than the quotas allow.
func unlimited(ctx context.Context, w *testbed.World) map[string]string {
	return Must(testbed.Unlimited(ctx, w.Server.Binary()))
}
