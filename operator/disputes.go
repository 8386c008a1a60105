package operator

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
)

var inspectDisputes = question("disputes", "forked epochs and disputed commits, of CONVO or of all",
	func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		found, err := Disputes(ctx, tx, c.convo(), c.rows())
		return DisputeList{found}, err
	}, Param{Name: convoParam.Name, Usage: convoParam.Usage, Kind: ID, Optional: true, Place: true})

// DisputeList is the result of inspect.disputes.
type DisputeList struct {
	Disputes []Dispute `json:"disputes"`
}

// Dispute is a fork or a dispute of a convo.
type Dispute struct {
	Convo     uuid.UUID  `json:"convo"`
	Epoch     int64      `json:"epoch"`
	State     string     `json:"state"`     // forked, open or ended
	Committer string     `json:"committer"` // sender of the epoch's commit; "" for a fork
	Voices    int        `json:"voices"`    // how many reports could be counted; 0 for a fork
	Reports   int        `json:"reports"`   // of a dispute: counted reports; of a fork: different authenticators
	At        time.Time  `json:"at" text:"began"`
	EndedAt   *time.Time `json:"endedAt,omitempty" text:"-"`
	Accounts  []string   `json:"accounts"` // accounts that report the commit, or an authenticator
	Reasons   []string   `json:"reasons"`  // the different reasons that they gave
}

// Disputes returns up to rows forks and disputes, the newest first. It returns those of the convo,
// or all if convo is uuid.Nil.
func Disputes(ctx context.Context, tx pgx.Tx, convo uuid.UUID, rows int) ([]Dispute, error) {
	return list[Dispute](ctx, tx, `
		SELECT d.convo_id, d.epoch, d.state, d.committer, d.voices, d.reports, d.began_at AS at, d.ended_at,
			(SELECT coalesce(array_agg(did ORDER BY reported_at), '{}') FROM commit_reports r WHERE (r.convo_id, r.epoch) =
				(d.convo_id, d.epoch)),
			(SELECT coalesce(array_agg(DISTINCT reason), '{}') FROM commit_reports r WHERE (r.convo_id, r.epoch) = (d.convo_id,
				d.epoch))
		FROM disputes d WHERE $1 = d.convo_id OR $1 = $3
		UNION ALL
		SELECT f.convo_id, f.epoch, 'forked', '', 0,
			(SELECT count(DISTINCT hash)::integer FROM epoch_reports r WHERE (r.convo_id, r.epoch) = (f.convo_id, f.epoch)),
				f.forked_at, NULL,
			(SELECT coalesce(array_agg(did ORDER BY hash, did), '{}') FROM epoch_reports r WHERE (r.convo_id, r.epoch) =
				(f.convo_id, f.epoch)), '{}'
		FROM forked_epochs f WHERE $1 = f.convo_id OR $1 = $3
		ORDER BY at DESC LIMIT $2`, convo, rows, uuid.Nil)
}

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
	Changed bool      `json:"changed"` // false if it had ended before
	Note    string    `json:"note"`
}
