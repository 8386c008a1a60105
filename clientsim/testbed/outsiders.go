package testbed

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// checkOutsiders checks that an outsider gets from every method the same answer as for a convo that
// does not exist. A former member gets NotMember.
func (w *World) checkOutsiders(ctx context.Context, c *history.ConvoModel, members []*client.Phone) {
	outsider := Must(w.Account())
	objects := Must(w.objects(c, members, outsider))
	nowhere := uuid.Must(uuid.NewV7()).String()
	unreal := probes(nowhere, outsider, objects)
	for i, call := range probes(c.ID, outsider, objects) {
		got, want := w.Refusal(ctx, outsider, call), w.Refusal(ctx, outsider, unreal[i])
		if got.Name != mlsapi.ErrConvoNotFound || got.Status != 404 {
			w.Broken("%s answers an outsider %d %s: %s", call.Method, got.Status, got.Name, got.Message)
		}
		if got.Status != want.Status || got.Name != want.Name ||
			strings.ReplaceAll(got.Message, c.ID, nowhere) != want.Message {
			w.Broken("%s shows an outsider that a convo exists: %v, and of one that does not: %v", call.Method, got,
				want)
		}
	}
	for _, p := range w.phones {
		m, was := c.Members[p.Account.DID]
		if !was || m.Live {
			continue
		}
		for _, call := range []xrpc.Call{
			xrpc.MessagesCall(c.ID, "all", 0, 10), xrpc.EpochCall(c.ID), xrpc.ConvoCall(c.ID), xrpc.CommitsCall(c.ID, 1),
			xrpc.GroupInfoCall(c.ID),
			xrpc.SubmitCall(c.ID, objects.staged, xrpc.NewKey()), xrpc.ExternalCall(c.ID, objects.external, xrpc.NewKey()),
		} {
			if got := w.Refusal(ctx, p.Account, call); got.Name != mlsapi.ErrNotMember {
				w.Broken("%s answers a former member: %v", call.Method, got)
			}
		}
	}
}

// objects are MLS messages of the convo. An outsider with them lacks only the membership.
type objects struct {
	epoch      uint64
	ciphertext []byte
	staged     *mlsclient.Staged
	external   *mlsclient.Staged // made by the outsider's own device
}

// copyOfMember copies the device of a member, so that the real group is not changed. Devices in
// agents cannot be copied. If all devices are in agents, the error is ErrInAgent.
func copyOfMember(members []*client.Phone) (member *client.Phone, copied mlsclient.Device, err error) {
	defer Catch(&err)
	for _, p := range members {
		data := Must(p.Device.Export())
		copied, err := mlsclient.ImportDevice(data)
		if !errors.Is(err, mlsclient.ErrInAgent) {
			return p, copied, err
		}
	}
	return nil, nil, mlsclient.ErrInAgent
}

func (w *World) objects(c *history.ConvoModel, members []*client.Phone,
	outsider *xrpc.Account) (_ *objects, err error) {
	defer Catch(&err)
	member, copied, err := copyOfMember(members)
	if errors.Is(err, mlsclient.ErrInAgent) {
		return fakeObjects(c, members[0])
	}
	Check(err)
	group, ok := copied.Group(c.GroupID)
	if !ok {
		return nil, errors.New("the member has no group")
	}
	ciphertext := Must(group.Encrypt([]byte("stolen")))
	staged := Must(group.StageUpdate())
	info := Must(group.GroupInfo())
	device := Must(mlsclient.NewDevice(outsider.DID.String(), member.Suite))
	external := Must(device.JoinExternal(info, mlsclient.NoLeaf))
	return &objects{epoch: group.Epoch(), ciphertext: ciphertext, staged: staged, external: external}, nil
}

// fakeObjects have only the right headers. They are for groups whose devices are all in agents.
func fakeObjects(c *history.ConvoModel, member *client.Phone) (_ *objects, err error) {
	defer Catch(&err)
	group := Must(member.Group(c.ID))
	const size = 200
	epoch := group.Epoch()
	commit := &mlsclient.Staged{Epoch: epoch + 1, Commit: mlsclient.FakeCommit(c.GroupID, epoch, size)}
	return &objects{epoch: epoch, ciphertext: mlsclient.FakeMessage(c.GroupID, epoch, size), staged: commit,
		external: commit}, nil
}

// probes returns a call of every method that names a convo.
func probes(convo string, who *xrpc.Account, o *objects) []xrpc.Call {
	return []xrpc.Call{
		xrpc.MessagesCall(convo, "all", 0, 10), xrpc.CommitsCall(convo, 1), xrpc.EpochCall(convo), xrpc.ConvoCall(convo),
		xrpc.WelcomeCall(convo, ""),
		xrpc.SendCall(convo, who.DID, o.epoch, o.ciphertext, xrpc.NewKey()),
		xrpc.GroupInfoCall(convo), xrpc.SubmitCall(convo, o.staged, xrpc.NewKey()),
		xrpc.ExternalCall(convo, o.external, xrpc.NewKey()),
		xrpc.LeaveCall(convo, xrpc.NewKey()), xrpc.RemoveCall(convo, who.DID, o.staged, xrpc.NewKey()),
		xrpc.ConfirmCall(convo, "", true, ""), xrpc.CursorCall(convo, 1),
	}
}

// Refusal makes a call that must be refused, and returns the refusal.
func (w *World) Refusal(ctx context.Context, who *xrpc.Account, call xrpc.Call) *xrpc.CallError {
	answer, err := w.Net.Do(ctx, who, call)
	var named *xrpc.CallError
	switch {
	case errors.As(err, &named):
		return named
	case err != nil:
		return &xrpc.CallError{Method: call.Method, Name: "no answer", Message: err.Error()}
	}
	return &xrpc.CallError{Method: call.Method, Status: answer.Status, Name: "no refusal", Message: string(answer.Body)}
}
