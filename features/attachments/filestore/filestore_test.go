package filestore_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/features/attachments/filestore"
	"mlsd/features/attachments/storetest"
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

// A listing of many attachments takes them page by page, and keeps no more in memory than a page. It
// goes on over directories that have no object.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := filestore.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	const all, step, page = 6000, 100, 25
	var want []string
	for i := range all { // one in a hundred has an object
		name := fmt.Sprintf("p/%06d", i)
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if i%step == step-1 {
			want = append(want, name+"/1")
			if err := os.WriteFile(filepath.Join(dir, name, "1"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		found, err := s.List(t.Context(), "p/", after, page)
		if err != nil || len(found) > page {
			t.Fatalf("%d objects, %v", len(found), err)
		}
		if len(found) == 0 {
			break
		}
		for _, o := range found {
			got = append(got, o.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	names, err := filestore.First(filepath.Join(dir, "p"), "001000", page)
	if err != nil || len(names) != page || names[0] != "001000" || cap(names) > all/2 {
		t.Errorf("%q, of %d in memory: %v", names, cap(names), err)
	}
}
