package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// serviceKeys returns the service's keys in the DID document of a node; that of #atproto comes first.
func serviceKeys(t *testing.T, public string) (keys []string) {
	t.Helper()
	status, document := fetch(t, public+"/.well-known/did.json")
	if status != http.StatusOK {
		t.Fatalf("did.json: %d %s", status, document)
	}
	for _, found := range regexp.MustCompile(`#(atproto|mls_service_\w+)".*?"publicKeyMultibase":"(\w+)"`).
		FindAllStringSubmatch(document, -1) {
		if found[1] == "atproto" {
			keys = slices.Insert(keys, 0, found[2])
		} else {
			keys = append(keys, found[2])
		}
	}
	return keys
}

// N8: a service that deals with others has a key of its own in a file: it is made at the first start,
// also on a database that has been used before. Another node needs a copy. A key that has leaked is
// replaced at once, and a node with the old file signs nothing.
func TestServiceKeyCommand(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	file, copied := filepath.Join(dir, "a", "service.key"), filepath.Join(dir, "b.key")
	database := "MLSD_DATABASE_URL=" + pgtest.URL(t)
	alone := boot(t, []string{database}, w.flags()...)
	if keys := serviceKeys(t, alone.public); len(keys) != 0 {
		t.Errorf("a service that deals with no other has the keys %v", keys)
	}
	alone.stop()
	launch(t, []string{database}, "service-key", "list").fails("MLSD_SERVICES")

	configured := func(file string) []string {
		return []string{database, "MLSD_SERVICES=all", "MLSD_SERVICE_KEY_FILE=" + file}
	}
	command := func(args ...string) string {
		t.Helper()
		s := launch(t, configured(file), append([]string{"service-key"}, args...)...)
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
		return s.stdout.String()
	}
	one := boot(t, configured(file), w.flags()...)
	first := serviceKeys(t, one.public)
	if len(first) != 2 || first[0] != first[1] || !strings.Contains(command("list"), "#atproto did:key:"+first[0]+"\n") {
		t.Errorf("the keys %v; listed %s", first, command("list"))
	}
	launch(t, configured(copied), w.flags()...).fails("does not have the service's key", copied, "docs/OPERATING.md")
	copyKey := func() {
		t.Helper()
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(copied, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyKey()
	two := boot(t, configured(copied), w.flags()...)
	wantKeys := func(when string, s *server, want func([]string) bool) (keys []string) {
		t.Helper()
		await.Until(t, when, func() bool { keys = serviceKeys(t, s.public); return want(keys) })
		return keys
	}
	command("rotate")
	second := wantKeys("two keys", one, func(keys []string) bool { return len(keys) == 3 && keys[2] == first[0] })
	command("rotate", "--leaked")
	wantKeys("another key alone", one, func(keys []string) bool {
		return len(keys) == 2 && keys[0] != first[0] && keys[0] != second[0]
	})
	wantKeys("a node with the file before has no key", two, func(keys []string) bool { return len(keys) == 0 })
	copyKey()
	wantKeys("the copy is read", two, func(keys []string) bool { return len(keys) == 2 })
}
