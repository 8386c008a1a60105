package convos

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/people/consent"
	"mlsd/welcome"
)

// Level says how far the server could check a commit.
type Level string

const (
	// LevelHeader means a PrivateMessage. Only its group and its epoch can be read.
	LevelHeader Level = "header"
	// LevelStructure means a PublicMessage for which the server does not know the group's tree, a
	// proposal that the commit refers to, or the type of a proposal. The server has checked the
	// form and the added KeyPackages, and the sender's signature if the tree is known.
	LevelStructure Level = "structure"
	// LevelVerified means a PublicMessage in a group whose tree is known. The server has checked
	// the roster, and everything that RFC 9420 lets a server without the group's secrets check.
	LevelVerified Level = "verified"
)

// rights are the changes to members that a method allows its commit, besides what the authors of the
// proposals may do (whomay.go). Every commit may add devices of the committer.
type rights struct {
	adds     []syntax.DID          // the commit must add at least one device of each
	replaces []syntax.DID          // members of adds whose older leaves the commit must remove
	invited  consent.Invitation    // the decision of package consent about adds
	foreign  []keypackages.Foreign // KeyPackages of other services that the Welcome can name
	removes  syntax.DID            // the commit must remove all devices of this DID; "" means nobody
	joins    bool                  // an external commit adds a device of the committer (RFC 9420 §12.4.3.2)
	device   string                // the device that joins; "" means any device
}

// people returns the people whose Welcomes a commit by the committer can supersede.
func (r rights) people(by syntax.DID, superseded []welcome.Device) []syntax.DID {
	all := append([]syntax.DID{by}, r.adds...)
	if r.removes != "" {
		all = append(all, r.removes)
	}
	for _, d := range superseded {
		all = append(all, d.DID)
	}
	return distinct(all)
}

// verdict is the result of checking a commit.
type verdict struct {
	level  Level
	change *mls.Change         // nil if the change is not known
	group  publicGroup         // of the epoch that the commit creates
	adds   []mls.KeyPackageRef // KeyPackages that the commit adds
	all    bool                // adds is complete
	gone   []departure         // members whose last devices the commit removes
	reInit *mls.ReInit         // another group replaces this one; nil if none is known
}

// judge checks a commit with the header h and its GroupInfo, as far as the known state of the group
// allows. It checks who made the commit, and whether its changes are allowed.
func (c *locked) judge(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, h mls.Header,
	allowed rights) (verdict, error) {
	before, err := c.publicGroup(ctx, tx)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{level: LevelHeader}
	var commit *mls.Commit
	if h.WireFormat == mls.WireFormatPublicMessage {
		if commit, err = mls.ParseCommit(p.Commit); err != nil {
			return v, invalid(Commit, "%v", err)
		}
		if v, err = c.judgePublic(ctx, tx, by, commit, before, allowed, p.Verified); err != nil {
			return v, err
		}
	}
	if allowed.joins && v.level != LevelVerified {
		return v, c.cannotJoin(h, before)
	}
	if len(v.adds) > 0 && p.Welcome == nil {
		return v, invalid(Commit, "adds a device, and no Welcome for it came along (RFC 9420 §12.4.3.1)")
	}
	if p.GroupInfo == nil {
		return v, nil
	}
	return v, c.judgeGroupInfo(ctx, tx, by, p, commit, before, &v, allowed)
}

