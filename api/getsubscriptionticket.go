package api

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
)

// GetSubscriptionTicket: blue.catbird.mls.getSubscriptionTicket. A repeated call gets another ticket: there is nothing to replay.
func (h *handlers) GetSubscriptionTicket(c *call) error {
	ticket, expires, err := h.tickets.Issue(c.ctx, c.caller, mlsapi.NSIDSubscribeConvoEvents)
	if err != nil {
		return err
	}
	c.http.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.reply(&mlsapi.GetSubscriptionTicketOutput{
		Ticket: ticket, URL: h.socketURL + "?ticket=" + url.QueryEscape(ticket), ExpiresAt: mlsapi.NewDatetime(expires),
	})
}

// socketURL is where a WebSocket reaches the subscription of a service with this URL.
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
	return u.JoinPath("xrpc", mlsapi.NSIDSubscribeConvoEvents).String(), nil
}
