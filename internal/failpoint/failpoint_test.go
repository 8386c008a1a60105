package failpoint_test

import (
	"context"
	"errors"
	"testing"

	"mlsd/internal/failpoint"
)

func TestFiresOnceForItsMethod(t *testing.T) {
	t.Parallel()
	s := failpoint.New()
	if err := s.Arm(failpoint.BeforeCommit, "a", failpoint.Error); err != nil {
		t.Fatal(err)
	}
	for _, elsewhere := range [][2]string{{failpoint.AfterCommit, "a"}, {failpoint.BeforeCommit, "b"}} {
		if err := s.Hit(t.Context(), elsewhere[0], elsewhere[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Hit(t.Context(), failpoint.BeforeCommit, "a"); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatalf("got %v", err)
	}
	if err := s.Hit(t.Context(), failpoint.BeforeCommit, "a"); err != nil {
		t.Fatalf("a second time: %v", err)
	}
}

func TestNilSetDoesNothing(t *testing.T) {
	t.Parallel()
	var s *failpoint.Set
	if err := s.Hit(t.Context(), failpoint.AfterCommit, "a"); err != nil {
		t.Fatal(err)
	}
}

func TestPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := failpoint.New()
	if err := s.Arm(failpoint.AfterCommit, "a", failpoint.Pause); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Hit(ctx, failpoint.AfterCommit, "a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestArmRefusesTheUnknown(t *testing.T) {
	t.Parallel()
	s := failpoint.New()
	if s.Arm("somewhere", "a", failpoint.Kill) == nil || s.Arm(failpoint.AfterCommit, "a", "explode") == nil {
		t.Fatal("armed")
	}
}
