package mlsclient

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	"mlsd/mls"
)

// TestJudge drives the library through 300 random steps. Package mls sees what a server sees and
// judges every object. Each verdict, and everything that mls says about a commit, must agree with
// the members. The test also changes each object in every field. mls must refuse the changed
// objects.
func TestJudge(t *testing.T) {
	t.Parallel()
	steps := 300
	if raceEnabled {
		steps = 120
	}
	for i, suite := range suites() {
		t.Run(suite.Name(), func(t *testing.T) {
			t.Parallel()
			j := newJudge(t, uint64(i), suite)
			for range (steps + len(suites()) - 1) / len(suites()) {
				j.step()
			}
			j.report()
		})
	}
}

// judge is a group of the library, and what the server knows about it.
type judge struct {
	t       *testing.T
	rng     *rand.Rand // random numbers of the history
	flips   *rand.Rand // random numbers of the changes to its objects
	suite   Suite
	id      []byte
	steps   int
	members []*goDevice
	public  *mls.Group     // the server's view of the epoch
	stale   []byte         // a commit of an older epoch
	seen    map[string]int // objects of each kind that were judged
	changed map[string]int // objects of each kind that were judged, then changed
	mutants map[string]int // changed objects of each kind that were refused
}

func newJudge(t *testing.T, seed uint64, suite Suite) *judge {
	t.Helper()
	j := &judge{
		t: t, rng: rand.New(rand.NewPCG(seed, 2)), flips: rand.New(rand.NewPCG(seed, 3)), suite: suite, id: []byte("judged"),
		seen: map[string]int{}, changed: map[string]int{}, mutants: map[string]int{},
	}
	founder := j.newDevice("did:plc:founder")
	if _, err := founder.Create(j.id); err != nil {
		t.Fatal(err)
	}
	j.members = []*goDevice{founder}
	info := j.groupInfo(founder)
	j.public = j.verified(info)
	j.mutateGroupInfo(info, j.public)
	return j
}

func (j *judge) newDevice(did string) *goDevice {
	return mustDevice(j.t, did, j.suite).(*goDevice)
}

func (j *judge) group(d *goDevice) *goGroup { return mustGroup(j.t, d, j.id).(*goGroup) }

func (j *judge) must(what string, err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatalf("step %d: %s: %v", j.steps, what, err)
	}
}

// someone returns a member.
func (j *judge) someone() *goDevice { return j.members[j.rng.IntN(len(j.members))] }

// someoneBut returns a member other than d.
func (j *judge) someoneBut(d *goDevice) *goDevice {
	for {
		if other := j.someone(); other != d {
			return other
		}
	}
}

// step makes one thing happen.
func (j *judge) step() {
	j.steps++
	at := j.rng.IntN(len(j.members))
	if j.rng.IntN(8) == 0 {
		j.members[at] = restart(j.t, j.members[at]).(*goDevice)
	}
	by := j.members[at]
	by.HideHandshakes(j.rng.IntN(4) == 0)
	n := j.rng.IntN(20)
	few, full := len(j.members) < 2, len(j.members) >= 8
	switch {
	case few || n < 3 && !full:
		j.add(by, 1+j.rng.IntN(3))
	case n < 5 || full:
		j.remove(by, j.someoneBut(by))
	case n < 8:
		j.update(by)
	case n < 9:
		j.externalJoin(j.newDevice(j.joiner()), nil)
	case n < 11:
		j.externalJoin(j.newDevice(by.identity), by) // the new device takes the place of a lost device
	case n < 14:
		j.propose(by)
	default:
		j.message(by)
	}
}

// joiner returns the DID of someone who joins: a new one, or that of a member
// who adds another device.
func (j *judge) joiner() string {
	if j.rng.IntN(3) == 0 {
		return j.someone().identity
	}
	return fmt.Sprintf("did:plc:j%d-%d", j.steps, j.rng.Uint32())
}

