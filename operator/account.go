package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/duration"
	"mlsd/people/accounts"
	"mlsd/people/archive"
)

// didParam is the parameter that names an account.
var didParam = Param{Name: "did", Usage: "the account's DID"}

var accountShow = Method{
	Noun: "account", Verb: "show", Usage: "what is held about an account, in numbers",
	Params: []Param{didParam}, do: showAccount,
}

var accountBlock = Method{
	Noun: "account", Verb: "block", Usage: "refuse every request of an account, end its streams and stop its pushes",
	Params: []Param{didParam}, Write: true, do: blockAccount,
}

var accountUnblock = Method{
	Noun: "account", Verb: "unblock", Usage: "take a block back",
	Params: []Param{didParam}, Write: true, do: unblockAccount,
}

var accountLimit = Method{
	Noun: "account", Verb: "limit", Usage: "give an account a part of the rate of requests and of the daily quotas that others have, or a multiple",
	Params: []Param{
		didParam,
		{Name: "percent", Usage: "per cent of what others have, from 1 to 1000; 100 takes a limit back"},
		{Name: "for", Usage: "how long, such as 12h or 7d; without it the limit has no end", Optional: true},
	},
	Write: true, do: limitAccount,
}

// Account is what is held about a DID, in numbers, and whether it may use the service.
type Account struct {
	DID        syntax.DID    `json:"did"`
	Status     string        `json:"status"` // what the network says of it
	StatusAt   *time.Time    `json:"statusAt,omitempty"`
	Block      *Block        `json:"block,omitempty"`
	Limit      *AccountLimit `json:"limit,omitempty"`
	EraseAfter *time.Time    `json:"eraseAfter,omitempty"`
	ErasingAt  *time.Time    `json:"erasingAt,omitempty"` // an erasure is running
	ErasedAt   *time.Time    `json:"erasedAt,omitempty"`
	archive.Counts
}

// Block is an operator's block of an account.
type Block struct {
	At       time.Time `json:"at"`
	Operator string    `json:"operator"`
	Reason   string    `json:"reason"`
}

// AccountLimit is an operator's limit on an account.
type AccountLimit struct {
	Percent  int        `json:"percent"` // of what other accounts have
	Until    *time.Time `json:"until,omitempty"`
	At       time.Time  `json:"at"`
	Operator string     `json:"operator"`
	Reason   string     `json:"reason"`
}

// showAccount answers for any DID: nothing is held about one that was never here.
func showAccount(ctx context.Context, s *Service, c Call) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	if err != nil {
		return nil, err
	}
	a := Account{DID: did}
	err = archive.Snapshot(ctx, s.db, func(tx pgx.Tx) error {
		standing, err := s.blocks.Get(ctx, tx, did)
		if err != nil {
			return err
		}
		a.Status, a.StatusAt = string(standing.Status), standing.StatusAt
		a.EraseAfter, a.ErasingAt, a.ErasedAt = standing.EraseAfter, standing.ErasingAt, standing.ErasedAt
		if b := standing.Block; b != nil {
			a.Block = &Block{At: b.At, Operator: b.By, Reason: b.Reason}
		}
		if l := standing.Limit; l != nil {
			a.Limit = &AccountLimit{Percent: l.Percent, Until: l.Until, At: l.At, Operator: l.By, Reason: l.Reason}
		}
		a.Counts, err = archive.Count(ctx, tx, did)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the account: %w", err)
	}
	return a, nil
}

// Blocked is the result of account.block and account.unblock.
type Blocked struct {
	DID     syntax.DID `json:"did"`
	Blocked bool       `json:"blocked"`
	Changed bool       `json:"changed"` // false: it was so before
}

func blockAccount(ctx context.Context, s *Service, c Call) (any, error) {
	return s.setBlock(ctx, c, true, func(tx pgx.Tx, did syntax.DID) (changed bool, err error) {
		before, err := s.blocks.Get(ctx, tx, did)
		if err != nil {
			return false, err
		}
		return before.Block == nil, s.blocks.Block(ctx, tx, did, c.Operator, c.Reason)
	})
}

func unblockAccount(ctx context.Context, s *Service, c Call) (any, error) {
	return s.setBlock(ctx, c, false, func(tx pgx.Tx, did syntax.DID) (bool, error) { return s.blocks.Unblock(ctx, tx, did) })
}

// setBlock blocks or unblocks the account that a call names. This node knows at once, the others
// within a second.
func (s *Service) setBlock(ctx context.Context, c Call, blocked bool, set func(pgx.Tx, syntax.DID) (bool, error)) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	if err != nil {
		return nil, err
	}
	out := Blocked{DID: did, Blocked: blocked}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Changed, err = set(tx, did)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.changed()
	return out, nil
}

// Limited is the result of account.limit.
type Limited struct {
	DID     syntax.DID `json:"did"`
	Percent int        `json:"percent"`
	Until   *time.Time `json:"until,omitempty"` // absent: until it is taken back
}

// limitAccount limits the account that a call names. This node knows at once, the others within a
// second.
func limitAccount(ctx context.Context, s *Service, c Call) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	if err != nil {
		return nil, err
	}
	percent, lasts, err := parseLimit(c.Params["percent"], c.Params["for"])
	if err != nil {
		return nil, err
	}
	out := Limited{DID: did, Percent: percent}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		if percent == accounts.Whole {
			_, err = s.blocks.Unlimit(ctx, tx, did)
			return err
		}
		out.Until, err = s.blocks.Limit(ctx, tx, did, percent, lasts, c.Operator, c.Reason)
		return err
	})
	if errors.Is(err, accounts.ErrTooManyLimited) {
		return nil, &Error{http.StatusConflict, "TooManyLimits", err.Error() + ": take some back"}
	}
	if err != nil {
		return nil, err
	}
	s.changed()
	return out, nil
}

// parseLimit reads the percentage and the time of a limit; 0: it has no end.
func parseLimit(percentText, lastsText string) (percent int, lasts time.Duration, err error) {
	percent, err = strconv.Atoi(percentText)
	if err != nil || percent < 1 || percent > accounts.MostPercent {
		return 0, 0, badRequest(fmt.Sprintf("percent must be a whole number from 1 to %d; to refuse everything, block the account", accounts.MostPercent))
	}
	if lastsText == "" {
		return percent, 0, nil
	}
	lasts, err = duration.Parse(lastsText)
	switch {
	case err != nil:
		return 0, 0, badRequest("for: " + err.Error())
	case lasts < time.Second:
		return 0, 0, badRequest("for must be a second at least")
	case percent == accounts.Whole:
		return 0, 0, badRequest("100 per cent is no limit: it takes no time")
	}
	return percent, lasts, nil
}
