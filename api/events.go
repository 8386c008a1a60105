package api

import (
	"strconv"

	"github.com/google/uuid"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/mls"
	"mlsd/outbox"
)

// frameOf encodes an event for subscribeConvoEvents, as a WebSocket frame. request says that the
// reader has not accepted the convo. The result is nil for a kind that this version does not know.
func frameOf(e *events.Event, request bool) []byte {
	encode := func(e *events.Event) []byte {
		m := message(e, request)
		if m == nil {
			return nil
		}
		return frame(m)
	}
	if request {
		return e.Encoded(events.RequestFrame, encode)
	}
	return e.Encoded(events.Frame, encode)
}

// serverSentOf is frameOf for streamConvoEvents. The result is a chunk of HTTP/1.1's chunked
// transfer coding.
func serverSentOf(e *events.Event, request bool) []byte {
	encode := func(e *events.Event) []byte {
		m := serverSentEvent(e, request)
		if m == nil {
			return nil
		}
		return chunk(lexcodec.AppendServerSentEvent(make([]byte, chunkHeader, 512), cursorText(e), m))
	}
	if request {
		return e.Encoded(events.RequestServerSent, encode)
	}
	return e.Encoded(events.ServerSent, encode)
}

// cursorText returns the cursor of an event as streamConvoEvents writes it: the event's number.
func cursorText(e *events.Event) string { return strconv.FormatInt(e.Number(), 10) }

func message(e *events.Event, request bool) lexcodec.Message {
	if e.Signal != nil {
		return signal(e.Signal, request)
	}
	at, d := lexcodec.NewDatetime(e.At), &e.Detail
	cursor, position := e.Number(), new(e.Position())
	switch e.Kind {
	case outbox.Application, outbox.Proposal:
		m := e.Message()
		return &mlsapi.MessageEvent{
			Cursor: cursor, Position: position, Message: messageView(m), Request: present(request),
		}
	case outbox.Commit:
		m := e.Message()
		return &mlsapi.CommitEvent{
			Cursor: cursor, Position: position, ConvoID: m.ConvoID.String(), Epoch: m.Epoch, Seq: m.Seq, Sender: m.Sender,
			CommitData:       m.Body,
			SuccessorGroupID: present(d.SuccessorGroupID), CreatedAt: lexcodec.NewDatetime(m.CreatedAt),
			Request: present(request),
		}
	case outbox.Membership:
		return &mlsapi.MembershipEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DID: e.DID, Change: d.Change, By: present(d.By),
			Epoch: d.Epoch, Seq: e.Seq,
			CommitNeeded: present(d.CommitNeeded), CreatedAt: at, Request: present(request),
		}
	case outbox.Role:
		return &mlsapi.RoleEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DID: e.DID, IsAdmin: d.Change == outbox.Promoted,
			By: present(d.By), Seq: e.Seq, CreatedAt: at, Request: present(request),
		}
	case outbox.Metadata:
		return &mlsapi.MetadataEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), By: d.By, Seq: e.Seq, CreatedAt: at,
			Request: present(request),
		}
	case outbox.Welcome:
		return &mlsapi.WelcomeEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DeviceID: d.DeviceID,
			KeyPackageRef: present(d.KeyPackageRef), Epoch: d.Epoch,
			CreatedAt: at, Request: present(request),
		}
	case outbox.KeyPackages:
		return &mlsapi.KeyPackagesEvent{
			Cursor: cursor, Position: position, DeviceID: d.DeviceID, CipherSuite: mls.CipherSuite(d.CipherSuite).String(),
			Change:    d.Change,
			Available: &d.Available, CreatedAt: at,
		}
	case outbox.Dispute:
		return &mlsapi.DisputeEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), Change: d.Change, Epoch: d.Epoch, Seq: e.Seq,
			Committer: present(d.By),
			CreatedAt: at, Request: present(request),
		}
	case outbox.Arrival:
		return &mlsapi.ArrivalEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DID: d.By, Epoch: d.Epoch, State: d.Change,
			CreatedAt: at,
		}
	case outbox.Reset:
		return &mlsapi.ResetEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), Seq: e.Seq, Epoch: d.Epoch, By: d.By,
			Reason: d.Reason, SuccessorConvoID: shownID(d.SuccessorID), SuccessorGroupID: present(d.SuccessorGroupID),
			PredecessorConvoID: shownID(d.PredecessorID), CreatedAt: at, Request: present(request),
		}
	case outbox.Invitation:
		return &mlsapi.InvitationEvent{
			Cursor: cursor, Position: position, Service: d.Service, ConvoID: d.ConvoID, Inviter: d.By, DeviceID: d.DeviceID,
			KeyPackageRef: d.KeyPackageRef, Epoch: d.Epoch, Request: present(d.Request), State: present(d.Change), CreatedAt: at,
		}
	}
	return nil
}

// shownID returns the text of an id, or nil for uuid.Nil.
func shownID(id uuid.UUID) *string {
	if id == uuid.Nil {
		return nil
	}
	return lexcodec.Pointer(id.String())
}

