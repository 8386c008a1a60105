package api_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby"
	"mlsd/internal/standby/standbytest"
)

// BenchmarkStandby reads pages of 50 messages from the primary and from its standby, with 1 and
// with 32 readers, while a writer commits as fast as it can and while nobody writes. It reports the
// share of reads that the standby answered, and per page the transactions and the processor time of
// the primary without those of the writer.
func BenchmarkStandby(b *testing.B) {
	servers := pgtest.NewPair(b)
	db := servers.Pool(pgtest.MaxConns(16))
	for _, source := range []string{"primary", "standby"} {
		var reads *standby.Reads
		registry := prometheus.NewRegistry()
		if source == "standby" {
			reads = standbytest.Reads(b, db, servers)
			reads.Register(registry)
		}
		r := newReadingFrom(b, db, reads)
		convo := r.convo(8, 50, 1024).String()
		for _, writes := range []bool{false, true} {
			for _, readers := range []int{1, 32} {
				b.Run(fmt.Sprintf("%s/writes=%t/readers=%d", source, writes, readers), func(b *testing.B) {
					stop := func() {}
					writer := pgtest.Session(b, servers.Primary)
					if writes {
						ctx, cancel := context.WithCancel(b.Context())
						var running sync.WaitGroup
						running.Go(func() {
							for ctx.Err() == nil {
								if _, err := writer.Exec(b.Context(), `UPDATE convos SET last_message_at = now() WHERE id = $1`,
									convo); err != nil {
									b.Error(err)
								}
							}
						})
						stop = func() { cancel(); running.Wait() }
					}
					var used float64
					if reads != nil {
						standbytest.Await(b, reads, true)
						used = fromStandby(b, registry)
					}
					busy := processorTime(b, servers.PID(pgtest.PrimaryServer), int(writer.PgConn().PID()))
					b.ResetTimer()
					r.together(b, readers, mlsapi.NSIDGetMessages, "convoId", convo, "limit", "50")
					b.StopTimer()
					busy = processorTime(b, servers.PID(pgtest.PrimaryServer), int(writer.PgConn().PID())) - busy
					if reads != nil {
						b.ReportMetric((fromStandby(b, registry)-used)/float64(b.N), "standby/op")
					}
					b.ReportMetric(busy*1e6/float64(b.N), "primary-µs/op")
					stop()
				})
			}
		}
	}
}

// together makes b.N requests, by so many readers at a time.
func (r *reading) together(b *testing.B, readers int, nsid string, params ...string) {
	b.Helper()
	var running sync.WaitGroup
	next := make(chan struct{})
	for i := range readers {
		q := r.request(i%len(r.callers), nsid, params...)
		running.Go(func() {
			for range next {
				if _, ok := r.answer(q); !ok {
					b.Error("refused")
				}
			}
		})
	}
	for range b.N {
		next <- struct{}{}
	}
	close(next)
	running.Wait()
}

// processorTime is what the sessions of a server have used, without one of them, in seconds. It
// leaves out the server's own processes, which write its WAL and send it to the standby.
func processorTime(b *testing.B, postmaster, without int) (seconds float64) {
	b.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Skip(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == without {
			continue
		}
		command, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || !strings.HasPrefix(string(command), "postgres: mlsd mlsd ") {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if fields[1] != strconv.Itoa(postmaster) {
			continue
		}
		for _, ticks := range fields[11:13] {
			n, err := strconv.ParseFloat(ticks, 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += n / 100 // USER_HZ
		}
	}
	return seconds
}
