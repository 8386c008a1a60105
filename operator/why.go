package operator

import (
	"fmt"
	"strings"
	"time"
)

// reasons maps an error's name to the explanation of the request that got the error. An error
// without an entry is explained by its own message.
var reasons = map[string]func(e *Explanation) string{
	"":                    (*Explanation).whySuccess,
	"IdempotencyConflict": (*Explanation).whyConflict,
	"RequestInProgress":   (*Explanation).whyInProgress,
	"EpochMismatch":       (*Explanation).whyEpoch,
	"ConvoClosed":         (*Explanation).whyClosed,
	"GroupAlreadyExists":  (*Explanation).whyGroupExists,
	"AlreadyMember":       (*Explanation).whyAlreadyMember,
	"LastMember":          (*Explanation).whyLastMember,
	"WelcomeConsumed":     (*Explanation).whyConsumed,
	"InternalServerError": (*Explanation).whyInternal,
}

// why returns the explanation, in sentences.
func (e *Explanation) why() string {
	reason := reasons[e.Error]
	if reason == nil {
		return fmt.Sprintf("The server answered %s: %s.", e.Error, strings.TrimSuffix(e.Message, "."))
	}
	text := reason(e)
	if e.Expired && e.Error != "" {
		text += " The key had been used before, and the lifetime of its record was over: so the request ran as a new one."
	}
	return text
}

func (e *Explanation) whySuccess() string {
	switch {
	case e.Replayed:
		return "It succeeded: its key had been used for the same request before, and it got the first answer again." +
			e.firstUse()
	case e.Expired:
		return "It succeeded. The key had been used before, and the lifetime of its record was over: so it ran as a new " +
			"request."
	case e.Entry != nil:
		return fmt.Sprintf("It succeeded, and stands in the log of its convo at seq %d.", e.Entry.Seq)
	}
	return "It succeeded."
}

// firstUse says when the key was first used, if the server still knows that.
func (e *Explanation) firstUse() string {
	switch {
	case e.Record != nil:
		return fmt.Sprintf(" The key was first used at %s.", moment(e.Record.FirstUsedAt))
	case e.Entry != nil:
		return fmt.Sprintf(" The key was first used at %s.", moment(e.Entry.At))
	}
	return ""
}

func (e *Explanation) whyConflict() string {
	if e.Detail == nil || e.Detail.FirstUsedAt == nil {
		return "The database has a row under this key, but no record of it."
	}
	at := *e.Detail.FirstUsedAt
	text := fmt.Sprintf("The caller had used this key for another request of %s, at %s, %s before.", e.method(),
		moment(at), span(e.At.Sub(at)))
	if len(e.Detail.Fields) > 0 {
		text += " Different in this one: " + strings.Join(e.Detail.Fields, ", ") + "."
	}
	return text + " A retry must repeat its request; another request needs another key."
}

func (e *Explanation) whyInProgress() string {
	text := "Another request with this key was under way"
	if e.Detail != nil && e.Detail.ProcessingStartedAt != nil {
		text += ", since " + moment(*e.Detail.ProcessingStartedAt)
	}
	return text + ". " + e.nowOfKey() + " To retry with the same key is right."
}

// nowOfKey says what became of a key that was in use.
func (e *Explanation) nowOfKey() string {
	switch r := e.Record; {
	case r == nil && e.Entry != nil:
		return fmt.Sprintf("It has taken effect: its message stands at seq %d.", e.Entry.Seq)
	case r == nil:
		return "It has left no record: it failed, or it is still under way."
	case r.State == "processing" && r.LeaseExpiresAt != nil:
		return fmt.Sprintf("It still holds the key; its lease ends at %s, and then another can take the work over (fence "+
			"%d).",
			moment(*r.LeaseExpiresAt), r.Fence)
	case r.State == "released":
		return "It has ended without a result: " + r.LastError + "."
	case r.CompletedAt != nil:
		return fmt.Sprintf("It has taken effect at %s.", moment(*r.CompletedAt))
	}
	return "It has taken effect."
}

