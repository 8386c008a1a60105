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

// object is a part of the document.
type object map[string]any

// list returns the document of a binary.
func list(info *debug.BuildInfo, version string, at time.Time) object {
	program := module(info.Main.Path, version, "")
	program["type"] = "application"
	components := []object{module("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, module(m.Path, m.Version, m.Sum))
	}
	return object{"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components,
		"metadata": object{"timestamp": at.UTC().Format(time.RFC3339), "component": program}}
}

// module returns a component. sum is its line of go.sum, the hash of the module's files.
func module(path, version, sum string) object {
	url := "pkg:golang/" + path + "@" + version
	c := object{"bom-ref": url, "type": "library", "name": path, "version": version, "purl": url}
	if digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(digest) > 0 {
		c["hashes"] = []object{{"alg": "SHA-256", "content": hex.EncodeToString(digest)}}
	}
	return c
}
