package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// entered makes a request of the caller run until end is closed, and appends its name to order when
// it is admitted.
func (a *admission) entered(t *testing.T, all *sync.WaitGroup, caller, name string, end <-chan struct{}, order *[]string) {
	t.Helper()
	all.Go(func() {
		leave, err := a.enter(t.Context(), caller)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		*order = append(*order, name) // one request runs at a time
		<-end
		leave()
	})
	synctest.Wait()
}

// Only so many dear requests run at a time. Callers take turns, and the requests of one keep their
// order.
func TestAdmissionTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, end, order := newAdmission(1, NewMetrics(prometheus.NewRegistry())), make(chan struct{}), []string{}
		var all sync.WaitGroup
		for _, name := range []string{"mallory 1", "mallory 2", "mallory 3", "alice 1", "bob 1", "alice 2"} {
			a.entered(t, &all, name[:3], name, end, &order)
		}
		if len(order) != 1 {
			t.Errorf("%v run, want one", order)
		}
		close(end)
		all.Wait()
		want := []string{"mallory 1", "mallory 2", "alice 1", "bob 1", "mallory 3", "alice 2"}
		if !slices.Equal(order, want) {
			t.Errorf("admitted %v, want %v", order, want)
		}
		if a.free != 1 || a.waiting != 0 || len(a.turns) != 0 || len(a.lines) != 0 {
			t.Errorf("nobody is left, and there are %+v", a)
		}
	})
}

// A request that waits for something else keeps the others waiting for admittedFor only. Its end
// then admits nobody.
func TestAdmissionOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const admitted = 4
		a, begun := newAdmission(admitted*admittedShare, NewMetrics(prometheus.NewRegistry())), time.Now()
		var leave []func()
		for i := range 2*admitted + 1 {
			l, err := a.enter(t.Context(), "did:plc:alice")
			if err != nil {
				t.Fatal(err)
			}
			if want := time.Duration(i/admitted) * admittedFor; time.Since(begun) != want {
				t.Errorf("request %d was admitted after %s, want %s", i, time.Since(begun), want)
			}
			leave = append(leave, l)
		}
		for _, l := range leave {
			l()
		}
		if a.free != admitted {
			t.Errorf("%d are free, want %d", a.free, admitted)
		}
	})
}

// The queue is bounded in requests, of all and of each caller, and in time. Who hangs up does not
// count.
func TestAdmissionIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(1, NewMetrics(prometheus.NewRegistry()))
		a.free = 0 // nobody is admitted
		var all sync.WaitGroup
		ctx, hangUp := context.WithCancel(t.Context())
		for i := range maxWaiting {
			all.Go(func() {
				if _, err := a.enter(ctx, "did:plc:"+strconv.Itoa(i/maxWaitingOfCaller)); !errors.Is(err, context.Canceled) {
					t.Errorf("who hangs up: %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := a.enter(t.Context(), "did:plc:0"); !errors.As(err, new(limited)) {
			t.Errorf("one too many of a caller: %v", err)
		}
		// A caller who has none waiting still gets a turn, and no more than one.
		for i := range maxWaiting - len(a.turns) {
			all.Go(func() {
				if _, err := a.enter(ctx, "did:web:"+strconv.Itoa(i)); !errors.Is(err, context.Canceled) {
					t.Errorf("who has none waiting: %v", err)
				}
			})
		}
		synctest.Wait()
		for _, caller := range []string{"did:web:0", "did:plc:alice"} {
			if _, err := a.enter(t.Context(), caller); !errors.As(err, new(busy)) {
				t.Errorf("one too many of all, of %s: %v", caller, err)
			}
		}
		if got := testutil.ToFloat64(a.metrics.dearWaiting); got != float64(a.waiting) || got < maxWaiting {
			t.Errorf("the metric says that %v wait, and %d do", got, a.waiting)
		}
		hangUp()
		all.Wait()
		if a.waiting != 0 || len(a.turns) != 0 || len(a.lines) != 0 {
			t.Errorf("nobody is left, and there are %+v", a)
		}
		begun := time.Now()
		if _, err := a.enter(t.Context(), "did:plc:alice"); !errors.As(err, new(busy)) || time.Since(begun) != maxAdmissionWait {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if got := testutil.ToFloat64(a.metrics.dearWaiting); got != 0 {
			t.Errorf("the metric says that %v wait", got)
		}
		for limit, want := range map[string]float64{limitCaller: 1, limitNode: 2, limitTime: 1} {
			if got := testutil.ToFloat64(a.metrics.dearRefused.WithLabelValues(limit)); got != want {
				t.Errorf("%v requests were refused because of the limit %s, want %v", got, limit, want)
			}
		}
	})
}

// A request that hangs up in the moment in which it is admitted makes way for the next.
func TestAdmissionOfTheGone(t *testing.T) {
	t.Parallel()
	a := newAdmission(1, NewMetrics(prometheus.NewRegistry())) // one at a time
	admitted, err := a.enqueue("did:plc:alice")
	if err != nil {
		t.Fatal(err)
	}
	a.abandon("did:plc:alice", admitted)
	if a.free != 1 {
		t.Errorf("%d are free, want 1", a.free)
	}
}
