package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/people/erasure"
)

var (
	accountErase = Method{
		Noun: "account", Verb: "erase", Usage: "erase everything of an account, for ever",
		Params: []Param{didParam}, Write: true, Final: true, do: eraseAccount,
	}
	erasureShow = Method{
		Noun: "erasure", Verb: "show", Usage: "how far an erasure has come, and what it has changed, by table",
		Params: []Param{{Name: "id", Usage: "what account erase answered"}}, do: showErasure,
	}
)

// Erasing is the result of account.erase.
type Erasing struct {
	DID   syntax.DID `json:"did"`
	ID    uuid.UUID  `json:"id"`    // of the erasure
	Begun bool       `json:"begun"` // false: it was running already
	Note  string     `json:"note"`
}

// eraseAccount begins an erasure. It goes on in the background, on any node.
func eraseAccount(ctx context.Context, s *Service, c Call) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	if err != nil {
		return nil, err
	}
	out := Erasing{DID: did, Note: "It takes a minute and a half at least. The account is refused until it has ended. " +
		"mlsd admin erasure show ID says how far it is. There is no way back."}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.ID, out.Begun, err = s.erasures.Begin(ctx, tx, did, "operator "+c.Operator, c.Reason)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.changed()
	return out, nil
}

func showErasure(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := uuid.Parse(c.Params["id"])
	if err != nil {
		return nil, badRequest("id must be a UUID")
	}
	e, err := s.erasures.Get(ctx, s.db, id)
	if errors.Is(err, erasure.ErrNotFound) {
		return nil, &Error{http.StatusNotFound, "ErasureNotFound", "there is no erasure with this id"}
	}
	if err != nil {
		return nil, fmt.Errorf("show an erasure: %w", err)
	}
	return e, nil
}
