package scenario

import (
	"context"
	"fmt"
	"time"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// outsiders makes people ask for an attachment who must not have it: an outsider, a member of another
// convo, a former member and a blocked one.
func (u *uploads) outsiders(ctx context.Context, other *xrpc.Account, elsewhere string) {
	alice, carol := u.phones[0], u.former
	d := u.newUpload(alice.Account, 1000)
	u.upload(ctx, u.w.RNG, d)
	outsider := Must(u.w.Account())
	read := func(node int, who *xrpc.Account, convo string) error {
		call := u.about(mlsapi.NSIDGetAttachment, d)
		call.Query.Set("convoId", convo)
		_, err := u.once(ctx, node, who, call)
		return err
	}
	get := func(who *xrpc.Account, convo, want string) {
		err := read(0, who, convo)
		if xrpc.ErrorName(err) != want {
			u.w.Broken("an outsider's getAttachment: %v, want %s", err, want)
		}
	}
	get(outsider, u.convo, mlsapi.ErrConvoNotFound)
	get(other, u.convo, mlsapi.ErrConvoNotFound)
	get(other, elsewhere, mlsapi.ErrAttachmentNotFound)
	get(carol.Account, u.convo, mlsapi.ErrNotMember)
	bob := u.phones[1].Account
	// operate blocks bob or ends that, and waits until each server knows: each learns of it within a second.
	operate := func(path string, blocked bool) error {
		if err := u.f.Nodes[0].Operate(ctx, path,
			map[string]string{"did": bob.DID.String(), "reason": "simulated"}); err != nil {
			return err
		}
		for node := range u.f.Nodes {
			if err := xrpc.Until(ctx, time.Minute,
				func() (bool, error) { return (read(node, bob, u.convo) != nil) == blocked, nil }); err != nil {
				return fmt.Errorf("%s at server %d: %w", path, node, err)
			}
		}
		return nil
	}
	Check(operate("account/block", true))
	get(bob, u.convo, "Blocked")
	Check(operate("account/unblock", false))
	u.w.Note("attachments: refused are an outsider, a member of another convo in this one and there, a former member, " +
		"and a blocked one")
}
