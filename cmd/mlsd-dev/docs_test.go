package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// blocks returns the fenced blocks of a page by their language.
func blocks(page string) map[string]string {
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)\n```\n").FindAllStringSubmatch(page, -1) {
		found[m[1]] += m[2] + "\n"
	}
	return found
}

// testPage runs the commands of a page, one after the other, and all of them so many times in one
// shell. Each "# → text" must come next in the output. The command that starts the server must be
// the one that this test uses; the port is another one than the page's.
func (c devClient) testPage(path string, times int) func(*testing.T) {
	return func(t *testing.T) {
		c.t = t
		for _, tool := range []string{"bash", "curl", "sed"} {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("the page needs %s: %v", tool, err)
			}
		}
		c.dev("reset", "{}")
		script := blocks(page(t, path))
		if start := script["sh"]; start != "go run ./cmd/mlsd-dev\n" {
			t.Errorf("the page starts it otherwise: %q", start)
		}
		walk := exec.CommandContext(t.Context(), "bash", "-c", strings.Repeat("set -euo pipefail\n"+script["bash"], times))
		walk.Dir = "../.."
		walk.Env = append(os.Environ(), "MLSD="+c.url, "mlsd="+c.url)
		output, err := walk.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		rest := string(output)
		expected := regexp.MustCompile(`(?m)# → (.+)$`).FindAllStringSubmatch(script["bash"], -1)
		if len(expected) < 10 {
			t.Errorf("the page says what comes only %d times", len(expected))
		}
		for _, m := range slices.Repeat(expected, times) {
			_, after, ok := strings.Cut(rest, m[1])
			if !ok {
				t.Fatalf("no %q in what is left of the output:\n%s\nwhole output:\n%s", m[1], rest, output)
			}
			rest = after
		}
	}
}
