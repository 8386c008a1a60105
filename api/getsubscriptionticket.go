package api

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/nsid"
)

// GetSubscriptionTicket: blue.catbird.mls.getSubscriptionTicket. A repeated call gets another
// ticket. If the ticket was got under a session, its stream ends with the session.
func (h *handlers) GetSubscriptionTicket(c *call) error {
	to := events.Holder{DID: c.caller}
	if c.session != nil {
		to.Session = &events.HolderSession{ID: c.session.ID, DeviceID: c.session.Device, Expires: c.session.Expires}
	}
	ticket, expires, err := h.Tickets.Issue(c.ctx, to, nsid.SubscribeConvoEvents)
	if err != nil {
		return err
	}
	c.http.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.reply(&mlsapi.GetSubscriptionTicketOutput{
		Ticket: ticket, URL: h.socketURL + "?ticket=" + url.QueryEscape(ticket), ExpiresAt: lexcodec.NewDatetime(expires),
	})
}

// socketURL returns the WebSocket URL of the subscription for a service with the given public URL.
func socketURL(public string) (string, error) {
	u, err := url.Parse(public)
	if err != nil {
		return "", fmt.Errorf("read the public URL: %w", err)
	}
	switch u.Scheme {
	case "https":
		u.Scheme = "wss"
	case "http":
		u.Scheme = "ws"
	default:
		return "", errors.New("there is no public URL to make tickets for")
	}
	return u.JoinPath("xrpc", nsid.SubscribeConvoEvents).String(), nil
}
