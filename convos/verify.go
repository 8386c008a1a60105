package convos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/messages"
	"mlsd/mls"
	"mlsd/welcome"
)

// Level says how much of a commit could be checked.
type Level string

const (
	// LevelHeader: a PrivateMessage. Only group and epoch can be read.
	LevelHeader Level = "header"
	// LevelStructure: a PublicMessage, but the group's tree is not known, or not everything that the commit refers to. Its form
	// is checked, and the KeyPackages that it adds.
	LevelStructure Level = "structure"
	// LevelVerified: a PublicMessage in a group whose tree is known. All that RFC 9420 lets anybody without the group's secrets
	// check was checked, and the roster.
	LevelVerified Level = "verified"
)

// rights are what a commit may do to the group's members: what its method is for. Besides, a committer may always remove other
// devices of its own and those of people who are off the roster, and add devices of its own.
type rights struct {
	adds    []syntax.DID // every one of them, with at least one device
	removes syntax.DID   // with all its devices; "" for nobody
	joins   bool         // by external commit: a device of the committer's that is not in the group (RFC 9420 §12.4.3.2)
}

// verdict is what a commit is found to be.
type verdict struct {
	level  Level
	change *mls.Change         // nil: not known
	group  *mls.Group          // of the epoch it creates; nil: not known
	adds   []mls.KeyPackageRef // KeyPackages that it adds
	all    bool                // adds has them all
}

// judge checks a commit, whose header is h, and its GroupInfo as far as what is known of the group allows: who made it, and that
// what it does to the group's members is what its method may do.
func (c *locked) judge(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, h mls.Header, may rights) (verdict, error) {
	before, err := c.publicGroup(ctx, tx)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{level: LevelHeader}
	if h.WireFormat == mls.WireFormatPublicMessage {
		if v, err = c.judgePublic(ctx, tx, by, p.Commit, before, may); err != nil {
			return v, err
		}
	}
	if may.joins && v.level != LevelVerified {
		return v, c.cannotJoin(h, before)
	}
	if len(v.adds) > 0 && p.Welcome == nil {
		return v, invalid(Commit, "adds a device, and no Welcome for it came along (RFC 9420 §12.4.3.1)")
	}
	if p.GroupInfo != nil {
		if err := c.judgeGroupInfo(ctx, tx, by, p.GroupInfo, before, &v, may); err != nil {
			return v, err
		}
	}
	return v, nil
}

// judgePublic judges a commit that can be read; before may be nil.
func (c *locked) judgePublic(ctx context.Context, tx pgx.Tx, by syntax.DID, body []byte, before *mls.Group, may rights) (verdict, error) {
	commit, err := mls.ParseCommit(body)
	if err != nil {
		return verdict{}, invalid(Commit, "%v", err)
	}
	if external := commit.SenderType == mls.SenderTypeNewMemberCommit; external != may.joins {
		return verdict{}, invalid(Commit, "sender is %s, which is for another method (RFC 9420 §12.4)", commit.SenderType)
	}
	if before == nil {
		return judgeStructure(commit, by, may)
	}
	if sender, ok := before.Tree.Member(commit.Sender); ok && !may.joins && sender.DID() != by.String() {
		return verdict{}, invalid(Commit, "sender is a device of another member (RFC 9420 §6.1)")
	}
	var pending []*mls.ProposalMessage
	if slices.ContainsFunc(commit.Proposals, func(p mls.Proposal) bool { return p.Reference != nil }) {
		if pending, err = messages.Proposals(ctx, tx, c.id, c.epoch, c.lastSeq); err != nil {
			return verdict{}, err
		}
	}
	change, err := before.Apply(commit, pending...)
	if errors.Is(err, mls.ErrUnsupported) { // it refers to what cannot be read
		return judgeStructure(commit, by, may)
	}
	if err != nil {
		return verdict{}, invalid(Commit, "%v", err)
	}
	v := verdict{level: LevelVerified, change: change, group: change.Next, all: true}
	for _, a := range change.Adds {
		if a.KeyPackage != nil {
			v.adds = append(v.adds, a.KeyPackage)
		}
	}
	return v, c.permit(ctx, tx, by, change, may)
}

