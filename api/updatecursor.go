package api

import (
	"errors"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/messages"
)

// UpdateCursor: blue.catbird.mls.updateCursor. A cursor only goes up, so a repeated request changes
// nothing. After that, what the device reports of its epoch is recorded in a separate transaction.
func (h *handlers) UpdateCursor(c *call, in *mlsapi.UpdateCursorInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	if (in.Epoch == nil) != (in.AuthenticatorHash == nil) {
		return badRequest("epoch and authenticatorHash: send both or neither")
	}
	to := convos.Cursor{Read: in.Seq, Delivered: or(in.Delivered, 0)}
	at, err := h.Cursors.Update(c.ctx, convo, c.caller, to)
	if err != nil {
		return err
	}
	moved := mlsapi.UpdateCursorOutput{Seq: at.Read, Delivered: &at.Delivered}
	if in.Epoch == nil {
		return c.reply(&moved)
	}
	r := convos.Report{EpochReport: disputes.EpochReport{ConvoID: convo, Caller: c.caller, Epoch: *in.Epoch,
		Hash: in.AuthenticatorHash}}
	err = h.reportEpoch(c, r, func(out disputes.EpochOutcome, _ bool) lexcodec.Appender {
		moved.Forked = present(out.Forked)
		return &moved
	})
	if errors.As(err, new(*messages.EpochMismatchError)) {
		return c.reply(&moved)
	}
	return err
}
