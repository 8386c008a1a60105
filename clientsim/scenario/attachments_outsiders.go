package scenario

import (
	"context"
	"errors"
	"net/url"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// outsiders makes people ask for an attachment who must not have it: a stranger, a member of another
// convo, a former member and a blocked one.
func (u *uploads) outsiders(ctx context.Context, other *xrpc.Account, elsewhere string) error {
	alice, carol := u.phones[0], u.former
	d := u.newUpload(alice.Account, 1000)
	if err := u.upload(ctx, u.w.RNG, d); err != nil {
		return err
	}
	stranger, err := u.w.Account()
	if err != nil {
		return err
	}
	read := func(who *xrpc.Account, convo string) error {
		_, err := u.once(ctx, 0, who, mlsapi.NSIDGetAttachment, url.Values{"convoId": {convo}, "attachmentId": {d.id}}, nil, nil)
		return err
	}
	get := func(who *xrpc.Account, convo, want string) {
		err := read(who, convo)
		var r *refused
		if !errors.As(err, &r) || r.Name != want {
			u.w.Broken("an outsider's getAttachment: %v, want %s", err, want)
		}
	}
	get(stranger, u.convo, mlsapi.ErrConvoNotFound)
	get(other, u.convo, mlsapi.ErrConvoNotFound)
	get(other, elsewhere, mlsapi.ErrAttachmentNotFound)
	get(carol.Account, u.convo, mlsapi.ErrNotMember)
	if err := u.f.Nodes[0].Operate(ctx, "account/block", map[string]string{"did": u.phones[1].Account.DID.String(), "reason": "simulated"}); err != nil {
		return err
	}
	for range 30 { // a node learns of it within a second
		if read(u.phones[1].Account, u.convo) != nil {
			break
		}
		xrpc.Sleep(ctx, 100*time.Millisecond)
	}
	get(u.phones[1].Account, u.convo, "Blocked")
	if err := u.f.Nodes[0].Operate(ctx, "account/unblock", map[string]string{"did": u.phones[1].Account.DID.String(), "reason": "simulated"}); err != nil {
		return err
	}
	u.w.Note("attachments: refused are a stranger, a member of another convo in this one and there, a former member, and a blocked one")
	return nil
}
