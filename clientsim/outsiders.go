package clientsim

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
)

// outsiders: whoever was never a member gets from every method what an id
// gets that never existed, and a former member gets NotMember.
func (w *World) outsiders(ctx context.Context, c *convoModel, member *Phone) {
	stranger, err := w.Account()
	if err != nil {
		w.Broken("%v", err)
		return
	}
	objects, err := w.objects(c, member, stranger)
	if err != nil {
		w.Broken("%v", err)
		return
	}
	nowhere := uuid.Must(uuid.NewV7()).String()
	unreal := probes(nowhere, stranger, objects)
	for i, call := range probes(c.id, stranger, objects) {
		got, want := w.refusal(ctx, stranger, call), w.refusal(ctx, stranger, unreal[i])
		if got.Name != mlsapi.ErrConvoNotFound || got.Status != 404 {
			w.Broken("%s answers a stranger %d %s: %s", call.Method, got.Status, got.Name, got.Message)
		}
		if got.Status != want.Status || got.Name != want.Name ||
			strings.ReplaceAll(got.Message, c.id, nowhere) != want.Message {
			w.Broken("%s tells a stranger that a convo exists: %v, and of one that does not: %v", call.Method, got, want)
		}
	}
	for _, p := range w.phones {
		m, was := c.members[p.Account.DID]
		if !was || m.live {
			continue
		}
		for _, call := range []Call{
			messagesCall(c.id, "all", 0, 10), epochCall(c.id), convoCall(c.id), commitsCall(c.id, 1), groupInfoCall(c.id),
			submitCall(c.id, objects.staged, newKey()), externalCall(c.id, objects.external, newKey()),
		} {
			if got := w.refusal(ctx, p.Account, call); got.Name != mlsapi.ErrNotMember {
				w.Broken("%s answers a former member: %v", call.Method, got)
			}
		}
	}
}

// objects are MLS messages of the convo: a stranger that has them has
// everything but the membership.
type objects struct {
	epoch      uint64
	ciphertext []byte
	staged     *Staged
	external   *Staged // by the stranger's own device
}

func (w *World) objects(c *convoModel, member *Phone, stranger *Account) (*objects, error) {
	data, err := member.device.Export()
	if err != nil {
		return nil, err
	}
	copied, err := ImportDevice(data) // the real group is not touched
	if err != nil {
		return nil, err
	}
	group, ok := copied.Group(c.groupID)
	if !ok {
		return nil, errors.New("the member has no group")
	}
	ciphertext, err := group.Encrypt([]byte("stolen"))
	if err != nil {
		return nil, err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return nil, err
	}
	info, err := group.GroupInfo()
	if err != nil {
		return nil, err
	}
	device, err := NewDevice(stranger.DID.String(), w.suite)
	if err != nil {
		return nil, err
	}
	external, err := device.JoinExternal(info, NoLeaf)
	if err != nil {
		return nil, err
	}
	return &objects{epoch: group.Epoch(), ciphertext: ciphertext, staged: staged, external: external}, nil
}

// probes are calls of every method that names a convo.
func probes(convo string, who *Account, o *objects) []Call {
	return []Call{
		messagesCall(convo, "all", 0, 10), commitsCall(convo, 1), epochCall(convo), convoCall(convo), welcomeCall(convo, ""),
		sendCall(convo, who.DID, o.epoch, o.ciphertext, newKey()),
		groupInfoCall(convo), submitCall(convo, o.staged, newKey()), externalCall(convo, o.external, newKey()),
		leaveCall(convo, newKey()), removeCall(convo, who.DID, o.staged, newKey()),
		confirmCall(convo, "", true, ""), cursorCall(convo, 1),
	}
}

// refusal makes a call that has to be refused.
func (w *World) refusal(ctx context.Context, who *Account, call Call) *CallError {
	answer, err := w.net.Do(ctx, who, call)
	var named *CallError
	switch {
	case errors.As(err, &named):
		return named
	case err != nil:
		return &CallError{Method: call.Method, Name: "no answer", Message: err.Error()}
	}
	return &CallError{Method: call.Method, Status: answer.Status, Name: "no refusal", Message: string(answer.Body)}
}
