package operator

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Epoch is an epoch of a convo, and the commit that began it.
type Epoch struct {
	Epoch int64
	// Of the commit. The first epoch of a convo has none: Seq is 0.
	Seq          int64
	Committer    string
	At           time.Time
	CommitBytes  int
	WelcomeBytes int
	// Messages is how many log entries of the epoch follow the commit.
	Messages int64
	Joined   []string        // who came with the commit
	Left     []string        // who left in the epoch
	Welcomes []EpochWelcomes `db:"-"`
	Losers   []string        `db:"-"` // who wanted to begin this epoch too, and came too late
}

// EpochWelcomes counts the Welcomes into an epoch by state.
type EpochWelcomes struct {
	State    string
	Count    int
	Failures int // failed joins
}

const (
	// shownPeople is how many people an epoch names of those who joined, left or lost.
	shownPeople = 20
	// recentLosers is how many of the newest refused commits of a convo are looked at.
	recentLosers = 1000
)

// readEpochs returns epochs: their commits and how many entries follow.
//
//go:embed epochs.sql
var readEpochs string

// Epochs returns up to rows epochs of a convo that are smaller than before, the newest first.
func Epochs(ctx context.Context, tx pgx.Tx, c *ConvoState, before int64, rows int) ([]Epoch, error) {
	all, err := list[Epoch](ctx, tx, readEpochs, c.ID, before, rows, c.LastSeq, shownPeople)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	if err := addWelcomes(ctx, tx, c.ID, all); err != nil {
		return nil, err
	}
	return all, addLosers(ctx, tx, c.ID, all)
}

// epochOf returns the epoch with a number, nil if the list has none.
func epochOf(all []Epoch, number int64) *Epoch {
	for i := range all {
		if all[i].Epoch == number {
			return &all[i]
		}
	}
	return nil
}

func addWelcomes(ctx context.Context, tx pgx.Tx, convo uuid.UUID, all []Epoch) error {
	rows, err := list[struct {
		Epoch int64
		EpochWelcomes
	}](ctx, tx, `
		SELECT epoch, state, count(*), sum(failures)::integer FROM welcomes
		WHERE convo_id = $1 AND epoch BETWEEN $2 AND $3 GROUP BY epoch, state ORDER BY epoch, state`, convo,
		all[len(all)-1].Epoch, all[0].Epoch)
	for _, r := range rows {
		if e := epochOf(all, r.Epoch); e != nil {
			e.Welcomes = append(e.Welcomes, r.EpochWelcomes)
		}
	}
	return err
}

// addLosers adds the refused commits that the table requests has. A commit that was made in an epoch
// wanted to begin the next one.
func addLosers(ctx context.Context, tx pgx.Tx, convo uuid.UUID, all []Epoch) error {
	rows, err := list[struct {
		Epoch  int64
		Caller string
	}](ctx, tx, `
		SELECT substring(message FROM '^epoch ([0-9]{1,16}) is stale')::bigint + 1, caller_did
		FROM (
			SELECT * FROM requests WHERE convo_id = $1 AND error = 'EpochMismatch' ORDER BY id DESC LIMIT $2
		) r
		WHERE message ~ '^epoch [0-9]{1,16} is stale' AND nsid !~ 'sendMessage$'
		ORDER BY id`, convo, recentLosers)
	for _, r := range rows {
		if e := epochOf(all, r.Epoch); e != nil && len(e.Losers) < shownPeople && !slices.Contains(e.Losers, r.Caller) {
			e.Losers = append(e.Losers, r.Caller)
		}
	}
	return err
}
