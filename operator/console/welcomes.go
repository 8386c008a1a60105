package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/push"
	"mlsd/operator"
)

// welcomesPage is what the page Welcomes shows.
type welcomesPage struct {
	Steps   []funnelStep // available, in_flight and consumed, and then how others ended
	Reasons []operator.ErrorCount
	Exact   bool
	Spoken  string // the drawing in words

	Chosen string // what the list shows: a state, or failedJoins
	List   []operator.Welcome
	Next   string // the query of the next rows; "": there are none
}

// funnelStep is a step of the funnel, and its bar in the drawing.
type funnelStep struct {
	operator.WelcomeCount
	About         string
	X, Y, H       int
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
	// shownReasons is how many reasons of failed joins the page has.
	shownReasons = 10
	// failedJoins is the list of the Welcomes that a device could not join with.
	failedJoins = "failed"
)

// The bars of the drawing.
const (
	barLeft, barStep, barWidth = 8, 122, 100
	barTop, barBottom          = 34, 92
)

// welcomes shows how far Welcomes have come, and lists those of a state.
func (c *Console) welcomes(ctx context.Context, r *Request) (any, error) {
	p := welcomesPage{Chosen: r.Query.Get("state")}
	known := slices.ContainsFunc(funnelStates, func(s funnelStep) bool { return s.State == p.Chosen })
	if p.Chosen != "" && p.Chosen != failedJoins && !known {
		return nil, &operator.Error{Status: http.StatusBadRequest, Name: "InvalidRequest", Message: "there is no such state of Welcomes"}
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
		from := operator.Place(place(r.Query.Get("before"), push.Place{At: r.Now.Add(time.Minute)}))
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
	most := int64(1)
	for _, s := range p.Steps[:drawnSteps] {
		most = max(most, s.Count)
		p.Spoken += fmt.Sprintf("%s %s. ", number(s.Count), stateName(s.State))
	}
	for i := range p.Steps[:drawnSteps] {
		s := &p.Steps[i]
		s.H = int(float64(barBottom-barTop) * float64(s.Count) / float64(most))
		if s.Count > 0 {
			s.H = max(s.H, 2)
		}
		s.X, s.Y = barLeft+i*barStep, barBottom-s.H
		s.Middle, s.Arrow = s.X+barWidth/2, s.X+barWidth+5
	}
}

// Drawn are the steps of the drawing.
func (p welcomesPage) Drawn() []funnelStep { return p.Steps[:drawnSteps] }

// Name is the step's state, as people say it.
func (s funnelStep) Name() string { return stateName(s.State) }

// Failures is the number of failed joins.
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
