package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// How the garbage collector works unless GOGC and GOMEMLIMIT say otherwise: it lets the heap grow to five times what is alive, which
// spares a tenth of the processor time of a message, but not beyond a part of the memory that there is.
const (
	gcPercent  = 400
	memoryPart = 0.6
)

func tuneMemory(log *slog.Logger) {
	if os.Getenv("GOGC") != "" {
		return
	}
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	limit, err := memlimit.Set(memlimit.WithProvider(provider), memlimit.WithRatio(memoryPart)) // heeds GOMEMLIMIT
	if err != nil {
		log.Warn("it is not known how much memory there is: the garbage collector works as by default", "error", err)
		return
	}
	debug.SetGCPercent(gcPercent)
	log.Debug("garbage collector", "percent", gcPercent, "limit", limit)
}
