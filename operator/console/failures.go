package console

import (
	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
)

// failureRate is how often members fetch or join with a Welcome on this node, and how often that
// fails.
type failureRate struct {
	What          string
	Asked, Failed float64
}

const (
	// tolerated is the share of failures that is not bad. The alerts on Welcomes have the same limit.
	tolerated = .001
	// toleratedCount is the number of failures that is not bad, whatever their share.
	toleratedCount = 2
)

// failureRates returns the rates of a node since it began.
func failureRates(r reading) [2]failureRate {
	undelivered := func(labels map[string]string) bool {
		switch labels["outcome"] {
		case mlsapi.ErrWelcomeNotFound, errorlist.InternalServerError, errorlist.ServiceUnavailable:
			return true
		}
		return false
	}
	ok := r.sum(welcomeFetches, labelled("outcome", "ok"))
	failed := r.sum(welcomeFetches, undelivered)
	joined := r.sum(welcomeConfirms, labelled("outcome", "success"))
	unjoined := r.sum(welcomeConfirms, labelled("outcome", "failure"))
	return [2]failureRate{
		{"Fetches by members", ok + failed, failed},
		{"Joins that devices reported", joined + unjoined, unjoined},
	}
}

// failures returns the rates of the last hour.
func (h *history) failures() [2]failureRate {
	h.mu.Lock()
	defer h.mu.Unlock()
	rates := failureRates(h.last)
	if len(h.samples) == kept { // if not, the node began within the hour
		for i, old := range h.samples[0].failures {
			rates[i].Asked -= old.Asked
			rates[i].Failed -= old.Failed
		}
	}
	return rates
}

// Of returns how many were asked for.
func (f failureRate) Of() string { return decimals(f.Asked) }

// Count returns how many failed.
func (f failureRate) Count() string { return decimals(f.Failed) }

// Share returns the share of failures.
func (f failureRate) Share() string {
	if f.Asked == 0 {
		return "–"
	}
	return share(f.Failed / f.Asked)
}

// Bad reports whether an operator should look at the failures.
func (f failureRate) Bad() bool { return f.Failed > toleratedCount && f.Failed > tolerated*f.Asked }
