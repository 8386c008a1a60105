// Command sbom prints which modules a binary was built from, as CycloneDX 1.5 in JSON.
//
//	go run ./deploy/sbom BINARY VERSION UNIX-TIME
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the list of a binary, of a version and a time of its commit.
func run(args []string, w io.Writer) error {
	if len(args) != 3 {
		return errors.New("usage: sbom BINARY VERSION UNIX-TIME")
	}
	seconds, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return fmt.Errorf("the time: %w", err)
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the binary: %w", err)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(list(info, args[1], time.Unix(seconds, 0)))
}

// bom is the document.
type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

// component is the program or a module.
type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Hashes  []hash `json:"hashes,omitempty"` // of the module's files, as in go.sum
	URL     string `json:"purl"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// list returns the document of a binary.
func list(info *debug.BuildInfo, version string, at time.Time) bom {
	program := module(info.Main.Path, version, "")
	program.Type = "application"
	b := bom{Format: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata: metadata{Timestamp: at.UTC().Format(time.RFC3339), Component: program}}
	b.Components = append(b.Components, module("std", strings.TrimPrefix(info.GoVersion, "go"), ""))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, module(m.Path, m.Version, m.Sum))
	}
	return b
}

// module returns a component. sum is its line of go.sum.
func module(path, version, sum string) component {
	url := "pkg:golang/" + path + "@" + version
	c := component{Ref: url, Type: "library", Name: path, Version: version, URL: url}
	if digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(digest) > 0 {
		c.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(digest)}}
	}
	return c
}
