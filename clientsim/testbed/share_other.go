//go:build !linux

package testbed

import (
	"context"
	"errors"
)

// Share is a share of the processor time. Only Linux has it here.
type Share struct{}

var errNoShares = errors.New("no quota of processor time can be set here: that needs Linux")

// NewShare returns an error.
func NewShare(string) (*Share, error) { return nil, errNoShares }

// Limit returns an error.
func (s *Share) Limit(float64) error { return errNoShares }

// Use returns an error.
func (s *Share) Use() (ShareUse, error) { return ShareUse{}, errNoShares }

// Remove returns an error.
func (s *Share) Remove(context.Context) error { return errNoShares }

func (s *Share) start(start func() error) error { return start() }
