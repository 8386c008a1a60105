package console

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/operator"
)

// convoPage is what the page Convo shows.
type convoPage struct {
	Asked  string // the id in the form
	Convo  *operator.ConvoState
	Epochs []operator.Epoch
	// Disputes includes forks.
	Disputes []operator.Dispute
	Bars     []epochBar
	Next     string // query for earlier epochs; "" if there are none
}

// shownEpochs is how many epochs a page shows.
const shownEpochs = 20

// convo shows a convo's log as a timeline of epochs, without the content of messages.
func (c *Console) convo(ctx context.Context, r *Request) (any, error) {
	p := convoPage{Asked: strings.TrimSpace(r.Query.Get("id"))}
	if p.Asked == "" {
		return p, nil
	}
	id, err := uuid.Parse(p.Asked)
	if err != nil {
		return nil, operator.BadRequest("this is no id of a convo; one looks like 0192f3a4-0000-7000-8000-000000000000")
	}
	before, err := strconv.ParseInt(r.Query.Get("before"), 10, 64)
	if err != nil {
		before = math.MaxInt64
	}
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		if p.Convo, err = operator.ReadConvo(ctx, tx, id); err != nil {
			return err
		}
		if p.Convo == nil {
			return &operator.Error{Status: http.StatusNotFound, Name: "ConvoNotFound", Message: "there is no convo with this id"}
		}
		if p.Disputes, err = operator.Disputes(ctx, tx, id, shownEpochs); err != nil {
			return err
		}
		p.Epochs, err = operator.Epochs(ctx, tx, p.Convo, before, shownEpochs)
		return err
	})
	p.Bars = epochBars(p.Epochs)
	if n := len(p.Epochs); n == shownEpochs {
		p.Next = fmt.Sprintf("?id=%s&before=%d", id, p.Epochs[n-1].Epoch)
	}
	return p, err
}

// epochBar is the bar of an epoch in the drawing of the log.
type epochBar struct {
	bar
	operator.Epoch
}

// Lost reports whether a committer lost the race for the epoch.
func (b epochBar) Lost() bool { return len(b.Losers) > 0 }

// The drawing of the log.
const (
	logLeft, logWidth = 4, 352
	logTop, logBottom = 10, 60
	logGap, logWidest = 2, 14 // between two bars; widest bar
)

// epochBars draws how many messages each epoch has, the oldest epoch first.
func epochBars(epochs []operator.Epoch) []epochBar {
	if len(epochs) < 2 {
		return nil
	}
	width := min(logWidth/len(epochs)-logGap, logWidest)
	var all []epochBar
	var messages []int64
	for _, e := range slices.Backward(epochs) {
		all = append(all, epochBar{Epoch: e})
		messages = append(messages, e.Messages)
	}
	for i, b := range bars(messages, logLeft, width+logGap, width, logTop, logBottom) {
		all[i].bar = b
	}
	return all
}

// Spoken describes the drawing in words.
func (p convoPage) Spoken() string {
	var most operator.Epoch
	for _, e := range p.Epochs {
		if e.Messages >= most.Messages {
			most = e
		}
	}
	return fmt.Sprintf("Epochs %d to %d. Epoch %d has the most messages: %s.",
		p.Epochs[len(p.Epochs)-1].Epoch, p.Epochs[0].Epoch, most.Epoch, number(most.Messages))
}

// First is the oldest epoch of the drawing.
func (p convoPage) First() int64 { return p.Epochs[len(p.Epochs)-1].Epoch }

// Last is the newest epoch of the drawing.
func (p convoPage) Last() int64 { return p.Epochs[0].Epoch }
