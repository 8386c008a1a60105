package imports_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// mentioned finds the path of a file of the module in a comment or on a page.
var mentioned = regexp.MustCompile("(?:^|[\\s(`\"])((?:api|clientsim|cmd|convos|deploy|docs|events|features|idem|" +
	"internal|keypackages|lexicons|messages|migrations|mls|node|operator|outbox|people|welcome)" +
	"/[\\w/.-]+\\.(?:go|sql|md|sh|yml|json))")

// Comments and pages name no file that does not exist.
func TestMentionedFilesExist(t *testing.T) {
	t.Parallel()
	found := 0
	for path, text := range moduletest.Files(t, ".go", ".md", ".sql") {
		for line := range strings.Lines(text) {
			if filepath.Ext(path) == ".go" && !strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			for _, m := range mentioned.FindAllStringSubmatch(line, -1) {
				found++
				if _, err := os.Stat(filepath.Join(root, m[1])); err == nil {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, filepath.Dir(path), m[1])); err != nil { // a page may link relatively
					t.Errorf("%s names %s, which does not exist", path, m[1])
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d files are mentioned: the test finds too few", found)
	}
}
