package api

import (
	"strconv"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/mls"
	"mlsd/outbox"
)

// frameOf encodes an event for subscribeConvoEvents. request says that the reader has not accepted
// its convo. It returns nil for a kind that only newer versions of the server know.
func frameOf(e *events.Event, request bool) []byte {
	encode := func(e *events.Event) []byte {
		m := message(e, request)
		if m == nil {
			return nil
		}
		return lexcodec.AppendFrame(nil, m)
	}
	if request {
		return e.Encoded(events.RequestFrame, encode)
	}
	return e.Encoded(events.Frame, encode)
}

// serverSentOf is frameOf for streamConvoEvents.
func serverSentOf(e *events.Event, request bool) []byte {
	encode := func(e *events.Event) []byte {
		m := serverSentEvent(e, request)
		if m == nil {
			return nil
		}
		return lexcodec.AppendServerSentEvent(nil, cursorText(e), m)
	}
	if request {
		return e.Encoded(events.RequestServerSent, encode)
	}
	return e.Encoded(events.ServerSent, encode)
}

// cursorText is the cursor of an event as streamConvoEvents writes it: its number. A node of the
// version before, which knows no positions, can read it too.
func cursorText(e *events.Event) string { return strconv.FormatInt(e.Number(), 10) }

func message(e *events.Event, request bool) lexcodec.Message {
	at, d := lexcodec.NewDatetime(e.At), &e.Detail
	cursor, position := e.Number(), new(e.Position())
	switch e.Kind {
	case outbox.Application, outbox.Proposal:
		return &mlsapi.MessageEvent{Cursor: cursor, Position: position, Message: messageView(e.Message()), Request: present(request)}
	case outbox.Commit:
		m := e.Message()
		return &mlsapi.CommitEvent{
			Cursor: cursor, Position: position, ConvoID: m.ConvoID.String(), Epoch: m.Epoch, Seq: m.Seq, Sender: m.Sender, CommitData: m.Body,
			SuccessorGroupID: present(d.SuccessorGroupID), CreatedAt: lexcodec.NewDatetime(m.CreatedAt), Request: present(request),
		}
	case outbox.Membership:
		return &mlsapi.MembershipEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DID: e.DID, Change: d.Change, By: present(d.By), Epoch: d.Epoch, Seq: e.Seq,
			CommitNeeded: present(d.CommitNeeded), CreatedAt: at, Request: present(request),
		}
	case outbox.Welcome:
		return &mlsapi.WelcomeEvent{
			Cursor: cursor, Position: position, ConvoID: e.ConvoID.String(), DeviceID: d.DeviceID, KeyPackageRef: present(d.KeyPackageRef), Epoch: d.Epoch,
			CreatedAt: at, Request: present(request),
		}
	case outbox.KeyPackages:
		return &mlsapi.KeyPackagesEvent{
			Cursor: cursor, Position: position, DeviceID: d.DeviceID, CipherSuite: mls.CipherSuite(d.CipherSuite).String(), Change: d.Change,
			Available: &d.Available, CreatedAt: at,
		}
	}
	return nil
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
	case *mlsapi.WelcomeEvent:
		return &mlsapi.StreamConvoEventsWelcomeEvent{
			Cursor: cursor, ConvoID: m.ConvoID, DeviceID: m.DeviceID, KeyPackageRef: m.KeyPackageRef, Epoch: m.Epoch, CreatedAt: m.CreatedAt, Request: m.Request,
		}
	case *mlsapi.KeyPackagesEvent:
		return &mlsapi.StreamConvoEventsKeyPackagesEvent{
			Cursor: cursor, DeviceID: m.DeviceID, CipherSuite: m.CipherSuite, Change: m.Change, Available: m.Available, CreatedAt: m.CreatedAt,
		}
	}
	return nil
}

// present is the value of an optional field, nil for the zero value.
func present[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}
