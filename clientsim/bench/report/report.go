// Package report is what a benchmark or a soak run has measured, and how it is shown: a table for a
// terminal, JSON for programs, and Markdown for documents.
//
// Variants take turns, so that what the machine does meanwhile meets all of them alike: a figure is
// the median over the turns, and two variants are compared turn by turn before the median is taken.
//
// In JSON every duration is in nanoseconds, except in a latency, which is in microseconds
// throughout.
package report

import (
	"encoding/json"
	"io"
	"time"

	"mlsd/clientsim/load"
)

// Report is one benchmark.
type Report struct {
	Scenario string    `json:"scenario"`
	Began    time.Time `json:"began"`
	Command  string    `json:"command"` // that makes it again
	Seed     uint64    `json:"seed"`
	Machine  Machine   `json:"machine"`
	Database Database  `json:"database"`
	Runs     []Run     `json:"runs"` // in order: the variants take turns
	Verdict  *Verdict  `json:"verdict,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // what else a reader must know, such as what the ciphertexts are
}

// Machine is what everything ran on: load, server and database together.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memory"` // bytes
	OS     string `json:"os"`
	Go     string `json:"go"`
	Server string `json:"server"` // mlsd's version
}

// Database is the settings that decide what a COMMIT means, as PostgreSQL states them.
type Database struct {
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings"` // fsync, synchronous_commit, shared_buffers, …
}

// Run is one turn of one variant under load.
type Run struct {
	Variant string        `json:"variant"`
	Against string        `json:"against,omitempty"` // the variant that it is compared with
	Turn    int           `json:"turn"`              // from 0: the variants of one turn follow each other
	Load    Load          `json:"load"`
	Took    time.Duration `json:"took"`
	// Per is the operation by which the processor time is divided. "" means all operations.
	Per string `json:"per,omitempty"`
	// Operations by name, such as sendMessage.
	Operations map[string]*load.Operation `json:"operations"`
	Spent      Spent                      `json:"spent"`
}

// Load is what a run asks of the server.
type Load struct {
	InFlight  int     `json:"inFlight,omitempty"` // closed loop: unanswered requests at any time
	Rate      float64 `json:"rate,omitempty"`     // open loop: requests started per second
	Servers   int     `json:"servers"`            // mlsd processes
	Convos    int     `json:"convos"`
	Members   int     `json:"members"` // of each convo
	BodyBytes int     `json:"bodyBytes"`
	Faults    bool    `json:"faults,omitempty"`
	// Senders are the accounts that send; Subscribers the streams that are open.
	Senders     int `json:"senders,omitempty"`
	Subscribers int `json:"subscribers,omitempty"`
}

// Spent is processor time.
type Spent struct {
	Server   time.Duration `json:"server"` // of all mlsd processes
	Database time.Duration `json:"database"`
	Load     time.Duration `json:"load"` // of the benchmark itself
}

// Verdict is the result of reading every convo afterwards.
type Verdict struct {
	Sent      int64    `json:"sent"` // acknowledged
	Stored    int64    `json:"stored"`
	Unknown   int64    `json:"unknown"` // stored and not acknowledged: each must belong to a failed request
	Lost      int64    `json:"lost"`
	Doubled   int64    `json:"doubled"`
	Gaps      int64    `json:"gaps"`     // missing seqs
	Violated  []string `json:"violated"` // by the server's own check and by others
	Retried   int64    `json:"retried"`
	Dropped   int64    `json:"dropped"`   // answers that the client threw away
	Duplicate int64    `json:"duplicate"` // requests sent twice at once
	Kills     int64    `json:"kills"`
}

// Kept reports whether every promise was.
func (v *Verdict) Kept() bool {
	return v.Lost == 0 && v.Doubled == 0 && v.Gaps == 0 && len(v.Violated) == 0
}

// WriteJSON writes the report for a program. Durations are in nanoseconds, latencies in
// microseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