// judgePublic checks a commit that is a PublicMessage.
func (c *locked) judgePublic(
	ctx context.Context, tx pgx.Tx, by syntax.DID, commit *mls.Commit, before publicGroup, allowed rights,
	verified *Verifications,
) (verdict, error) {
	if external := commit.SenderType == mls.SenderTypeNewMemberCommit; external != allowed.joins {
		return verdict{}, invalid(Commit, "sender is %s, which is for another method (RFC 9420 §12.4)", commit.SenderType)
	}
	var pending []messages.Proposal
	if commit.HasReferences() {
		var err error
		if pending, err = messages.Proposals(ctx, tx, c.id, c.epoch, c.lastSeq); err != nil {
			return verdict{}, err
		}
	}
	if before.Group == nil {
		return c.judgeStructure(ctx, tx, by, commit, pending, before, allowed)
	}
	err := checkSender(commit, before, by)
	var change *mls.Change
	if err == nil {
		change, err = verified.applied(c.epoch, signatures(commit),
			func() (*mls.Change, error) { return before.Apply(commit, before.sent(pending)...) })
	}
	switch {
	case err == nil:
	case errors.Is(err, mls.ErrUnsupported): // a proposal is encrypted, or has an unknown type
		return c.judgeStructure(ctx, tx, by, commit, pending, before, allowed)
	case before.vouchedBy != "" && before.vouchedBy != by && !allowed.joins && !errors.As(err, new(*UnverifiedError)):
		// The commit contradicts the state that another member has vouched for. Either of them can
		// be right.
		return c.judgeStructure(ctx, tx, by, commit, pending, publicGroup{}, allowed)
	case errors.As(err, new(*InvalidObjectError)), errors.As(err, new(*UnverifiedError)):
		return verdict{}, err
	default:
		return verdict{}, invalid(Commit, "%v", err)
	}
	v := verdict{level: LevelVerified, change: change, group: publicGroup{change.Next, before.vouchedBy}, all: true,
		reInit: change.ReInit}
	if !allowed.joins && by != before.vouchedBy { // a device that joins has got the group from the same GroupInfo
		v.group.vouchedBy = ""
	}
	for _, a := range change.Adds {
		if a.KeyPackage != nil {
			if err := keypackages.CheckLife(a.KeyPackage, a.NotAfter, c.now); err != nil {
				return v, invalid(Commit, "%v", err)
			}
			v.adds = append(v.adds, a.KeyPackage)
		}
	}
	v.gone = departures(change, by)
	return v, c.permit(ctx, tx, by, change, allowed, before)
}

// checkSender checks that the sender of a member's commit is a device of the caller.
func checkSender(commit *mls.Commit, before publicGroup, by syntax.DID) error {
	sender, ok := before.Tree.Member(commit.Sender)
	if ok && commit.SenderType == mls.SenderTypeMember && sender.DID() != by.String() {
		return invalid(Commit, "sender is a device of another member (RFC 9420 §6.1)")
	}
	return nil
}

// judgeStructure checks a commit by its own content, and by the tree if the tree is known.
func (c *locked) judgeStructure(
	ctx context.Context, tx pgx.Tx, by syntax.DID, commit *mls.Commit, pending []messages.Proposal, before publicGroup,
	allowed rights,
) (verdict, error) {
	known := &mls.Change{} // what can be read of the change
	known.ReInit, known.ReInitBy = c.reInit(commit, pending)
	v := verdict{level: LevelStructure, all: true, reInit: known.ReInit}
	for _, p := range commit.Proposals {
		switch {
		case p.Reference != nil, p.Opaque:
			v.all = false
		case p.KeyPackage != nil:
			v.adds = append(v.adds, p.KeyPackage.Ref)
			if err := keypackages.CheckLife(p.KeyPackage.Ref, p.KeyPackage.NotAfter, c.now); err != nil {
				return v, invalid(Commit, "%v", err)
			}
			if err := allowed.add(by,
				mls.Member{Identity: p.KeyPackage.Identity, CredentialType: p.KeyPackage.CredentialType}); err != nil {
				return v, err
			}
		case p.Type == mls.ProposalRemove && before.Group != nil:
			if gone, ok := before.Tree.Member(p.Removed); ok {
				known.Removes = append(known.Removes, mls.Removal{Member: gone})
			}
		case p.Type == mls.ProposalGroupContextExtensions:
			known.Context = true
		}
	}
	if err := c.permitReplacement(by, known); err != nil {
		return v, err
	}
	if before.Group != nil {
		v.gone = lastDevices(known.Removes, before.without(known.Removes), by)
	}
	return v, c.permitRemoves(ctx, tx, by, known.Removes, allowed, before)
}

