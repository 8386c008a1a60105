package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// cache remembers which mutants were caught, one file for each. A verdict holds as long as nothing
// changes that the test is built from: the packages that it imports, directly or not, their test
// data, go.sum, and the mutant.
type cache struct {
	dir    string
	inputs map[string]string // hash of what a package's tests are built from, by the package's directory
}

// newCache hashes what the tests of list are built from.
func newCache(ctx context.Context, root string, list []mutant) (*cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	c := &cache{dir: filepath.Join(base, "mlsd-mutants"), inputs: map[string]string{}}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	for _, m := range list {
		pkg, _ := m.place()
		c.inputs[pkg] = ""
	}
	for pkg := range c.inputs {
		if c.inputs[pkg], err = hashInputs(ctx, root, pkg); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// hashInputs hashes what the tests of a package are built from.
func hashInputs(ctx context.Context, root, pkg string) (string, error) {
	out, err := goList(ctx, root, "-test", "-deps", "-json=Dir,Module", "./"+pkg)
	if err != nil {
		return "", err
	}
	dirs := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir    string
			Module *struct{ Main bool }
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("go list: %w", err)
		}
		if p.Module != nil && p.Module.Main {
			dirs[p.Dir] = true
		}
	}
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version())
	if err := hashFile(h, filepath.Join(root, "go.sum")); err != nil {
		return "", err
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := hashDir(h, dir); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashDir hashes all below a package's directory: it may embed or read what is there.
func hashDir(h io.Writer, dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() || filepath.Ext(name) == ".md":
			return nil
		}
		return hashFile(h, name)
	})
}

func hashFile(h io.Writer, name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	return err
}

// key is the hash of all that the verdict on m depends on.
func (c *cache) key(m mutant, changed map[string]string) string {
	h := sha256.New()
	pkg, name := m.place()
	fmt.Fprintln(h, c.inputs[pkg], name)
	for _, file := range slices.Sorted(maps.Keys(changed)) {
		fmt.Fprintf(h, "%s %d\n%s", file, len(changed[file]), changed[file])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// file is where the last verdict on m is.
func (c *cache) file(m mutant) string {
	h := sha256.Sum256([]byte(m.name))
	return filepath.Join(c.dir, hex.EncodeToString(h[:8]))
}

// get returns what m's test said when it caught m, and "" if that is not known.
func (c *cache) get(m mutant, changed map[string]string) string {
	raw, err := os.ReadFile(c.file(m))
	if err != nil {
		return ""
	}
	key, why, _ := strings.Cut(string(raw), "\n")
	if key != c.key(m, changed) {
		return ""
	}
	return why
}

// put remembers that m was caught.
func (c *cache) put(m mutant, changed map[string]string, why string) error {
	return os.WriteFile(c.file(m), []byte(c.key(m, changed)+"\n"+why), 0o600)
}
