package console

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"mlsd/operator"
	"mlsd/operator/invariants"
)

// checksPage is what the page Checks shows.
type checksPage struct {
	Progress invariants.Progress
	Last     string // when the newest result began
	Results  []invariants.Result
	Convo    string // the convo that was asked for; "" if none was
	Asked    bool   // Found and Faults are the result for Convo
	Found    []string
	Faults   []string // mistakes of clients
}

// checks shows the results of checks. If the query names a convo, it
// checks that convo.
func (c *Console) checks(ctx context.Context, r *Request) (any, error) {
	p := checksPage{Progress: c.Checks.State(), Results: c.Checks.Results(),
		Convo: strings.TrimSpace(r.Query.Get("convo"))}
	p.Last = lastCheck(p.Results)
	if !r.Query.Has("convo") {
		return p, nil
	}
	p.Asked = true
	var convo *uuid.UUID
	if p.Convo != "" {
		id, err := uuid.Parse(p.Convo)
		if err != nil {
			return nil, operator.BadRequest("This is not the id of a convo. It is a UUID.")
		}
		if p.Found, err = invariants.CheckConvo(ctx, c.DB, id); err != nil {
			return nil, err
		}
		convo = &id
	}
	var err error
	p.Faults, err = invariants.ClientFaults(ctx, c.DB, convo)
	return p, err
}

// lastCheck returns when the newest result began. The page reloads itself when that changes.
func lastCheck(results []invariants.Result) string {
	if len(results) == 0 {
		return "none has ended yet"
	}
	return "the last one that has ended began at " + results[0].At.UTC().Format("15:04:05.000")
}

// checking makes a check.
type checking func(context.Context) (violations []string, err error)

// sampled is how many convos the console checks for a sample.
const sampled = 1000

// beginCheck begins a check of the whole database, or of a sample, unless a check is running.
func (c *Console) beginCheck(w http.ResponseWriter, r *http.Request) {
	check := func(ctx context.Context) ([]string, error) { return c.Checks.Check(ctx, invariants.Cursor{}) }
	if r.PostFormValue("what") == "sample" {
		check = func(ctx context.Context) ([]string, error) { return c.Checks.Sample(ctx, sampled) }
	}
	select {
	case c.begin <- check:
	default:
	}
	setHeaders(w.Header())
	http.Redirect(w, r, "/checks", http.StatusSeeOther)
}

// runChecks makes the checks that beginCheck requests, until ctx ends.
func (c *Console) runChecks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case check := <-c.begin:
			if _, err := check(ctx); err != nil {
				c.Log.ErrorContext(ctx, "the check failed", "error", err)
			}
		}
	}
}
