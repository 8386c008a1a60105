package quota_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
	"mlsd/people/quota"
)

// The page of quotas has every quota with its default, and what the program says that it counts.
func TestQuotasPage(t *testing.T) {
	t.Parallel()
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
	moduletest.Table(t, "docs/QUOTAS.md", "", want.String())
}
