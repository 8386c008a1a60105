package operator

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/people/disputes"
)

var disputeEnd = Method{
	Noun: "dispute", Verb: "end", Usage: "end the dispute of a commit before its time: members can commit again",
	Params: []Param{convoParam, {Name: "epoch", Usage: "the epoch that the disputed commit created", Kind: Number}},
	Write:  true, after: wake,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (_ any, err error) {
		out := DisputeEnded{Convo: c.convo(), Epoch: c.number("epoch"),
			Note: "The reports of this commit stay, and it is not disputed again. Commits of other epochs can be."}
		out.Changed, err = disputes.End(ctx, tx, out.Convo, out.Epoch)
		return out, err
	},
}

// DisputeEnded is the result of dispute.end.
type DisputeEnded struct {
	Convo   uuid.UUID `json:"convo"`
	Epoch   int64     `json:"epoch"`
	Changed bool      `json:"changed"` // false: it had ended before
	Note    string    `json:"note"`
}