// judgeStructure judges a commit by what it says alone.
func judgeStructure(commit *mls.Commit, by syntax.DID, may rights) (verdict, error) {
	v := verdict{level: LevelStructure, all: true}
	for _, p := range commit.Proposals {
		switch {
		case p.Reference != nil:
			v.all = false
		case p.KeyPackage != nil:
			v.adds = append(v.adds, p.KeyPackage.Ref)
			owner := mls.Member{Identity: p.KeyPackage.Identity}
			if err := may.add(by, owner); err != nil {
				return v, err
			}
		}
	}
	return v, nil
}

// cannotJoin says why an external commit that could not be verified is not taken.
func (c *locked) cannotJoin(h mls.Header, before *mls.Group) error {
	switch {
	case h.WireFormat != mls.WireFormatPublicMessage:
		return invalid(Commit, "an external commit is a PublicMessage (RFC 9420 §12.4.3.2)")
	case before == nil:
		return ErrNoGroupInfo
	}
	return invalid(Commit, "refers to what only members can read (RFC 9420 §12.4.3.2)")
}

// judgeGroupInfo checks the GroupInfo that came with a commit, and learns the group from it where the commit did not tell: it
// must be of the epoch that the commit creates, with the tree, which a joiner has from nowhere else, and signed by a device of
// the committer's.
func (c *locked) judgeGroupInfo(ctx context.Context, tx pgx.Tx, by syntax.DID, groupInfo []byte, before *mls.Group, v *verdict, may rights) error {
	next := c.epoch + 1
	info, err := checkGroupInfo(groupInfo, c.groupID, c.cipherSuite, &next)
	if err != nil {
		return err
	}
	switch {
	case v.group != nil:
		if err := v.group.Matches(&info); err != nil {
			return invalid(GroupInfo, "%v", err)
		}
	case before != nil:
		if v.change, err = before.Follow(&info); err != nil {
			return invalid(GroupInfo, "%v", err)
		}
		v.group = v.change.Next
		if err := c.permit(ctx, tx, by, v.change, may); err != nil {
			return err
		}
	default:
		if v.group, err = verifyGroupInfo(&info); err != nil {
			return err
		}
		if err := c.checkMembers(ctx, tx, v.group, may); err != nil {
			return err
		}
	}
	return checkSigner(&info, v.group, by)
}

// verifyGroupInfo checks a GroupInfo by itself.
func verifyGroupInfo(info *mls.GroupInfo) (*mls.Group, error) {
	tree, err := info.Tree()
	if err != nil {
		return nil, invalid(GroupInfo, "%v", err)
	}
	group, err := info.Verify(tree)
	if err != nil {
		return nil, invalid(GroupInfo, "%v", err)
	}
	return group, nil
}

func checkSigner(info *mls.GroupInfo, group *mls.Group, by syntax.DID) error {
	if !info.HasRatchetTree {
		return invalid(GroupInfo, "no ratchet_tree, without which nobody can join (RFC 9420 §12.4.3.3)")
	}
	if signer, _ := group.Tree.Member(info.Signer); signer.DID() != by.String() {
		return invalid(GroupInfo, "signer is not a device of the caller's (RFC 9420 §12.4.3)")
	}
	return nil
}

// checkGroupInfo reads a GroupInfo and compares it with what is known of the group. epoch may be nil: not known.
func checkGroupInfo(groupInfo, groupID []byte, suite int32, epoch *int64) (mls.GroupInfo, error) {
	info, err := mls.ParseGroupInfo(groupInfo)
	switch {
	case err != nil:
		return info, invalid(GroupInfo, "%v", err)
	case !bytes.Equal(info.GroupID, groupID):
		return info, invalid(GroupInfo, "group_id is of another group")
	case int32(info.CipherSuite) != suite:
		return info, invalid(GroupInfo, "cipher_suite is %s", info.CipherSuite)
	case epoch != nil && int64(info.Epoch) != *epoch:
		return info, invalid(GroupInfo, "epoch is %d, not %d", info.Epoch, *epoch)
	}
	return info, nil
}

// add checks that the committer may add a device of m's.
func (r rights) add(by syntax.DID, m mls.Member) error {
	if m.DID() == by.String() || slices.Contains(r.adds, syntax.DID(m.DID())) {
		return nil
	}
	return invalid(Commit, "adds a device whose credential is of nobody that the request adds (RFC 9420 §5.3)")
}

