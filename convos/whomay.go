package convos

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/mls"
)

// The author of a proposal decides what it may change, not who commits it: the committer for what
// its commit contains, and the sender for what the commit refers to (RFC 9420 §12.4). So a proposal
// that was accepted can be committed by everybody, and what nobody could commit is refused when it
// is sent.
//
// The function may has the rules; docs/COMMITS.md shows them as a table. An external sender removes
// others, because only an admin can list it. PSKs are for the members to judge.
//
// New leaves are not the author's: they need a request that names the person, and a Welcome. See
// rights.add.

// role is what a person is in a convo.
type role int

const (
	outsider       role = iota // was never a member, or has left
	externalSender             // outside the group, and listed by it (RFC 9420 §12.1.8.1)
	member
	admin
	// formerAdmin was an admin in this epoch. It is a member now, or has left. What it proposed as
	// an admin was accepted then, and some libraries put every pending proposal into each commit.
	formerAdmin
)

// act is what a person does in a convo.
type act int

const (
	addPeople       act = iota
	leaveItself         // without a commit
	removeOwnLeaf       // a leaf of the own DID, in a commit of another device or as a proposal
	removeDeparture     // a leaf of a person who is not on the roster
	removePerson        // a leaf of a person who is on the roster
	replaceContext      // GroupContextExtensions, ReInit: they change the group for everybody
	commitProposed      // removePerson or replaceContext, proposed by this person, committed by another
	changeRoles         // promoteAdmin, demoteAdmin
	rename              // updateConvo
	reset               // resetConvo, if the person has accepted the convo
)

// may says who may do what. All rights come from here.
func may(r role, a act) bool {
	switch a {
	case removeOwnLeaf, removeDeparture, addPeople, leaveItself, reset:
		return r == member || r == admin || r == formerAdmin
	case removePerson:
		return r == admin || r == externalSender
	case replaceContext, changeRoles, rename:
		return r == admin
	case commitProposed:
		return r == admin || r == formerAdmin || r == externalSender
	}
	return false
}

// roleOf returns the role of a person that is or was a member.
func (c *locked) roleOf(did syntax.DID) role {
	switch {
	case slices.Contains(c.admins, did):
		return admin
	case slices.Contains(c.formerAdmins, did):
		return formerAdmin
	}
	return member
}

// isAdmin reports whether did is an admin of the convo.
func (c *locked) isAdmin(did syntax.DID) bool { return c.roleOf(did) == admin }

// mayRemove reports whether the author of a Remove may remove others. by is who commits it, or "" if
// nobody has committed it. before is the group that the proposal is for.
func (c *locked) mayRemove(a mls.Author, by syntax.DID, before publicGroup) bool {
	if a.External { // a member could vouch for a group that lists it
		return may(externalSender, removePerson) && (before.vouchedBy == "" || c.isAdmin(before.vouchedBy))
	}
	return may(c.roleOf(syntax.DID(a.DID)), actOf(a, by, removePerson))
}

// mayReplace reports whether the author of a ReInit or of GroupContextExtensions may change the
// group for everybody. by is as for mayRemove.
func (c *locked) mayReplace(a mls.Author, by syntax.DID) bool {
	return !a.External && may(c.roleOf(syntax.DID(a.DID)), actOf(a, by, replaceContext))
}

// actOf returns what an author does: own, or commitProposed if another person commits what the
// author has proposed.
func actOf(a mls.Author, by syntax.DID, own act) act {
	if by == "" || a.DID == by.String() {
		return own
	}
	return commitProposed
}

// NotPermittedError says what a commit or a proposal contains that its author may not do. It is an
// ErrNotPermitted.
type NotPermittedError struct{ Reason string }

func (e *NotPermittedError) Error() string        { return e.Reason }
func (e *NotPermittedError) Is(target error) bool { return target == ErrNotPermitted }

// notPermitted refuses what a commit does, or a proposal that nobody has committed if by is "". a is
// who proposed it.
func notPermitted(a mls.Author, by syntax.DID, what, rule string) error {
	switch {
	case by == "":
		return &NotPermittedError{fmt.Sprintf("the proposal %s; %s", what, rule)}
	case a.DID != by.String():
		return &NotPermittedError{fmt.Sprintf("the commit %s, as %s has proposed; %s; leave that proposal out", what, a.DID,
			rule)}
	}
	return &NotPermittedError{fmt.Sprintf("the commit %s; %s; leave that out", what, rule)}
}

// The rules that notPermitted names.
const (
	adminRemoves  = "only the convo's admins and the group's external senders remove other members"
	adminReplaces = "only the convo's admins change the group for everybody"
)

// permit checks that the authors of a change may make it, and that the change does what the request
// says. by is the committer, and "" for a proposal that nobody has committed. before is the group
// that the change is for.
func (c *locked) permit(ctx context.Context, tx pgx.Tx, by syntax.DID, change *mls.Change, allowed rights,
	before publicGroup) error {
	for _, a := range change.Adds {
		if err := allowed.add(by, a.Member); err != nil {
			return err
		}
		if allowed.device != "" && a.DeviceID() != allowed.device {
			return &NotPermittedError{"the commit adds device " + a.DeviceID() + ", and the session is of " + allowed.device}
		}
	}
	for _, did := range allowed.adds {
		if !slices.ContainsFunc(change.Adds, func(a mls.Addition) bool { return a.DID() == did.String() }) {
			return invalid(Commit, "adds no device of %s", did)
		}
	}
	for _, u := range change.Updates {
		if u.Before.DID() != u.After.DID() {
			return invalid(Commit, "gives a leaf to another account (RFC 9420 §5.3.1)")
		}
	}
	if err := c.permitReplacement(by, change); err != nil {
		return err
	}
	if err := c.permitRemoves(ctx, tx, by, change.Removes, allowed, before); err != nil || allowed.removes == "" {
		return err
	}
	for m := range change.Next.Tree.Members() {
		if m.DID() == allowed.removes.String() {
			return invalid(Commit, "leaves a device of %s in the group", allowed.removes)
		}
	}
	return nil
}