// reInit returns the ReInit that a commit contains or refers to, and who proposed it if that is not
// the committer.
func (c *locked) reInit(commit *mls.Commit, pending []messages.Proposal) (*mls.ReInit, mls.Author) {
	suite := mls.CipherSuite(c.cipherSuite)
	if found := commit.ReInit(suite); found != nil {
		return found, mls.Author{}
	}
	for _, p := range pending {
		if found := commit.ReInit(suite, p.ProposalMessage); found != nil {
			return found, mls.Author{DID: p.Sender.String(), External: p.SenderType == mls.SenderTypeExternal}
		}
	}
	return nil, mls.Author{}
}

// successor returns the group_id of the group that replaces this one, or nil if none does. It
// checks that a convo of that group is possible.
func (v *verdict) successor(allowed rights) ([]byte, error) {
	switch {
	case v.reInit == nil:
		return nil, nil
	case len(allowed.adds) > 0 || allowed.removes != "" || allowed.joins:
		return nil, invalid(Commit, "ReInit beside another change; submitCommit takes it (RFC 9420 §12.2)")
	case len(v.reInit.GroupID) == 0 || len(v.reInit.GroupID) > mls.MaxGroupIDSize:
		return nil, invalid(Commit, "ReInit.group_id: must have 1 to %d bytes, as the groupId of a convo (RFC 9420 §12.1.5)",
			mls.MaxGroupIDSize)
	}
	return v.reInit.GroupID, nil
}

// cannotJoin returns the reason to refuse an external commit that could not be verified.
func (c *locked) cannotJoin(h mls.Header, before publicGroup) error {
	switch {
	case h.WireFormat != mls.WireFormatPublicMessage:
		return invalid(Commit, "an external commit is a PublicMessage (RFC 9420 §12.4.3.2)")
	case before.Group == nil:
		return ErrNoGroupInfo
	}
	return invalid(Commit, "contains or refers to a proposal that the server cannot read, and an external commit must "+
		"be verifiable (RFC 9420 §12.4.3.2)")
}

// judgeGroupInfo checks the GroupInfo of a commit. If the commit could not be verified,
// judgeGroupInfo learns the group's state from the GroupInfo. The GroupInfo must be of the new
// epoch, hold the tree, and be signed by a device of the committer. commit is nil if it is
// encrypted.
func (c *locked) judgeGroupInfo(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, commit *mls.Commit,
	before publicGroup, v *verdict, allowed rights) error {
	next := c.epoch + 1
	info, err := checkGroupInfo(p.GroupInfo, c.groupID, c.cipherSuite, &next)
	if err != nil {
		return err
	}
	switch {
	case v.group.Group != nil:
		if err := v.group.Matches(&info); err != nil {
			return invalid(GroupInfo, "%v", err)
		}
		return checkSigner(&info, v.group.Tree, by)
	case commit != nil && !bytes.Equal(info.ConfirmationTag, commit.ConfirmationTag):
		return invalid(GroupInfo, "confirmation_tag is not that of the commit (RFC 9420 §12.4.3)")
	case before.Group == nil:
		people, err := c.everMembers(ctx, tx)
		if err != nil {
			return err
		}
		tree, err := checkTree(&info, by, append(people, allowed.adds...))
		if err != nil {
			return err
		}
		devices := len(slices.Collect(tree.Members()))
		v.group.Group, err = p.Verified.tree(c.epoch, devices, func() (*mls.Group, error) { return info.Verify(tree) })
		v.group.vouchedBy = by
		return invalidGroupInfo(err)
	}
	devices, err := before.NewDevices(&info)
	if err == nil {
		v.change, err = p.Verified.followed(c.epoch, devices, func() (*mls.Change, error) { return before.Follow(&info) })
	}
	if err != nil {
		return invalidGroupInfo(err)
	}
	v.group = publicGroup{v.change.Next, by}
	if err := checkSigner(&info, v.group.Tree, by); err != nil {
		return err
	}
	if err := c.findAuthors(ctx, tx, by, v.change, before); err != nil {
		return err
	}
	v.gone = departures(v.change, by)
	return c.permit(ctx, tx, by, v.change, allowed, before)
}

