package errs_test

import (
	"errors"
	"testing"

	"mlsd/internal/errs"
)

func TestWrap(t *testing.T) {
	failure := errors.New("no such row")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"text":      {errs.Wrap(failure, "count rows"), "count rows: no such row"},
		"arguments": {errs.Wrap(failure, "count %s", "100%d"), "count 100%d: no such row"},
		"a percent": {errs.Wrap(errors.New("50%d"), "count"), "count: 50%d"},
	} {
		if tc.err.Error() != tc.want {
			t.Errorf("%s: %q, want %q", name, tc.err, tc.want)
		}
	}
	if !errors.Is(errs.Wrap(failure, "count rows"), failure) {
		t.Error("the cause is lost")
	}
	if errs.Wrap(nil, "count rows") != nil {
		t.Error("no error became one")
	}
}