// epochs parses the epoch of the object from the error's message. The form of the message is fixed,
// because clients parse it too.
func (e *Explanation) epochs() (epoch, current int64, state string, ok bool) {
	n, err := fmt.Sscanf(e.Message, "epoch %d is %s currentEpoch=%d", &epoch, &state, &current)
	return epoch, current, strings.TrimSuffix(state, ";"), err == nil && n == 3 && e.Error == "EpochMismatch"
}

// staleEpoch returns the epoch of an object that came too late.
func (e *Explanation) staleEpoch() (epoch int64, stale bool) {
	epoch, _, state, ok := e.epochs()
	return epoch, ok && state == "stale"
}

func (e *Explanation) whyEpoch() string {
	epoch, current, state, ok := e.epochs()
	switch {
	case !ok:
		return "The MLS object was not of the convo's epoch: " + e.Message + "."
	case state == "ahead":
		text := fmt.Sprintf("The MLS object was made in epoch %d, and the convo was in epoch %d: "+
			"the client had applied a commit that the server has not accepted.", epoch, current)
		if e.convo != nil && e.convo.Epoch != current {
			text += fmt.Sprintf(" The convo is in epoch %d now.", e.convo.Epoch)
		}
		return text
	case e.Winner == nil:
		return fmt.Sprintf("The MLS object was made in epoch %d, and the convo was in epoch %d by then.", epoch, current)
	}
	return fmt.Sprintf("The MLS object was made in epoch %d, and the convo was in epoch %d by then: %s.", epoch, current,
		e.whoWon(epoch))
}

// whoWon says whose commit ended an epoch.
func (e *Explanation) whoWon(epoch int64) string {
	w := e.Winner
	before := fmt.Sprintf("at %s, %s before (seq %d)", moment(w.At), span(e.At.Sub(w.At)), w.Seq)
	switch {
	case w.Sender == e.Caller && w.Key == e.method()+":"+e.Key:
		return fmt.Sprintf("this very request had ended epoch %d %s, and the record of its key is over", epoch, before)
	case w.Sender == e.Caller:
		return fmt.Sprintf("a commit of the caller itself had ended epoch %d %s", epoch, before)
	}
	return fmt.Sprintf("a commit of %s had ended epoch %d %s", w.Sender, epoch, before)
}

func (e *Explanation) whyClosed() string {
	switch c := e.convo; {
	case c == nil || c.ClosedAt == nil:
		return "The convo was closed."
	case c.Successor != "":
		return fmt.Sprintf("A commit with ReInit closed the convo at %s. The group %s replaces it.", moment(*c.ClosedAt),
			c.Successor)
	default:
		return fmt.Sprintf("An operator closed the convo at %s.", moment(*c.ClosedAt))
	}
}

func (e *Explanation) whyGroupExists() string {
	return "A convo with this MLS group_id exists. If the client had made it, this was a retry under another key: " +
		"getConvos lists the convo."
}

func (e *Explanation) whyAlreadyMember() string {
	return "Somebody whom the request adds is in the convo: " + strings.TrimSuffix(e.Message, ".") + "."
}

func (e *Explanation) whyLastMember() string {
	return "The caller was the last member of the convo, and the last member cannot leave."
}

func (e *Explanation) whyConsumed() string {
	w := e.welcome
	switch {
	case w == nil || w.ConfirmedAt == nil:
		return "The Welcome was used up."
	case w.Silent:
		return fmt.Sprintf("The Welcome into epoch %d counts as used since %s: the device %s had fetched it, and its "+
			"grace was over.",
			w.Epoch, moment(*w.ConfirmedAt), w.Device)
	}
	return fmt.Sprintf("The device %s confirmed at %s that it has joined with the Welcome into epoch %d.", w.Device,
		moment(*w.ConfirmedAt), w.Epoch)
}

func (e *Explanation) whyInternal() string {
	return "A defect, or a failure of the database. The log of node " + e.Node + " has lines with this request id."
}

// span formats the time between two moments.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}