// addable makes a device and a KeyPackage of it, which is judged.
func (j *judge) addable() (*goDevice, []byte) {
	d := j.newDevice(j.joiner())
	kp := mustPackage(j.t, d)
	j.judgeKeyPackage(d, kp)
	return d, kp.Message
}

func (j *judge) add(by *goDevice, n int) {
	var joiners []*goDevice
	var packages [][]byte
	for range n {
		d, message := j.addable()
		joiners, packages = append(joiners, d), append(packages, message)
	}
	staged, err := j.group(by).StageAdd(packages...)
	j.must("stage add", err)
	j.commit(by, staged, nil, joiners...)
}

// remove removes one leaf. StageRemove would remove all leaves of a DID.
func (j *judge) remove(by, who *goDevice) {
	leaf := j.group(who).state.OwnLeafIndex()
	staged, err := j.group(by).stage(Change{}, nil, func(next *group.Group) error {
		_, err := next.RemoveMember(leaf)
		return err
	})
	j.must("stage remove", err)
	j.commit(by, staged, nil)
}

// update commits only a new path, after another member staged the same change and lost.
func (j *judge) update(by *goDevice) {
	loser := j.someoneBut(by)
	loser.HideHandshakes(false)
	lost, err := j.group(loser).StageUpdate()
	j.must("stage the commit that loses", err)
	_, err = j.apply(lost.Commit)
	j.must("a commit that comes second", err)
	staged, err := j.group(by).StageUpdate()
	j.must("stage update", err)
	j.commit(by, staged, nil)
	j.refused("a commit that lost", lost.Commit)
	if _, err := j.group(by).Process(lost.Commit); err == nil {
		j.t.Errorf("step %d: the library takes a commit that lost", j.steps)
	}
}

// externalJoin makes a device join by external commit, in place of the device instead, if there is
// one.
func (j *judge) externalJoin(d, instead *goDevice) {
	info, err := group.UnmarshalGroupInfo(j.groupInfo(j.someone())[4:])
	j.must("read the GroupInfo", err)
	var prior *group.LeafNodeIndex
	if instead != nil {
		leaf := j.group(instead).state.OwnLeafIndex()
		prior = &leaf
	}
	state, commit, err := group.ExternalCommit(info, d.suite, d.signer, d.signer.PublicKey(), prior, d.cred.Credential)
	j.must("external commit", err)
	content := commit.AuthenticatedContent()
	public := &framing.PublicMessage{Content: content.Content, Auth: content.Auth}
	state, err = withTag(state, content.Auth.ConfirmationTag)
	j.must("give the joiner its tag", err)
	next, err := state.GetGroupInfo(d.signer)
	j.must("its GroupInfo", err)
	j.members = slices.DeleteFunc(j.members, func(m *goDevice) bool { return m == instead })
	if len(j.members) == 0 { // the other device was alone, so nobody can check the commit
		j.members = append(j.members, instead)
		return
	}
	d.adopt(state)
	j.commit(d, &Staged{
		Epoch:     state.Epoch().AsUint64(),
		Commit:    framing.NewMLSMessagePublic(public).Marshal(),
		GroupInfo: wrap(formatGroupInfo, next.Marshal()),
	}, nil)
}

// withTag returns an external committer's group with the confirmation_tag of its commit, which the
// library drops. Without the tag, the GroupInfos of this member would have an empty tag, and no
// device could join with them.
func withTag(g *group.Group, tag []byte) (*group.Group, error) {
	data, err := g.MarshalState()
	if err != nil {
		return nil, err
	}
	var state group.StateData
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, err
	}
	state.ConfirmationTag = tag
	if data, err = json.Marshal(state); err != nil {
		return nil, err
	}
	return group.UnmarshalGroupState(data)
}