// permit checks that a change of the group's members is within the committer's rights.
func (c *locked) permit(ctx context.Context, tx pgx.Tx, by syntax.DID, change *mls.Change, may rights) error {
	for _, a := range change.Adds {
		if err := may.add(by, a.Member); err != nil {
			return err
		}
	}
	for _, did := range may.adds {
		if !slices.ContainsFunc(change.Adds, func(a mls.Addition) bool { return a.DID() == did.String() }) {
			return invalid(Commit, "adds no device of %s", did)
		}
	}
	for _, u := range change.Updates {
		if u.Before.DID() != u.After.DID() {
			return invalid(Commit, "gives a leaf to another account (RFC 9420 §5.3.1)")
		}
	}
	var others []string // whose devices go
	for _, m := range change.Removes {
		if did := m.DID(); did != by.String() && did != may.removes.String() {
			others = append(others, did)
		}
	}
	if len(others) > 0 {
		roster, err := c.present(ctx, tx, others)
		if err != nil {
			return err
		}
		if len(roster) > 0 {
			return ErrNotPermitted
		}
	}
	if may.removes == "" {
		return nil
	}
	for m := range change.Next.Tree.Members() {
		if m.DID() == may.removes.String() {
			return invalid(Commit, "leaves a device of %s in the group", may.removes)
		}
	}
	return nil
}

// present returns those of dids that are members now.
func (c *locked) present(ctx context.Context, tx pgx.Tx, dids []string) (present []string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(did), '{}') FROM members WHERE convo_id = $1 AND did = ANY($2) AND left_at IS NULL`,
		c.id, dids).Scan(&present)
	if err != nil {
		return nil, fmt.Errorf("read the roster: %w", err)
	}
	return present, nil
}

// checkMembers checks a tree that there is nothing to compare with: every leaf is that of someone who is, was or is being made a
// member.
func (c *locked) checkMembers(ctx context.Context, tx pgx.Tx, group *mls.Group, may rights) error {
	known := slices.Clone(may.adds)
	rows, err := tx.Query(ctx, `SELECT did FROM members WHERE convo_id = $1`, c.id)
	if err != nil {
		return fmt.Errorf("read the roster: %w", err)
	}
	roster, err := pgx.CollectRows(rows, pgx.RowTo[syntax.DID])
	if err != nil {
		return fmt.Errorf("read the roster: %w", err)
	}
	return onRoster(group, append(known, roster...))
}

// onRoster checks that every leaf of the group belongs to one of the people.
func onRoster(group *mls.Group, people []syntax.DID) error {
	known := make(map[string]bool, len(people))
	for _, did := range people {
		known[did.String()] = true
	}
	for m := range group.Tree.Members() {
		if !known[m.DID()] {
			return invalid(GroupInfo, "ratchet_tree: leaf %d is of nobody on the roster (RFC 9420 §5.3)", m.Leaf)
		}
	}
	return nil
}

// gone lists the devices that a commit removes, and the one that it lets in without a Welcome: a Welcome that is still on its
// way to them leads nowhere.
func (v verdict) gone() (devices []welcome.Device) {
	if v.change == nil {
		return nil
	}
	for _, m := range v.change.Removes {
		devices = append(devices, welcome.Device{DID: syntax.DID(m.DID()), DeviceID: m.DeviceID()})
	}
	for _, a := range v.change.Adds {
		if a.KeyPackage == nil && v.change.External {
			devices = append(devices, welcome.Device{DID: syntax.DID(a.DID()), DeviceID: a.DeviceID()})
		}
	}
	return devices
}

// checkRecipients checks that a Welcome is for the devices that its commit adds.
func (v verdict) checkRecipients(to []welcome.Recipient) error {
	for _, ref := range v.adds {
		if !slices.ContainsFunc(to, func(r welcome.Recipient) bool { return bytes.Equal(r.Ref, ref) }) {
			return invalid(Welcome, "does not name KeyPackage %s, which the commit adds", ref)
		}
	}
	in := map[string]bool{}
	if v.group != nil {
		for m := range v.group.Tree.Members() {
			in[m.DID()+" "+m.DeviceID()] = true
		}
	}
	for _, r := range to {
		if v.all && !slices.ContainsFunc(v.adds, func(ref mls.KeyPackageRef) bool { return bytes.Equal(r.Ref, ref) }) {
			return invalid(Welcome, "names KeyPackage %s, which the commit does not add", r.Ref)
		}
		if v.group != nil && !in[r.DID.String()+" "+r.DeviceID] {
			return invalid(Welcome, "names KeyPackage %s, whose device is not in the group", r.Ref)
		}
	}
	return nil
}
