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

// empty fails the test unless nobody runs or waits.
func (a *admission) empty(t *testing.T) {
	t.Helper()
	running, waiting := a.running.Used()
	early, waitingToo := a.early.Used()
	if running != 0 || early != 0 || waiting+waitingToo != 0 {
		t.Errorf("nobody is left, and %d run, %d early, and %d and %d wait", running, early, waiting, waitingToo)
	}
}

// entered makes a request of the caller run until end is closed, and appends its name to order when
// it is admitted.
func (a *admission) entered(t *testing.T, all *sync.WaitGroup, caller, name string, end <-chan struct{},
	order *[]string) {
	t.Helper()
	all.Go(func() {
		r := a.request(caller)
		if err := r.start(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		*order = append(*order, name) // one request runs at a time
		<-end
		r.end()
	})
	synctest.Wait()
}

// Only so many expensive requests run at a time. Callers take turns, and the requests of one keep
// their order.
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
		a.empty(t)
	})
}

// A request that waits for something else keeps the others waiting for admittedFor only. Its end
// then lets nobody else begin.
func TestAdmissionOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const admitted, slots = 4, 4*admittedShare - cheapConnections
		a, begun := newAdmission(admitted*admittedShare, NewMetrics(prometheus.NewRegistry())), time.Now()
		var all []*expensiveRequest
		for i := range slots {
			r := a.request("did:plc:" + strconv.Itoa(i))
			if err := r.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if want := time.Duration(i/admitted) * admittedFor; time.Since(begun) != want {
				t.Errorf("request %d was admitted after %s, want %s", i, time.Since(begun), want)
			}
			all = append(all, r)
		}
		for _, r := range all {
			r.end()
			r.end() // does nothing
		}
		a.empty(t)
	})
}

// Late requests hold connections: of one caller two run, of all callers as many as leave two
// connections free.
func TestLateRequestsAreBounded(t *testing.T) {
	t.Parallel()
	for connections, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 8: 6, 20: 18} {
		if got := int(newAdmission(connections, nil).running.Size); got != want {
			t.Errorf("of %d connections expensive requests have %d, want %d", connections, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a, ended := newAdmission(8, NewMetrics(prometheus.NewRegistry())), make(chan struct{})
		var all sync.WaitGroup
		enters := func(caller string) *expensiveRequest {
			r := a.request(caller)
			all.Go(func() {
				if err := r.start(t.Context()); err != nil {
					t.Errorf("%s: %v", caller, err)
					return
				}
				<-ended
				r.end()
			})
			synctest.Wait()
			return r
		}
		for i := range 10 {
			if r := enters("did:plc:mallory"); r.runs != (i < maxRunningOfCaller) {
				t.Errorf("request %d of a caller runs: %t", i, r.runs)
			}
		}
		time.Sleep(10 * admittedFor)
		if _, waiting := a.running.Used(); waiting != 8 {
			t.Errorf("of 10 requests of a caller 8 wait for the two that are late, not %d", waiting)
		}
		for i := range 6 {
			if r := enters("did:plc:" + strconv.Itoa(i)); r.runs != (i < 4) {
				t.Errorf("with %d late ones of 6 the next request runs: %t", i+2, r.runs)
			}
			time.Sleep(2 * admittedFor)
		}
		close(ended)
		all.Wait()
		a.empty(t)
	})
}

// A request that waits outside the database makes way for the others, and waits for its turn again.
func TestOutsideMakesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(1, NewMetrics(prometheus.NewRegistry())) // one at a time
		alice, bob := &call{ctx: t.Context(), expensive: a.request("did:plc:alice")}, a.request("did:plc:bob")
		if err := alice.expensive.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err := alice.outside(func() error {
			if err := bob.start(t.Context()); err != nil || time.Since(begun) != 0 {
				t.Errorf("meanwhile another request is admitted after %s: %v", time.Since(begun), err)
			}
			time.AfterFunc(time.Second, bob.end)
			return nil
		})
		if err != nil || time.Since(begun) != time.Second || !alice.expensive.runs {
			t.Errorf("it runs again after %s: %t, %v", time.Since(begun), alice.expensive.runs, err)
		}
		refusal := errors.New("refused")
		if err := alice.outside(func() error { return refusal }); !errors.Is(err, refusal) || alice.expensive.runs {
			t.Errorf("after an error it runs: %t, %v", alice.expensive.runs, err)
		}
		alice.endExpensive()
		if alice.charged != 0 {
			t.Errorf("a second outside costs %d units", alice.charged)
		}
		a.empty(t)
	})
}