// propose makes one member send a proposal and another member commit it by reference.
func (j *judge) propose(by *goDevice) {
	proposer := j.someoneBut(by)
	state := j.group(proposer).state
	var joiners []*goDevice
	var added []*keypackages.KeyPackage
	var proposal *group.Proposal
	var err error
	third := j.someoneBut(by)
	switch n := j.rng.IntN(3); {
	case n == 0 && third != proposer:
		proposal, err = state.RemoveMember(j.group(third).state.OwnLeafIndex())
	case n == 1:
		d, message := j.addable()
		kp, parseErr := keypackages.UnmarshalKeyPackage(message[4:])
		j.must("read the KeyPackage", parseErr)
		joiners, added = append(joiners, d), append(added, kp)
		proposal, err = state.AddMember(kp)
	default:
		proposal, err = state.SelfUpdate(proposer.signer)
	}
	j.must("propose", err)
	message, err := state.SignProposalAsPublicMessage(proposal, proposer.signer)
	j.must("sign the proposal", err)
	for _, m := range j.members {
		if m != proposer {
			j.must("process the proposal", j.processPublic(m, message))
		}
	}
	by.HideHandshakes(false)
	staged, err := j.group(by).stage(Change{}, added, func(*group.Group) error { return nil })
	j.must("commit a proposal", err)
	pending, err := mls.ParseProposal(message)
	j.must("ParseProposal", err)
	j.refused("a commit without its proposal", staged.Commit)
	j.mutateProposal(message, staged)
	j.commit(by, staged, pending, joiners...)
}

// message sends a message.
func (j *judge) message(by *goDevice) {
	var to []Group
	for _, m := range j.members {
		if m != by {
			to = append(to, j.group(m))
		}
	}
	tell(j.t, j.group(by), fmt.Sprint("step ", j.steps), to...)
	ciphertext, err := j.group(by).Encrypt([]byte("once more"))
	j.must("encrypt", err)
	j.judgeHeader(ciphertext, mls.ContentTypeApplication)
	for _, g := range to {
		_, err := g.Process(ciphertext)
		j.must("decrypt", err)
	}
	j.seen["message"]++
}

// processPublic has a member's library read a PublicMessage.
func (j *judge) processPublic(m *goDevice, message []byte) error {
	parsed, err := framing.UnmarshalMLSMessage(message)
	if err != nil {
		return err
	}
	public, ok := parsed.AsPublic()
	if !ok {
		return errors.New("not a PublicMessage")
	}
	return j.group(m).state.ProcessPublicMessage(public)
}

// commit lets mls judge a commit with its Welcome and GroupInfo. Then the members judge them. All
// must agree. A joiner that commits already has its own state.
func (j *judge) commit(by *goDevice, staged *Staged, pending *mls.ProposalMessage, joiners ...*goDevice) {
	j.t.Helper()
	j.judgeHeader(staged.Commit, mls.ContentTypeCommit)
	external := !slices.Contains(j.members, by)
	before := roster(j.group(j.members[0]))
	change := j.judgeCommit(staged, pending)

	verdicts := map[*goDevice]error{}
	for _, m := range j.members {
		_, verdicts[m] = j.group(m).Process(staged.Commit)
	}
	if external {
		j.members = append(j.members, by)
	}
	j.members = slices.DeleteFunc(j.members, func(m *goDevice) bool {
		_, stays := j.group(by).state.FindMemberBySigKey(m.signer.PublicKey().AsSlice())
		if stays {
			j.must(m.identity+" processes the commit", verdicts[m])
		}
		return !stays
	})
	j.judgeWelcome(staged, joiners)
	j.members = append(j.members, joiners...)
	after := roster(j.group(by))
	if change == nil {
		j.public = j.verified(staged.GroupInfo)
	} else {
		j.compare(change, before, after, uint32(j.group(by).state.OwnLeafIndex()), external)
		j.public = change.Next
	}
	j.agree(after)
	if j.stale != nil {
		j.refused("a commit of an older epoch", j.stale)
	}
	if change != nil && j.rng.IntN(10) == 0 {
		j.stale = staged.Commit
	}
}

