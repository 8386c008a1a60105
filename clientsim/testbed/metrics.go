package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	. "mlsd/clientsim/steps"
)

// This file reads a server's metrics and memory.

// Metrics reads the values of the metrics, by names with labels. It skips metrics whose labels have
// spaces.
func (p *Proc) Metrics(ctx context.Context) (_ map[string]float64, err error) {
	defer Catch(&err)
	answer := Must(p.Admin(ctx, http.MethodGet, "/metrics", nil))
	values := map[string]float64{}
	for line := range strings.Lines(string(answer)) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		if value, err := strconv.ParseFloat(text, 64); ok && err == nil {
			values[name] = value
		}
	}
	return values, nil
}

// isLeader reports whether this node sequences events.
func (p *Proc) isLeader(ctx context.Context) (bool, error) {
	values, err := p.Metrics(ctx)
	return values["mlsd_sequencer_leader"] == 1, err
}

// FailedJoins returns how many failed joins devices have reported to this node since its start.
func (p *Proc) FailedJoins(ctx context.Context) (int, error) {
	values, err := p.Metrics(ctx)
	return int(values[`mlsd_welcome_confirmations_total{outcome="failure"}`]), err
}

// Memory is how much memory a server uses, in bytes.
type Memory struct {
	Resident     int64 // as the kernel counts it; 0 if unknown
	Heap, Stacks int64 // as Go counts them, in use
}

// Memory measures how much memory the server uses after a garbage collection.
func (p *Proc) Memory(ctx context.Context) (m Memory, err error) {
	defer Catch(&err)
	Must(p.Admin(ctx, http.MethodGet, "/debug/pprof/heap?gc=1", nil))
	values := Must(p.Metrics(ctx))
	m.Heap, m.Stacks = int64(values["go_memstats_heap_inuse_bytes"]), int64(values["go_memstats_stack_inuse_bytes"])
	m.Resident, err = p.fromStatus("VmRSS:")
	return m, err
}

// PeakMemory returns the most memory that the server has used since its start, in bytes, as the
// kernel counts it; 0 if unknown.
func (p *Proc) PeakMemory() (int64, error) { return p.fromStatus("VmHWM:") }

// fromStatus reads a size from the status of the server's process.
func (p *Proc) fromStatus(field string) (int64, error) {
	pid := p.PID()
	if pid == 0 {
		return 0, errors.New("server: it does not run")
	}
	return FromStatus(pid, field)
}

// FromStatus reads a size from the status of a process (proc_pid_status(5)), in bytes. It returns 0
// if there is no such file: the process has ended, or the system has none.
func FromStatus(pid int, field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, nil
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, nil
}
