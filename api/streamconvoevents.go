package api

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"mlsd/api/mlsapi"
	"mlsd/events"
)

// The answer to a cursor after which events are missing.
const (
	outdatedCursor  = "OutdatedCursor"
	outdatedMessage = "events after the cursor are missing: read the convos again"
)

// StreamConvoEvents: blue.catbird.mls.streamConvoEvents. Pushes to the device go on, because
// without pongs the server does not know whether the client is alive.
func (h *handlers) StreamConvoEvents(c *call, p *mlsapi.StreamConvoEventsParams) error {
	last, seen, err := lastEvent(c.http.Request().Header, p.Cursor)
	if err != nil {
		return err
	}
	if err := h.opens(c); err != nil {
		return err
	}
	var convos []string
	if p.ConvoID != nil {
		convos = []string{*p.ConvoID}
	}
	r, err := request(c.caller, nil, seen, convos)
	if err != nil {
		return err
	}
	sub, outdated, err := h.streams.subscription(c.ctx, r)
	if err != nil {
		return err
	}
	stream, err := h.streams.answer(c.http)
	if err != nil {
		sub.Close()
		return err
	}
	context.AfterFunc(stream.ctx, h.watchSession(c, stream.cancel))
	stream.serve(sub, cmp.Or(last, strconv.FormatInt(sub.Began(), 10)), outdated)
	return nil
}

const headerLastEventID = "Last-Event-ID"

// lastEvent returns the cursor of the last event that the client has seen, or "". A browser that
// reconnects sends a header, which is newer than the parameter in the URL.
func lastEvent(h http.Header, param *string) (text string, seen *events.Cursor, err error) {
	if text = h.Get(headerLastEventID); text != "" {
		seen, err = cursorOf(headerLastEventID, text)
	} else if param != nil {
		text = *param
		seen, err = cursorOf("cursor", text)
	}
	return text, seen, err
}
