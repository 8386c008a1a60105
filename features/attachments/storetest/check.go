package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/features/attachments"
)

// Check checks what package attachments expects of a store.
func Check(t *testing.T, s attachments.Store) {
	t.Helper()
	ctx, prefix := t.Context(), uuid.NewString()+"/"
	one, two := prefix+"00000000-0000-7000-8000-000000000001/1-a", prefix+"00000000-0000-7000-8000-000000000002/1-b"
	body := bytes.Repeat([]byte("0123456789"), 30_000)
	for _, name := range []string{two, one} {
		if err := s.Put(ctx, name, bytes.NewReader(body), int64(len(body))); err != nil {
			t.Fatalf("put: %v", err)
		}
	}
	short := prefix + "00000000-0000-7000-8000-000000000003/1-c"
	if err := s.Put(ctx, short, bytes.NewReader(body), int64(len(body))+1); err == nil {
		t.Error("a body that is too short was stored")
	}
	if _, err := s.Open(ctx, short, 0, 1); !errors.Is(err, attachments.ErrNoObject) {
		t.Errorf("what was not stored opens with %v, want ErrNoObject", err)
	}
	for _, r := range []struct{ offset, n int64 }{{0, int64(len(body))}, {0, 1}, {7, 100}, {int64(len(body)) - 1, 1}} {
		in, err := s.Open(ctx, one, r.offset, r.n)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		got, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close()); err != nil || !bytes.Equal(got, body[r.offset:r.offset+r.n]) {
			t.Errorf("bytes %d to %d are not those that were stored (%d bytes, %v)", r.offset, r.offset+r.n, len(got), err)
		}
	}
	list := func(after string, limit int, want ...string) {
		t.Helper()
		found, err := s.List(ctx, prefix, after, limit)
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		var names []string
		for _, o := range found {
			names = append(names, o.Name)
			if age := time.Since(o.At); age > time.Hour || age < -time.Hour {
				t.Errorf("%s was written %s ago", o.Name, age)
			}
		}
		if len(names) != len(want) {
			t.Fatalf("behind %q: %q, want %q", after, names, want)
		}
		for i := range want {
			if names[i] != want[i] {
				t.Errorf("behind %q: %q, want %q", after, names, want)
			}
		}
	}
	list("", 10, one, two)
	list("", 1, one)
	list(one, 10, two)
	list(two, 10)
	for range 2 { // deleting it again is no error
		if err := s.Delete(ctx, one); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	list("", 10, two)
	if err := s.Put(ctx, two, bytes.NewReader([]byte("other")), 5); err != nil {
		t.Errorf("replace: %v", err)
	}
	in, err := s.Open(ctx, two, 0, int64(len(body)))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "other" {
		t.Errorf("the replaced object is %d bytes, %v", len(got), err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Put(gone, one, bytes.NewReader(body), int64(len(body))); err == nil {
		t.Error("a put whose context has ended succeeds")
	}
	if err := s.Delete(ctx, two); err != nil {
		t.Errorf("delete: %v", err)
	}
}