// signal is message for an event that is not stored. Such an event has no cursor.
func signal(s *signals.Signal, request bool) lexcodec.Message {
	if len(s.Moves) == 0 {
		return &mlsapi.TypingEvent{ConvoID: s.ConvoID.String(), DID: s.Sender, Payload: s.Payload, Request: present(request)}
	}
	moved := make([]mlsapi.CursorView, len(s.Moves))
	for i, m := range s.Moves {
		moved[i] = mlsapi.CursorView{DID: m.DID, Read: m.Read, Delivered: m.Delivered}
	}
	return &mlsapi.CursorEvent{ConvoID: s.ConvoID.String(), Cursors: moved}
}

// serverSentSignal encodes an event that is not stored, for streamConvoEvents. The event has no id,
// so that the client keeps the id of the last stored event. last is that id.
func serverSentSignal(e *events.Event, request bool, last string) []byte {
	switch m := signal(e.Signal, request).(type) {
	case *mlsapi.TypingEvent:
		return serverSent(&mlsapi.StreamConvoEventsTypingEvent{
			Cursor: last, ConvoID: m.ConvoID, DID: m.DID, Payload: m.Payload, Request: m.Request,
		})
	case *mlsapi.CursorEvent:
		return serverSent(&mlsapi.StreamConvoEventsCursorEvent{Cursor: last, ConvoID: m.ConvoID, Cursors: m.Cursors})
	}
	return nil
}

// serverSent encodes an event without an id as a chunk.
func serverSent(e lexcodec.ServerSentEvent) []byte {
	return chunk(lexcodec.AppendServerSentEvent(make([]byte, chunkHeader, 256), "", e))
}

// serverSentEvent is message for streamConvoEvents, whose cursors are texts.
func serverSentEvent(e *events.Event, request bool) lexcodec.ServerSentEvent {
	cursor := cursorText(e)
	switch m := message(e, request).(type) {
	case *mlsapi.MessageEvent:
		return &mlsapi.StreamConvoEventsMessageEvent{Cursor: cursor, Message: m.Message, Request: m.Request}
	case *mlsapi.CommitEvent:
		return &mlsapi.StreamConvoEventsCommitEvent{
			Cursor: cursor, ConvoID: m.ConvoID, Epoch: m.Epoch, Seq: m.Seq, Sender: m.Sender, CommitData: m.CommitData,
			SuccessorGroupID: m.SuccessorGroupID, CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.MembershipEvent:
		return &mlsapi.StreamConvoEventsMembershipEvent{
			Cursor: cursor, ConvoID: m.ConvoID, DID: m.DID, Change: m.Change, By: m.By, Epoch: m.Epoch, Seq: m.Seq,
			CommitNeeded: m.CommitNeeded, CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.RoleEvent:
		return &mlsapi.StreamConvoEventsRoleEvent{
			Cursor: cursor, ConvoID: m.ConvoID, DID: m.DID, IsAdmin: m.IsAdmin, By: m.By, Seq: m.Seq, CreatedAt: m.CreatedAt,
			Request: m.Request,
		}
	case *mlsapi.MetadataEvent:
		return &mlsapi.StreamConvoEventsMetadataEvent{
			Cursor: cursor, ConvoID: m.ConvoID, By: m.By, Seq: m.Seq, CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.WelcomeEvent:
		return &mlsapi.StreamConvoEventsWelcomeEvent{
			Cursor: cursor, ConvoID: m.ConvoID, DeviceID: m.DeviceID, KeyPackageRef: m.KeyPackageRef, Epoch: m.Epoch,
			CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.KeyPackagesEvent:
		return &mlsapi.StreamConvoEventsKeyPackagesEvent{
			Cursor: cursor, DeviceID: m.DeviceID, CipherSuite: m.CipherSuite, Change: m.Change, Available: m.Available,
			CreatedAt: m.CreatedAt,
		}
	case *mlsapi.DisputeEvent:
		return &mlsapi.StreamConvoEventsDisputeEvent{
			Cursor: cursor, ConvoID: m.ConvoID, Change: m.Change, Epoch: m.Epoch, Seq: m.Seq, Committer: m.Committer,
			CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.ArrivalEvent:
		return &mlsapi.StreamConvoEventsArrivalEvent{
			Cursor: cursor, ConvoID: m.ConvoID, DID: m.DID, Epoch: m.Epoch, State: m.State, CreatedAt: m.CreatedAt,
		}
	case *mlsapi.ResetEvent:
		return &mlsapi.StreamConvoEventsResetEvent{
			Cursor: cursor, ConvoID: m.ConvoID, Seq: m.Seq, Epoch: m.Epoch, By: m.By, Reason: m.Reason,
			SuccessorConvoID: m.SuccessorConvoID, SuccessorGroupID: m.SuccessorGroupID, PredecessorConvoID: m.PredecessorConvoID,
			CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.InvitationEvent:
		return &mlsapi.StreamConvoEventsInvitationEvent{
			Cursor: cursor, Service: m.Service, ConvoID: m.ConvoID, Inviter: m.Inviter, DeviceID: m.DeviceID,
			KeyPackageRef: m.KeyPackageRef, Epoch: m.Epoch, Request: m.Request, State: m.State, CreatedAt: m.CreatedAt,
		}
	}
	return nil
}

// present returns a pointer to v, or nil if v is the zero value.
func present[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}
