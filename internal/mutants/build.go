package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what go list reports about a package.
type listed struct {
	ImportPath, Dir, Export            string
	GoFiles, EmbedPatterns, EmbedFiles []string
	Deps                               []string // direct and indirect
	Module                             *struct {
		Main      bool
		GoVersion string
	}
}

// lang returns the version of Go in which a package is written.
func (p *listed) lang() string { return version.Lang("go" + p.Module.GoVersion) }

// goList has go compile packages and everything that they import, and returns all of them by import
// path. A package that was compiled for the tests of another package has a path such as
// "mlsd/events [mlsd/api.test]".
func goList(ctx context.Context, root string, args ...string) (map[string]*listed, error) {
	const fields = "-json=ImportPath,Dir,Export,GoFiles,EmbedPatterns,EmbedFiles,Deps,Module"
	out, err := command(ctx, root, "go", append([]string{"list", "-deps", "-export", fields}, args...)...)
	if err != nil {
		return nil, err
	}
	packages := map[string]*listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages[p.ImportPath] = &p
	}
}

// command runs a command in dir and returns what it prints.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", filepath.Base(name), err, out, errs.Bytes())
	}
	return out, nil
}

// builder makes binaries of tests. For a mutant, it compiles the package that the mutant changes.
// If the tests embed a changed file, it also compiles the package of the tests. It links these with
// the compiled form of all other packages. Importers of the changed package are not compiled again,
// because that would take most of the time. This is correct as long as the package's exported
// interface stays the same, which the linker checks. If the interface differs, go builds
// everything.
type builder struct {
	root, tools string
	tests       map[string]*parts // by the directory of the tests
}

// parts are the files from which the binary of a package's tests is linked.
type parts struct {
	main   string               // the compiled main package
	config string               // lists where each compiled package is
	readBy map[string][]*listed // packages of the module, by the files from which they are compiled
}

// newBuilder has go compile everything from which the tests of chosen are linked.
func newBuilder(ctx context.Context, root string, chosen []mutant) (*builder, error) {
	b := &builder{root: root, tests: map[string]*parts{}}
	args := []string{"-test"}
	for _, m := range chosen {
		if pkg, _ := m.place(); b.tests[pkg] == nil {
			b.tests[pkg] = &parts{readBy: map[string][]*listed{}}
			args = append(args, "./"+pkg)
		}
	}
	all, err := goList(ctx, root, args...)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		pkg, err := filepath.Rel(root, p.Dir)
		if !strings.HasSuffix(p.ImportPath, ".test") || err != nil || b.tests[filepath.ToSlash(pkg)] == nil {
			continue
		}
		b.tests[filepath.ToSlash(pkg)].link(p, all)
	}
	tools, err := command(ctx, root, "go", "env", "GOTOOLDIR")
	b.tools = strings.TrimSpace(string(tools))
	return b, err
}

// link records the packages with which a test's main package is linked.
func (t *parts) link(main *listed, all map[string]*listed) {
	t.main = main.Export
	var config strings.Builder
	for _, name := range main.Deps {
		p := all[name]
		if p.Export == "" { // unsafe
			continue
		}
		name, _, _ := strings.Cut(name, " ")
		fmt.Fprintf(&config, "packagefile %s=%s\n", name, p.Export)
		if p.Module == nil || !p.Module.Main {
			continue
		}
		for _, base := range slices.Concat(p.GoFiles, p.EmbedFiles) {
			file := filepath.Join(p.Dir, filepath.FromSlash(base))
			t.readBy[file] = append(t.readBy[file], p)
		}
	}
	t.config = config.String()
}

