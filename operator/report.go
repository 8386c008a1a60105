package operator

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/reports"
)

// reportParam is the parameter that names a report of abuse.
var reportParam = Param{Name: "id", Usage: "the report's id", Kind: ID}

func (c Call) report() uuid.UUID { return c.id(reportParam.Name) }

var reportList = Method{
	Noun: "report", Verb: "list",
	Usage: "the reports of abuse that are open, the oldest first; or those that are closed, the newest first",
	Params: []Param{
		{Name: "state", Usage: "open (the default) or closed", Optional: true},
		{Name: "from", Usage: "the id of the last report before these", Kind: ID, Optional: true},
	},
	run: listReports,
}

// listedReports is how many reports a list has at most.
const listedReports = 50

// ReportList is the result of report.list.
type ReportList struct {
	Reports []reports.Listed `json:"reports"`
	Next    string           `json:"next,omitempty"` // the value of from for the next page
}

func listReports(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	var out ReportList
	var err error
	from := c.id("from")
	switch reports.State(c.Params["state"]) {
	case "", reports.Open:
		out.Reports, err = reports.Queue(ctx, tx, from, listedReports)
	case reports.Closed:
		if from == uuid.Nil {
			from = uuid.Max
		}
		out.Reports, err = reports.Past(ctx, tx, from, listedReports)
	default:
		return nil, BadRequest("state must be open or closed")
	}
	if n := len(out.Reports); n == listedReports {
		out.Next = out.Reports[n-1].ID.String()
	}
	return out, err
}

var reportShow = Method{
	Noun: "report", Verb: "show",
	Usage:  "what the server knows of a report: who, which convo, when; what is revealed is sealed",
	Params: []Param{reportParam},
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		return reports.Get(ctx, tx, c.report())
	},
}

// reportFetch is for mlsd admin report open, which runs on the machine with the private key.
var reportFetch = Method{
	Noun: "report", Verb: "fetch", Usage: "the sealed bytes of a report",
	Params: []Param{reportParam}, Command: true,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		sealed, err := reports.Fetch(ctx, tx, c.report())
		return FetchedReport{sealed, s.c.Heads.Keys()}, err
	},
}

// ReportFetch returns the method that fetches the sealed bytes of a report.
func ReportFetch() Method { return reportFetch }

// FetchedReport is the result of report.fetch.
type FetchedReport struct {
	reports.Sealed
	LogKeys []string `json:"logKeys"` // keys that verify the head, if the report has one
}

var reportClose = Method{
	Noun: "report", Verb: "close", Usage: "close a report; the reason stays with it",
	Params: []Param{reportParam}, Write: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		changed, err := reports.Close(ctx, tx, c.report(), c.Operator, c.Reason)
		return ReportClosed{c.report(), changed}, err
	},
}

// ReportClosed is the result of report.close.
type ReportClosed struct {
	ID      uuid.UUID `json:"id"`
	Changed bool      `json:"changed"` // false if the report was closed before
}

var reportDelete = Method{
	Noun: "report", Verb: "delete", Usage: "delete a report and what it reveals, for ever",
	Params: []Param{reportParam}, Write: true, Final: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		n, err := reports.Delete(ctx, tx, c.report())
		return ReportsDeleted{n}, err
	},
}

var reportClear = Method{
	Noun: "report", Verb: "clear", Usage: "delete all open reports that an account has sent, for ever: for a flood",
	Params: []Param{didParam}, Write: true, Final: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		n, err := reports.Clear(ctx, tx, c.did())
		return ReportsDeleted{n}, err
	},
}

// ReportsDeleted is the result of report.delete and report.clear.
type ReportsDeleted struct {
	Deleted int64 `json:"deleted"` // number of reports; 0 if there were none
}
