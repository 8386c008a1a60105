package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// connectDatabase opens a few connections for samples and for age.
func connectDatabase(ctx context.Context, url string) (_ *pgxpool.Pool, err error) {
	defer Catch(&err)
	config := Must(pgxpool.ParseConfig(url))
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "soak"
	return pgxpool.NewWithConfig(ctx, config)
}

// samples is the file of samples. It is flushed with every line, so a killed run keeps its samples.
type samples struct {
	file  *os.File
	lines *json.Encoder
}

// openSamples makes the file and writes its first line.
func openSamples(s *soak) (_ *samples, err error) {
	defer Catch(&err)
	file := Must(os.Create(s.c.Samples))
	out := &samples{file: file, lines: json.NewEncoder(file)}
	return out, out.lines.Encode(Line{Begin: &Begin{
		Began: s.began.UTC(), For: s.c.For, Rate: s.c.Rate, Every: s.c.Every, Seed: s.c.Seed,
		Cores: runtime.NumCPU(), Go: runtime.Version(),
	}})
}

// end writes the last line.
func (o *samples) end(s *soak) error {
	end := &End{Ended: time.Now().UTC(), Rounds: s.rounds.played.Load(), Notes: s.w.Notes()}
	for _, v := range s.w.Found() {
		end.Broken = append(end.Broken, v.String())
	}
	return errors.Join(o.lines.Encode(Line{End: end}), o.file.Close())
}

// sample takes samples until ended ends.
func (s *soak) sample(ctx, ended context.Context, db *pgxpool.Pool, out *samples) {
	tick := time.NewTicker(s.c.Every)
	defer tick.Stop()
	for {
		select {
		case <-ended.Done():
			return
		case <-tick.C:
		}
		values, err := s.values(ctx, db)
		at := time.Since(s.began)
		if err == nil {
			err = out.lines.Encode(Line{Sample: &Sample{At: at.Seconds(), Values: values}})
		}
		if err != nil {
			s.w.Broken("the run itself: no sample after %s: %v", at.Round(time.Second), err)
		}
		s.c.Progress(fmt.Sprintf("%s: %.0f sent, %d rounds, %d broken", at.Round(time.Second), values["sent"],
			s.rounds.played.Load(), len(s.w.Found())))
	}
}

// nodeMetrics are the metrics of a node that are sampled, and their names in a sample.
var nodeMetrics = map[string]string{
	"process_resident_memory_bytes":                               "resident",
	"go_memstats_heap_inuse_bytes":                                "heap",
	"go_memstats_stack_inuse_bytes":                               "stacks",
	"go_gc_gogc_percent":                                          "gc-percent",
	"go_memstats_next_gc_bytes":                                   "next-gc",
	"go_goroutines":                                               "goroutines",
	"go_threads":                                                  "threads",
	"process_open_fds":                                            "files",
	"process_cpu_seconds_total":                                   "cpu",
	"mlsd_stream_lag_seconds_sum":                                 "lag-sum",
	"mlsd_stream_lag_seconds_count":                               "lag-count",
	`mlsd_swept_rows_total{rows="messages"}`:                      "expired",
	`mlsd_subscriptions{kind="websocket"}`:                        "websockets",
	`mlsd_subscriptions{kind="sse"}`:                              "event-streams",
	`mlsd_push_attempts_total{kind="webhook",result="delivered"}`: "pushes",
}

// databaseMetrics are gauges that all nodes read from the database.
var databaseMetrics = map[string]string{
	"mlsd_outbox_events": "outbox", "mlsd_outbox_oldest_seconds": "outbox-oldest", "mlsd_push_backlog": "push-backlog",
}

// values takes one sample.
func (s *soak) values(ctx context.Context, db *pgxpool.Pool) (_ map[string]float64, err error) {
	defer Catch(&err)
	values := map[string]float64{"rounds": float64(s.rounds.played.Load()),
		"rounds-failed": float64(s.rounds.failed.Load())}
	for i, node := range s.cluster.Nodes {
		metrics := Must(node.Metrics(ctx))
		for name, short := range nodeMetrics {
			values[short+"/node"+strconv.Itoa(i+1)] = metrics[name]
		}
		for name, short := range databaseMetrics {
			values[short] = max(values[short], metrics[name])
		}
		for name, value := range metrics {
			if nsid, ok := strings.CutPrefix(name, "mlsd_overdue_rows{worker="); ok {
				name := "overdue/" + strings.Trim(nsid, `"}`)
				values[name] = max(values[name], value)
			}
		}
	}
	s.watch.take(values)
	Check(databaseValues(ctx, db, values))
	values["cpu/database"] = testbed.TreeTime(s.cluster.Postgres.PID()).Seconds()
	return values, loadValues(values)
}