// checkTree makes the cheap checks of a GroupInfo of a group whose state is not known: a device of
// by has signed it, and every leaf belongs to one of people. GroupInfo.Verify verifies the
// signatures of the tree, which can be thousands.
func checkTree(info *mls.GroupInfo, by syntax.DID, people []syntax.DID) (*mls.Tree, error) {
	tree, err := info.Tree()
	if err != nil {
		return nil, invalid(GroupInfo, "%v", err)
	}
	if err := checkSigner(info, tree, by); err != nil {
		return nil, err
	}
	if err := checkPeople(tree, people); err != nil {
		return nil, err
	}
	return tree, nil
}

// invalidGroupInfo returns the refusal of a GroupInfo because of err. It returns nil and
// *UnverifiedError unchanged.
func invalidGroupInfo(err error) error {
	if err == nil || errors.As(err, new(*UnverifiedError)) {
		return err
	}
	return invalid(GroupInfo, "%v", err)
}

func checkSigner(info *mls.GroupInfo, tree *mls.Tree, by syntax.DID) error {
	if !info.HasRatchetTree {
		return invalid(GroupInfo, "no ratchet_tree, which a new member needs (RFC 9420 §12.4.3.3)")
	}
	if signer, _ := tree.Member(info.Signer); signer.DID() != by.String() {
		return invalid(GroupInfo, "signer is not a device of the caller's (RFC 9420 §12.4.3)")
	}
	return nil
}

// maxDevices is how many devices of one person may be in a group for which a member vouches.
const maxDevices = 50

// checkPeople checks that every leaf belongs to one of people, and that each of them has at most
// maxDevices. The leaves of erased members stay until a member removes them. So as many DIDs may be
// unknown as people has tombstones.
func checkPeople(tree *mls.Tree, people []syntax.DID) error {
	devices := make(map[string]int, len(people))
	erased := 0
	for _, did := range people {
		devices[did.String()] = 0
		if tombstone.Is(did) {
			erased++
		}
	}
	for m := range tree.Members() {
		n, known := devices[m.DID()]
		switch {
		case m.CredentialType != mls.CredentialTypeBasic:
			return invalid(GroupInfo, "ratchet_tree: leaf %d has a credential of type %s; only a basic credential names an "+
				"account (RFC 9420 §5.3)", m.Leaf, m.CredentialType)
		case !known && erased > 0:
			erased--
		case !known:
			return invalid(GroupInfo, "ratchet_tree: leaf %d belongs to a DID that is not on the roster (RFC 9420 §5.3)", m.Leaf)
		case n == maxDevices:
			return invalid(GroupInfo, "ratchet_tree: more than %d devices of one person", maxDevices)
		}
		devices[m.DID()]++
	}
	return nil
}

// checkGroupInfo reads a GroupInfo and compares it with the group's id, cipher suite and epoch. If
// epoch is nil, the epoch is not compared.
func checkGroupInfo(groupInfo, groupID []byte, suite int32, epoch *int64) (mls.GroupInfo, error) {
	info, err := mls.ParseGroupInfo(groupInfo)
	switch {
	case err != nil:
		return info, invalid(GroupInfo, "%v", err)
	case !bytes.Equal(info.GroupID, groupID):
		return info, invalid(GroupInfo, "group_id is %x, and not %x", info.GroupID, groupID)
	case int32(info.CipherSuite) != suite:
		return info, invalid(GroupInfo, "cipher_suite is %s, and not %s", info.CipherSuite, mls.CipherSuite(suite))
	case epoch != nil && int64(info.Epoch) != *epoch:
		return info, invalid(GroupInfo, "epoch is %d, and not %d", info.Epoch, *epoch)
	}
	return info, nil
}

