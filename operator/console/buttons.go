package console

import (
	"strconv"

	"github.com/google/uuid"

	"mlsd/internal/push"
)

// button begins an action. Its form has the method's parameters.
type button struct {
	Method, Label, About string
	Params               []param
}

// param is a parameter of the method that a button has.
type param struct{ Name, Value string }

// Act returns a button for a convo or a report, which its id names.
func (r *Request) Act(method, label, name string, id uuid.UUID) button {
	return button{method, label, id.String(), []param{{name, id.String()}}}
}

// ActOn returns a button for an account.
func (r *Request) ActOn(method, label string, did any) button {
	return button{method, label, r.DID(did), []param{{"did", r.Ref(did)}}}
}

// Job returns a button for a push job.
func (r *Request) Job(method, label string, j push.ListedJob) button {
	return button{method, label, "job " + j.ID.String(), []param{{"did", r.Ref(j.DID)}, {"id", j.ID.String()}}}
}

// End returns a button that ends the dispute of an epoch.
func (r *Request) End(convo uuid.UUID, epoch int64) button {
	text := strconv.FormatInt(epoch, 10)
	return button{"dispute.end", "End the dispute", "epoch " + text, []param{{"convo", convo.String()}, {"epoch", text}}}
}

// Unlimit returns a button that takes the limit of an account back.
func (r *Request) Unlimit(did any) button {
	return button{"account.limit", "Take the limit back", r.DID(did), []param{{"did", r.Ref(did)}, {"percent", "100"}}}
}
