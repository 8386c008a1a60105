package console

import "slices"

// mostFailures is the share of failures that the designs allow, and from which the alerts fire.
const mostFailures = .001

// aim is a share that should stay small: of what failed among all.
type aim struct {
	Name, About, Link string
	failed, all       total
}

// reached is how often an aim's counters have counted in the last hour of this node.
type reached struct {
	aim
	Failed, All int64
}

// Share returns the share of what failed.
func (r reached) Share() float64 {
	if r.All == 0 {
		return 0
	}
	return float64(r.Failed) / float64(r.All)
}

// Missed reports whether more failed than allowed.
func (r reached) Missed() bool { return r.Share() > mostFailures }

// total is a value of counters at one time.
type total func(reading) float64

func counted(name string, matches matcher) total {
	return func(r reading) float64 { return r.sum(name, matches) }
}

// outcomes matches metrics with one of some outcomes.
func outcomes(names ...string) matcher {
	return func(labels map[string]string) bool { return slices.Contains(names, labels["outcome"]) }
}

// aims returns the aims of the page Now. deploy/ops/alerts.yml has an alert for each, with the same
// outcomes: a Welcome that was used, or a convo that the caller is not in, is no failure of a fetch.
func aims() []aim {
	failed := []string{"InternalServerError", "ServiceUnavailable", "WelcomeNotFound"}
	return []aim{
		{"Fetches of a Welcome that failed", "the server failed, or had no Welcome for a member", "/welcomes",
			counted(welcomeFetches, outcomes(failed...)), counted(welcomeFetches, outcomes(append(failed, "ok")...))},
		{"Joins that failed", "devices have said so; their reasons", "/welcomes",

			counted(welcomeConfirms, outcomes("failure")), counted(welcomeConfirms, outcomes("success", "failure"))},
		{"Requests that used a key again for other content", "by field and caller", "/idempotency",
			counted(keyUses, outcomes("conflict")), counted(requests, every)},
	}
}
