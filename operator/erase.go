package operator

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// accountErase begins an erasure. It goes on in the background, on any node.
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
	ID    uuid.UUID  `json:"id"`    // of the erasure
	Begun bool       `json:"begun"` // false: it was running already
	Note  string     `json:"note"`
}

var erasureShow = Method{
	Noun: "erasure", Verb: "show", Usage: "how far an erasure has come, and what it has changed, by table",
	Params: []Param{{Name: "id", Usage: "what account erase answered", Kind: ID}},
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		return s.c.Erasures.Get(ctx, tx, c.id("id"))
	},
}
