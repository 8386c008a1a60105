package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// ClaimAtOnce makes eight callers claim from an account with four KeyPackages. Four callers get one
// each. Another request under the same key is the same claim.
func ClaimAtOnce(ctx context.Context, w *testbed.World) {
	owner := Must(w.Phone("owner"))
	Check(owner.Publish(ctx, 4))
	const callers = 8
	phones := make([]*client.Phone, callers)
	calls := make([]xrpc.Call, callers)
	for i := range phones {
		phones[i] = Must(w.Phone(fmt.Sprintf("caller-%d", i)))
		calls[i] = xrpc.ClaimCall(testbed.DIDs([]*client.Phone{owner}), owner.Suite, "", xrpc.NewKey())
	}
	got := make([][][]byte, callers)
	errs := make([]error, callers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, p := range phones {
		all.Go(func() {
			<-start
			if got[i], errs[i] = p.ClaimWith(ctx, calls[i]); errors.Is(errs[i], client.ErrNoPackages) {
				errs[i] = nil
			}
		})
	}
	close(start)
	all.Wait()
	Check(errors.Join(errs...))
	served := 0
	for i, p := range phones {
		served += len(got[i])
		if len(got[i]) == 0 {
			continue
		}
		again, err := p.ClaimWith(ctx, calls[i])
		if err != nil || len(again) != 1 || !bytes.Equal(again[0], got[i][0]) {
			w.Broken("a claim asked again under its key is another one (%v)", err)
		}
	}
	if served != 4 {
		w.Broken("%d of four KeyPackages were handed out to eight callers", served)
	}
}
