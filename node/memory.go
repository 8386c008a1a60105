package node

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Settings of the garbage collector, unless GOGC and GOMEMLIMIT are set.
const (
	// gcPercent lets the heap grow to five times the size of what is alive. That saves a tenth of
	// the processor time of a message.
	gcPercent = 400
	// memoryShare bounds the heap to a share of the machine's or the container's memory.
	memoryShare = 0.6
)

// tuneMemory sets up the garbage collector.
func tuneMemory(log *slog.Logger) {
	if os.Getenv("GOGC") != "" {
		return
	}
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	limit, err := memlimit.Set(memlimit.WithProvider(provider), memlimit.WithRatio(memoryShare)) // GOMEMLIMIT wins
	if err != nil {
		log.Warn("the size of the memory is unknown: the garbage collector keeps its defaults", "error", err)
		return
	}
	debug.SetGCPercent(gcPercent)
	log.Debug("garbage collector", "percent", gcPercent, "limit", limit)
}
