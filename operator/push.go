package operator

import (
	"context"
	"errors"
	"net/http"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/push"
)

// jobParams name a push job.
var jobParams = []Param{didParam, {Name: "id", Usage: "the push job's id"}}

var pushRetry = Method{
	Noun: "push", Verb: "retry", Usage: "call a device now whose push job waits; one whose job is dead gets a new job",
	Params: jobParams, Write: true, do: retryPush,
}

var pushDrop = Method{
	Noun: "push", Verb: "drop", Usage: "end a push job without a further call",
	Params: jobParams, Write: true, Final: true, do: dropPush,
}

// PushRetried is the result of push.retry.
type PushRetried struct {
	DID syntax.DID `json:"did"`
	Due uuid.UUID  `json:"due"` // the job that a worker takes next: a new one if the given one is dead
}

func retryPush(ctx context.Context, s *Service, c Call) (any, error) {
	did, id, err := parseJob(c)
	if err != nil {
		return nil, err
	}
	out := PushRetried{DID: did}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Due, err = push.Retry(ctx, tx, did, id)
		return err
	})
	return out, pushError(err)
}

// PushDropped is the result of push.drop.
type PushDropped struct {
	DID  syntax.DID `json:"did"`
	ID   uuid.UUID  `json:"id"`
	Note string     `json:"note"`
}

func dropPush(ctx context.Context, s *Service, c Call) (any, error) {
	did, id, err := parseJob(c)
	if err != nil {
		return nil, err
	}
	err = s.writing(ctx, c, func(tx pgx.Tx) error { return push.Drop(ctx, tx, did, id) })
	return PushDropped{did, id, "A worker ends the job within seconds. A call that is under way is not stopped."}, pushError(err)
}

func parseJob(c Call) (did syntax.DID, id uuid.UUID, err error) {
	if did, err = parseDID(c.Params[didParam.Name]); err != nil {
		return did, id, err
	}
	if id, err = uuid.Parse(c.Params["id"]); err != nil {
		return did, id, badRequest("id must be a UUID")
	}
	return did, id, nil
}

// pushError returns an error of package push as an answer.
func pushError(err error) error {
	switch {
	case errors.Is(err, push.ErrNoJob):
		return &Error{http.StatusNotFound, "PushJobNotFound", "there is no push job with this id for the account"}
	case errors.Is(err, push.ErrEnded):
		return &Error{http.StatusConflict, "PushJobEnded", "the push job has ended"}
	}
	return err
}
