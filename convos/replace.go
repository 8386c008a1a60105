package convos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
	"mlsd/welcome"
)

// A member on the roster is in the group once one of its devices has joined. If the member's
// Welcome was damaged, lost or never read, no device ever joins, and nobody can use the member's
// leaf. Any other member can then replace the leaf: one commit removes every leaf of the person and
// adds the person's devices again, and supersedes the old Welcomes.
//
// The person loses nothing, because it has never read a message here. Other members gain nothing,
// because a committer can always leave a device out of the ciphertexts of its path. A person that
// was once in the group is never replaced.

// standing is what the server knows of a person since it was put on the roster.
type standing struct {
	DID     syntax.DID
	Invited bool // a Welcome was sent to the person
	// Joined is set if a device has confirmed a Welcome, or if the person has written to the log or
	// moved its cursor. A Welcome that was consumed because of silence does not count as confirmed.
	Joined       bool
	JoiningUntil *time.Time // end of the grace of a fetched Welcome; nil if no grace is running
}

// readStanding reads the standing of the people of dids who are on the roster, in the order of
// DIDs.
//
//go:embed standing.sql
var readStanding string

func standings(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, dids []syntax.DID) ([]standing, error) {
	found, err := pgpool.Collect(ctx, q, pgx.RowToStructByPos[standing], readStanding, convo, dids)
	return found, errs.Wrap(err, "read who has joined")
}

// replaceable returns the people of dids whose leaves a commit of caller must replace, because they
// were invited before and none of their devices has joined. All of dids are on the roster. A person
// whom Create put there without a Welcome has no leaf to replace. Error: *AlreadyMemberError.
func (c *locked) replaceable(ctx context.Context, tx pgx.Tx, caller syntax.DID,
	dids []syntax.DID) (replaced []syntax.DID, err error) {
	// The next statement sees what earlier holders of these locks have written.
	if err := welcome.Lock(ctx, tx, c.id, dids); err != nil {
		return nil, err
	}
	people, err := standings(ctx, tx, c.id, dids)
	if err != nil {
		return nil, err
	}
	group, err := c.publicGroup(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, p := range people {
		refused := &AlreadyMemberError{DID: p.DID}
		switch {
		case p.DID == c.creator:
			return nil, refused
		case !p.Invited && !group.has(p.DID):
			continue
		case p.Joined || !p.Invited || p.DID == caller:
			refused.Reason = "one of its devices has joined; another one comes back with processExternalCommit"
			return nil, refused
		case p.JoiningUntil != nil:
			refused.Reason = "its device has fetched its Welcome and can join until " + p.JoiningUntil.UTC().Format(time.RFC3339)
			return nil, refused
		}
		replaced = append(replaced, p.DID)
	}
	return replaced, nil
}

// checkReplaced checks that the commit leaves no old leaf of the people whose leaves it replaces,
// and that the server knows enough to check that. Error: *AlreadyMemberError.
func (v verdict) checkReplaced(dids []syntax.DID) error {
	for _, did := range dids {
		if v.group.Group == nil {
			return &AlreadyMemberError{did, "no device of its has joined; to replace its leaf, send the new epoch's GroupInfo"}
		}
		if v.change == nil {
			continue // the tree before is not known; checkRecipients compares the leaves with the Welcome
		}
		for m := range v.group.Tree.Members() {
			fresh := slices.ContainsFunc(v.change.Adds, func(a mls.Addition) bool { return a.Leaf == m.Leaf })
			if m.DID() == did.String() && !fresh {
				return &AlreadyMemberError{did,
					fmt.Sprintf("no device of its has joined; to replace it, remove its leaf %d in the same commit", m.Leaf)}
			}
		}
	}
	return nil
}

// notReplaced turns the refusal of a commit that adds a person on the roster into the answer to
// such an addition: the commit does not replace the person's leaf.
func notReplaced(err error, dids []syntax.DID) error {
	var object *InvalidObjectError
	if len(dids) > 0 && errors.As(err, &object) && object.Object != Welcome {
		return &AlreadyMemberError{dids[0], "the commit does not replace its leaf: " + object.Error()}
	}
	return err
}

// WayBack says how a member whose Welcome is gone can get into the group.
type WayBack string

const (
	// BackByExternalCommit applies if the GroupInfo of the current epoch is known.
	BackByExternalCommit WayBack = "to come back, call getGroupInfo, make an external commit and send it with " +
		"processExternalCommit"
	// BackByInvitation applies if no GroupInfo is known, and no device of the member has joined.
	BackByInvitation WayBack = "to come back, publish a KeyPackage and ask a member to add this account again with " +
		"addMembers"
	// BackAfterCommit applies if no GroupInfo is known, and a device of the member has joined, so
	// that the member cannot be added.
	BackAfterCommit WayBack = "to come back, ask a member to send the GroupInfo of its next commit, then call " +
		"getGroupInfo and processExternalCommit"
)

// WayBackOf returns how a current member can get into the group.
func WayBackOf(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, did syntax.DID) (WayBack, error) {
	var known bool
	err := q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM convos c JOIN public_groups g ON g.convo_id = c.id AND g.epoch = c.epoch
			WHERE c.id = $1 AND g.group_info IS NOT NULL)`, convo).Scan(&known)
	if err != nil {
		return "", fmt.Errorf("look for a GroupInfo: %w", err)
	}
	if known {
		return BackByExternalCommit, nil
	}
	people, err := standings(ctx, q, convo, []syntax.DID{did})
	if err != nil {
		return "", err
	}
	if len(people) == 1 && people[0].Invited && !people[0].Joined {
		return BackByInvitation, nil
	}
	return BackAfterCommit, nil
}
