package localpg

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tarOf makes a tar. Each file holds one letter.
func tarOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		h.Mode = 0o755
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func TestUntar(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "bin/"}, file("./bin/postgres"), file("lib/so.1"),
		link("lib/so", "so.1"), link("share/so", "../lib/so"))
	if err := untar(t.Context(), bytes.NewReader(content), dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin/postgres", "lib/so.1", "lib/so", "share/so"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != "x" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// H12: nothing is written outside of the directory, and no more than the limit is read.
func TestUntarRefuses(t *testing.T) {
	t.Parallel()
	hardLink := tar.Header{Typeflag: tar.TypeLink, Name: "two", Linkname: "one"}
	for name, tc := range map[string]struct {
		content []byte
		limit   int64
		want    string
	}{
		"a path outside":     {tarOf(t, file("../evil")), 1 << 20, "escapes"},
		"a hidden path out":  {tarOf(t, file("bin/../../evil")), 1 << 20, "escapes"},
		"an absolute path":   {tarOf(t, file(filepath.Join(os.TempDir(), "evil"))), 1 << 20, "escapes"},
		"a link outside":     {tarOf(t, link("out", ".."), file("out/evil")), 1 << 20, "points outside"},
		"an absolute link":   {tarOf(t, link("out", os.TempDir())), 1 << 20, "points outside"},
		"links that combine": {tarOf(t, link("a/b", "."), link("c", "a/b/../.."), file("c/../evil")), 1 << 20, "escapes"},
		"a file twice":       {tarOf(t, file("one"), file("one")), 1 << 20, "exists"},
		"a device":           {tarOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "dev"}), 1 << 20, "neither"},
		"a hard link":        {tarOf(t, file("one"), hardLink), 1 << 20, "neither"},
		"too large":          {tarOf(t, file("one"), file("two")), 1024, "more than 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			dir := filepath.Join(base, "1", "2")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			err := untar(t.Context(), bytes.NewReader(tc.content), dir, tc.limit)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			err = filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
				if filepath.Base(path) == "evil" {
					t.Errorf("%s was written", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := untar(cancelled, bytes.NewReader(tarOf(t, file("one"))), t.TempDir(), 1<<20); err == nil {
		t.Error("a cancelled context does not end it")
	}
}
