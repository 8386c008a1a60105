package attack

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// nearly compares figures: a histogram keeps three significant digits.
var nearly = cmpopts.EquateApprox(0.001, 0)

// fakeServer answers after 10 ms. While it is hurt, it refuses every second request, and answers
// the others after 400 ms.
type fakeServer struct{ hurt atomic.Bool }

func (f *fakeServer) ask(_ context.Context, i int) (time.Duration, error) {
	switch {
	case !f.hurt.Load():
		time.Sleep(10 * time.Millisecond)
	case i%2 == 0:
		return 0, &xrpc.CallError{Status: http.StatusServiceUnavailable, Name: "ServiceUnavailable"}
	default:
		time.Sleep(400 * time.Millisecond)
	}
	return 0, nil
}

// measureFake measures a fake server for two seconds in each phase, in the time of a bubble.
func measureFake(t *testing.T, f *fakeServer, attack func(context.Context)) *Result {
	t.Helper()
	m := newMeter()
	const between = 10 * time.Millisecond // no request is due when a phase begins
	err := measure(t.Context(), m, []Operation{{"send", 50, f.ask}},
		Spans{Warm: time.Second + between, Calm: 2 * time.Second, Attack: 2 * time.Second, After: 2 * time.Second}, attack)
	if err != nil {
		t.Fatal(err)
	}
	return &Result{Answers: map[int]int64{200: 1}, Honest: m.figures()}
}

func TestServerThatWithstands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := measureFake(t, &fakeServer{}, func(ctx context.Context) { <-ctx.Done() })
		want := Figures{Count: 100, Success: 1, P50: 10, P99: 10, Max: 10}
		got := r.Honest["send"]
		for phase := range got {
			if diff := cmp.Diff(want, got[phase], nearly); diff != "" {
				t.Errorf("phase %d (-want +got):\n%s", phase, diff)
			}
		}
		if wrong := r.verdict(Default().Bounds); wrong != nil {
			t.Errorf("verdict %q, want none", wrong)
		}
	})
}

func TestServerThatIsHurt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{}
		r := measureFake(t, f, func(ctx context.Context) {
			f.hurt.Store(true)
			<-ctx.Done()
			f.hurt.Store(false)
		})
		got := r.Honest["send"][attacked]
		want := Figures{Count: 100, Success: 0.5, P50: 400, P99: 400, Max: 400,
			FirstErr: ": 503 ServiceUnavailable: "}
		if diff := cmp.Diff(want, got, nearly); diff != "" {
			t.Errorf("during the attack (-want +got):\n%s", diff)
		}
		wantWrong := []string{"send: success 50.00% during the attack (: 503 ServiceUnavailable: )"}
		if diff := cmp.Diff(wantWrong, r.verdict(Default().Bounds)); diff != "" {
			t.Errorf("verdict (-want +got):\n%s", diff)
		}
	})
}

func TestAttackThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		err := measure(t.Context(), newMeter(), nil, Spans{Calm: time.Second, Attack: time.Second},
			func(context.Context) { steps.Check(broken) })
		if !errors.Is(err, broken) {
			t.Errorf("measure = %v, want the attack's error", err)
		}
	})
}
