package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/people/reports"
)

// reportParam is the parameter that names a report of abuse.
var reportParam = Param{Name: "id", Usage: "the report's id"}

var (
	reportList = Method{
		Noun: "report", Verb: "list", Usage: "the reports of abuse that are open, the oldest first; or those that are closed, the newest first",
		Params: []Param{{Name: "state", Usage: "open (the default) or closed", Optional: true}, {Name: "from", Usage: "the id of the last report before these", Optional: true}},
		do:     listReports,
	}
	reportShow = Method{
		Noun: "report", Verb: "show", Usage: "what the server knows of a report: who, which convo, when; what is revealed is sealed",
		Params: []Param{reportParam}, do: showReport,
	}
	// mlsd admin report open calls it, on the machine that has the private key.
	reportFetch = Method{
		Noun: "report", Verb: "fetch", Usage: "the sealed bytes of a report",
		Params: []Param{reportParam}, Command: true, do: fetchReport,
	}
	reportClose = Method{
		Noun: "report", Verb: "close", Usage: "close a report; the reason stays with it",
		Params: []Param{reportParam}, Write: true, do: closeReport,
	}
	reportDelete = Method{
		Noun: "report", Verb: "delete", Usage: "delete a report and what it reveals, for ever",
		Params: []Param{reportParam}, Write: true, Final: true, do: deleteReport,
	}
	reportClear = Method{
		Noun: "report", Verb: "clear", Usage: "delete all open reports that an account has sent, for ever: for a flood",
		Params: []Param{didParam}, Write: true, Final: true, do: clearReports,
	}
)

// ReportFetch is the method that gives the sealed bytes of a report.
func ReportFetch() Method { return reportFetch }

// listedReports is how many reports a list has.
const listedReports = 50

// ReportList is the result of report.list.
type ReportList struct {
	Reports []reports.Listed `json:"reports"`
	Next    string           `json:"next,omitempty"` // from, for the next ones
}

func listReports(ctx context.Context, s *Service, c Call) (any, error) {
	closed := c.Params["state"] == string(reports.Closed)
	if state := c.Params["state"]; state != "" && !closed && state != string(reports.Open) {
		return nil, badRequest("state must be open or closed")
	}
	from := uuid.Nil
	if closed {
		from = uuid.Max
	}
	if text := c.Params["from"]; text != "" {
		var err error
		if from, err = uuid.Parse(text); err != nil {
			return nil, badRequest("from must be a UUID")
		}
	}
	list := reports.Queue
	if closed {
		list = reports.Past
	}
	found, err := list(ctx, s.db, from, listedReports)
	if err != nil {
		return nil, err
	}
	out := ReportList{Reports: found}
	if n := len(found); n == listedReports {
		out.Next = found[n-1].ID.String()
	}
	return out, nil
}

func showReport(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseReport(c)
	if err != nil {
		return nil, err
	}
	report, err := reports.Get(ctx, s.db, id)
	return report, reportError(err)
}

func fetchReport(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseReport(c)
	if err != nil {
		return nil, err
	}
	sealed, err := reports.Fetch(ctx, s.db, id)
	return FetchedReport{sealed, s.heads.Keys()}, reportError(err)
}

// FetchedReport is the result of report.fetch.
type FetchedReport struct {
	reports.Sealed
	LogKeys []string `json:"logKeys"` // that check the head which the report possibly has
}

// ReportClosed is the result of report.close.
type ReportClosed struct {
	ID      uuid.UUID `json:"id"`
	Changed bool      `json:"changed"` // false: it was closed before
}

func closeReport(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseReport(c)
	if err != nil {
		return nil, err
	}
	out := ReportClosed{ID: id}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Changed, err = reports.Close(ctx, tx, id, c.Operator, c.Reason)
		return err
	})
	return out, reportError(err)
}

// ReportsDeleted is the result of report.delete and report.clear.
type ReportsDeleted struct {
	Deleted int64 `json:"deleted"` // reports; 0: there were none
}

func deleteReport(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseReport(c)
	if err != nil {
		return nil, err
	}
	var out ReportsDeleted
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Deleted, err = reports.Delete(ctx, tx, id)
		return err
	})
	return out, reportError(err)
}

func clearReports(ctx context.Context, s *Service, c Call) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	if err != nil {
		return nil, err
	}
	var out ReportsDeleted
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Deleted, err = reports.Clear(ctx, tx, did)
		return err
	})
	return out, reportError(err)
}

func parseReport(c Call) (uuid.UUID, error) {
	id, err := uuid.Parse(c.Params[reportParam.Name])
	if err != nil {
		return id, badRequest("id must be a UUID")
	}
	return id, nil
}

// reportError returns an error of package reports as an answer.
func reportError(err error) error {
	switch {
	case errors.Is(err, reports.ErrNotFound):
		return &Error{http.StatusNotFound, "ReportNotFound", "there is no report with this id"}
	case errors.Is(err, reports.ErrCleared):
		return &Error{http.StatusGone, "ReportCleared", err.Error()}
	case err != nil:
		return fmt.Errorf("handle a report: %w", err)
	}
	return nil
}
