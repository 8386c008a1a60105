package operator

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/people/archive"
)

// convoParam is the parameter that names a convo.
var convoParam = Param{Name: "convo", Usage: "the convo's id"}

var (
	convoShow = Method{
		Noun: "convo", Verb: "show", Usage: "a convo's members, epoch and sizes; never its content",
		Params: []Param{convoParam}, do: showConvo,
	}
	convoClose = Method{
		Noun: "convo", Verb: "close", Usage: "close a convo: its members can read and leave it, and nothing else",
		Params: []Param{convoParam}, Write: true, Final: true, do: closeConvo,
	}
	convoDelete = Method{
		Noun: "convo", Verb: "delete", Usage: "delete a convo and everything in it, for ever",
		Params: []Param{convoParam}, Write: true, Final: true, do: deleteConvo,
	}
)

// Convo is a convo as an operator sees it. The server knows no content.
type Convo struct {
	ID            uuid.UUID  `json:"id"`
	CipherSuite   int32      `json:"cipherSuite"`
	Epoch         int64      `json:"epoch"`
	CommitLevel   string     `json:"commitLevel"`
	LastSeq       int64      `json:"lastSeq"`
	CreatedAt     time.Time  `json:"createdAt"`
	LastMessageAt *time.Time `json:"lastMessageAt,omitempty"`
	ClosedAt      *time.Time `json:"closedAt,omitempty"`
	Entries       int64      `json:"entries"`      // of the log that are kept
	EntryBytes    int64      `json:"entryBytes"`   // their bodies
	WelcomeBytes  int64      `json:"welcomeBytes"` // bytes of Welcomes that are kept
	GroupBytes    int64      `json:"groupBytes"`   // of the public group
	Members       []Member   `json:"members"`      // present and former ones
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

// convoSQL reads a convo and its sizes. $1 is its id.
//
//go:embed convo.sql
var convoSQL string

func showConvo(ctx context.Context, s *Service, call Call) (any, error) {
	id, err := parseConvo(call)
	if err != nil {
		return nil, err
	}
	c := Convo{ID: id}
	err = archive.Snapshot(ctx, s.db, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, convoSQL, id).Scan(&c.CipherSuite, &c.Epoch, &c.CommitLevel, &c.LastSeq, &c.CreatedAt, &c.LastMessageAt,
			&c.ClosedAt, &c.Entries, &c.EntryBytes, &c.WelcomeBytes, &c.GroupBytes)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT did, role, joined_at, left_at, cursor_seq, (
				SELECT count(*) FROM welcomes w
				WHERE w.convo_id = $1 AND w.recipient_did = m.did AND w.state IN ('available', 'in_flight'))
			FROM members m WHERE convo_id = $1 ORDER BY left_at IS NOT NULL, joined_at, did LIMIT $2`, id, mostMembers)
		if err != nil {
			return err
		}
		c.Members, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Member])
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errNoConvo()
	}
	if err != nil {
		return nil, fmt.Errorf("read the convo: %w", err)
	}
	return c, nil
}

// mostMembers is how many members are listed, the present ones first.
const mostMembers = 2 * convos.MaxMembers

// Closed is the result of convo.close.
type Closed struct {
	ID       uuid.UUID `json:"id"`
	ClosedAt time.Time `json:"closedAt"` // the first time
}

func closeConvo(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseConvo(c)
	if err != nil {
		return nil, err
	}
	out := Closed{ID: id}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.ClosedAt, err = convos.Close(ctx, tx, id)
		return err
	})
	return out, known(err)
}

// Deleted is the result of convo.delete.
type Deleted struct {
	ID      uuid.UUID `json:"id"`
	Members int64     `json:"members"` // that have been removed now
	Entries int64     `json:"entries"` // of the log that this call has deleted
	Note    string    `json:"note"`
}

// deleteConvo also takes a convo that was deleted before: so a deletion that was cut off ends.
func deleteConvo(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseConvo(c)
	if err != nil {
		return nil, err
	}
	out := Deleted{ID: id, Note: "Nothing of the convo is left but a tombstone of its id. Events name it for as long as events are kept."}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Members, err = s.remover.Remove(ctx, tx, id)
		return err
	})
	if err != nil {
		return nil, known(err)
	}
	s.wake() // the members' events
	out.Entries, err = s.remover.Purge(ctx, id)
	return out, err
}

func parseConvo(c Call) (uuid.UUID, error) {
	id, err := uuid.Parse(c.Params[convoParam.Name])
	if err != nil {
		return id, badRequest("convo must be a UUID")
	}
	return id, nil
}

func errNoConvo() *Error {
	return &Error{http.StatusNotFound, "ConvoNotFound", "there is no convo with this id"}
}

// known returns an error of a domain package as an answer.
func known(err error) error {
	if errors.Is(err, convos.ErrNotFound) {
		return errNoConvo()
	}
	return err
}
