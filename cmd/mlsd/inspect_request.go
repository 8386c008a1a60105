package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"mlsd/internal/redact"
	"mlsd/operator"
)

type requestsReport struct {
	Requests []operator.Explanation `json:"requests"` // the newest first
}

func requestFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "key", Usage: "requests with this idempotency `KEY`"},
		&cli.StringFlag{Name: "did", Usage: "requests of this `DID`"},
		&cli.BoolFlag{Name: "refused", Usage: "only requests that were refused or failed"},
	}
}

// reportRequests explains requests, the newest first.
func reportRequests(ctx context.Context, i inspection) (report, error) {
	found, err := operator.Explain(ctx, i.tx, operator.RequestsOf{
		Request: i.entityID, Key: i.key, Caller: i.subject, Failed: i.refused, Rows: i.rows,
	})
	for n := range found {
		i.shorten(&found[n])
	}
	return requestsReport{found}, err
}

// shorten shows the DIDs of an explanation as the operator asked to see them.
func (i inspection) shorten(e *operator.Explanation) {
	e.Caller, e.Message, e.Key, e.Request.Request = i.did(e.Caller), i.text(e.Message), i.text(e.Key), i.text(e.Request.Request)
	e.Why = i.sentence(e.Why)
	for _, entry := range []*operator.LogEntry{e.Entry, e.Winner} {
		if entry != nil {
			entry.Sender = i.did(entry.Sender)
		}
	}
	if e.Record != nil {
		e.Record.LastError = i.text(e.Record.LastError)
	}
	for n := range e.Changes {
		e.Changes[n].Actor, e.Changes[n].Details = i.did(e.Changes[n].Actor), i.text(e.Changes[n].Details)
	}
}

// sentence shortens the DIDs in a sentence of ours.
func (i inspection) sentence(text string) string {
	return redact.DIDs().ReplaceAllStringFunc(text, i.did)
}

func (r requestsReport) print(w io.Writer) {
	if len(r.Requests) == 0 {
		line(w, "none: a known caller's request leaves a row if it is refused, fails or is slow, and a sample of the others does; a stranger's leaves only a line in the log; rows are kept for MLSD_REQUEST_RETENTION")
		return
	}
	for n := range r.Requests {
		if n > 0 {
			line(w)
		}
		printRequest(w, &r.Requests[n])
	}
}

func printRequest(w io.Writer, e *operator.Explanation) {
	answer := fmt.Sprint(e.Status)
	if e.Error != "" {
		answer += " " + e.Error + ": " + e.Message
	}
	line(w, "request", e.Request.Request)
	line(w, "at", clock(e.At)+", "+milliseconds(e.Seconds)+", node "+e.Node)
	line(w, "method", e.Method)
	line(w, "caller", e.Caller)
	if e.Convo != nil {
		line(w, "convo", e.Convo)
	}
	line(w, "answer", answer)
	line(w, "why", e.Why)
	if e.Key != "" {
		line(w, "key", e.Key)
		line(w, "record", recordText(e.Record))
	}
	if e.Entry != nil {
		line(w, "log entry", fmt.Sprintf("seq %d, epoch %d, %s", e.Entry.Seq, e.Entry.Epoch, clock(e.Entry.At)))
	}
	for _, c := range e.Changes {
		line(w, "changed", fmt.Sprintf("%s %s: %s to %s", c.Entity, c.ID, c.From, c.To))
	}
}

// recordText says what the record of a key is now.
func recordText(r *operator.Record) string {
	if r == nil {
		return "none"
	}
	text := fmt.Sprintf("%s, first used %s, kept until %s", r.State, clock(r.FirstUsedAt), clock(r.ExpiresAt))
	if r.LeaseExpiresAt != nil && r.State == "processing" {
		text += ", lease until " + clock(*r.LeaseExpiresAt)
	}
	return text
}
