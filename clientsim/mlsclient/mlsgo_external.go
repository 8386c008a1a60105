package mlsclient

import (
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"

	. "mlsd/clientsim/steps"
)

func (d *goDevice) JoinExternal(groupInfo []byte, prior int) (_ *Staged, err error) {
	defer CatchIn(&err, "join external")
	info, _ := Must2(readGroupInfo(groupInfo))
	var replaced *group.LeafNodeIndex
	if prior != NoLeaf {
		leaf := group.LeafNodeIndex(prior)
		replaced = &leaf
	}
	state, commit := Must2(group.ExternalCommit(info, d.suite, d.signer, d.signer.PublicKey(), replaced,
		d.cred.Credential))
	content := commit.AuthenticatedContent()
	state = Must(withConfirmation(state, content.Auth.ConfirmationTag))
	next := Must(state.GetGroupInfo(d.signer))
	message := framing.NewMLSMessagePublic(&framing.PublicMessage{Content: content.Content, Auth: content.Auth})
	joining := &pendingCommit{next: state, Staged: Staged{
		Epoch: state.Epoch().AsUint64(), Commit: message.Marshal(), GroupInfo: wrap(formatGroupInfo, next.Marshal()),
	}}
	d.joining[hex.EncodeToString(state.ID().AsSlice())] = joining
	return &joining.Staged, nil
}

// withConfirmation sets the confirmation_tag of a group's epoch. The library leaves it out when a
// group is entered by external commit. Without it the epoch's GroupInfo and the next transcript
// hash are wrong.
func withConfirmation(g *group.Group, tag []byte) (_ *group.Group, err error) {
	defer Catch(&err)
	raw := Must(g.MarshalState())
	var state group.StateData
	Check(json.Unmarshal(raw, &state))
	state.ConfirmationTag = tag
	raw = Must(json.Marshal(state))
	return group.UnmarshalGroupState(raw)
}

func (d *goDevice) ConfirmJoin(groupID []byte) (Group, error) {
	joining, ok := d.joining[hex.EncodeToString(groupID)]
	if !ok {
		return nil, errors.New("confirm join: no external commit is staged")
	}
	d.DiscardJoin(groupID)
	return d.adopt(joining.next), nil
}

func (d *goDevice) DiscardJoin(groupID []byte) { delete(d.joining, hex.EncodeToString(groupID)) }
