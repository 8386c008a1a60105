package quota_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/people/quota"
)

var update = flag.Bool("update", false, "write the table of docs/QUOTAS.md")

// The page of quotas has every quota with its default, and what the program says that it counts.
func TestQuotasPage(t *testing.T) {
	t.Parallel()
	const name, begins, ends = "../../docs/QUOTAS.md", "<!-- generated -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, opened := strings.Cut(string(page), begins)
	got, after, closed := strings.Cut(rest, ends)
	if !opened || !closed {
		t.Fatalf("%s lacks the marks of its table", name)
	}
	var want strings.Builder
	want.WriteString("| quota | default | setting | counts |\n|---|---|---|---|\n")
	for _, q := range quota.All() {
		value := strconv.FormatInt(q.Default, 10)
		if q.Bytes {
			value = strconv.FormatInt(q.Default>>20, 10) + " MiB"
		}
		setting := "–"
		if q.Setting != "" {
			setting = "`" + q.Setting + "`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", q.Name, value, setting, q.Counts)
	}
	if *update {
		got = want.String()
		if err := os.WriteFile(name, []byte(before+begins+got+ends+after), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("%s differs from the table of quotas (-want +got):\n%s\nto write it: "+
			"go test ./people/quota -run TestQuotasPage -update", name, diff)
	}
}
