package operator

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/messages"
	"mlsd/people/disputes"
)

var disputeEnd = Method{
	Noun: "dispute", Verb: "end", Usage: "end the dispute of a commit before its time: members can commit again",
	Params: []Param{convoParam, {Name: "epoch", Usage: "the epoch that the disputed commit created"}}, Write: true, do: endDispute,
}

// DisputeEnded is the result of dispute.end.
type DisputeEnded struct {
	Convo   uuid.UUID `json:"convo"`
	Epoch   int64     `json:"epoch"`
	Changed bool      `json:"changed"` // false: it had ended before
	Note    string    `json:"note"`
}

func endDispute(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseConvo(c)
	if err != nil {
		return nil, err
	}
	epoch, err := strconv.ParseInt(c.Params["epoch"], 10, 64)
	if err != nil || epoch < 0 {
		return nil, badRequest("epoch must be a whole number, such as 8")
	}
	out := DisputeEnded{Convo: id, Epoch: epoch, Note: "The reports of this commit stay, and it is not disputed again. Commits of other epochs can be."}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Changed, err = disputes.End(ctx, tx, id, epoch)
		return err
	})
	switch {
	case errors.Is(err, messages.ErrConvoNotFound):
		return nil, errNoConvo()
	case errors.Is(err, disputes.ErrNotFound):
		return nil, &Error{http.StatusNotFound, "DisputeNotFound", "the commit of this epoch was never in dispute"}
	case err != nil:
		return nil, err
	}
	s.wake() // the members' event
	return out, nil
}
