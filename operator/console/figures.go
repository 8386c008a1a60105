package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	"mlsd/internal/nsid"
)

// Names of metrics.
const (
	requests        = "mlsd_requests_total"
	requestTime     = "mlsd_request_seconds"
	keyUses         = "mlsd_idempotency_total"
	lostRaces       = "mlsd_epoch_conflicts_total"
	batchSize       = "mlsd_message_batch_size"
	streamLag       = "mlsd_stream_lag_seconds"
	sequenceWait    = "mlsd_sequencer_wait_seconds"
	pushAttempts    = "mlsd_push_attempts_total"
	pushBacklog     = "mlsd_push_backlog"
	pushOldest      = "mlsd_push_backlog_seconds"
	streams         = "mlsd_subscriptions"
	welcomeFetches  = "mlsd_welcome_fetches_total"
	welcomeConfirms = "mlsd_welcome_confirmations_total"
	quotaRefusals   = "mlsd_quota_refusals_total"
	lookupsRefused  = "mlsd_lookups_refused_total"
	leader          = "mlsd_sequencer_leader"
	databaseUp      = "mlsd_database_up"
	cpuTime         = "process_cpu_seconds_total"
	memory          = "process_resident_memory_bytes"
)

// chart is one drawing of the page Now.
type chart struct {
	Key, Title string
	About      string // a sentence that says what the drawing shows
	Lines      []line
	unit       unit
}

// line is one line of a chart.
type line struct {
	Name string
	// value is the line's value between two readings. It is NaN if there is none.
	value func(before, now reading) float64
}

// charts returns the drawings of the page Now.
func charts() []chart {
	return []chart{
		{"sends", "Messages", "Messages that were sent for the first time, and uses of idempotency keys that got their " +
			"first answer again or a conflict.", []line{
			{"sends", rate(keyUses, both(labelled("nsid", nsid.SendMessage), labelled("outcome", "first")))},
			{"replays", rate(keyUses, labelled("outcome", "replay"))},
			{"conflicts", rate(keyUses, labelled("outcome", "conflict"))},
		}, perSecond},
		{"latency", "Time to answer sendMessage",
			"How long sendMessage took: half, 95 % and 99 % of the answers were faster.", []line{
				{"50 %", quantile(requestTime, labelled("nsid", nsid.SendMessage), .5)},
				{"95 %", quantile(requestTime, labelled("nsid", nsid.SendMessage), .95)},
				{"99 %", quantile(requestTime, labelled("nsid", nsid.SendMessage), .99)},
			}, seconds},
		{"requests", "Requests", "All requests, those that were refused (4xx) and those that failed (5xx).", []line{
			{"all", rate(requests, every)},
			{"refused", rate(requests, status('4'))},
			{"failed", rate(requests, status('5'))},
		}, perSecond},
		{"epochs", "Epochs", "Commits that began an epoch, and requests that came with another epoch than the convo's.",
			[]line{
				{"commits", rate(keyUses, both(isCommit, labelled("outcome", "first")))},
				{"lost races", rate(lostRaces, every)},
			}, perSecond},
		{"batch", "Messages in a transaction", "How many messages shared a transaction.", []line{
			{"mean", func(before, now reading) float64 {
				return now.histogram(batchSize, every).since(before.histogram(batchSize, every)).mean()
			}},
			{"95 %", func(before, now reading) float64 { return math.Ceil(quantile(batchSize, every, .95)(before, now)) }},
		}, count},
		{"lag", "Events", "How old events were when this node's subscriptions got them (delivered), and how long they had " +
			"waited for their place in the stream (sequenced); 95 % were faster.", []line{
			{"delivered", quantile(streamLag, every, .95)},
			{"sequenced", quantile(sequenceWait, every, .95)},
		}, seconds},
		{"push", "Push", "Push jobs of all nodes that have not ended, and calls of this node in a minute.", []line{
			{"jobs that wait", gauge(pushBacklog)},
			{"calls a minute", func(before, now reading) float64 { return rate(pushAttempts, every)(before, now) * 60 }},
		}, count},
		{"streams", "Subscriptions", "Event streams that are open on this node.", []line{
			{"open", gauge(streams)},
		}, count},
		{"welcomes", "Welcomes", "Welcomes that devices have fetched, and what they said of joining.", []line{
			{"fetched", rate(welcomeFetches, labelled("outcome", "ok"))},
			{"joined", rate(welcomeConfirms, labelled("outcome", "success"))},
			{"failed", rate(welcomeConfirms, labelled("outcome", "failure"))},
		}, perSecond},
		{"limits", "Limits", "Requests that were refused because a quota was used up, and because of the limit of " +
			"look-ups of DID documents.", []line{
			{"quotas", rate(quotaRefusals, every)},
			{"look-ups", rate(lookupsRefused, every)},
		}, perSecond},
		{"cpu", "Processor", "Processor time of this node: 100 % is one core.", []line{
			{"used", func(before, now reading) float64 { return rate(cpuTime, every)(before, now) * 100 }},
		}, percent},
		{"memory", "Memory", "Memory of this node's process.", []line{
			{"resident", gauge(memory)},
		}, byteSize},
	}
}

