package api

import (
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/serviceauth"
	"mlsd/people/sessions"
)

// SubscribeConvoEvents: blue.catbird.mls.subscribeConvoEvents. The handshake is accepted before an
// error that the lexicon declares is sent, as an error frame. For any other error, the handshake
// gets an HTTP status.
func (h *handlers) SubscribeConvoEvents(c *call, p *mlsapi.SubscribeConvoEventsParams) (err error) {
	cursor, err := beginning(p.Cursor, p.Position)
	if err != nil {
		return err
	}
	c.caller, err = h.subscriber(c, p.Ticket)
	if err == nil {
		err = c.actsFor(p.DeviceID)
	}
	if err == nil {
		err = h.opens(c)
	}
	var r events.Request
	if err == nil {
		r, err = request(c.caller, p.DeviceID, cursor, p.ConvoIDs)
	}
	if err == nil && p.Ticket != nil {
		_, err = h.Tickets.Redeem(c.ctx, *p.Ticket, c.route.Method.NSID)
	}
	if errors.Is(err, events.ErrInvalidTicket) {
		// The address is charged before the refusal is sent. Otherwise the client could try another
		// ticket before it is charged.
		h.rates.chargeAddress(c.address)
		return h.streams.refuse(c.http, err)
	}
	if err != nil {
		return err
	}
	sub, outdated, err := h.streams.subscription(c.ctx, r)
	if errors.Is(err, events.ErrFutureCursor) {
		return h.streams.refuse(c.http, err)
	}
	if err != nil {
		return err
	}
	socket, err := h.streams.accept(c.http)
	if err != nil {
		sub.Close()
		return err
	}
	context.AfterFunc(socket.ctx, h.watchSession(c, socket.cancel))
	socket.serve(sub, outdated)
	return nil
}

// beginning returns the cursor at which a subscription begins. It is the cursor of position if that
// is set, else of number if that is set, else nil.
func beginning(number *int64, position *string) (*events.Cursor, error) {
	switch {
	case position != nil:
		return cursorOf("position", *position)
	case number != nil:
		return new(events.From(*number)), nil
	}
	return nil, nil
}

// cursorOf reads the text of a cursor in a parameter or a header.
func cursorOf(name, text string) (*events.Cursor, error) {
	c, err := events.ParseCursor(text)
	if err != nil {
		return nil, lexcodec.Malformed(name, "must be the cursor of an event", text)
	}
	return &c, nil
}

// subscriber returns the caller: the DID of the ticket or, without a ticket, that of the token or
// the session. A ticket that was got under a session stands for the session. The ticket is not used
// up yet: if the caller's rate limit or the queue of openings refuses this attempt, the ticket is
// good for another one.
func (h *handlers) subscriber(c *call, ticket *string) (syntax.DID, error) {
	admit := func(did syntax.DID) error { return h.mayCall(c, did) }
	authorization := c.http.Request().Header.Get(echo.HeaderAuthorization)
	bearer, isSession := sessions.Bearer(authorization)
	switch {
	case ticket == nil && isSession:
		err := h.admitSession(c, bearer, admit)
		return c.caller, err
	case ticket == nil:
		token, err := h.Auth.Validate(c.ctx, c.address, authorization, syntax.NSID(c.route.Method.NSID), false, admit)
		return token.Caller, err
	case authorization != "":
		return "", badRequest("there is a ticket and an Authorization header: send one of them")
	}
	holder, err := h.Tickets.Owner(c.ctx, *ticket, c.route.Method.NSID)
	if err != nil {
		return "", err
	}
	if s := holder.Session; s != nil {
		c.session = &sessions.Session{ID: s.ID, DID: holder.DID, Device: s.DeviceID, Expires: s.Expires}
		if err := h.Sessions.Check(c.ctx, *c.session); errors.As(err, new(*serviceauth.InvalidError)) {
			return "", events.ErrInvalidTicket
		} else if err != nil {
			return "", err
		}
	}
	return holder.DID, admit(holder.DID)
}
