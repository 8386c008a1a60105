package operator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/people/archive"
)

var accountExport = Method{
	Noun: "account", Verb: "export", Usage: "everything that is held about an account, as JSON Lines",
	Params: []Param{didParam}, Write: true, Archive: true,
	run: func(_ context.Context, s *Service, _ pgx.Tx, c Call) (any, error) { return export{s, c.did()}, nil },
}

// export is the archive of an account: a line for each row that is held about it.
type export struct {
	s   *Service
	did syntax.DID
}

// exportLine is a line of an archive.
type exportLine struct {
	Type string          `json:"type"` // the table, and in what way the row belongs to the person
	Data json.RawMessage `json:"data"`
}

// WriteTo implements Archive. The rows pass through one at a time. All lines are of one moment.
func (e export) WriteTo(ctx context.Context, to io.Writer) error {
	w := bufio.NewWriter(to)
	lines := json.NewEncoder(w)
	err := archive.Snapshot(ctx, e.s.c.DB, func(tx pgx.Tx) error {
		var failed error
		_, _, err := archive.Reader{DID: e.did}.Read(ctx, tx, archive.Position{}, func(row archive.Row) bool {
			failed = lines.Encode(exportLine{row.Type, json.RawMessage(row.Data)})
			return failed == nil
		})
		return errors.Join(err, failed)
	})
	if err != nil {
		return err
	}
	return w.Flush()
}
