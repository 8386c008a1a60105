package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
	"mlsd/operator"
)

// welcomesPage is what the page Welcomes shows.
type welcomesPage struct {
	Steps   []funnelStep // available, in_flight and consumed, then the other states
	Reasons []operator.ErrorCount
	Exact   bool
	Spoken  string // the drawing in words

	Chosen string // what the list shows: a state, or failedJoins
	List   []operator.Welcome
	Next   string // query for the next rows; "" if there are none
}

// funnelStep is a step of the funnel, and its bar in the drawing.
type funnelStep struct {
	operator.WelcomeCount
	bar
	About         string
	Middle, Arrow int
}

// funnelStates are the states of Welcomes in the order of the page.
var funnelStates = []funnelStep{
	{WelcomeCount: operator.WelcomeCount{State: "available"}, About: "waits to be fetched"},
	{WelcomeCount: operator.WelcomeCount{State: "in_flight"}, About: "fetched, not confirmed"},
	{WelcomeCount: operator.WelcomeCount{State: "consumed"}, About: "the device has joined"},
	{WelcomeCount: operator.WelcomeCount{State: "superseded"}, About: "replaced by a newer one"},
	{WelcomeCount: operator.WelcomeCount{State: "expired"}, About: "nobody came in 90 days"},
}

const (
	// drawnSteps is how many steps the drawing has.
	drawnSteps = 3
	// shownReasons is how many reasons of failed joins the page shows.
	shownReasons = 10
	// failedJoins selects the list of Welcomes whose join has failed.
	failedJoins = "failed"
)

// The bars of the drawing.
const (
	barLeft, barStep, barWidth = 8, 122, 100
	barTop, barBottom          = 34, 92
)

// welcomes shows how many Welcomes are in each state, and lists the Welcomes in one of them.
func (c *Console) welcomes(ctx context.Context, r *Request) (any, error) {
	p := welcomesPage{Chosen: r.Query.Get("state")}
	known := slices.ContainsFunc(funnelStates, func(s funnelStep) bool { return s.State == p.Chosen })
	if p.Chosen != "" && p.Chosen != failedJoins && !known {
		return nil, operator.BadRequest("there is no such state of Welcomes")
	}
	err := c.read(ctx, func(tx pgx.Tx) error {
		percent, err := operator.Sampled(ctx, tx, "welcomes")
		if err != nil {
			return err
		}
		p.Exact = percent == operator.WholeTable
		var states []operator.WelcomeCount
		if states, p.Reasons, err = operator.CountWelcomes(ctx, tx, percent, shownReasons); err != nil {
			return err
		}
		p.draw(states)
		if p.Chosen == "" {
			return nil
		}
		from := place(r.Query.Get("before"), push.Place{At: r.Now.Add(time.Minute)})
		p.List, err = operator.WelcomesIn(ctx, tx, p.Chosen, p.Chosen == failedJoins, from, pageRows)
		return err
	})
	p.Next = next(p.List, func(last operator.Welcome) string {
		return "?state=" + url.QueryEscape(p.Chosen) + "&before=" + placeText(last.CreatedAt, last.ID)
	})
	return p, err
}

// draw makes the steps and their bars.
func (p *welcomesPage) draw(states []operator.WelcomeCount) {
	for _, shown := range funnelStates {
		for _, s := range states {
			if s.State == shown.State {
				shown.WelcomeCount = s
			}
		}
		p.Steps = append(p.Steps, shown)
	}
	var counts []int64
	for _, s := range p.Steps[:drawnSteps] {
		counts = append(counts, s.Count)
		p.Spoken += fmt.Sprintf("%s %s. ", number(s.Count), stateName(s.State))
	}
	for i, b := range bars(counts, barLeft, barStep, barWidth, barTop, barBottom) {
		s := &p.Steps[i]
		s.bar, s.Middle, s.Arrow = b, b.X+barWidth/2, b.X+barWidth+5
	}
}

// Drawn returns the steps of the drawing.
func (p welcomesPage) Drawn() []funnelStep { return p.Steps[:drawnSteps] }

// Name returns the step's state in words.
func (s funnelStep) Name() string { return stateName(s.State) }

// Failures returns the number of failed joins.
func (p welcomesPage) Failures() (n int64) {
	for _, s := range p.Steps {
		n += s.Failures
	}
	return n
}

func stateName(state string) string {
	if state == "in_flight" {
		return "in flight"
	}
	return state
}