// loadValues adds what the load generator itself uses.
func loadValues(values map[string]float64) (err error) {
	defer Catch(&err)
	resident := Must(testbed.FromStatus(os.Getpid(), "VmRSS:"))
	values["resident/load"] = float64(resident)
	values["goroutines/load"] = float64(runtime.NumGoroutine())
	values["cpu/load"] = testbed.ProcessTime(os.Getpid()).Seconds()
	return nil
}

// tablesSQL reads the sizes of all tables, in bytes, and their rows as the statistics count them.
// The partitions of a daily table count together.
const tablesSQL = `
	SELECT regexp_replace(relname, '_[0-9]{8}$', ''), sum(pg_table_size(relid)),
		sum(pg_indexes_size(relid)),
		sum(n_live_tup), sum(n_dead_tup)
	FROM pg_stat_user_tables GROUP BY 1`

// databaseSQL reads figures of the whole database.
const databaseSQL = `
	SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), pg_database_size(current_database()),
		(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
		(SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()),
		(SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity WHERE backend_type
			= 'client backend')`

// databaseValues adds the values that the database gives.
func databaseValues(ctx context.Context, db *pgxpool.Pool, values map[string]float64) (err error) {
	defer Catch(&err)
	rows := Must(db.Query(ctx, tablesSQL))
	var name string
	var table, index, live, dead int64
	Must(pgx.ForEachRow(rows, []any{&name, &table, &index, &live, &dead}, func() error {
		values["table/"+name], values["index/"+name] = float64(table), float64(index)
		values["rows/"+name], values["dead/"+name] = float64(live), float64(dead)
		return nil
	}))
	var wal, size, commits, deadlocks, oldest float64
	Check(db.QueryRow(ctx, databaseSQL).Scan(&wal, &size, &commits, &deadlocks, &oldest))
	values["wal"], values["database"], values["commits"], values["deadlocks"], values["oldest-transaction"] = wal, size,
		commits, deadlocks, oldest
	rows = Must(db.Query(ctx,
		`SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'soak'`))
	var pid int
	var private int64
	connections := 0
	_, err = pgx.ForEachRow(rows, []any{&pid}, func() error {
		size, err := testbed.FromStatus(pid, "RssAnon:")
		private += size
		connections++
		return err
	})
	values["backends"], values["connections"] = float64(private), float64(connections)
	return err
}

// watch is the transport of all clients. It times messages and counts answers. It also collects the
// ages of events.
type watch struct {
	wire *http.Transport

	mu      sync.Mutex         // guards the fields below
	sends   *load.Latency      // time until an answer in µs, since the last take
	events  *load.Latency      // µs from createdAt until arrival, since the last take
	answers map[string]float64 // since the start, by class of status; "none" means no answer
	sent    float64            // messages that were answered with success, since the start
}

func newWatch(wire *http.Transport) *watch {
	return &watch{wire: wire, sends: load.NewLatency(), events: load.NewLatency(), answers: map[string]float64{}}
}

// RoundTrip implements http.RoundTripper.
func (w *watch) RoundTrip(req *http.Request) (*http.Response, error) {
	begun := time.Now()
	resp, err := w.wire.RoundTrip(req)
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.answers["none"]++
		return nil, err
	}
	w.answers[strconv.Itoa(resp.StatusCode/100)+"xx"]++
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		w.answers[strconv.Itoa(resp.StatusCode)]++
	}
	if path.Base(req.URL.Path) == mlsapi.NSIDSendMessage && resp.StatusCode/100 == 2 {
		w.sent++
		w.sends.Record(took)
	}
	return resp, nil
}

// CloseIdleConnections makes World.CloseIdle work.
func (w *watch) CloseIdleConnections() { w.wire.CloseIdleConnections() }

// event records the age of an event that has arrived.
func (w *watch) event(age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.Record(age)
}

// take adds the counts, and the latencies in seconds since the last take, to a sample's values.
func (w *watch) take(values map[string]float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	values["sent"] = w.sent
	for _, class := range []string{"2xx", "4xx", "5xx", "429", "503", "none"} {
		values["answers/"+class] = w.answers[class]
	}
	for name, h := range map[string]*load.Latency{"send": w.sends, "event": w.events} {
		values[name+"/count"] = float64(h.TotalCount())
		if h.TotalCount() > 0 {
			values[name+"/p50"] = float64(h.ValueAtQuantile(50)) / 1e6
			values[name+"/p99"] = float64(h.ValueAtQuantile(99)) / 1e6
		}
		h.Reset()
	}
}

// counters counts rounds.
type counters struct{ played, failed atomic.Int64 }
