//go:build !mlsdbench

package main

import (
	"log/slog"

	"mlsd/api"
	"mlsd/operator"
)

// sender is what sendMessage writes with. The server of the benchmark has another one:
// sends_bench.go.
func (n *node) sender() api.Sender { return n.messages }

// benchRoutes adds what the benchmark needs to the admin listener, which is nothing in this build.
func (n *node) benchRoutes(operator.Handle, *slog.Logger) {}
