package welcome

import (
	"context"

	"github.com/google/uuid"

	"mlsd/internal/worker"
)

// TryFetch is the first attempt of Fetch. It does not wait for locks.
func (s *Service) TryFetch(ctx context.Context, convo uuid.UUID, to Device) (d Delivery, busy bool, err error) {
	results, err := s.fetchTogether(ctx, []fetch{{convo, to}})
	if err != nil || results[0].busy() {
		return d, err == nil, err
	}
	d, err = results[0].delivery()
	return d, false, err
}

// TryConfirm is the first attempt of Confirm. It does not wait for locks.
func (s *Service) TryConfirm(ctx context.Context, convo uuid.UUID, to Device, success bool) (state State, busy bool,
	err error) {
	results, err := s.confirmTogether(ctx, []confirmation{{convo, to, success, "not stated"}})
	if err != nil || results[0].busy() {
		return "", err == nil, err
	}
	state, _, err = results[0].state(success)
	return state, false, err
}

// FetchesWaiting returns how many fetches wait for the next transaction that they share.
func (s *Service) FetchesWaiting() int { return s.fetches.Waiting() }

// Bounds and statements of the Welcomes that have ended.
const KeepEnded, TrimEnded = keepEnded, trimEnded

// LooksOfARound is how many Welcome bytes a round of the sweep looks at.
const LooksOfARound = looksPerRound * worker.SweepRows

var (
	Trim            = trim
	OpenLease       = openLease
	ConfirmDelivery = confirmDelivery
	LockOpen        = lock
	EraseBytes      = eraseBytes
)