// judgeCommit returns what mls says about a commit, or nil if it cannot read it.
func (j *judge) judgeCommit(staged *Staged, pending *mls.ProposalMessage) *mls.Change {
	j.t.Helper()
	if staged.Commit[3] == 2 {
		if _, err := mls.ParseCommit(staged.Commit); !errors.Is(err, mls.ErrUnsupported) {
			j.t.Fatalf("step %d: a commit in a PrivateMessage: %v", j.steps, err)
		}
		j.seen["private commit"]++
		return nil
	}
	change, err := j.apply(staged.Commit, pendingOf(pending)...)
	j.must("Apply", err)
	info, err := mls.ParseGroupInfo(staged.GroupInfo)
	j.must("ParseGroupInfo", err)
	j.must("Matches", change.Next.Matches(&info))
	j.mutateCommit(staged, change, pending)
	j.mutateGroupInfo(staged.GroupInfo, change.Next)
	return change
}

func pendingOf(m *mls.ProposalMessage) []*mls.ProposalMessage {
	if m == nil {
		return nil
	}
	return []*mls.ProposalMessage{m}
}

func (j *judge) apply(commit []byte, pending ...*mls.ProposalMessage) (*mls.Change, error) {
	c, err := mls.ParseCommit(commit)
	if err != nil {
		return nil, err
	}
	return j.public.Apply(c, pending...)
}

func (j *judge) refused(what string, commit []byte) {
	j.t.Helper()
	if _, err := j.apply(commit); err == nil {
		j.t.Errorf("step %d: mls accepts %s", j.steps, what)
	}
}

// judgeHeader checks what the server reads of any message.
func (j *judge) judgeHeader(message []byte, content mls.ContentType) {
	j.t.Helper()
	h, err := mls.ParseHeader(message)
	j.must("ParseHeader", err)
	if !bytes.Equal(h.GroupID, j.id) || h.Epoch != j.public.Epoch || h.ContentType != content {
		j.t.Errorf("step %d: header %+v in epoch %d", j.steps, h, j.public.Epoch)
	}
}

func (j *judge) judgeKeyPackage(d *goDevice, kp KeyPackage) {
	j.t.Helper()
	j.must("KeyPackage", checkKeyPackage(kp.Message))
	k, err := mls.ParseKeyPackage(kp.Message)
	j.must("ParseKeyPackage", err)
	if k.Ref.String() != kp.Ref || !k.BelongsTo(d.identity) || k.CipherSuite != mls.CipherSuite(j.suite) ||
		!bytes.Equal(k.SignatureKey, d.signer.PublicKey().AsSlice()) {
		j.t.Errorf("step %d: KeyPackage of %s: %+v", j.steps, d.identity, k)
	}
	j.mutate("KeyPackage", kp.Message, nil, checkKeyPackage)
}

// checkKeyPackage makes the checks of a server when a KeyPackage is published.
func checkKeyPackage(message []byte) error {
	k, err := mls.ParseKeyPackage(message)
	if err != nil {
		return err
	}
	if err := k.Check(time.Now()); err != nil {
		return err
	}
	return k.VerifySignatures()
}

// judgeWelcome checks that the Welcome is for the joiners, and makes them join.
func (j *judge) judgeWelcome(staged *Staged, joiners []*goDevice) {
	j.t.Helper()
	if len(joiners) == 0 {
		return
	}
	j.seen["Welcome"]++
	welcome, err := mls.ParseWelcome(staged.Welcome)
	j.must("ParseWelcome", err)
	var want, got []string
	for _, d := range joiners {
		want = append(want, d.Refs()...)
		_, err := d.Join(staged.Welcome)
		j.must("join", err)
	}
	for _, ref := range welcome.Refs {
		got = append(got, hex.EncodeToString(ref))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		j.t.Errorf("step %d: the Welcome is for others: %s", j.steps, diff)
	}
}

// roster returns the members as one of them sees them.
func roster(g *goGroup) map[uint32]string {
	leaves := map[uint32]string{}
	for _, m := range g.state.GetMembers() {
		leaves[uint32(m.LeafIndex)] = string(m.Credential.Identity)
	}
	return leaves
}

