package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
	"mlsd/node"
)

// movedClock is a node's clock that is wrong by ahead.
type movedClock struct{ ahead atomic.Int64 }

func (c *movedClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// G3: a node whose clock is far from the database's refuses everybody. It is not ready, and the log,
// the metric and the answers say why. It is ready again once the clocks agree.
func TestClockOfANode(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server")
	}
	var clock movedClock
	w := newWorld(t)
	s := launchAs(t, func(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
		return node.Run(ctx, &cli.Command{Name: "mlsd", Action: node.WithConfig(0,
			func(ctx context.Context, cfg node.Config, _ *cli.Command) error {
				cfg.Now = clock.now
				return node.Serve(ctx, cfg, stdout, stderr)
			})}, args, environ)
	}, nil, w.flags("--database-url", pgtest.URL(t), "--allow-loopback=true")...)
	s.ready()
	w.use(s.admin, s.public)
	alice := w.user()
	alice.create(w.user())
	for _, ahead := range []time.Duration{-95 * time.Second, time.Hour, -time.Hour} {
		clock.ahead.Store(int64(ahead))
		await.Until(t, "the node is not ready", func() bool {
			status, text := fetch(t, s.admin+"/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(text, "set both clocks")
		})
		alice.query(mlsapi.NSIDGetConvos).must().fails(http.StatusServiceUnavailable, "ServiceUnavailable")
		if lines := s.stderr.String(); !strings.Contains(lines, "the database's clock is") {
			t.Errorf("the log does not say why: %s", lines)
		}
		if got := scrape(t, s)["mlsd_database_clock_ahead_seconds"]; got+ahead.Seconds() > 1 || got+ahead.Seconds() < -1 {
			t.Errorf("the metric is %v while the node is %v ahead", got, ahead)
		}
		clock.ahead.Store(0)
		await.Until(t, "the node is ready again", func() bool {
			status, _ := fetch(t, s.admin+"/readyz")
			return status == http.StatusOK
		})
		alice.query(mlsapi.NSIDGetConvos).must().ok()
	}
	if got := strings.Count(s.stderr.String(), "not ready"); got != 3 {
		t.Errorf("the log says %d times that the node is not ready, want 3", got)
	}
}
