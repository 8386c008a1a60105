package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/internal/worker"
)

// rounds records when a worker's rounds began, in seconds since the test began.
type rounds struct {
	begin time.Time
	at    []float64
}

func (r *rounds) add(context.Context) error {
	r.at = append(r.at, time.Since(r.begin).Seconds())
	return nil
}

// run runs a worker for d of the test's time, and returns its log.
func run(t *testing.T, d time.Duration, interval time.Duration, runOnce func(context.Context) error,
	options ...worker.Option) string {
	t.Helper()
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	worker.Every("test worker", interval, log, runOnce, options...).Run(ctx)
	return text.String()
}

func TestRounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		options []worker.Option
		want    []float64
	}{
		{"at once", nil, []float64{0, 10, 20, 30}},
		{"after the interval", []worker.Option{worker.AfterInterval()}, []float64{10, 20, 30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rounds{begin: time.Now()}
				if log := run(t, 35*time.Second, 10*time.Second, r.add, c.options...); log != "" {
					t.Errorf("it logs %s", log)
				}
				if diff := cmp.Diff(c.want, r.at); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A wake adds a round. A wake during the delay of another adds one more.
func TestWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wake := worker.NewTrigger()
		go func() {
			time.Sleep(3 * time.Second)
			wake.Send()
			time.Sleep(time.Second)
			wake.Send()
			time.Sleep(20 * time.Second)
			wake.Send()
		}()
		r := rounds{begin: time.Now()}
		run(t, 35*time.Second, 10*time.Second, r.add, worker.Wake(wake, 2*time.Second))
		if diff := cmp.Diff([]float64{0, 5, 7, 10, 20, 26, 30}, r.at); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// The last call comes after the rounds, even if the worker was stopped before it had one.
func TestAtEnd(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r, ended := rounds{begin: time.Now()}, 0
			log := run(t, 25*time.Second, interval, r.add, worker.AfterInterval(), worker.AtEnd(func(ctx context.Context) error {
				ended++
				<-ctx.Done() // not the worker's context, which has ended
				return ctx.Err()
			}))
			if took := time.Since(r.begin); took != 30*time.Second || ended != 1 ||
				!strings.Contains(log, "the test worker failed at its end") {
				t.Errorf("every %s: %d calls at the end, after %s, log %q", interval, ended, took, log)
			}
		})
	}
}

// An error is logged with the worker's name, and the rounds go on. The end of the worker is not an
// error.
func TestErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		log := run(t, 25*time.Second, 10*time.Second, func(ctx context.Context) error {
			if n++; n == 3 {
				<-ctx.Done()
				return ctx.Err()
			}
			return errors.New("no luck")
		})
		if n != 3 || strings.Count(log, `level=ERROR msg="the test worker failed" error="no luck"`) != 2 ||
			strings.Count(log, "\n") != 2 {
			t.Errorf("%d rounds, log %s", n, log)
		}
	})
}

// E7: a round that lasts too long is ended, and the next one begins.
func TestLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		interval, limit time.Duration
		options         []worker.Option
	}{
		{time.Second, 20 * time.Second, nil},
		{time.Hour, time.Hour, nil},
		{5 * time.Second, 5 * time.Second, []worker.Option{worker.Limit(5 * time.Second)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := rounds{begin: time.Now()}
			log := run(t, c.limit+c.limit/2, c.interval, func(ctx context.Context) error {
				_ = r.add(ctx) // never fails
				<-ctx.Done()
				return ctx.Err()
			}, c.options...)
			if diff := cmp.Diff([]float64{0, c.limit.Seconds()}, r.at); diff != "" || strings.Count(log, "level=WARN") != 1 {
				t.Errorf("every %s: (-want +got):\n%s\n%s", c.interval, diff, log)
			}
		})
	}
}

// A panic ends the process, as anywhere else.
func TestPanic(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := recover(); got != "bug" {
			t.Errorf("recovered %v", got)
		}
	}()
	run(t, time.Minute, time.Minute, func(context.Context) error { panic("bug") })
}

// Rounds that fail are counted, and a round that the worker's end cuts off is not.
func TestRoundsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, n := time.Now(), 0
		runOnce := func(ctx context.Context) error {
			n++
			switch n {
			case 2:
				return errors.New("no")
			case 4:
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(time.Second)
			return nil
		}
		rounds := worker.NewRounds(worker.Clock{})
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(35*time.Second, stop)
		rounds.Every("tester", 10*time.Second, slog.New(slog.DiscardHandler), runOnce).Run(ctx)
		want := []worker.Round{{
			Worker: "tester", Interval: 10 * time.Second, At: begin.Add(20 * time.Second), Took: time.Second,
			Rounds: 3, Failures: 1, FailedAt: begin.Add(10 * time.Second),
		}}
		if diff := cmp.Diff(want, rounds.List()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
