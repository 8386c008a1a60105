package scenario

import (
	"context"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
)

// Roles makes members, former members and others promote and demote each other, while admins leave
// and are removed, on two servers with one database. Attempts are repeated to both servers at once,
// answers are lost, and a server is killed. The model knows each answer before. In the end each
// server names the admins of the model, and gives every answer again.
func Roles(ctx context.Context, w *testbed.World) {
	w.WithCluster(ctx, testbed.ClusterOptions{Nodes: 2, Settings: unlimited(ctx, w)}, func(f *testbed.Cluster) {
		b := newLiveRun(ctx, w, f, traffic.Options{Roles: 6, Rough: true, Judged: true})
		b.finish = func(ctx context.Context) {
			done := Must(b.Judge(ctx))
			w.Note("%d changes of roles were answered as the model says; %d times a convo got a new admin as its last one "+
				"went; %d answers were given again", b.RoleChanges.Load(), b.Model.HandedOver(), done.Replayed)
		}
		b.playAndStop(ctx)
	})
}
