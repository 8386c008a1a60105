package operator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/archive"
	"mlsd/internal/duration"
	"mlsd/people/accounts"
)

var accountShow = Method{
	Noun: "account", Verb: "show", Usage: "what is held about an account, in numbers",
	Params: []Param{didParam},
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		return s.Account(ctx, tx, c.did())
	},
}

// Account says how much is stored about a DID, and whether the DID may use the service.
type Account struct {
	accounts.Account
	archive.Counts
}

// Account returns the Account of any DID. It is empty if the DID was never here.
func (s *Service) Account(ctx context.Context, tx pgx.Tx, did syntax.DID) (a Account, err error) {
	if a.Account, err = s.c.Accounts.Get(ctx, tx, did); err != nil {
		return a, fmt.Errorf("read the account: %w", err)
	}
	a.Counts, err = archive.Count(ctx, tx, did)
	return a, err
}

var accountBlock = Method{
	Noun: "account", Verb: "block", Usage: "refuse every request of an account, end its streams and stop its pushes",
	Params: []Param{didParam}, Write: true, after: changed,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		before, err := s.c.Accounts.Get(ctx, tx, c.did())
		if err != nil {
			return nil, err
		}
		err = s.c.Accounts.Block(ctx, tx, c.did(), c.Operator, c.Reason)
		return Blocked{DID: c.did(), Blocked: true, Changed: before.Block == nil}, err
	},
}

var accountUnblock = Method{
	Noun: "account", Verb: "unblock", Usage: "take a block back",
	Params: []Param{didParam}, Write: true, after: changed,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		was, err := s.c.Accounts.Unblock(ctx, tx, c.did())
		return Blocked{DID: c.did(), Changed: was}, err
	},
}

// accountReactivate heals what a relay that is wrong has stated. Without it, only a statement of a
// relay makes an account active again.
var accountReactivate = Method{
	Noun: "account", Verb: "reactivate",
	Usage:  "serve an account again that a relay wrongly calls deleted or inactive, and cancel its erasure",
	Params: []Param{didParam}, Write: true, after: changed,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		was, err := s.c.Accounts.Reactivate(ctx, tx, c.did())
		return Reactivated{DID: c.did(), Was: was, Changed: was != accounts.Active}, err
	},
}

// Reactivated is the result of account.reactivate.
type Reactivated struct {
	DID     syntax.DID      `json:"did"`
	Was     accounts.Status `json:"was"`
	Changed bool            `json:"changed"` // false if it was active before
}

// Blocked is the result of account.block and account.unblock.
type Blocked struct {
	DID     syntax.DID `json:"did"`
	Blocked bool       `json:"blocked"`
	Changed bool       `json:"changed"` // false if it was so before
}

var accountLimit = Method{
	Noun: "account", Verb: "limit",
	Usage: "set an account's rate of requests and its daily quotas, in percent of what others have",
	Params: []Param{
		didParam,
		{Name: "percent", Usage: "per cent of what others have, from 1 to 1000; 100 takes a limit back"},
		{Name: "for", Usage: "how long, such as 12h or 7d; without it the limit has no end", Optional: true},
	},
	Write: true, after: changed, run: limitAccount,
}

// Limited is the result of account.limit.
type Limited struct {
	DID     syntax.DID `json:"did"`
	Percent int        `json:"percent"`
	Until   *time.Time `json:"until,omitempty"` // absent if it lasts until an operator takes it back
}

func limitAccount(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
	percent, lasts, err := parseLimit(c.Params["percent"], c.Params["for"])
	if err != nil {
		return nil, err
	}
	out := Limited{DID: c.did(), Percent: percent}
	if percent == accounts.Whole {
		_, err = s.c.Accounts.Unlimit(ctx, tx, out.DID)
		return out, err
	}
	out.Until, err = s.c.Accounts.Limit(ctx, tx, out.DID, percent, lasts, c.Operator, c.Reason)
	return out, err
}

// parseLimit parses the percentage and the duration of a limit. A duration of 0 means that the
// limit has no end.
func parseLimit(percentText, lastsText string) (percent int, lasts time.Duration, err error) {
	percent, err = strconv.Atoi(percentText)
	if err != nil || percent < 1 || percent > accounts.MaxPercent {
		return 0, 0, BadRequest(fmt.Sprintf("percent must be a whole number from 1 to %d; to refuse everything, block the "+
			"account", accounts.MaxPercent))
	}
	if lastsText == "" {
		return percent, 0, nil
	}
	lasts, err = duration.Parse(lastsText)
	switch {
	case err != nil:
		return 0, 0, BadRequest("for: " + err.Error())
	case lasts < time.Second:
		return 0, 0, BadRequest("for must be a second at least")
	case percent == accounts.Whole:
		return 0, 0, BadRequest("100 per cent is no limit: it takes no time")
	}
	return percent, lasts, nil
}

// accountErase begins an erasure, which continues in the background, on any node.
var accountErase = Method{
	Noun: "account", Verb: "erase", Usage: "erase everything of an account, for ever",
	Params: []Param{didParam}, Write: true, Final: true, after: changed,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (_ any, err error) {
		out := Erasing{DID: c.did(),
			Note: "It takes a minute and a half at least. The account is refused until it has ended. " +
				"mlsd admin erasure show ID says how far it is. There is no way back."}
		out.ID, out.Begun, err = s.c.Erasures.Begin(ctx, tx, out.DID, "operator "+c.Operator, c.Reason)
		return out, err
	},
}

// Erasing is the result of account.erase.
type Erasing struct {
	DID   syntax.DID `json:"did"`
	ID    uuid.UUID  `json:"id"`    // id of the erasure
	Begun bool       `json:"begun"` // false if an erasure was running already
	Note  string     `json:"note"`
}

var erasureShow = Method{
	Noun: "erasure", Verb: "show", Usage: "how far an erasure has come, and what it has changed, by table",
	Params: []Param{{Name: "id", Usage: "what account erase answered", Kind: ID}},
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		return s.c.Erasures.Get(ctx, tx, c.id("id"))
	},
}

var accountExport = Method{
	Noun: "account", Verb: "export", Usage: "everything that is held about an account, as JSON Lines",
	Params: []Param{didParam}, Write: true, Archive: true,
	run: func(_ context.Context, s *Service, _ pgx.Tx, c Call) (any, error) { return export{s, c.did()}, nil },
}

// export is the archive of an account: one line for each row that is stored about it.
type export struct {
	s   *Service
	did syntax.DID
}

// exportLine is a line of an archive.
type exportLine struct {
	Type string          `json:"type"` // the table, and how the row belongs to the person
	Data json.RawMessage `json:"data"`
}

// WriteTo implements Archive. It holds one row in memory at a time. All lines are as of one moment.
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