// A late request costs its caller units by the time for which it runs, up to a bound.
func TestLateRequestsAreCharged(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]int{
		0: 0, admittedFor: 0, admittedFor + unitLate - 1: 0, admittedFor + unitLate: 1, admittedFor + 7*unitLate: 7,
		admittedFor + maxLateUnits*unitLate: maxLateUnits, maxRequest: maxLateUnits,
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAdmission(8, NewMetrics(prometheus.NewRegistry()))
			c := &call{ctx: t.Context(), expensive: a.request("did:plc:mallory")}
			if err := c.expensive.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(took)
			c.endExpensive()
			if c.charged != want {
				t.Errorf("a request of %s costs %d units more, want %d", took, c.charged, want)
			}
		})
	}
}

// The queue is bounded in requests, of all and of each caller, and in time. Who hangs up does not
// count.
func TestAdmissionIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(1, NewMetrics(prometheus.NewRegistry()))
		a.running.TryAcquire("did:plc:eve", 1) // nobody else is admitted
		var all sync.WaitGroup
		ctx, hangUp := context.WithCancel(t.Context())
		for i := range maxWaiting {
			all.Go(func() {
				if err := a.request("did:plc:" + strconv.Itoa(i/maxWaitingOfCaller)).start(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("who hangs up: %v", err)
				}
			})
		}
		synctest.Wait()
		if err := a.request("did:plc:0").start(t.Context()); !errors.As(err, new(limited)) {
			t.Errorf("one too many of a caller: %v", err)
		}
		// A caller who has none waiting still gets a turn, and no more than one.
		for i := range maxWaiting - maxWaiting/maxWaitingOfCaller {
			all.Go(func() {
				if err := a.request("did:web:" + strconv.Itoa(i)).start(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("who has none waiting: %v", err)
				}
			})
			if i == 0 {
				synctest.Wait()
				if err := a.request("did:web:0").start(t.Context()); !errors.As(err, new(busy)) {
					t.Errorf("one too many of all: %v", err)
				}
			}
		}
		synctest.Wait()
		if err := a.request("did:plc:alice").start(t.Context()); !errors.As(err, new(busy)) {
			t.Errorf("one turn too many: %v", err)
		}
		_, waiting := a.running.Used()
		if got := testutil.ToFloat64(a.metrics.expensiveWaiting); got != float64(waiting) || got < maxWaiting {
			t.Errorf("the metric says that %v wait, and %d do", got, waiting)
		}
		hangUp()
		all.Wait()
		begun := time.Now()
		if err := a.request("did:plc:alice").start(t.Context()); !errors.As(err, new(busy)) ||
			time.Since(begun) != maxAdmissionWait {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if got := testutil.ToFloat64(a.metrics.expensiveWaiting); got != 0 {
			t.Errorf("the metric says that %v wait", got)
		}
		for limit, want := range map[string]float64{limitCaller: 1, limitNode: 2, limitTime: 1} {
			if got := testutil.ToFloat64(a.metrics.expensiveRefused.WithLabelValues(limit)); got != want {
				t.Errorf("%v requests were refused because of the limit %s, want %v", got, limit, want)
			}
		}
	})
}

// A request that hangs up while it waits for those that are not late yet gives back what it has.
func TestAdmissionOfTheGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(8, NewMetrics(prometheus.NewRegistry()))
		a.early.TryAcquire("did:plc:eve", a.early.Size)
		ctx, hangUp := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, hangUp)
		if err := a.request("did:plc:alice").start(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("who hangs up: %v", err)
		}
		a.early.Release("did:plc:eve", a.early.Size)
		a.empty(t)
	})
}