// add checks that the commit may add the device m.
func (r rights) add(by syntax.DID, m mls.Member) error {
	if m.CredentialType != mls.CredentialTypeBasic {
		return invalid(Commit, "adds a device with a credential of type %s; only a basic credential names an account (RFC "+
			"9420 §5.3)", m.CredentialType)
	}
	if m.DID() == by.String() || slices.Contains(r.adds, syntax.DID(m.DID())) {
		return nil
	}
	return invalid(Commit, "adds a device whose credential names a DID that the request does not add (RFC 9420 §5.3)")
}

// everMembers returns the current and former members.
func (c *locked) everMembers(ctx context.Context, tx pgx.Tx) ([]syntax.DID, error) {
	people, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], `SELECT did FROM members WHERE convo_id = $1`, c.id)
	return people, errs.Wrap(err, "read the roster")
}

// superseded lists the devices whose older Welcomes are useless after the commit: the devices that
// it removes, the device that joins by it, and all devices of the people whose leaves it replaces, or
// of whom it leaves no leaf.
func (v verdict) superseded(replaced []syntax.DID) (devices []welcome.Device) {
	for _, did := range replaced {
		devices = append(devices, welcome.Device{DID: did})
	}
	for _, d := range v.gone {
		devices = append(devices, welcome.Device{DID: d.did})
	}
	if v.change == nil {
		return devices
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

// checkRecipients checks that a Welcome is for the devices that its commit adds. Only the
// committer's own devices can join without a KeyPackage that this server knows. If the commit
// replaces a person's leaves, the Welcome must be for all of that person's devices in the new
// group.
func (v verdict) checkRecipients(by syntax.DID, to []welcome.Recipient, replaced []syntax.DID) error {
	for _, ref := range v.adds {
		if !slices.ContainsFunc(to, func(r welcome.Recipient) bool { return bytes.Equal(r.Ref, ref) }) {
			return invalid(Welcome, "does not name KeyPackage %s, which the commit adds", ref)
		}
	}
	for _, r := range to {
		if v.all && !slices.ContainsFunc(v.adds, func(ref mls.KeyPackageRef) bool { return bytes.Equal(r.Ref, ref) }) {
			return invalid(Welcome, "names KeyPackage %s, which the commit does not add", r.Ref)
		}
	}
	if v.group.Group == nil {
		return nil
	}
	in := map[string]bool{}
	for m := range v.group.Tree.Members() {
		in[m.DID()+" "+m.DeviceID()] = true
	}
	welcomed := make(map[string]bool, len(to))
	for _, r := range to {
		device := r.DID.String() + " " + r.DeviceID
		welcomed[device] = true
		if !in[device] {
			return invalid(Welcome, "names KeyPackage %s, whose device is not in the group", r.Ref)
		}
	}
	for m := range v.group.Tree.Members() {
		if slices.Contains(replaced, syntax.DID(m.DID())) && !welcomed[m.DID()+" "+m.DeviceID()] {
			return invalid(GroupInfo,
				"ratchet_tree: leaf %d is of a device that the Welcome is not for, and its owner never joined", m.Leaf)
		}
	}
	if v.change == nil {
		return nil
	}
	for _, a := range v.change.Adds {
		if a.DID() != by.String() && !welcomed[a.DID()+" "+a.DeviceID()] {
			return invalid(GroupInfo, "ratchet_tree: leaf %d is new, and not of a device that the Welcome is for", a.Leaf)
		}
	}
	return nil
}