// compare checks a change against the members before and after it.
func (j *judge) compare(c *mls.Change, before, after map[uint32]string, committer uint32, external bool) {
	j.t.Helper()
	was := func(m mls.Member) {
		if before[m.Leaf] != m.Identity {
			j.t.Errorf("step %d: leaf %d was %q, not %q", j.steps, m.Leaf, before[m.Leaf], m.Identity)
		}
	}
	for _, u := range c.Updates {
		was(u.Before)
		if u.After.Leaf != u.Before.Leaf || u.After.Identity != u.Before.Identity ||
			bytes.Equal(u.After.EncryptionKey, u.Before.EncryptionKey) {
			j.t.Errorf("step %d: update %+v", j.steps, u)
		}
	}
	for _, m := range c.Removes {
		was(m.Member)
		delete(before, m.Leaf)
	}
	for _, m := range c.Adds {
		before[m.Leaf] = m.Identity
	}
	if diff := cmp.Diff(after, before); diff != "" {
		j.t.Errorf("step %d: members (-library +mls): %s", j.steps, diff)
	}
	if c.Committer != committer || c.External != external || c.ReInit != nil {
		j.t.Errorf("step %d: committer %d, external %v; want %d, %v", j.steps, c.Committer, c.External, committer, external)
	}
}

// agree checks that all members are in the epoch that the server sees: roster,
// keys, and the GroupInfo that one of them makes.
func (j *judge) agree(after map[uint32]string) {
	j.t.Helper()
	var groups []Group
	for _, m := range j.members {
		groups = append(groups, j.group(m))
	}
	sameEpoch(j.t, groups...)
	state := j.group(j.someone()).state
	got := map[uint32]string{}
	for m := range j.public.Tree.Members() {
		got[m.Leaf] = m.Identity
		if key := state.MemberSigningKey(group.LeafNodeIndex(m.Leaf)); !bytes.Equal(key, m.SignatureKey) {
			j.t.Errorf("step %d: signature key of leaf %d differs", j.steps, m.Leaf)
		}
	}
	if diff := cmp.Diff(after, got); diff != "" {
		j.t.Errorf("step %d: members (-library +mls): %s", j.steps, diff)
	}
	j.verified(j.groupInfo(j.someone()))
}

// groupInfo returns a GroupInfo that a member makes of its epoch.
func (j *judge) groupInfo(by *goDevice) []byte {
	j.t.Helper()
	info, err := j.group(by).state.GetGroupInfo(by.signer)
	j.must("GroupInfo", err)
	return wrap(formatGroupInfo, info.Marshal())
}

// verified verifies a GroupInfo and returns its group. If the epoch is known, it also compares the
// group with that of the epoch.
func (j *judge) verified(message []byte) *mls.Group {
	j.t.Helper()
	j.seen["GroupInfo"]++
	g, err := verifyGroupInfo(message)
	j.must("Verify", err)
	info, err := mls.ParseGroupInfo(message)
	j.must("ParseGroupInfo", err)
	if j.public != nil && j.public.Epoch == g.Epoch {
		j.must("Matches", j.public.Matches(&info))
	}
	return g
}

func verifyGroupInfo(message []byte) (*mls.Group, error) {
	info, err := mls.ParseGroupInfo(message)
	if err != nil {
		return nil, err
	}
	tree, err := info.Tree()
	if err != nil {
		return nil, err
	}
	return info.Verify(tree)
}

func (j *judge) report() {
	j.t.Logf("%d steps to epoch %d: judged %v, judged and changed %v, mutants refused %v", j.steps, j.public.Epoch, j.seen,
		j.changed, j.mutants)
	for _, kind := range []string{
		"KeyPackage", "commit", "external commit", "commit by reference", "private commit", "proposal", "GroupInfo", "tree",
		"Welcome", "message",
	} {
		if j.seen[kind]+j.changed[kind] == 0 {
			j.t.Errorf("no %s was judged", kind)
		}
	}
}
