package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A module that is replaced is listed as what replaces it. Its line of go.sum is a SHA-256.
func TestList(t *testing.T) {
	t.Parallel()
	sum := "h1:" + strings.Repeat("A", 43) + "="
	got := list(&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "mlsd"}, Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0", Sum: sum},
		{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
	}}, "v0.3.0", time.Unix(0, 0))
	component := func(kind, name, version string) object {
		url := "pkg:golang/" + name + "@" + version
		return object{"bom-ref": url, "type": kind, "name": name, "version": version, "purl": url}
	}
	hashed := component("library", "example.com/a", "v1.0.0")
	hashed["hashes"] = []object{{"alg": "SHA-256", "content": strings.Repeat("0", 64)}}
	want := object{"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": object{"timestamp": "1970-01-01T00:00:00Z", "component": component("application", "mlsd", "v0.3.0")},
		"components": []object{component("library", "std", "1.26.8"), hashed,
			component("library", "example.com/c", "v2.0.0")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A binary is read: this one. Those of tests say which Go they were built with, and no modules.
func TestRun(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{self, "v0.3.0", "1700000000"}, &out); err != nil {
		t.Fatal(err)
	}
	var got struct{ Metadata struct{ Timestamp string } }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Timestamp != "2023-11-14T22:13:20Z" || !strings.Contains(out.String(), "pkg:golang/std@") {
		t.Errorf("got %s", out.String())
	}
	for _, args := range [][]string{{}, {self, "v1", "yesterday"}, {"/dev/null", "v1", "0"}} {
		if err := run(args, &out); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
