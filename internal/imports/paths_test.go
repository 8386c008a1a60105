package imports_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mentioned finds the path of a file of the module in a comment or on a page.
var mentioned = regexp.MustCompile("(?:^|[\\s(`\"])((?:api|clientsim|cmd|convos|deploy|docs|events|features|idem|" +
	"internal|keypackages|lexicons|messages|migrations|mls|node|operator|outbox|people|welcome)" +
	"/[\\w/.-]+\\.(?:go|sql|md|sh|yml|json))")

// Comments and pages name no file that does not exist.
func TestMentionedFilesExist(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "node_modules" || strings.HasPrefix(e.Name(), ".") && path != root):
			return filepath.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md" && filepath.Ext(path) != ".sql":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if filepath.Ext(path) == ".go" && !strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			for _, m := range mentioned.FindAllStringSubmatch(line, -1) {
				found++
				if _, err := os.Stat(filepath.Join(root, m[1])); err == nil {
					continue
				}
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil { // a page may link relatively
					t.Errorf("%s names %s, which does not exist", strings.TrimPrefix(path, root+"/"), m[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 100 {
		t.Errorf("only %d files are mentioned: the test finds too few", found)
	}
}