func both(a, b matcher) matcher {
	return func(labels map[string]string) bool { return a(labels) && b(labels) }
}

// status matches requests whose status begins with the digit.
func status(digit byte) matcher {
	return func(labels map[string]string) bool { return strings.HasPrefix(labels["status"], string(digit)) }
}

// isCommit matches the methods whose commits begin an epoch.
func isCommit(labels map[string]string) bool {
	switch labels["nsid"] {
	case nsid.CreateConvo, nsid.AddMembers, nsid.SubmitCommit, nsid.ProcessExternalCommit:
		return true
	}
	return false
}

// rate returns the growth per second of a counter.
func rate(name string, matches matcher) func(before, now reading) float64 {
	return func(before, now reading) float64 {
		if !before.at.Before(now.at) {
			return math.NaN()
		}
		return (now.sum(name, matches) - before.sum(name, matches)) / now.at.Sub(before.at).Seconds()
	}
}

func gauge(name string) func(before, now reading) float64 {
	return func(_, now reading) float64 { return now.sum(name, every) }
}

// quantile returns a quantile of a histogram's observations between two readings.
func quantile(name string, matches matcher, q float64) func(before, now reading) float64 {
	return func(before, now reading) float64 {
		return now.histogram(name, matches).since(before.histogram(name, matches)).quantile(q)
	}
}

// Metrics returns the names, in a registry, of the metrics that the console reads.
func Metrics() []string {
	names := []string{
		requests, requestTime, keyUses, lostRaces, batchSize, streamLag, sequenceWait, pushAttempts, pushBacklog, pushOldest,
		streams,
		welcomeFetches, welcomeConfirms, quotaRefusals, lookupsRefused, leader, databaseUp,
	}
	for _, s := range stocks {
		names = append(names, s.metric)
	}
	return names
}

// unit formats a value.
type unit func(float64) string

func perSecond(v float64) string { return decimals(v) + "/s" }
func count(v float64) string     { return decimals(v) }
func percent(v float64) string   { return decimals(v) + " %" }

func seconds(v float64) string {
	if v >= 60 {
		return Span(time.Duration(v * float64(time.Second)))
	}
	if v >= 1 || v == 0 {
		return decimals(v) + " s"
	}
	if v < .001 {
		return "<1 ms"
	}
	return decimals(v*1000) + " ms"
}

func byteSize(v float64) string {
	const step = 1024
	for _, name := range []string{"B", "KiB", "MiB"} {
		if v < step {
			return decimals(v) + " " + name
		}
		v /= step
	}
	return decimals(v) + " GiB"
}

// decimals formats a value with its significant decimals.
func decimals(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1000:
		return number(int64(math.Round(v)))
	case v >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= .01:
		return fmt.Sprintf("%.2f", v)
	}
	return "<0.01"
}

// written formats a value with its unit, or says that there is no value.
func (u unit) written(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return u(v)
}
