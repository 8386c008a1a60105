package events

import "context"

// Hub hands the events to the subscriptions of this node.
type Hub struct{}

// Subscription is somebody who listens. Its methods are for one goroutine, but Close.
type Subscription struct {
	// Outdated says that the cursor was older than what is kept: the stream begins with the oldest event there is.
	Outdated bool
}

// Subscribe begins a subscription. Errors besides the database's: ErrFutureCursor, ErrTooMany, ErrClosing.
func (h *Hub) Subscribe(ctx context.Context, r Request) (*Subscription, error) { return nil, ErrClosing }

// Next waits for the next event and returns it. Errors: ErrConsumerTooSlow, ErrClosing, ctx's, the database's.
func (s *Subscription) Next(ctx context.Context) (*Event, error) { return nil, ErrClosing }

// Slow ends the subscription with ErrConsumerTooSlow: its reader does not take what it is sent.
func (s *Subscription) Slow() {}

// Close ends the subscription. It may be called more than once, from any goroutine.
func (s *Subscription) Close() {}
