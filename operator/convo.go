package operator

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
)

var convoShow = Method{
	Noun: "convo", Verb: "show", Usage: "a convo's members, epoch and sizes; never its content",
	Params: []Param{convoParam}, run: showConvo,
}

// Convo is a convo as an operator sees it, with its sizes. The server does not know its content.
type Convo struct {
	ConvoState
	ConvoSizes
	Members []Member `json:"members"` // present and former members
}

// ConvoState is the state of a convo, without messages and names.
type ConvoState struct {
	ID          uuid.UUID  `json:"id"`
	Creator     string     `json:"creator"`
	CipherSuite int32      `json:"cipherSuite"`
	Epoch       int64      `json:"epoch"`
	CommitLevel string     `json:"commitLevel"`
	LastSeq     int64      `json:"lastSeq"`
	CreatedAt   time.Time  `json:"createdAt"`
	LastAt      *time.Time `json:"lastMessageAt,omitempty"` // time of the newest log entry
	ClosedAt    *time.Time `json:"closedAt,omitempty"`
	Successor   string     `json:"successorGroupId,omitempty"` // group_id, in hex, of the group that replaces this one
	Present     int        `json:"presentMembers"`
	Invited     int        `json:"notAccepted"` // how many present members have not accepted
	GroupBytes  int64      `json:"groupBytes"`  // size of the public group; 0 if the server does not know the group
}

// ConvoSizes are the sizes of what the server stores of a convo. Counting them reads the log.
type ConvoSizes struct {
	Entries      int64 `json:"entries"`      // entries of the log
	EntryBytes   int64 `json:"entryBytes"`   // bodies of the entries
	WelcomeBytes int64 `json:"welcomeBytes"` // bodies of the Welcomes
}

// Member is a member of a convo as an operator sees it.
type Member struct {
	DID      syntax.DID `json:"did"`
	Role     string     `json:"role"`
	JoinedAt time.Time  `json:"joinedAt"`
	LeftAt   *time.Time `json:"leftAt,omitempty"`
	Cursor   int64      `json:"cursor"`
	Pending  int64      `json:"pendingWelcomes"`
}

// ReadConvo returns a convo, or nil if there is none.
func ReadConvo(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*ConvoState, error) {
	return first[ConvoState](ctx, tx, `
		SELECT c.id, c.creator_did, c.cipher_suite, c.epoch, c.commit_level, c.last_seq, c.created_at, c.last_message_at,
			c.closed_at,
			coalesce(encode(c.successor_group_id, 'hex'), ''),
			(SELECT count(*) FROM members m WHERE m.convo_id = c.id AND m.left_at IS NULL),
			(SELECT count(*) FROM members m WHERE m.convo_id = c.id AND m.left_at IS NULL AND m.requested_at IS NOT NULL),
			coalesce((SELECT octet_length(state) + coalesce(octet_length(group_info), 0) FROM public_groups g WHERE g.convo_id =
				c.id), 0)
		FROM convos c WHERE c.id = $1`, id)
}

// Members returns up to limit members of a convo. Present members come first.
func Members(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) ([]Member, error) {
	return list[Member](ctx, tx, `
		SELECT did, role, joined_at, left_at, cursor_seq, (
			SELECT count(*) FROM welcomes w
			WHERE w.convo_id = $1 AND w.recipient_did = m.did AND w.state IN ('available', 'in_flight'))
		FROM members m WHERE convo_id = $1 ORDER BY left_at IS NOT NULL, joined_at, did LIMIT $2`, convo, limit)
}

// maxMembers is how many members a list has at most.
const maxMembers = 2 * convos.MaxMembers