// build makes the binary of a package's tests. changed has the new text of changed files. dir must
// be empty, and also receives intermediate files.
func (b *builder) build(ctx context.Context, dir, pkg string, changed map[string]string) (string, error) {
	overlay, copies, err := writeOverlay(dir, changed)
	if err != nil {
		return "", err
	}
	t := b.tests[pkg]
	config := t.config
	compiled := map[*listed]bool{}
	for name := range changed {
		if t.readBy[name] == nil {
			return "", fmt.Errorf("the tests of %s are built without %s", pkg, name)
		}
		for _, p := range t.readBy[name] {
			if compiled[p] {
				continue
			}
			compiled[p] = true
			line, err := b.compile(ctx, dir, t, p, copies)
			if err != nil {
				return "", err
			}
			config += line // the linker uses the last line for a package
		}
	}
	to, file := filepath.Join(dir, "test"), filepath.Join(dir, "link.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", err
	}
	_, err = command(ctx, b.root, filepath.Join(b.tools, "link"), "-o", to, "-importcfg", file,
		"-buildmode=exe", "-s", "-w", "-X", "testing.testBinary=1", t.main)
	if err != nil && strings.Contains(err.Error(), "fingerprint mismatch") {
		_, err = command(ctx, b.root, "go", "test", "-c", "-vet=off", "-ldflags=-s -w",
			"-overlay="+overlay, "-o", to, "./"+pkg)
	}
	return to, err
}

// compile compiles a package, and returns the package's line for the linker. copies maps changed
// files to their copies.
func (b *builder) compile(
	ctx context.Context, dir string, t *parts, p *listed, copies map[string]string,
) (line string, err error) {
	name, _, _ := strings.Cut(p.ImportPath, " ")
	to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
	args := []string{"-o", to + ".a", "-p", name, "-lang=" + p.lang(),
		"-complete", "-nolocalimports", "-pack", "-importcfg", to + ".cfg"}
	embed := struct {
		Patterns map[string][]string
		Files    map[string]string
	}{map[string][]string{}, map[string]string{}}
	at := func(base string) string {
		name := filepath.Join(p.Dir, filepath.FromSlash(base))
		if copied, has := copies[name]; has {
			return copied
		}
		return name
	}
	patterns := p.EmbedPatterns
	if patterns == nil { // go list does not report the patterns of an external test: they are plain names
		patterns = p.EmbedFiles
	}
	for _, base := range p.EmbedFiles {
		embed.Files[base] = at(base)
		for _, pattern := range patterns {
			if embeds(pattern, base) {
				embed.Patterns[pattern] = append(embed.Patterns[pattern], base)
			}
		}
	}
	raw, err := json.Marshal(embed)
	if err != nil {
		return "", err
	}
	if len(p.EmbedFiles) > 0 {
		args = append(args, "-embedcfg", to+".embed")
	}
	err = errors.Join(os.WriteFile(to+".cfg", []byte(t.config), 0o600), os.WriteFile(to+".embed", raw, 0o600))
	if err != nil {
		return "", err
	}
	var names []string // the names by which the binary finds the copies
	for original, copied := range copies {
		names = append(names, copied+"=>"+original)
	}
	args = append(args, "-trimpath", strings.Join(names, ";"))
	for _, base := range p.GoFiles {
		args = append(args, at(base))
	}
	_, err = command(ctx, p.Dir, filepath.Join(b.tools, "compile"), args...)
	return fmt.Sprintf("packagefile %s=%s.a\n", name, to), err
}

// embeds reports whether a pattern of go:embed matches a file, or a directory that contains the
// file.
func embeds(pattern, name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if is, err := path.Match(strings.TrimPrefix(pattern, "all:"), name); is && err == nil {
			return true
		}
	}
	return false
}

// writeOverlay writes files into dir, and a list that tells go where they are. copies maps their
// names in the source to their names in dir.
func writeOverlay(dir string, files map[string]string) (overlay string, copies map[string]string, err error) {
	copies = map[string]string{}
	for name, text := range files {
		copies[name] = filepath.Join(dir, fmt.Sprintf("%d_%s", len(copies), filepath.Base(name)))
		if err := os.WriteFile(copies[name], []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	raw, err := json.Marshal(map[string]any{"Replace": copies})
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, copies, os.WriteFile(overlay, raw, 0o600)
}
