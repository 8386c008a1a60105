package report

import (
	"encoding/json"
	"io"
)

// WriteJSON writes the report for a program. Durations are in nanoseconds, latencies in microseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