func showConvo(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	state, err := ReadConvo(ctx, tx, c.convo())
	if err != nil {
		return nil, err
	}
	if state == nil {
		return nil, convos.ErrNotFound
	}
	out := Convo{ConvoState: *state}
	err = tx.QueryRow(ctx, `
		SELECT log.n, log.bytes, w.bytes
		FROM (
			SELECT count(*) AS n, coalesce(sum(octet_length(body)), 0)::bigint AS bytes FROM messages WHERE convo_id = $1
		) log, (
			SELECT coalesce(sum(octet_length(body)), 0)::bigint AS bytes FROM welcome_bodies WHERE convo_id = $1
		) w`, c.convo()).Scan(&out.Entries, &out.EntryBytes, &out.WelcomeBytes)
	if err != nil {
		return nil, fmt.Errorf("read the sizes of the convo: %w", err)
	}
	out.Members, err = Members(ctx, tx, c.convo(), maxMembers)
	return out, err
}

var convoClose = Method{
	Noun: "convo", Verb: "close", Usage: "close a convo: its members can read and leave it, and nothing else",
	Params: []Param{convoParam}, Write: true, Final: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		at, err := convos.Close(ctx, tx, c.convo())
		return Closed{c.convo(), at}, err
	},
}

// convoPromote helps when no admin of a convo can act any more.
var convoPromote = Method{
	Noun: "convo", Verb: "promote", Usage: "make a member an admin of its convo",
	Params: []Param{convoParam, didParam}, Write: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		return Promoted{c.convo(), c.did()}, convos.Promote(ctx, tx, c.convo(), c.did())
	},
	after: func(_ context.Context, s *Service, _ Call, out any) (any, error) {
		s.c.Wake() // for the event of the members
		return out, nil
	},
}

// Promoted is the result of convo.promote.
type Promoted struct {
	ID  uuid.UUID  `json:"id"`
	DID syntax.DID `json:"did"`
}

// Closed is the result of convo.close.
type Closed struct {
	ID       uuid.UUID `json:"id"`
	ClosedAt time.Time `json:"closedAt"` // when it was first closed
}

// convoDelete also accepts a convo that was deleted before, to finish a deletion that was
// interrupted.
var convoDelete = Method{
	Noun: "convo", Verb: "delete", Usage: "delete a convo and everything in it, for ever",
	Params: []Param{convoParam}, Write: true, Final: true, after: purgeConvo,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		members, err := s.c.Remover.Remove(ctx, tx, c.convo())
		return Deleted{ID: c.convo(), Members: members,
			Note: "Nothing of the convo is left but a tombstone of its id. Events name it for as long as events are kept."}, err
	},
}

// Deleted is the result of convo.delete.
type Deleted struct {
	ID      uuid.UUID `json:"id"`
	Members int64     `json:"members"` // members that this call has removed
	Entries int64     `json:"entries"` // log entries that this call has deleted
	Note    string    `json:"note"`
}

// purgeConvo deletes the log of a removed convo.
func purgeConvo(ctx context.Context, s *Service, c Call, out any) (any, error) {
	s.c.Wake() // for the events of the members
	deleted, _ := out.(Deleted)
	var err error
	deleted.Entries, err = s.c.Remover.Purge(ctx, c.convo())
	return deleted, err
}

// Epoch is an epoch of a convo, and the commit that began it.
type Epoch struct {
	Epoch int64
	// These fields describe the commit. The first epoch of a convo has no commit: Seq is 0.
	Seq          int64
	Committer    string
	At           time.Time
	CommitBytes  int
	WelcomeBytes int
	// Messages is how many log entries of the epoch come after the commit.
	Messages int64
	Joined   []string        // people whom the commit has added
	Left     []string        // people who left during the epoch
	Welcomes []EpochWelcomes `db:"-"`
	Losers   []string        `db:"-"` // committers whose commits for this epoch came too late
}

// EpochWelcomes counts the Welcomes into an epoch by state.
type EpochWelcomes struct {
	State    string
	Count    int
	Failures int // number of failed joins
}

const (
	// shownPeople is how many people each list of an epoch names: those who joined, left or lost.
	shownPeople = 20
	// recentLosers is how many of a convo's newest refused commits are examined.
	recentLosers = 1000
)

// readEpochs returns epochs: their commits, and how many entries follow each commit.
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

// epochOf returns the epoch with a number, or nil if the list does not have it.
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

// addLosers adds the refused commits in the table requests. A commit that was made in one epoch
// would have begun the next epoch.
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
