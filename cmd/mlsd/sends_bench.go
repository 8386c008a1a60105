//go:build mlsdbench

package main

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"mlsd/api"
	"mlsd/messages"
	"mlsd/operator"
)

// The ways of sending that the benchmark compares (POST /sends?mode=NAME).
const (
	modeTogether = "together" // in transactions that messages share, as the product does
	modeAlone    = "alone"    // each in a transaction of its own
	modeNowhere  = "nowhere"  // writes no message: uses up the token and invents the receipt
)

// benchMode is the way of sending of this process.
var benchMode atomic.Value

func (n *node) sender() api.Sender {
	benchMode.Store(modeTogether)
	return benchSender{n.messages}
}

// benchSender sends in the way that the benchmark has chosen last.
type benchSender struct{ log *messages.Log }

// Send implements api.Sender.
func (s benchSender) Send(ctx context.Context, d messages.Draft) (messages.Receipt, error) {
	switch benchMode.Load() {
	case modeAlone:
		results, err := s.log.Append(ctx, []messages.Draft{d})
		if err != nil {
			return messages.Receipt{}, err
		}
		return results[0].Receipt, results[0].Err
	case modeNowhere:
		if d.Token != nil { // nil: the sender has a session
			if err := d.Token.Use(ctx); err != nil {
				return messages.Receipt{}, err
			}
		}
		at := time.Now().UTC().Truncate(time.Millisecond)
		return messages.Receipt{ID: uuid.Must(uuid.NewV7()), Seq: 1, Epoch: d.Epoch, At: at}, nil
	}
	return s.log.Send(ctx, d)
}

func (n *node) benchRoutes(handle operator.Handle, log *slog.Logger) {
	handle("POST /sends", operator.Write, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch mode := r.URL.Query().Get("mode"); mode {
		case modeTogether, modeAlone, modeNowhere:
			benchMode.Store(mode)
			writeText(w, log, http.StatusOK, "set")
		default:
			writeText(w, log, http.StatusBadRequest, "mode must be together, alone or nowhere")
		}
	}))
}
