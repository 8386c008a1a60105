package api_test

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api"
	"mlsd/events/signals"
	"mlsd/features/requests"
	"mlsd/internal/standby"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

// complete returns a configuration with all that a test does not set: there are no limits, no file
// is deleted, and nobody hears of anything.
func complete(c api.Config) api.Config {
	if c.Committed == nil {
		c.Committed = func() {}
	}
	if c.AttachmentDeleted == nil {
		c.AttachmentDeleted = func() {}
	}
	if c.Erasing == nil {
		c.Erasing = func() {}
	}
	if c.Answered == nil {
		c.Answered = func(requests.Request) {}
	}
	if c.Reads == nil {
		c.Reads = standby.New(standby.Config{DB: c.DB})
	}
	if c.Quotas == nil {
		c.Quotas = quota.New(c.DB, nil, c.Log)
	}
	if c.Gate == nil {
		c.Gate = openGate{}
	}
	if c.Signals == nil {
		c.Signals = noSignals{}
	}
	return c
}

// noSignals drops all signals.
type noSignals struct{}

func (noSignals) Busy() bool               { return false }
func (noSignals) Send(signals.Signal) bool { return false }

// openGate refuses and limits nobody.
type openGate struct{}

func (openGate) Check(context.Context, syntax.DID) error                      { return nil }
func (openGate) Withheld(context.Context, []syntax.DID) ([]syntax.DID, error) { return nil, nil }
func (openGate) Percent(syntax.DID) int                                       { return accounts.Whole }