// permitReplacement checks who changes the group for everybody.
func (c *locked) permitReplacement(by syntax.DID, change *mls.Change) error {
	if a := authorOr(change.ContextBy, by); change.Context && !c.mayReplace(a, by) {
		return notPermitted(a, by, "replaces the extensions of the GroupContext", adminReplaces)
	}
	if a := authorOr(change.ReInitBy, by); change.ReInit != nil && !c.mayReplace(a, by) {
		return notPermitted(a, by, "reinitialises the group", adminReplaces)
	}
	return nil
}

// authorOr returns the author of a part of a change, or the committer if the author is not known.
func authorOr(a mls.Author, by syntax.DID) mls.Author {
	if a.DID == "" {
		return mls.Author{DID: by.String()}
	}
	return a
}

// permitRemoves checks whose devices a change removes. before is the group that the change is for.
func (c *locked) permitRemoves(ctx context.Context, tx pgx.Tx, by syntax.DID, removes []mls.Removal, allowed rights,
	before publicGroup) error {
	refusals := map[string]error{} // for each person that only may be removed after leaving
	for _, m := range removes {
		a := authorOr(m.By, by)
		switch did := m.DID(); {
		case did == a.DID:
		case allowed.joins: // an external commit can only remove an older device of its sender (§12.2)
			return notPermitted(a, by, "removes a device of "+did, "an external commit removes only devices of its sender")
		case slices.Contains(allowed.replaces, syntax.DID(did)):
		case did != allowed.removes.String() && !c.mayRemove(a, by, before):
			refusals[did] = notPermitted(a, by, "removes a device of "+did, adminRemoves)
		}
	}
	if len(refusals) == 0 {
		return nil
	}
	present, err := c.present(ctx, tx, slices.Sorted(maps.Keys(refusals)))
	if err != nil || len(present) == 0 {
		return err
	}
	return refusals[present[0].String()]
}

// present returns who of dids is on the roster, in order.
func (c *locked) present(ctx context.Context, tx pgx.Tx, dids []string) ([]syntax.DID, error) {
	present, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], `
		SELECT did FROM members WHERE convo_id = $1 AND did = ANY($2) AND left_at IS NULL ORDER BY did`, c.id, dids)
	return present, errs.Wrap(err, "read the roster")
}

// findAuthors finds who proposed the removals of an encrypted commit, among the proposals that were
// sent in clear by people who may make them. The committer answers for all others.
func (c *locked) findAuthors(ctx context.Context, tx pgx.Tx, committer syntax.DID, change *mls.Change,
	before publicGroup) error {
	if len(change.Removes) == 0 {
		return nil
	}
	pending, err := messages.Proposals(ctx, tx, c.id, c.epoch, c.lastSeq)
	if err != nil {
		return err
	}
	for _, m := range before.sent(pending) {
		leaf, ok := m.Removes()
		i := slices.IndexFunc(change.Removes, func(r mls.Removal) bool { return r.Leaf == leaf })
		if !ok || i < 0 || change.Removes[i].By.DID != "" {
			continue
		}
		by, err := before.Author(m)
		if err == nil && (by.DID == change.Removes[i].DID() || c.mayRemove(by, committer, before)) {
			change.Removes[i].By = by
		}
	}
	return nil
}

// departure is a member that is no longer in the group.
type departure struct{ did, by syntax.DID }

// departures lists the people whose last devices a change removes. by is the committer.
func departures(change *mls.Change, by syntax.DID) []departure {
	return lastDevices(change.Removes, change.Next.Tree.Members(), by)
}

// lastDevices lists the people of removes who have no device among those that stay.
func lastDevices(removes []mls.Removal, stay iter.Seq[mls.Member], by syntax.DID) (gone []departure) {
	if len(removes) == 0 {
		return nil
	}
	in := map[string]bool{}
	for m := range stay {
		in[m.DID()] = true
	}
	for _, r := range removes {
		if !in[r.DID()] {
			in[r.DID()] = true
			gone = append(gone, departure{syntax.DID(r.DID()), syntax.DID(authorOr(r.By, by).DID)})
		}
	}
	return gone
}

// removeDeparted takes the people off the roster of whom a commit leaves no device in the group. The
// person that the request itself removes is left to its method.
func (c *locked) removeDeparted(ctx context.Context, tx pgx.Tx, gone []departure, except syntax.DID) error {
	if len(gone) == 0 {
		return nil
	}
	dids := make([]string, len(gone))
	for i, d := range gone {
		dids[i] = d.did.String()
	}
	present, err := c.present(ctx, tx, dids)
	if err != nil {
		return err
	}
	for _, d := range gone {
		if d.did == except || !slices.Contains(present, d.did) {
			continue
		}
		if err := c.removeFromRoster(ctx, tx, d.did, d.by, false); err != nil {
			return err
		}
	}
	return c.handOver(ctx, tx)
}
