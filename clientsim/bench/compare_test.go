package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/load"
)

// A server that costs more than the other in one variant is named, whichever of the two costs it is.
func TestCompare(t *testing.T) {
	t.Parallel()
	turn := func(variant string, server, database time.Duration) Turn {
		op := &load.Operation{Done: 100, Latency: load.NewLatency()}
		return Turn{Variant: variant, Main: opSend, Operations: map[string]*load.Operation{opSend: op},
			Spent: Spent{Server: server, Database: database}}
	}
	for want, now := range map[string]Turn{
		"":                       turn("do=a/mlsd=now", 110, 120),
		"above 1.25 times: do=a": turn("do=a/mlsd=now", 110, 130),
		"1.25 times: do=a":       turn("do=a/mlsd=now", 130, 100),
	} {
		r := Report{Turns: []Turn{turn("do=a/mlsd=before", 100, 100), now, turn("do=b/mlsd=before", 100, 100),
			turn("do=b/mlsd=now", 90, 90)}}
		var out strings.Builder
		err := r.Compare(&out, "now", "before", 1.25)
		refused := errors.Is(err, ErrCostsMore) && strings.HasSuffix(err.Error(), want)
		if want == "" && err != nil || want != "" && !refused {
			t.Errorf("%v, want %q", err, want)
		}
		if lines := strings.Count(out.String(), "\n"); lines != 2 {
			t.Errorf("%d lines:\n%s", lines, out.String())
		}
	}
}
