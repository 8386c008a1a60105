package api

import (
	"errors"

	"mlsd/api/mlsapi"
	"mlsd/events/signals"
	"mlsd/messages"
	"mlsd/mls"
)

// SendSignal: blue.catbird.mls.sendSignal. A busy node drops a signal before it reads the convo.
func (h *handlers) SendSignal(c *call, in *mlsapi.SendSignalInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	header, err := signalHeader(in.Payload)
	if err != nil {
		return err
	}
	if h.Signals.Busy() {
		return c.reply(&mlsapi.SendSignalOutput{Carried: false})
	}
	if c.token != nil {
		if err := c.token.Use(c.ctx); err != nil {
			return err
		}
	}
	signal := messages.Signal{ConvoID: convo, GroupID: header.GroupID, Sender: c.caller, Epoch: int64(header.Epoch)}
	hidden, nobody, err := messages.AuthoriseSignal(c.ctx, h.DB, signal, h.EpochWindow)
	if err != nil {
		return err
	}
	// The answer does not tell the sender that somebody has blocked it.
	carried := h.Signals.Send(signals.Signal{ConvoID: convo, Sender: c.caller, Payload: in.Payload, Hidden: hidden,
		Nobody: nobody})
	return c.reply(&mlsapi.SendSignalOutput{Carried: carried})
}

// signalHeader reads the header of a payload. The payload has the form of an application message.
func signalHeader(payload []byte) (mls.Header, error) {
	h, err := mls.ParseHeader(payload)
	switch {
	case errors.Is(err, mls.ErrTooLarge):
		return h, named(mlsapi.ErrMessageTooLarge, "payload: "+err.Error())
	case err != nil:
		return h, named(mlsapi.ErrInvalidMessage, "payload: "+err.Error())
	case h.WireFormat != mls.WireFormatPrivateMessage || h.ContentType != mls.ContentTypeApplication:
		return h, named(mlsapi.ErrInvalidMessage,
			"payload: a signal must be a PrivateMessage with application data (RFC 9420 §6)")
	}
	return h, nil
}
