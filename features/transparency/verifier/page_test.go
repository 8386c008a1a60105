package verifier_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/moduletest"
)

const pageName = "../../../docs/TRANSPARENCY.md"

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(pageName)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// part returns what the page has behind a mark, up to the next heading.
func part(t *testing.T, mark string) string {
	t.Helper()
	_, text, ok := strings.Cut(page(t), "<!-- checked: "+mark+" -->\n")
	if !ok {
		t.Fatalf("docs/TRANSPARENCY.md has no mark %q", mark)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// The examples of docs/TRANSPARENCY.md are a head and a leaf as they are computed, and its table says
// what the verifier says of each cheating server.
func TestPage(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.add(t, alice, 3)
	text, _, _ := strings.Cut(s.sign(3), "\n\n")
	if !strings.Contains(part(t, "head"), text+"\n") {
		t.Errorf("the example of a head should be:\n%s", text)
	}
	e := verifier.Entry{
		Seq: 7, Kind: verifier.Application, Epoch: 3, At: time.UnixMilli(1795426207000),
		Body: verifier.BodyHash([]byte("foo")),
		Tag:  verifier.TagOf(salt(bob), bob),
	}
	if !strings.Contains(part(t, "leaf"), "```\n"+string(e.Record())+"```\n") {
		t.Errorf("the example of a leaf should be:\n%s", e.Record())
	}
	var want strings.Builder
	want.WriteString("| a server that cheats | the client says |\n|---|---|\n")
	for _, c := range cheats {
		fmt.Fprintf(&want, "| %s | %s |\n", c.name, c.want)
	}
	moduletest.Table(t, "docs/TRANSPARENCY.md", "What it says", want.String())
}
