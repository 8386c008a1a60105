package client

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/features/transparency/verifier"
)

func (p *Phone) acknowledgeSend(ctx context.Context, d *Draft, answer xrpc.Answer) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.SendMessageOutput](answer.Body))
	if out.Seq == nil || out.Epoch == nil {
		return errors.New("no seq or no epoch")
	}
	if uint64(*out.Epoch) != d.Epoch {
		return fmt.Errorf("stored in epoch %d, sent in %d", *out.Epoch, d.Epoch)
	}
	fresh, err := p.Model.Acked(d.Convo(), history.Sent{
		Text: d.Text, Sender: p.Account.DID, Digest: d.Digest, Epoch: d.Epoch, ID: out.MessageID, Seq: *out.Seq,
	})
	if fresh {
		p.stats.Sent.Add(1)
	}
	if err != nil {
		return err
	}
	return p.verifySent(ctx, d.Convo(), verifier.Seen{
		Seq: *out.Seq, Epoch: *out.Epoch, At: out.ReceivedAt.Time, Body: verifier.Hash(d.Digest),
		Sender: p.Account.DID.String(),
	})
}

func (p *Phone) acknowledgeCreate(d *Draft, answer xrpc.Answer, changes map[string][]byte) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body))
	if out.GroupID != hex.EncodeToString(d.GroupID) || out.Epoch != int64(d.Epoch) {
		return fmt.Errorf("group %s at epoch %d, want %x at %d", out.GroupID, out.Epoch, d.GroupID, d.Epoch)
	}
	if len(out.Members) != len(d.DIDs)+1 {
		return fmt.Errorf("%d members, want %d", len(out.Members), len(d.DIDs)+1)
	}
	p.Model.Created(out.ID, d.GroupID, d.Epoch, d.WithInfo, p.Account.DID, d.DIDs)
	return p.openCreated(d, out.ID, changes)
}

// openCreated opens the thread of a new convo whose group the device has made.
func (p *Phone) openCreated(d *Draft, convo string, changes map[string][]byte) (err error) {
	defer Catch(&err)
	group, ok := p.Device.Group(d.GroupID)
	if !ok {
		return errors.New("the group is gone from the device")
	}
	if group.Pending() != nil {
		Check(group.Confirm())
	}
	return p.openThread(&Thread{ConvoID: convo, GroupID: d.GroupID, Entered: d.Epoch}, changes)
}

// openThread adds a thread to memory and to the files to be written.
func (p *Phone) openThread(t *Thread, changes map[string][]byte) (err error) {
	defer Catch(&err)
	data := Must(json.Marshal(t))
	p.Threads[t.ConvoID] = t
	changes[threadPrefix+t.ConvoID] = data
	return nil
}

func (p *Phone) acknowledgeAdd(d *Draft, answer xrpc.Answer) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.AddMembersOutput](answer.Body))
	if !out.Success || out.NewEpoch != int64(d.Epoch) || out.Seq == nil {
		return fmt.Errorf("want success with newEpoch %d and a seq", d.Epoch)
	}
	p.Model.Joined(d.Convo(), p.Account.DID, *out.Seq, d.DIDs)
	return p.Model.Committed(d.Convo(), d.Digest, *out.Seq)
}

func (p *Phone) acknowledgeCommit(d *Draft, answer xrpc.Answer) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.SubmitCommitOutput](answer.Body))
	if out.NewEpoch != int64(d.Epoch) {
		return fmt.Errorf("want newEpoch %d", d.Epoch)
	}
	return p.Model.Committed(d.Convo(), d.Digest, out.Seq)
}

// acknowledgeRejoin enters the group at once. After a member's commit, a phone waits for the log.
// The device has no key for older entries, so it starts to read after its own commit.
func (p *Phone) acknowledgeRejoin(d *Draft, answer xrpc.Answer, changes map[string][]byte) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.ProcessExternalCommitOutput](answer.Body))
	if out.NewEpoch != int64(d.Epoch) {
		return fmt.Errorf("want newEpoch %d", d.Epoch)
	}
	Must(p.Device.ConfirmJoin(d.GroupID))
	Check(p.Model.Committed(d.Convo(), d.Digest, out.Seq))
	own := history.Item{Seq: out.Seq, Commit: true, Own: true, Sender: p.Account.DID, Digest: d.Digest}
	if thread, ok := p.Threads[d.Convo()]; ok && (thread.Rewound || thread.Stuck) {
		// The device leaves a fork or its old epoch, and keeps what it has read. It reads on to its own
		// commit.
		if thread.Rewound {
			Check(p.leaveBranch(d.Convo(), changes))
		}
		thread.Entered, thread.AddedBy, thread.Stuck = d.Epoch, history.Digest{}, false
		Check(p.writeItem(looseName(d.Convo(), d.Digest), own, changes))
		return p.openThread(thread, changes)
	}
	Check(p.startReading(&Thread{
		ConvoID: d.Convo(), GroupID: d.GroupID, First: out.Seq, Cursor: out.Seq, Entered: d.Epoch,
	}, changes))
	return p.writeItem(inboxName(d.Convo(), out.Seq), own, changes)
}

func (p *Phone) acknowledgeLeave(d *Draft, answer xrpc.Answer) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.LeaveConvoOutput](answer.Body))
	if !out.Success {
		return errors.New("no success")
	}
	if d.Kind == kindLeave {
		p.Model.Left(d.Convo(), p.Account.DID, p.Account.DID, 0)
		return nil
	}
	if out.NewEpoch != int64(d.Epoch) || out.Seq == nil {
		return fmt.Errorf("want newEpoch %d and a seq", d.Epoch)
	}
	for _, did := range d.DIDs {
		p.Model.Left(d.Convo(), p.Account.DID, did, *out.Seq)
	}
	return p.Model.Committed(d.Convo(), d.Digest, *out.Seq)
}
