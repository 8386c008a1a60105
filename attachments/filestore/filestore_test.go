package filestore_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mlsd/attachments/filestore"
	"mlsd/attachments/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	s, err := filestore.New(filepath.Join(t.TempDir(), "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	storetest.Check(t, s)
}

// A crash can leave a half-written file. It is no object, and the listing deletes it once it is old.
func TestHalfWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := filestore.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "p/one/1", bytes.NewReader([]byte("x")), 1); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "p", "one", ".part-123")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		found, err := s.List(t.Context(), "p/", "", 10)
		if err != nil || len(found) != 1 {
			t.Fatalf("%v objects, %v", found, err)
		}
		_, err = os.Stat(left)
		return err == nil
	}
	if !there() {
		t.Error("a file that is being written was deleted")
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	if there() {
		t.Error("a file that a crash has left stays")
	}
}
